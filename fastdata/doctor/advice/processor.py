"""How a processor is used: threads, and how memory is taken."""

from __future__ import annotations

import functools
import itertools
import os
import statistics
from collections.abc import Iterator

import torch

from fastdata.doctor.contract import Finding, Numerics, Undo, advice
from fastdata.doctor.seen import FOLLOWED_STEPS, Seen
from fastdata.processes.resources import available_cores

KEPT = (("MALLOC_TRIM_THRESHOLD_", f"{4 << 30}"), ("MALLOC_MMAP_THRESHOLD_", f"{1 << 30}"))
"""Thresholds of malloc in bytes: free memory that it keeps, and its largest block."""

PAGE_SECONDS = 1e-6
"""Until the system has cleared a page of 4 kB: 1 to 2 us, on a virtual machine."""

LEAST_SHARE = 0.05
"""The smallest share of a step for clearing pages that is reported."""


def _has_own_allocator() -> bool:
    """Return whether memory is another library's than glibc's; also if that cannot be known."""
    try:
        with open("/proc/self/maps") as file:
            loaded = file.read()
    except OSError:
        return True
    return "jemalloc" in loaded or "tcmalloc" in loaded


@advice("D17", "use as many threads as cores", numerics=Numerics.ROUNDING)
def threads(seen: Seen) -> Iterator[Finding]:
    """Compare threads with cores."""
    cores, threads = available_cores(), torch.get_num_threads()
    if threads != cores and not seen.on_gpu:
        variable = os.environ.get("OMP_NUM_THREADS")
        where = next(iter(seen.called("set_num_threads")), "")
        yield Finding(
            where or (f"OMP_NUM_THREADS={variable}" if variable else ""),
            f"use {cores} threads (now {threads})",
            functools.partial(_use, cores),
        )


def _use(cores: int) -> Undo:
    threads = torch.get_num_threads()
    torch.set_num_threads(cores)
    return functools.partial(torch.set_num_threads, threads)


@advice("D18", "bind threads to cores")
def bound_threads(seen: Seen) -> Iterator[Finding]:
    """Look whether threads are bound."""
    names = "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"
    if seen.on_gpu or torch.get_num_threads() < 2 or any(name in os.environ for name in names):
        return
    variables = (("OMP_PROC_BIND", "close"), ("OMP_PLACES", "cores"))
    what = " ".join(f"{name}={value}" for name, value in variables)
    yield Finding("", what, environment=variables)


@advice("D55", "set the thresholds of malloc in the environment")
def memory_allocator(seen: Seen) -> Iterator[Finding]:
    """Look how many pages a step is given, and whether clearing them takes long."""
    names = [name for name, _ in KEPT]
    steps = list(itertools.pairwise(seen.ends[FOLLOWED_STEPS - 1 :]))
    if seen.on_gpu or not steps or any(name in os.environ for name in names):
        return
    pages = statistics.median(after[1] - before[1] for before, after in steps)
    seconds = statistics.median(after[0] - before[0] for before, after in steps)
    if pages * PAGE_SECONDS > LEAST_SHARE * seconds and not _has_own_allocator():
        what = " ".join(f"{name}={value}" for name, value in KEPT)
        yield Finding("", f"{what} (now {pages:,.0f} page faults a step)", environment=KEPT)
