"""A stop watch that knows what is being done: time by kind, each moment counted once.

Time inside a nested activity belongs to the inner one: a file that is opened inside a transform
counts as reading.  One thread's work is recorded, in whichever process that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = ["Kind", "Recorder", "Times", "hook_seconds", "recording"]

Kind: TypeAlias = Literal["read", "load", "decode", "sample", "augment", "collate"]
"""What is being done.

read       files are opened or read: all of its time is reading
load       a library opens and decodes a file: where the thread waits, it reads
decode     from bytes that are in memory
sample     the rest of what makes a sample: as "load"
augment    a transform
collate    samples are put together
"""

KINDS: tuple[Kind, ...] = ("read", "load", "decode", "sample", "augment", "collate")

SCHEDSTAT = Path("/proc/thread-self/schedstat")
"""Of Linux: nanoseconds on a core, nanoseconds waiting for one, and how often."""


@dataclass(slots=True)
class Times:
    """What making one batch took.

    `wall` and `cpu` are seconds by kind: by the clock, and of the thread on a core.  `begun` and
    `ended` are ``time.perf_counter``, which all processes of a Linux machine share.  `queued` are
    seconds in which the thread was ready, but others had the cores; `hooks` counts readings.
    """

    wall: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    cpu: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    begun: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    hooks: int = 0

    def stages(self) -> dict[str, float]:
        """Return seconds of reading, decoding, augmenting and collating, waiting told apart.

        While a sample is made, waiting counts as reading, except waiting for a core, which is
        left out; computing counts as decoding.  Transforms and collate are taken by the clock.
        """
        split = self.wall["sample"] + self.wall["load"]
        computed = self.cpu["sample"] + self.cpu["load"]
        total = sum(self.wall.values())
        queued = self.queued * split / total if total else 0.0
        waited = max(split - computed - queued, 0.0)
        # Clocks of threads tick coarsely on some systems, and a page fault is no disk.
        waited = waited if waited > 0.02 * split else 0.0
        return {
            "read": self.wall["read"] + waited,
            "decode": self.wall["decode"] + min(computed, split - waited),
            "augment": self.wall["augment"],
            "collate": self.wall["collate"],
        }

    def stages_by_clock(self, seconds: dict[Kind, float] | None = None) -> dict[str, float]:
        """Return `wall`, or `cpu`, by stage, where reading is recorded by itself.

        The rest of making a sample is decoding.
        """
        seconds = self.wall if seconds is None else seconds
        return {
            "read": seconds["read"],
            "decode": seconds["decode"] + seconds["sample"] + seconds["load"],
            "augment": seconds["augment"],
            "collate": seconds["collate"],
        }

    def add(self, other: Times) -> None:
        """Add seconds and readings of another."""
        for kind in KINDS:
            self.wall[kind] += other.wall[kind]
            self.cpu[kind] += other.cpu[kind]
        self.hooks += other.hooks


class Recorder:
    """Records what the thread that made it does; other threads are not recorded.

    `active` are the kinds that are under way, the innermost last.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.active: list[Kind] = []
        self._times = Times()
        self._wall = self._cpu = 0.0
        self._queued = 0.0

    def enter(self, kind: Kind) -> None:
        """Begin an activity, inside the one that is under way."""
        if not self._times.hooks:
            self._queued = _queued_seconds()
            self._times.begun = time.perf_counter()
        self._read_clocks()
        self.active.append(kind)

    def leave(self) -> None:
        """End the activity that was begun last."""
        self._read_clocks()
        self.active.pop()
        self._times.ended = self._wall

    def call(self, kind: Kind, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and record it."""
        self.enter(kind)
        try:
            return function(*args, **kwargs)
        finally:
            self.leave()

    def records_here(self) -> bool:
        """Return whether a hook that is called now belongs to what is recorded."""
        return bool(self.active) and threading.get_ident() == self.thread

    def take(self) -> Times:
        """Return what was recorded since the last call, and begin anew."""
        times, self._times = self._times, Times()
        if times.hooks:
            times.queued = max(_queued_seconds() - self._queued, 0.0)
        return times

    def _read_clocks(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        times = self._times
        if self.active:
            times.wall[self.active[-1]] += wall - self._wall
            times.cpu[self.active[-1]] += cpu - self._cpu
        times.hooks += 1
        self._wall, self._cpu = wall, cpu


class recording:  # noqa: N801 - a context manager, entered at every stage of every batch
    """Records a kind of work inside a block."""

    def __init__(self, recorder: Recorder, kind: Kind) -> None:
        self._recorder = recorder
        self._kind = kind

    def __enter__(self) -> None:
        self._recorder.enter(self._kind)

    def __exit__(self, *exception: object) -> None:
        self._recorder.leave()


@cache
def hook_seconds() -> float:
    """Return what one reading of the clocks costs, measured once a process."""
    recorder = Recorder()
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(200):
            recorder.enter("sample")
            recorder.leave()
        best = min(best, time.perf_counter() - began)
    return best / 400


def _queued_seconds() -> float:
    """Return how long this thread has waited for a core so far; 0 where the system has no count."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
