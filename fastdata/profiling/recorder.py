"""Records how long one thread spends on each kind of work; each moment is counted once.

Time inside a nested activity belongs to the inner one: a file that is opened inside a transform
counts as reading.  One thread's work is recorded, in whichever process that is.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fastdata.profiling.model import Cost
from fastdata.profiling.report import StageName

__all__ = ["Kind", "Recorder", "Times", "recording", "stage_costs"]

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
    all_reading_recorded: bool = False
    """If not, waiting while a sample is made counts as reading."""

    def stages(self) -> dict[StageName, tuple[float, float]]:
        """Return seconds by the clock and on a core, of reading, decoding, augmenting, collating.

        Where not all reading is recorded, waiting while a sample is made is reading, except
        waiting for a core, which is left out.  The rest of making a sample is decoding.
        """
        wall, cpu = self.wall, self.cpu
        sample, waited = wall["sample"] + wall["load"], 0.0
        computed = cpu["sample"] + cpu["load"]
        if not self.all_reading_recorded:
            total = sum(wall.values())
            queued = self.queued * sample / total if total else 0.0
            waited = max(sample - computed - queued, 0.0)
            # Clocks of threads tick coarsely on some systems, and a page fault is no disk.
            waited = waited if waited > 0.02 * sample else 0.0
            sample = min(computed, sample - waited)
        return {
            "read": (wall["read"] + waited, cpu["read"]),
            "decode": (wall["decode"] + sample, cpu["decode"] + computed),
            "augment": (wall["augment"], cpu["augment"]),
            "collate": (wall["collate"], cpu["collate"]),
        }

    def recording_share(self) -> float:
        """Return the share of the time that recording itself took."""
        total = sum(self.wall.values())
        return min(self.hooks * hook_seconds() / total, 0.9) if total else 0.0

    def __add__(self, other: Times) -> Times:
        """Return the seconds and readings of both; `begun`, `ended` and `queued` of this one."""
        wall = {kind: self.wall[kind] + other.wall[kind] for kind in KINDS}
        cpu = {kind: self.cpu[kind] + other.cpu[kind] for kind in KINDS}
        return replace(self, wall=wall, cpu=cpu, hooks=self.hooks + other.hooks)


def stage_costs(batches: Sequence[Times], *, parallel: bool) -> tuple[list[Cost], float]:
    """Return the mean cost of each stage without that of recording, and recording's mean share."""
    seconds: dict[StageName, list[float]] = {}
    cpu_seconds: dict[StageName, list[float]] = {}
    shares = [times.recording_share() for times in batches]
    for times, share in zip(batches, shares, strict=True):
        for name, (wall, cpu) in times.stages().items():
            # Clocks are read at both ends of a stretch, so at worst in proportion to its time.
            seconds.setdefault(name, []).append(wall * (1 - share))
            cpu_seconds.setdefault(name, []).append(cpu * (1 - share))
    costs = [
        Cost(name, took, parallel, min(statistics.fmean(cpu_seconds[name]), took))
        for name, took in ((name, statistics.fmean(values)) for name, values in seconds.items())
        if took > 0
    ]
    return costs, statistics.fmean(shares)


class Recorder:
    """Records what the thread that made it does; other threads are not recorded.

    `active` are the kinds that are under way, the innermost last.  With
    `all_reading_recorded`, nothing is read but inside "read".
    """

    def __init__(self, *, all_reading_recorded: bool = False) -> None:
        self._new_times = partial(Times, all_reading_recorded=all_reading_recorded)
        self.thread = threading.get_ident()
        self.active: list[Kind] = []
        self._times = self._new_times()
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
        times, self._times = self._times, self._new_times()
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
