"""Recognise a script that will make no step: it has no optimiser, or other processes train.

A script may load data and models for minutes before its first step.  So only batches, forward and
backward passes count, and processes that train.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

from fastdata.doctor.script import ONE_RANK, Script
from fastdata.doctor.seen import Seen
from fastdata.measuring.lines import is_users, short_line, user_line

__all__ = ["Stepless"]

PASSES_SECONDS = 60.0
"""Limit for batches and forward passes: a script may cache features, or validate first."""

BACKWARD_SECONDS, MOST_BACKWARDS = 120.0, 1000
"""Limits for backward passes: a script may accumulate the gradients of many batches."""

LONGEST_SECONDS = 10.0
"""The most that one pass counts: a longer pause is a download, or a model that is made."""

JOIN_SECONDS = 30.0
"""Limit for processes in which doctor sees nothing: they may prepare data."""

_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_SPAWN = os.path.join("torch", "multiprocessing", "spawn.py")
_TICK_SECONDS = 0.2


class Stepless:
    """Ends a script that will make no step, by calling `end` with the reason.

    `seen` counts the steps that it has made.
    """

    def __init__(self, script: Script, seen: Seen, end: Callable[[str], NoReturn]) -> None:
        self._script, self._seen, self._end = script, seen, end
        function = "" if script.kind == "function" else ":build"
        self._command = f"fastdata doctor {script.name}{function}"
        self._remedy = (
            "If training begins later, name a function that returns `loader, step`, "
            f"{self._command}. If weights are changed by hand, do that in a subclass of "
            "torch.optim.Optimizer"
        )
        self._last = self._active = 0.0
        self._passes = self._backwards = 0
        self._processes: list[Any] = []  # that the script's own code has started
        self._started, self._started_at = "", 0.0  # the last one
        self._child_trains = mmap.mmap(-1, 1)  # shared with processes that are forked

    def install(self) -> None:
        """Watch which processes the script starts, and waits for."""
        start, join, opened = BaseProcess.start, BaseProcess.join, subprocess.Popen.__init__

        def started(process: Any) -> None:
            caller = sys._getframe(1)
            if caller.f_code.co_filename.endswith(_SPAWN):
                self._refuse(user_line(caller))
            start(process)
            if is_users(caller.f_code.co_filename):
                self._processes.append(process)
                self._started = user_line(caller)
                is_forked = getattr(process._popen, "method", "") == "fork"
                self._started_at = float("inf") if is_forked else time.monotonic()

        def joined(process: Any, timeout: float | None = None) -> None:
            if process in self._processes:
                self._look()
                while timeout is None and process.is_alive():
                    join(process, _TICK_SECONDS)
                    self._look()
            join(process, timeout)

        def launched(program: Any, args: Any, *arguments: Any, **options: Any) -> None:
            if not isinstance(args, (str, bytes, os.PathLike)):
                args = list(args)  # it may be a generator
            words = args if isinstance(args, list) else os.fsdecode(args).split()
            if not _LAUNCHERS.isdisjoint(os.path.basename(os.fsdecode(word)) for word in words):
                self._refuse(user_line(sys._getframe(1)))
            opened(program, args, *arguments, **options)

        BaseProcess.start = started  # type: ignore[assignment,method-assign]
        BaseProcess.join = joined  # type: ignore[assignment,method-assign]
        subprocess.Popen.__init__ = launched  # type: ignore[assignment,method-assign]

    def note_child(self) -> None:
        """Note, in a process that the script has forked, that it has made a step there."""
        self._child_trains[0] = 1

    def note(self, kind: str) -> None:
        """Count a batch, a forward or a backward pass of a script that has made no step yet."""
        now = time.monotonic()
        self._active += min(now - self._last, LONGEST_SECONDS) if self._passes else 0.0
        self._last = now
        self._passes += 1
        self._backwards += kind in ("backward", "grad")
        limit, what = PASSES_SECONDS, "batches and forward"
        if self._backwards:
            limit, what = BACKWARD_SECONDS, "forward and backward"
        within = f"{limit:.0f} s of {what} passes" if self._active > limit else ""
        if self._backwards >= MOST_BACKWARDS:
            within = f"{self._backwards:,} backward passes"
        if within:
            self._end(
                f"no step of a torch.optim optimiser was seen within {within}, and doctor measures "
                f"training steps. {self._remedy}"
            )

    def why_ended(self) -> str:
        """Return why a script without a step has ended."""
        if self._started:
            return self._elsewhere(self._started)
        ended = "the script ended without a step of an optimiser"
        return f"{ended}. {self._remedy}" if self._passes else ended

    def _look(self) -> None:
        if self._child_trains[0] or time.monotonic() - self._started_at > JOIN_SECONDS:
            self._refuse(self._started)

    def _refuse(self, line: str) -> None:
        if not self._seen.steps_seen:
            self._end(self._elsewhere(line))

    def _elsewhere(self, line: str) -> str:
        return (
            f"the script starts processes ({short_line(line)}) and makes no step itself, and "
            "doctor sees only the steps of its main process. Start it so that it trains in one "
            f"process; or name a function that returns the `loader, step` of one rank, "
            f"{self._command}; or, if it reads RANK and WORLD_SIZE, set them to one rank: "
            f"{ONE_RANK} fastdata doctor {self._script}"
        )
