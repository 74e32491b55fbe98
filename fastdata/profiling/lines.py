"""Where the time of a stage is spent: a thread that looks every 5 ms at what another does."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import TypeAlias

from fastdata.profiling.recorder import Recorder
from fastdata.profiling.where import user_line

__all__ = ["LineSampler", "Lines", "heaviest"]

Lines: TypeAlias = dict[tuple[str, str], int]
"""How often a stage was seen at the user's line, by (stage, line)."""

INTERVAL_SECONDS = 0.005
BLOCKED_SHARE = 0.2
"""A thread that was on a core for less of an interval waits."""


class LineSampler(threading.Thread):
    """Looks at the thread of a recorder until `stop`; begins at once.

    It takes the interpreter's lock each time: what is measured meanwhile is not to be used.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(name="fastdata profile", daemon=True)
        self._recorder = recorder
        self._counts: Counter[tuple[str, str]] = Counter()
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        thread, doing = self._recorder.thread, self._recorder.doing
        clock = _cpu_clock(thread)
        before, cpu_before = time.perf_counter(), clock()
        while not self._over.wait(INTERVAL_SECONDS):
            kind = doing[-1] if doing else None
            line = user_line(sys._current_frames().get(thread))
            now, cpu = time.perf_counter(), clock()
            blocked = cpu - cpu_before < BLOCKED_SHARE * (now - before)
            before, cpu_before = now, cpu
            if kind is None or not line:
                continue
            if kind in ("sample", "load"):
                self._counts["read" if blocked else "decode", line] += 1
            else:
                self._counts[kind, line] += 1

    def lines(self) -> Lines:
        """Return what was seen so far."""
        return dict(self._counts.copy())

    def stop(self) -> None:
        """End.  Idempotent."""
        self._over.set()
        self.join()


def heaviest(lines: Lines) -> dict[str, str]:
    """Return the line at which each stage was seen most often."""
    found: dict[str, tuple[int, str]] = {}
    for (stage, line), count in lines.items():
        if count > found.get(stage, (0, ""))[0]:
            found[stage] = (count, line)
    return {stage: line for stage, (_, line) in found.items()}


class _cpu_clock:  # noqa: N801 - a function that keeps something
    """Seconds on a core of another thread; runs on where the system does not tell."""

    def __init__(self, thread: int) -> None:
        self._id = None
        if hasattr(time, "pthread_getcpuclockid"):
            self._id = time.pthread_getcpuclockid(thread)

    def __call__(self) -> float:
        return time.perf_counter() if self._id is None else time.clock_gettime(self._id)
