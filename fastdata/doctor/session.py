"""The process of a script that is only tried: it runs the script, and stops at its steps.

    parent --Request--> start; watch some steps
           <--Watched--
           --Run-------> follow advice, run N steps --> Ran    again and again

The script's own code runs in the main thread, as ever.  At the end of a step it waits for the
parent's next message.  When the parent has ended, or says so, this process ends at once, with all
that it has started, and without any more code of the script.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import os
import random
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn

from fastdata.doctor.advice import ADVICE
from fastdata.doctor.contract import Change
from fastdata.doctor.first_steps import WATCHED_STEPS, FirstSteps
from fastdata.doctor.memory import forget_peak, peak_bytes, uses_cuda
from fastdata.doctor.messages import OWN, Ended, Plain, Ran, Request, Run, Watched
from fastdata.doctor.numerics import make_float64, named_parameters, remember, step_dump, to_float64
from fastdata.doctor.replaying import EPOCH_STEPS, Replay
from fastdata.doctor.script import error_line, users_traceback
from fastdata.doctor.seen import Seen
from fastdata.doctor.stepless import Stepless
from fastdata.doctor.watching import Watch
from fastdata.doctor.writes import WritesKept
from fastdata.processes.calls import kept_writes

__all__ = ["Session", "connected"]

READ_ONCE = "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "PYTORCH_", "TORCH_", "CUDA_", "CUBLAS_"
"""Beginnings of variables that torch, or a library of its own, reads as it is imported."""

STARTING_BATCHES = 2
"""The loop waits for them until workers have begun, so they do not count."""

_REFUSED = re.compile("Permission denied|Read-only|readonly database|unable to open database")
_MAY_WRITE = (
    "fastdata doctor lets a script write only to a scratch folder and to caches. With "
    "--unprotected, libraries in C and other programs may write to all files"
)

WATCHED_SECONDS = 20.0
"""Limit for training that is only watched; validation may take as long again."""


class Session:
    """Answers to its parent while the script of a request runs.

    A context: inside it, the script's code stands, or ``session.request.script.run()`` runs it.
    The process ends with the context, whatever the script has done.
    """

    def __init__(self, connection: Connection[Any, Any], request: Request) -> None:
        self._connection, self.request = connection, request
        self._deadline = time.monotonic() + request.seconds
        self._writes = WritesKept(Path(request.scratch), [*request.writable.values()])
        self._watch = Watch(self._on_step)
        self._seen = self._watch.seen
        self._stepless = Stepless(request.script, self._seen, self._end_with)
        self._replay = Replay(request, self._watch)
        self._first_steps = FirstSteps(self._watch, self._replay.loaders.get)
        self._changes: dict[str, list[Change]] = {}  # by ID of advice
        self._follow: tuple[str, ...] = ()
        self._undo = contextlib.ExitStack()
        self._restore: Callable[[], None] | None = None  # the state before the first dump
        self._steps = self._left = 0  # steps to run; steps that remain
        self._began = 0.0, 0.0
        self._dump: Callable[[], None] | None = None
        self._first_step = 0.0
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Session:
        if self.request.phase == "evaluate":
            self._watch.on_forward = self._on_evaluation
        self._watch.on_event = self._on_event
        self._stepless.install()
        os.register_at_fork(after_in_child=self._on_fork)
        self._seed()
        self._writes.install(audits=self.request.protection == "none")
        self._watch.install()
        self._replay.install()
        self._look_at_environment()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> NoReturn:
        if isinstance(error, SystemExit):
            if error.code not in (None, 0):
                self._fail(f"SystemExit: {error.code}")
        elif error is not None:
            self._fail(users_traceback(error))
        steps = self._seen.steps_seen
        self._end_with(
            f"the script ended after {steps:,} steps" if steps else self._stepless.why_ended()
        )

    def _end_with(self, why: str) -> NoReturn:
        self._finish(Ended(why, watched=self._watched()))

    def _finish(self, message: object) -> NoReturn:
        """Send a last message and end."""
        self._connection.send(message)
        _end_group()

    def _fail(self, why: str) -> NoReturn:
        watched = self._watched()
        if self.request.protection != "none" and _REFUSED.search(why):
            why += f"\n{_MAY_WRITE}"
        message: object = Ended(why, failed=True, watched=watched)
        if self.request.watch_only and self._replay.has_cut and watched.steps >= WATCHED_STEPS:
            message = replace(watched, failed=error_line(why))
        self._finish(message)

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

    def _seed(self, number: int = 0) -> None:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(number)

    # -- at the end of steps -------------------------------------------------------------------

    def _on_step(self) -> None:
        """Called after each step of the optimiser, until steps are measured."""
        steps = self._seen.steps_seen
        self._first_step = self._first_step or time.monotonic()
        self._first_steps.end_step()
        if steps < WATCHED_STEPS:
            return
        is_late = time.monotonic() - self._first_step > WATCHED_SECONDS
        epochs = len(self._replay.trained)
        if self.request.watch_only:
            if steps == EPOCH_STEPS:  # validation may come now
                self._deadline = min(self._deadline, self._first_step + 2 * WATCHED_SECONDS)
            if (is_late and steps > EPOCH_STEPS) or epochs > 1:
                self._finish(self._watched())
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
        if not self._seen.steps_seen:
            if not self._watch.is_stepping:
                self._stepless.note(kind)
        elif self.request.watch_only and kind == "forward" and time.monotonic() > self._deadline:
            self._finish(self._watched())

    def _on_evaluation(self, model: nn.Module) -> None:
        """Called after each forward pass in evaluation mode of a validation to be measured."""
        if self._replay.repeats:
            model.register_forward_hook(lambda *_: self._on_unit())
            self._watch.on_forward = None
            self._begin()

    def _on_unit(self) -> None:
        """Called after each step, or pass of a validation, that is measured."""
        if self._dump is not None:
            self._dump()
            self._dump = None
        self._left -= 1
        if self._left:
            return
        (now, cpu_now), (began, cpu_began) = _clocks(), self._began
        peak, reserved = peak_bytes(), 0
        if uses_cuda():
            peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        parts, cpu_seconds = self._watch.part_seconds, cpu_now - cpu_began
        self._connection.send(Ran(now - began, peak, self._steps, parts, reserved, cpu_seconds))
        self._wait()

    def _begin(self) -> None:
        """Follow the advice, and wait for the parent from now on."""
        watched = self._watched()
        self._changes = {
            advice.id: [one.change for one in advice.find(self._seen) if one.change is not None]
            for advice in ADVICE
            if advice.phase == self.request.phase
        }
        if self.request.in_float64:
            make_float64(self._seen.models, self._seen.optimizers)
            self._replay.convert = to_float64
        self._watch.only_steps()
        self._first_steps.close()  # which a validation may come before
        self._watch.on_event, self._watch.on_step = (lambda kind: None), self._on_unit
        forget_peak()
        self._seed()
        self._connection.send(watched)
        self._wait()

    def _wait(self) -> None:
        """Wait for the next message of the parent, and begin its steps."""
        command: Run = self._connection.recv()
        if command.dump:
            self._switch(())
            if self._restore is None:
                self._restore = remember(self._seen.models, self._seen.optimizers)
            self._restore()
            self._replay.next_batch = 0
            self._seed(command.seed)
        self._switch(command.follow)
        if command.dump:
            parameters = named_parameters(self._seen.models, self._seen.optimizers[0])
            self._dump = step_dump(command.dump, parameters)
        if command.forget_peak:
            forget_peak()
        self._steps = self._left = command.steps
        self._watch.part_seconds = defaultdict(float)
        self._began = _clocks()

    def _switch(self, follow: tuple[str, ...]) -> None:
        """Follow this advice, and no other."""
        if follow == self._follow:
            return
        self._undo.close()
        self._follow = follow
        for id in sorted(follow):
            for change in self._changes.get(id, ()):
                self._undo.callback(change())

    # -- messages --------------------------------------------------------------------------

    def _watched(self) -> Watched:
        """Return the facts that were seen, with the findings of all advice."""
        seen = self._seen
        fed = self._replay.waits[STARTING_BATCHES:]
        waited = sum(wait for wait, _ in fed)
        whole = waited + sum(step for _, step in fed)
        parameters = {id(p): p.numel() for model in seen.models for p in model.parameters()}
        parts = {part for one in seen.models for part in one.modules() if part is not one}
        return Watched(
            tuple(_findings(seen)),
            seen.steps_seen,
            waited / whole if whole else 0.0,
            whole / len(fed) if fed else 0.0,
            "cuda" if seen.on_gpu else "cpu",
            torch.get_num_threads(),
            tuple(type(model).__name__ for model in seen.models if model not in parts),
            tuple(type(one).__name__ for one in seen.optimizers),
            sum(parameters.values()),
            seen.validates,
            dict.fromkeys(kept_writes(Path(self.request.scratch)), 1) | self._writes.blocked,
            self.request.protection,
            {name: path for name, path in self.request.writable.items() if name != OWN},
            environment=self._environment,
            held=seen.held,
            held_bytes=seen.held_bytes,
        )


def _findings(seen: Seen) -> Iterator[Plain]:
    for advice in ADVICE if seen.steps else ():
        needs_gpu = advice.gpu_only and not seen.on_gpu
        for one in advice.find(seen):
            what, is_tried = one.what or advice.title, one.is_tried and not needs_gpu
            why_not = "" if one.is_tried else one.why_not or advice.why_not
            why_not = "GPU only" if needs_gpu else why_not
            yield Plain(
                advice.id, one.where, what, one.environment, is_tried, why_not, advice.phase
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


def connected() -> Session:
    """Return the session that the parent requests, by the descriptor of the command line."""
    faulthandler.enable()
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    return Session(connection, connection.recv())
