"""How many cores and how much memory this process may use: less than the machine has, often.

``os.cpu_count()`` and ``free`` are of the machine.  A scheduler may allow fewer cores (affinity), a
container a share of their time and a part of the memory (cgroups, version 2 or 1), and torchrun
starts several processes that share them.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from tqdm import tqdm

if TYPE_CHECKING:
    import torch

__all__ = [
    "MAX_WORKERS",
    "available_bytes",
    "available_cores",
    "available_on",
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

CGROUP = Path("/sys/fs/cgroup")

MAX_WORKERS = 16
"""Most workers that "auto" takes.

Sixteen cores decode some 35,000 photographs a second; beyond that the Python
code between two images is what limits.
"""


def available_cores(cgroup: Path = CGROUP) -> int:
    """Return the cores that this process may use, at least 1.

    The least of the scheduler's affinity and the cgroup's CPU quota, version
    2 or 1, rounded up.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    quota = cpu_quota(cgroup)
    return max(1, min(cores, math.ceil(quota)) if quota else cores)


def default_workers() -> int:
    """Return the number of workers that ``num_workers="auto"`` means where nothing was tuned.

    One a core, since the training loop mostly waits for its device; shared
    out over the processes that torchrun started here (``LOCAL_WORLD_SIZE``);
    at most `MAX_WORKERS`.
    """
    return max(1, min(available_cores() // local_processes(), MAX_WORKERS))


def local_processes() -> int:
    """Return how many processes torchrun started on this machine, 1 without it."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(local)) if local.isdigit() else 1


def cpu_quota(cgroup: Path = CGROUP) -> float | None:
    """Return the cgroup's CPU quota in cores, None where there is none."""
    try:
        limit, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    try:
        cores = int(limit) / int(period)
    except (ValueError, ZeroDivisionError):  # "max": no limit
        return None
    return cores if cores > 0 else None


def available_bytes(cgroup: Path = CGROUP) -> int:
    """Return the bytes of host memory that this process may still take without swapping.

    The least of what the machine has available and what the cgroup, version 2 or 1, leaves:
    a container is killed at its limit, however much the machine has.  Files that the cgroup
    has in the page cache count as available, as the system can drop them.
    """
    machine: int = psutil.virtual_memory().available
    for limit, usage, statistics, cached in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        try:
            most = int((cgroup / limit).read_text())
            used = int((cgroup / usage).read_text())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        return max(0, min(machine, most - used + _entry(cgroup / statistics, cached)))
    return machine


_share: int | None = None


def share_memory(among: int) -> None:
    """Give this process, one of so many workers, its share of what memory is free now."""
    global _share
    _share = available_bytes() // among


def memory_share() -> int:
    """Return the bytes that one image may take here; see `share_memory`."""
    return available_bytes() if _share is None else _share


def limit_bytes(cgroup: Path = CGROUP) -> int | None:
    """Return the memory limit of the cgroup, version 2 or 1; None where there is none.

    A limit of more than the machine has, as version 1 writes for none, is none.
    """
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            most = int((cgroup / limit).read_text())
        except (OSError, ValueError):  # no such version, or "max": no limit
            continue
        return most if most < psutil.virtual_memory().total else None
    return None


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

_BYTES = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(B?)\s*", re.ASCII | re.IGNORECASE)


def parse_bytes(text: str) -> int | None:
    """Return the bytes that ``2GB`` says, or ``1.5M``; None where that has no unit."""
    match = _BYTES.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _entry(statistics: Path, name: str) -> int:
    """Return one number of a cgroup's statistics; 0 where it is not there."""
    try:
        lines = statistics.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


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
    if mallopt is None or not told.isdigit() or int(told) >= _KEPT_BYTES:
        yield
        return
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
    try:
        yield
    finally:
        mallopt(_M_TRIM_THRESHOLD, int(told))
        mallopt(_M_MMAP_THRESHOLD, _USUAL_MAPPED_BYTES)
