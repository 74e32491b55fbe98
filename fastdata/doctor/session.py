"""The process of a script that is only tried: it runs the script, and stops at its steps.

    parent --Request--> start; watch some steps; follow advice
           <--Watched--
           --Run(steps)--> so many steps --> Ran(seconds)    again and again
           --Dump--------> the next step's gradients and parameters, to a file

The script's own code runs in the main thread, as ever.  At the end of a step it waits for what the
parent wants next.  When the parent has ended, or says so, this process ends at once, with all that
it has started, and without any more code of the script.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import os
import random
import signal
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from fastdata.doctor.advice import ADVICE
from fastdata.doctor.contract import Change
from fastdata.doctor.facts import rank_facts, watched_facts
from fastdata.doctor.first_steps import WATCHED_STEPS, FirstSteps
from fastdata.doctor.memory import forget_peak, peak_bytes, uses_cuda
from fastdata.doctor.messages import Dump, Ended, Ran, Request, Run, Switch, Watched
from fastdata.doctor.numerics import (
    State,
    StepDump,
    digest,
    make_float64,
    named_parameters,
    to_float64,
)
from fastdata.doctor.replaying import EPOCH_STEPS, Mode, Replay
from fastdata.doctor.script import users_traceback
from fastdata.doctor.stepless import Stepless
from fastdata.doctor.watching import Watch
from fastdata.doctor.writes import WritesKept

__all__ = ["Session", "connected"]

RANKS_STEPS = 36
"""Steps of ranks that are compared, where they reach no second epoch."""

READ_ONCE = "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "PYTORCH_", "TORCH_", "CUDA_", "CUBLAS_"
"""Beginnings of variables that torch, or a library of its own, reads as it is imported."""

WATCHED_SECONDS = 20.0
"""Of training that is only watched; of validation as much again."""


class Session:
    """Answers to its parent while the script of a request runs.

    A context, within which the script's code is, or ``exec(*session.request.script.program())``
    runs it; at its end the process ends, whatever the script has done.
    """

    def __init__(self, connection: Connection[Any, Any], request: Request) -> None:
        self._connection, self.request = connection, request
        self._writes = WritesKept(Path(request.scratch))
        self._deadline = time.monotonic() + request.seconds
        self._watch = Watch(self._on_step)
        self._stepless = Stepless(
            request.script, lambda: self._watch.seen.steps_seen > 0, self._end_with
        )
        mode: Mode = "watch" if request.watch_only else request.phase
        self._replay = Replay(mode, self._watch, request.batch_factor, compared=request.ranks > 1)
        self._changes: dict[str, list[Change]] = {}  # by ID of advice
        self._undo = contextlib.ExitStack()
        self._first: State | None = None  # before the first dump
        self._steps = 0  # that are to be run
        self._left = 0  # of the steps that are to be run
        self._began = 0.0, 0.0
        self._measures = False
        self._first_steps = FirstSteps(self._watch, self._replay.loader_of)
        self._dump: StepDump | None = None
        self._first_step = 0.0
        self._weights = ""
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Session:
        if self.request.phase == "evaluate":
            self._watch.on_forward = self._on_evaluation
        self._watch.on_event = self._on_event
        self._stepless.install()
        os.register_at_fork(after_in_child=self._on_fork)
        self._seed()
        self._writes.install()
        self._watch.install()
        self._replay.install()
        if self.request.is_main:
            self.request.script.become_main()
        self._look_at_environment()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> NoReturn:
        if isinstance(error, SystemExit):
            if error.code not in (None, 0):
                self._fail(f"SystemExit: {error.code}")
        elif error is not None:
            self._fail(users_traceback(error, is_main=self.request.is_main))
        steps = self._watch.seen.steps_seen
        self._end_with(
            f"the script ended after {steps:,} steps" if steps else self._stepless.why_ended()
        )

    def _end_with(self, why: str) -> NoReturn:
        self._finish(Ended(why, watched=self._watched(complete=True)))

    def _fail(self, why: str) -> NoReturn:
        watched = self._watched()
        if self.request.watch_only and self._replay.has_cut and watched.steps >= WATCHED_STEPS:
            self._send(replace(watched, failed=why.splitlines()[-1]))
        else:
            self._send(Ended(why, failed=True, watched=watched))
        _end_group()

    def _look_at_environment(self) -> None:
        """Note which variables the script sets before it imports torch, which is here already."""
        before, original = dict(os.environ), builtins.__import__

        def importing(name: str, *arguments: Any, **options: Any) -> Any:
            if name.partition(".")[0] == "torch" and builtins.__import__ is importing:
                builtins.__import__ = original
                self._environment = {
                    variable: value
                    for variable, value in os.environ.items()
                    if variable.startswith(READ_ONCE) and before.get(variable) != value
                }
            return original(name, *arguments, **options)

        builtins.__import__ = importing

    def _seed(self) -> None:
        seed = self.request.seed
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    # -- at the end of steps -------------------------------------------------------------------

    def _on_step(self) -> None:
        """Called after each step of the optimiser."""
        if self._dump is not None:
            self._dump.write()
            self._dump = None
        if self._measures:
            self._on_unit()
            return
        steps = self._watch.seen.steps_seen
        self._first_step = self._first_step or time.monotonic()
        self._first_steps.end_step()
        if steps < WATCHED_STEPS:
            return
        is_late = time.monotonic() - self._first_step > WATCHED_SECONDS
        epochs = self._replay.epochs
        if self.request.ranks > 1:
            if steps == WATCHED_STEPS:
                self._weights = digest(list(self._parameters().values()))
                self._send(self._watched())  # it may wait for the others for ever, later
            if steps >= RANKS_STEPS or epochs > 1:
                self._end_watching()
        elif self.request.watch_only:
            if steps == EPOCH_STEPS:  # validation may come now
                self._deadline = min(self._deadline, self._first_step + 2 * WATCHED_SECONDS)
            if (is_late and steps > EPOCH_STEPS) or epochs > 1:
                self._end_watching()
        elif self.request.phase == "train":
            self._begin()
        elif is_late or epochs > 2:
            self._fail("no validation was reached whose batches come from a loader")

    def _on_fork(self) -> None:
        """Only note that it trains, in a process that the script has forked."""
        self._watch.on_step = self._stepless.note_child
        self._watch.on_event, self._watch.on_forward = (lambda kind: None), None

    def _on_event(self, kind: str) -> None:
        """Called at each batch, forward and backward pass, until steps are measured."""
        is_alone = self.request.watch_only and self.request.ranks == 1
        if not self._watch.seen.steps_seen:
            if not self._watch.is_stepping:
                self._stepless.note(kind)
        elif is_alone and kind == "forward" and time.monotonic() > self._deadline:
            self._end_watching()

    def _on_evaluation(self, model: nn.Module) -> None:
        """Called after each forward pass in evaluation mode of a validation to be measured."""
        if self._replay.repeats:
            model.register_forward_hook(lambda *_: self._on_unit())
            self._watch.on_forward = None
            self._begin()

    def _on_unit(self) -> None:
        """Called after each step, or pass of a validation, that may be measured."""
        self._left -= 1
        if self._left == 0:
            self._answer()

    def _end_watching(self) -> NoReturn:
        self._finish(self._watched(complete=True))

    def _finish(self, message: object) -> NoReturn:
        """Send a last message and end; one of several ranks waits until all were seen."""
        self._send(message)
        if self.request.ranks > 1:
            with contextlib.suppress(EOFError, OSError):
                self._connection.recv()
        _end_group()

    def _begin(self) -> None:
        """Follow the advice, and wait for the parent from now on."""
        seen = self._watch.seen
        watched = self._watched()
        for advice in ADVICE:
            if advice.phase == self.request.phase:
                found = (finding.change for finding in advice.find(seen))
                self._changes[advice.id] = [change for change in found if change is not None]
        if self.request.in_float64:
            make_float64(seen.models, seen.optimizers)
            self._replay.convert = to_float64
        self._watch.only_steps()
        self._watch.on_event = lambda kind: None
        forget_peak()
        self._seed()
        self._measures = True
        self._send(watched)
        self._wait()

    def _answer(self) -> None:
        seconds, cpu_seconds = (
            now - then for now, then in zip(_clocks(), self._began, strict=True)
        )
        peak, memory = peak_bytes(), (0, 0)
        if uses_cuda():
            peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            memory = reserved, torch.cuda.memory_stats().get("num_alloc_retries", 0)
        parts = self._watch.part_seconds
        self._send(
            Ran(seconds, peak, self._steps, self._replay.samples, parts, *memory, cpu_seconds)
        )
        self._wait()

    def _wait(self) -> None:
        """Do what the parent wants next."""
        try:
            while isinstance(command := self._connection.recv(), Switch):
                self._switch(command.follow)
                if command.forget_peak:
                    forget_peak()
        except (EOFError, OSError):
            _end_group()
        if isinstance(command, Dump):
            self._switch(())
            if self._first is None:
                self._first = State(self._watch.seen.models, self._watch.seen.optimizers)
            self._first.restore()
            self._replay.rewind()
            self._seed()
            self._switch(command.follow)
            self._dump, self._left = StepDump(command.path, self._parameters()), 1
        elif isinstance(command, Run):
            self._left = command.steps
        else:
            _end_group()
        self._steps = self._left
        self._watch.part_seconds = defaultdict(float)
        self._began = _clocks()

    def _switch(self, follow: tuple[str, ...]) -> None:
        """Follow this advice, and no other."""
        self._undo.close()
        for id, changes in self._changes.items():
            for change in changes if id in follow else ():
                self._undo.callback(change())

    def _parameters(self) -> dict[str, torch.Tensor]:
        return named_parameters(self._watch.seen.models, self._watch.seen.optimizers[0])

    # -- what is sent --------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            _end_group()

    def _watched(self, *, complete: bool = False) -> Watched:
        seen, replay = self._watch.seen, self._replay
        rank = None
        if self.request.ranks > 1:
            seed = self._seed if complete else None
            rank = rank_facts(seen, replay.trained_with, self._weights, seed)
        blocked, environment = dict(self._writes.blocked), self._environment
        return watched_facts(
            seen, replay.waits, blocked=blocked, environment=environment, rank=rank
        )


def _clocks() -> tuple[float, float]:
    """Return the time, and the CPU time of this process, once a GPU has done its work."""
    if uses_cuda():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def _end_group() -> NoReturn:
    """End this process and all that it has started, at once."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_with(lifeline: int) -> None:
    """Have a thread end everything when the other end of a pipe is closed, as by a death."""

    def watch() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="fastdata doctor", daemon=True).start()


def connected() -> Session:
    """Return what the parent requests, by the descriptors of the command line."""
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    lifeline = int(sys.argv[2])
    faulthandler.enable()
    _end_with(lifeline)
    return Session(connection, connection.recv())
