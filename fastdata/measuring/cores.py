"""How many of the cores that this process may use are taken by other processes."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import numpy as np
import psutil
from numpy.typing import NDArray

from fastdata.processes.cgroups import tightest_quota

__all__ = ["CoresOfOthers"]

_BUSY = "user", "nice", "system", "irq", "softirq", "steal"
"""Of Linux; guests are users too.  What a hypervisor gave to others is stolen."""


class CoresOfOthers:
    """Measures the use of cores by other processes, between `begin` and `end`.

    In a cgroup with a CPU quota, only other processes of the group count, unless the machine has
    fewer free cores than the quota.  The system counts in steps of 10 ms, so a precise result takes
    a second or more.  For one thread.
    """

    def __init__(self) -> None:
        self._quota = tightest_quota()
        try:
            self._cpus = sorted(os.sched_getaffinity(0))
        except AttributeError:  # not on macOS
            self._cpus = list(range(os.cpu_count() or 1))
        self._seconds = self._machine = self._group = 0.0
        self.begin()

    def begin(self) -> None:
        """Look at the counts; what happens from now on counts, until `end`."""
        self._began = self._look()

    def end(self) -> None:
        """Look again, and add the use since `begin`."""
        seconds, machine, group, own = (self._look() - self._began).tolist()
        self._seconds += seconds
        self._machine += max(machine - own, 0.0)
        self._group += max(0.0, group - own)  # 0.0 if unknown, which is nan

    @property
    def cores(self) -> float:
        """Mean number of this process's cores that others used."""
        if self._seconds <= 0:
            return 0.0
        there = float(len(self._cpus))
        free = there - self._machine / self._seconds
        if self._quota is not None and self._quota.cores < there:
            there = self._quota.cores
            free = min(free, there - self._group / self._seconds)
        return min(max(there - free, 0.0), there)

    def _look(self) -> NDArray[np.float64]:
        """Return seconds: of the clock, and of CPU time in total, of the cgroup, of this tree."""
        group = None if self._quota is None else self._quota.seconds_used()
        times = psutil.cpu_times(percpu=True)
        here = [times[cpu] for cpu in self._cpus if cpu < len(times)]
        busy = sum(getattr(one, name, 0.0) for one in here for name in _BUSY)
        return np.array([time.perf_counter(), busy, group, _of_tree()], float)  # None becomes nan


def _of_tree() -> float:
    """Return the CPU seconds of this process and its descendants, also those that ended."""
    here, total = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
