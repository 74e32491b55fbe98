"""A stop watch that knows what is being done: time by kind, each moment counted once.

What is inside something else belongs to the inner: a file that is opened inside a
transform is reading.  One thread's work is recorded, in whichever process that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = ["Kind", "Recorder", "Times", "hook_seconds"]

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

    Attributes
    ----------
    wall, cpu : dict of str to float
        Seconds by kind: by the clock, and of the thread on a core.
    begun, ended : float
        By ``time.perf_counter``, which all processes of a Linux machine share.
    queued : float
        Seconds that the thread was ready, but others had the cores.
    hooks : int
        How often something was noted.
    """

    wall: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    cpu: dict[Kind, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    begun: float = 0.0
    ended: float = 0.0
    queued: float = 0.0
    hooks: int = 0

    def stages(self) -> dict[str, float]:
        """Return seconds of reading, decoding, augmenting and collating.

        Of making a sample, what the thread waits is reading, except where it waits for a
        core: that is left out, and what it computes is decoding.  Transforms and collate are
        taken as they are, by the clock.
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

    def noted(self) -> dict[str, float]:
        """Return the same as it was noted: all of making a sample is decoding.

        For who reads, and says so, by means of its own.
        """
        wall = self.wall
        return {
            "read": wall["read"],
            "decode": wall["decode"] + wall["sample"] + wall["load"],
            "augment": wall["augment"],
            "collate": wall["collate"],
        }


class Recorder:
    """Records what the thread does that made it.

    Not for other threads: what they do between `enter` and `leave` of this one is not seen.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.doing: list[Kind] = []
        self._times = Times()
        self._wall = self._cpu = 0.0
        self._queued = 0.0

    def enter(self, kind: Kind) -> None:
        """Begin something, inside of what is being done."""
        if not self._times.hooks:
            self._queued = _queued_seconds()
            self._times.begun = time.perf_counter()
        self._note()
        self.doing.append(kind)

    def leave(self) -> None:
        """End what was begun last."""
        self._note()
        self.doing.pop()
        self._times.ended = self._wall

    def call(self, kind: Kind, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function, which does something of a kind."""
        self.enter(kind)
        try:
            return function(*args, **kwargs)
        finally:
            self.leave()

    def inside(self) -> bool:
        """Return whether a hook that is called now belongs to what is recorded."""
        return bool(self.doing) and threading.get_ident() == self.thread

    def take(self) -> Times:
        """Return what was recorded since it was taken last, and begin anew."""
        times, self._times = self._times, Times()
        if times.hooks:
            times.queued = max(_queued_seconds() - self._queued, 0.0)
        return times

    def _note(self) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        times = self._times
        if self.doing:
            times.wall[self.doing[-1]] += wall - self._wall
            times.cpu[self.doing[-1]] += cpu - self._cpu
        times.hooks += 1
        self._wall, self._cpu = wall, cpu


@cache
def hook_seconds() -> float:
    """Return what one note costs, measured once a process."""
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
    """Return how long this thread has waited for a core so far; 0 where nobody tells."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
