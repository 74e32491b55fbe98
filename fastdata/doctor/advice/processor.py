"""How a process is started and set: threads, and how memory is taken."""

from __future__ import annotations

import functools
import itertools
import os
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from fastdata.doctor.contract import Finding, Numerics, advice, switched
from fastdata.doctor.seen import FOLLOWED_STEPS, Seen
from fastdata.processes.resources import available_cores

KEPT = (("MALLOC_TRIM_THRESHOLD_", f"{4 << 30}"), ("MALLOC_MMAP_THRESHOLD_", f"{1 << 30}"))
"""Thresholds of malloc in bytes: free memory that it keeps, and its largest block."""

PAGE_SECONDS = 1e-6
"""Until the system has cleared a page of 4 kB: 1 to 2 us, on a virtual machine."""

LEAST_SHARE = 0.05
"""The smallest share of a step for clearing pages that is reported."""

UNUSED = 0.25
"""The unused share of torch's memory that is a sign of fragmentation."""


def _set(*variables: tuple[str, str], note: str = "") -> Finding:
    """Return advice to set variables of the environment."""
    what = " ".join(f"{name}={value}" for name, value in variables)
    return Finding("", f"{what}{note}", environment=variables)


def _has_any(*names: str) -> bool:
    return any(name in os.environ for name in names)


@advice("D17", "use as many threads as cores", numerics=Numerics.ROUNDING)
def threads(seen: Seen) -> Iterator[Finding]:
    cores, threads = available_cores(), torch.get_num_threads()
    if threads != cores and not seen.on_gpu:
        variable = os.environ.get("OMP_NUM_THREADS")
        lines = (*seen.called("set_num_threads"), f"OMP_NUM_THREADS={variable}" if variable else "")
        change = functools.partial(switched, torch.set_num_threads, cores, threads)
        yield Finding(lines[0], f"use {cores} threads (now {threads})", change)


@advice("D18", "bind threads to cores")
def bound_threads(seen: Seen) -> Iterator[Finding]:
    bound = _has_any("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
    if not seen.on_gpu and torch.get_num_threads() > 1 and not bound:
        yield _set(("OMP_PROC_BIND", "close"), ("OMP_PLACES", "cores"))


@advice("D55", "set the thresholds of malloc in the environment")
def memory_allocator(seen: Seen) -> Iterator[Finding]:
    """Look how many pages a step is given, and whether clearing them takes long."""
    steps = list(itertools.pairwise(seen.ends[FOLLOWED_STEPS - 1 :]))
    if seen.on_gpu or not steps or _has_any(*dict(KEPT)):
        return
    pages = statistics.median(after[1] - before[1] for before, after in steps)
    seconds = statistics.median(after[0] - before[0] for before, after in steps)
    if pages * PAGE_SECONDS > LEAST_SHARE * seconds and not _has_own_allocator():
        yield _set(*KEPT, note=f" (now {pages:,.0f} page faults a step)")


def _has_own_allocator() -> bool:
    """Return whether memory is another library's than glibc's; also if that cannot be known."""
    try:
        loaded = Path("/proc/self/maps").read_text()
    except OSError:
        return True
    return "jemalloc" in loaded or "tcmalloc" in loaded


_ALLOCATOR, _EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"


@advice("D36", _EXPANDABLE, saves="memory", gpu_only=True)
def expandable_segments(seen: Seen) -> Iterator[Finding]:
    if not seen.on_gpu or _has_any(_ALLOCATOR, "PYTORCH_ALLOC_CONF"):
        return
    figures = torch.cuda.memory_stats()
    taken, used = (figures[f"{kind}_bytes.all.peak"] for kind in ("reserved", "active"))
    retries = figures.get("num_alloc_retries", 0)
    if retries or used < (1 - UNUSED) * taken:
        note = f" ({retries:,} retries, {used / taken:.0%} in use)"
        yield _set((_ALLOCATOR, _EXPANDABLE), note=note)


@advice("D32", "unset CUDA_LAUNCH_BLOCKING", gpu_only=True)
def blocking_launches(seen: Seen) -> Iterator[Finding]:
    if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        yield Finding("", environment=(("CUDA_LAUNCH_BLOCKING", "0"),))
