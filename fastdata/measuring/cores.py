"""How many of the cores that this process may use are taken by other processes."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil

from fastdata.processes.cgroups import tightest_quota

__all__ = ["CoresOfOthers"]


@dataclass(frozen=True, slots=True)
class _Look:
    """Seconds by the clock, and on cores: of all that ran there, of the cgroup, of this tree."""

    clock: float
    cores: float
    group: float | None
    own: float


class CoresOfOthers:
    """Measures the use of cores by other processes, between `begin` and `end`.

    In a cgroup with a CPU quota, only other processes of the group count, unless the machine has
    fewer free cores than the quota.  The system counts in steps of 10 ms, so a precise result takes
    a second or more; one look takes milliseconds.  For one thread.
    """

    def __init__(self) -> None:
        self._quota = tightest_quota()
        try:
            self._cpus = sorted(os.sched_getaffinity(0))
        except AttributeError:  # not on macOS
            self._cpus = list(range(os.cpu_count() or 1))
        self._seconds = self._machine = self._group = 0.0
        self._began = self._look()

    def begin(self) -> None:
        """Look at the counts; what happens from now on counts, until `end`."""
        self._began = self._look()

    def end(self) -> None:
        """Look again, and add the use since `begin`."""
        before, after = self._began, self._look()
        own = after.own - before.own
        self._seconds += after.clock - before.clock
        self._machine += max(after.cores - before.cores - own, 0.0)
        if after.group is not None and before.group is not None:
            self._group += max(after.group - before.group - own, 0.0)

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

    def _look(self) -> _Look:
        group = None if self._quota is None else self._quota.seconds_used()
        return _Look(time.perf_counter(), _busy(self._cpus), group, _of_tree())


def _busy(cpus: list[int]) -> float:
    """Return the busy seconds of these cores, for all processes."""
    times = psutil.cpu_times(percpu=True)
    return sum(
        sum(getattr(times[cpu], name, 0.0) for name in _BUSY) for cpu in cpus if cpu < len(times)
    )


_BUSY = "user", "nice", "system", "irq", "softirq", "steal"
"""Of Linux; guests are users too.  What a hypervisor gave to others is stolen."""


def _of_tree() -> float:
    """Return the seconds on cores of this process and its descendants, also those that ended."""
    here, total = psutil.Process(), 0.0
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total
