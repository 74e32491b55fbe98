"""How many cores and how much memory this process may use: less than the machine has, often.

``os.cpu_count()`` and ``free`` are of the machine.  A scheduler may allow fewer cores (affinity), a
container a share of their time and a part of the memory (cgroups), and the ranks of a training
share them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
from tqdm import tqdm

from fastdata.processes.cgroups import memory_limits, tightest_quota
from fastdata.processes.ranks import local_processes, ranks_on_these_cores

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_WORKERS",
    "RESERVE_BYTES",
    "available_bytes",
    "available_cores",
    "available_on",
    "cores_of_rank",
    "cpu_quota",
    "default_workers",
    "format_bytes",
    "limit_bytes",
    "local_processes",
    "memory_kept",
    "memory_share",
    "parse_bytes",
    "share_memory",
]

RESERVE_BYTES = 256 << 20
"""Host memory to keep free; a measurement that leaves less than half of this is ended."""

MAX_WORKERS = 16
"""Most workers that "auto" takes.

Sixteen cores decode some 35,000 photographs a second; beyond that the Python
code between two images is what limits.
"""


def available_cores() -> int:
    """Return the cores that this process may use, at least 1.

    The least of the scheduler's affinity and the cgroups' CPU quotas, rounded up.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def cores_of_rank() -> int:
    """Return the cores for workers of this process, at least 1: a share of those that it may use.

    The other ranks on this machine have the rest, as far as they may use the same cores.
    """
    local, cores = local_processes(), available_cores()
    share = cores // ranks_on_these_cores(local, cores)
    quota = cpu_quota()
    return max(1, min(share, math.ceil(quota) // local) if quota else share)


def default_workers() -> int:
    """Return the number of workers that ``num_workers="auto"`` means where nothing was tuned.

    One a core of this rank (`cores_of_rank`), since the training loop mostly waits for its device;
    at most `MAX_WORKERS`.
    """
    return min(cores_of_rank(), MAX_WORKERS)


def cpu_quota() -> float | None:
    """Return the lowest CPU quota of this process's cgroups in cores, None without one."""
    limit = tightest_quota()
    return None if limit is None else limit.cores


def available_bytes() -> int:
    """Return the bytes of host memory that this process may still take without swapping.

    The least of what the machine has available and what its cgroups leave: a process is killed
    at their limits, however much the machine has.  Files that a cgroup has in the page cache count
    as available, as the system can drop them.
    """
    left = [limit.left for limit in memory_limits()]
    return int(min([psutil.virtual_memory().available, *left]))


_share: int | None = None


def share_memory(among: int) -> None:
    """Give this process, one of so many workers, its share of what memory is free now."""
    global _share
    _share = available_bytes() // among


def memory_share() -> int:
    """Return the bytes that one image may take here; see `share_memory`."""
    return available_bytes() if _share is None else _share


def limit_bytes() -> int | None:
    """Return the lowest memory limit of this process's cgroups; None where there is none.

    A limit of more than the machine has, as version 1 writes for none, is none.
    """
    most = min((limit.most for limit in memory_limits()), default=None)
    return most if most is not None and most < psutil.virtual_memory().total else None


def available_on(device: torch.device) -> int:
    """Return the bytes that may still be taken on a device, the host's for the CPU.

    On a GPU, memory that torch has taken from it and does not use counts as available.
    """
    if device.type != "cuda":
        return available_bytes()
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(unused)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes for people: ``12.3GB``."""
    return str(tqdm.format_sizeof(nbytes, "B"))


_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_BYTES = re.compile(r"\s*(\d{1,20}(?:\.\d+)?)\s*([KMGT]?)(B?)\s*", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int | None:
    """Return the bytes that ``2GB`` says, or ``1.5M``; None where that has no unit."""
    match = _BYTES.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    return int(float(match[1]) * _UNITS[match[2].upper()])


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's ``malloc.h``."""

_KEPT_BYTES, _MAPPED_BYTES = 64 << 20, 32 << 20
_USUAL_MAPPED_BYTES = 128 << 10
"""From which on memory is mapped by itself, where the other one was set."""


@contextlib.contextmanager
def memory_kept() -> Iterator[None]:
    """Have glibc keep freed memory meanwhile, where an environment variable told it otherwise.

    Workers of Dask have ``MALLOC_TRIM_THRESHOLD_=65536``, by which the pixels of every image lie in
    pages that the system clears anew: a quarter of the time of packing photographs.  It is a
    setting of the whole process, and afterwards as the variable has it.
    """
    told = os.environ.get("MALLOC_TRIM_THRESHOLD_", "")
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not re.fullmatch(r"\d{1,18}", told, re.ASCII) or int(told) >= _KEPT_BYTES:
        yield
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    try:
        yield
    finally:
        mallopt(_M_TRIM_THRESHOLD, int(told))
        mallopt(_M_MMAP_THRESHOLD, _USUAL_MAPPED_BYTES)
