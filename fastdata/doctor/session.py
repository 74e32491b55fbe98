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
import ctypes
import faulthandler
import gc
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from fastdata.doctor.advice import ADVICE
from fastdata.doctor.copies import CopiesFollowed
from fastdata.doctor.messages import Dump, Ended, Plain, Ran, RankFacts, Request, Run, Watched
from fastdata.doctor.numerics import digest
from fastdata.doctor.outputs import OutputsFollowed, codes_of
from fastdata.doctor.replaying import EPOCH_STEPS, Mode, Replay
from fastdata.doctor.script import read_instead
from fastdata.doctor.slices import SlicesFollowed
from fastdata.doctor.watching import Watch
from fastdata.doctor.writes import WritesKept
from fastdata.measuring.stalls import StallCounter, stall_modes

__all__ = ["Session", "connected"]

_save = torch.save  # before it is kept from writing

WATCHED_STEPS = 4
"""Steps before advice is followed; in the second and third outputs are followed,
and in the fourth is looked for what makes a GPU wait."""

OUTPUTS_STEP, STALL_STEP = 1, 3

_OWN = str(Path(__file__).parent) + os.sep

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
        self._watch = Watch(self._on_step)
        mode: Mode = "watch" if request.watch_only else request.phase
        self._replay = Replay(
            mode,
            lambda: self._watch.backwards,
            lambda: self._watch.seen.steps_seen,
            compared=request.ranks > 1,
        )
        self._replay.factor = request.batch_factor
        self._left = 0  # of the steps that are to be run
        self._began = 0.0
        self._measures = False
        self._stalls: StallCounter | None = None
        self._outputs: OutputsFollowed | None = None
        self._modes = ExitStack()
        self._dump: str | None = None
        self._before: dict[str, torch.Tensor] = {}
        self._first_step = 0.0
        self._weights = ""
        self._complete = False
        self._environment: dict[str, str] = {}

    def __enter__(self) -> Session:
        if self.request.phase == "evaluate" or self.request.watch_only:
            self._watch.on_forward = self._on_evaluation
        self._seed()
        self._writes.install()
        self._watch.install()
        self._replay.install()
        read_instead(dict(self.request.sources))
        if self.request.is_main:
            self.request.script.become_main()
        self._look_at_environment()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> NoReturn:
        if isinstance(error, SystemExit):
            if error.code not in (None, 0):
                self._fail(f"the script ended with sys.exit({error.code!r})")
        elif error is not None:
            self._fail(_users_traceback(error, is_main=self.request.is_main))
        self._complete = True
        self._send(Ended(self._why_ended(), watched=self._watched()))
        self._end()

    def _fail(self, why: str) -> NoReturn:
        watched = self._watched()
        if self.request.watch_only and self._replay.has_cut and watched.steps >= WATCHED_STEPS:
            self._send(replace(watched, failed=why.splitlines()[-1]))
        else:
            self._send(Ended(why, failed=True, watched=watched))
        _end_group()

    def _why_ended(self) -> str:
        steps = self._watch.seen.steps_seen
        if not self._watch.backwards and not steps:
            return "the script ended without a backward pass or a step of an optimiser"
        if not steps:
            return "the script ended without a step of an optimiser"
        return f"the script ended after {steps:,} steps"

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
            self._write_dump(self._dump)
        if self._measures:
            self._on_unit()
            return
        steps = self._watch.seen.steps_seen
        if steps == 1:
            self._first_step = time.monotonic()
        if self._outputs is not None:
            self._outputs.end_step()
        if steps == OUTPUTS_STEP:
            self._follow_outputs()
        elif steps == STALL_STEP:
            self._end_following()
            self._look_for_stalls()
        elif steps == STALL_STEP + 1:
            self._end_look()
        if steps < WATCHED_STEPS:
            return
        if steps == WATCHED_STEPS and self.request.ranks > 1:
            self._weights = digest(list(self._parameters().values()))
            self._send(self._watched())  # it may wait for the others for ever, later
        if self.request.ranks > 1:
            if steps >= RANKS_STEPS or self._replay.epochs > 1:
                self._end_watching()
        elif self.request.watch_only:
            late = time.monotonic() - self._first_step > WATCHED_SECONDS
            if (late and steps > EPOCH_STEPS) or self._replay.epochs > 1:
                self._end_watching()
        elif self.request.phase == "train":
            self._begin()
        elif time.monotonic() - self._first_step > WATCHED_SECONDS or self._replay.epochs > 2:
            self._fail("no validation was reached whose batches come from a loader")

    def _on_evaluation(self, model: nn.Module) -> None:
        """Called after each forward pass of a model in evaluation mode."""
        if self.request.watch_only:
            if not self._first_step or self.request.ranks > 1:
                return
            if time.monotonic() - self._first_step > 2 * WATCHED_SECONDS:
                self._end_watching()
        elif self._replay.repeats:
            model.register_forward_hook(lambda *_: self._on_unit())
            self._watch.on_forward = None
            self._begin()

    def _on_unit(self) -> None:
        """Called after each step, or pass of a validation, that may be measured."""
        self._left -= 1
        if self._left == 0:
            self._answer()

    def _end_watching(self) -> NoReturn:
        self._complete = True
        self._send(self._watched())
        self._end()

    def _end(self) -> NoReturn:
        """End; of several ranks, when all have been seen, as the others need this one for that."""
        if self.request.ranks > 1:
            with contextlib.suppress(EOFError, OSError):
                self._connection.recv()
        _end_group()

    def _follow_outputs(self) -> None:
        if self._watch.seen.is_compiled:
            return
        loop = codes_of(sys._getframe(1))
        self._outputs = OutputsFollowed(loop, lambda: self._watch.in_model)
        self._modes.enter_context(self._outputs)

    def _end_following(self) -> None:
        self._modes.close()
        if self._outputs is not None:
            self._watch.seen.metrics = self._outputs.metrics()
            self._outputs = None

    def _look_for_stalls(self) -> None:
        if self._watch.seen.is_compiled:
            return
        device = torch.device("cuda" if self._watch.seen.on_gpu else "cpu")
        self._stalls = StallCounter(device)
        self._modes.enter_context(stall_modes(self._stalls, only_moved=True))
        seen = self._watch.seen
        copies = self._modes.enter_context(CopiesFollowed(self._replay.loader_of))
        slices = self._modes.enter_context(SlicesFollowed())
        seen.copies, seen.loops = copies.copies, slices.found

    def _end_look(self) -> None:
        self._modes.close()
        if self._stalls is not None:
            self._watch.seen.stalls = self._stalls.stalls()

    def _begin(self) -> None:
        """Follow the advice, and wait for the parent from now on."""
        seen = self._watch.seen
        watched = self._watched()
        for advice in ADVICE:
            if advice.id in self.request.follow:
                for finding in advice.find(seen):
                    if finding.change is not None:
                        finding.change()
        if self.request.in_float64:
            _make_float64(seen.models, seen.optimizers)
            self._replay.convert = _to_float64
        self._watch.only_steps()
        _forget_peak()
        self._seed()
        self._measures = True
        self._send(watched)
        self._wait()

    def _answer(self) -> None:
        if _uses_cuda():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        samples, parts = self._replay.samples, self._watch.part_seconds.copy()
        if _uses_cuda():
            peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
            self._send(Ran(seconds, peak, samples, parts, reserved, retries))
        else:
            self._send(Ran(seconds, _peak_bytes(), samples, parts))
        self._wait()

    def _wait(self) -> None:
        """Do what the parent wants next."""
        try:
            command = self._connection.recv()
        except (EOFError, OSError):
            _end_group()
        if isinstance(command, Dump):
            self._dump, self._left = command.path, 1
            self._before = {n: p.detach().clone() for n, p in self._parameters().items()}
        elif isinstance(command, Run):
            self._left = command.steps
        else:
            _end_group()
        if _uses_cuda():
            torch.cuda.synchronize()
        self._watch.part_seconds = defaultdict(float)
        self._began = time.perf_counter()

    def _write_dump(self, path: str) -> None:
        # After the step, which may have called a closure that made the gradients.
        parameters = self._parameters()
        gradients = {n: p.grad.detach() for n, p in parameters.items() if p.grad is not None}
        updates = {name: p.detach() - self._before[name] for name, p in parameters.items()}
        _save({"gradients": gradients, "updates": updates}, path)
        self._dump, self._before = None, {}

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Return the optimiser's parameters, by names that stay if one is taken away."""
        optimizer = self._watch.seen.optimizers[0]
        names = {
            id(p): f"{number}.{name}"
            for number, model in enumerate(self._watch.seen.models)
            for name, p in model.named_parameters()
        }
        every = [p for group in optimizer.param_groups for p in group["params"]]
        return {names.get(id(p), str(n)): p for n, p in enumerate(every)}

    # -- what is sent --------------------------------------------------------------------------

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            _end_group()

    def _watched(self) -> Watched:
        seen = self._watch.seen
        findings = tuple(
            Plain(
                advice.id,
                finding.where,
                finding.what,
                finding.environment,
                finding.is_tried and not (advice.gpu_only and not seen.on_gpu),
                "GPU only" if advice.gpu_only and not seen.on_gpu else finding.why_not,
                advice.phase,
                seen.calls_of(finding.of),
                finding.partly,
            )
            for advice in ADVICE
            for finding in (advice.find(seen) if seen.steps else ())
        )
        waits = self._replay.waits[2:]  # the first ones are those of starting
        waited = sum(wait for wait, _ in waits)
        whole = waited + sum(step for _, step in waits)
        parameters = {id(p): p.numel() for model in seen.models for p in model.parameters()}
        return Watched(
            findings,
            seen.steps_seen,
            waited / whole if whole else 0.0,
            whole / len(waits) if waits else 0.0,
            "cuda" if seen.on_gpu else "cpu",
            tuple(type(model).__name__ for model in seen.models),
            tuple(type(one).__name__ for one in seen.optimizers),
            sum(parameters.values()),
            any(e.kind == "forward" and not e.training for e in seen.events),
            dict(self._writes.blocked),
            environment=self._environment,
            rank=self._rank_facts() if self.request.ranks > 1 else None,
        )

    def _first_sample(self, loader: Any) -> str:
        self._seed()
        try:
            return digest(loader.collate_fn([loader.dataset[0]]))
        except Exception:  # whatever a user's dataset raises: it has no first sample
            return ""

    def _rank_facts(self) -> RankFacts:
        seen, trained = self._watch.seen, self._replay.trained_with
        loader = trained.loader if trained is not None else None
        return RankFacts(
            tuple(trained.digests) if trained is not None else (),
            trained.samples if trained is not None else 0,
            _length(loader),
            _length(getattr(loader, "dataset", None)) or 0,
            self._first_sample(loader) if self._complete else "",
            seen.line_of(loader),
            seen.steps[0][-1].line if seen.steps else "",
            WATCHED_STEPS,
            self._weights,
            any(map(_is_sharded, seen.models)),
            any(name == "join" for name, _ in seen.calls),
            any(event.kind == "forward" and not event.training for event in seen.events),
            self._complete,
        )


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except TypeError:
        return None


def _is_sharded(model: nn.Module) -> bool:
    """Return whether a rank has only a part of the weights, as FSDP and tensor parallelism have."""
    has_parts = any(
        hasattr(p, "placements") or hasattr(p, "_sharded_size") for p in model.parameters()
    )
    return has_parts or any("FullySharded" in type(module).__name__ for module in model.modules())


def _uses_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _forget_peak() -> None:
    """Have the peak of memory be that of what comes, and not of steps before advice was followed.

    Source: ``/proc/PID/clear_refs`` in proc(5).
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # neither is everywhere
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    if _uses_cuda():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes() -> int:
    """Return the most memory that was resident."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _to_float64(leaf: Any) -> Any:
    is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    return leaf.double() if is_float else leaf


def _make_float64(models: list[Any], optimizers: list[Optimizer]) -> None:
    """Make weights and optimisers float64, whatever the script has made of them."""
    for model in models:
        model.double()
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                if name != "step":
                    state[name] = _to_float64(value)


def _users_traceback(error: BaseException, *, is_main: bool) -> str:
    """Return a traceback from the script's first line on, without doctor's own functions.

    Another frame may have started the script.
    """
    frames = traceback.TracebackException.from_exception(error)
    first = 0 if is_main else 1
    users = [n for n, one in enumerate(frames.stack) if n >= first and not _is_ours(one.filename)]
    kept = [one for one in frames.stack[users[0] :] if _OWN not in one.filename] if users else []
    frames.stack = traceback.StackSummary.from_list(kept)
    return "".join(frames.format()).rstrip()


def _is_ours(file: str) -> bool:
    return file.startswith((_OWN, "<")) or "runpy" in file


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
