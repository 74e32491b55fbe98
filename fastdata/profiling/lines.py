"""The lines at which a stage spends its time."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from fastdata.measuring.lines import user_line
from fastdata.profiling.recorder import Recorder

__all__ = ["LineCounts", "LineSampler", "heaviest_lines"]

INTERVAL_SECONDS = 0.005
BLOCKED_SHARE = 0.2
"""A thread that was on a core for less of an interval counts as waiting."""

LineCounts: TypeAlias = dict[tuple[str, str], int]
"""How often each (stage, line) was seen."""


class LineSampler(threading.Thread):
    """A thread that looks every 5 ms at which line a recorder's thread is; a context.

    It takes the interpreter's lock each time, so times that are measured meanwhile are wrong.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(name="fastdata profile", daemon=True)
        self._recorder = recorder
        self._counts: Counter[tuple[str, str]] = Counter()
        self._stopped = threading.Event()

    def run(self) -> None:
        thread, kinds = self._recorder.thread, self._recorder.active
        clock = _cpu_clock(thread)
        before, cpu_before = time.perf_counter(), clock()
        while not self._stopped.wait(INTERVAL_SECONDS):
            kind = kinds[-1] if kinds else None
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

    def counts(self) -> LineCounts:
        """Return what was seen so far."""
        return dict(self._counts.copy())

    def __enter__(self) -> LineSampler:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopped.set()
        self.join()


def _cpu_clock(thread: int) -> Callable[[], float]:
    """Return a clock of another thread's seconds on a core; wall time where there is none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.perf_counter
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


def heaviest_lines(counts: LineCounts) -> dict[str, str]:
    """Return the line at which each stage was seen most often."""
    return {stage: line for (stage, line), _ in reversed(Counter(counts).most_common())}
