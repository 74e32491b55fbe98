"""How much memory may still be taken: on the host, in its container, on a device."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
from tqdm import tqdm

__all__ = ["available_bytes", "available_on", "format_bytes", "limit_bytes"]

CGROUP = Path("/sys/fs/cgroup")


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

    On a GPU memory counts as available that torch has taken from it and nobody uses.
    """
    if device.type != "cuda":
        return available_bytes()
    free, _ = torch.cuda.mem_get_info(device)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(unused)


def format_bytes(nbytes: float) -> str:
    """Return a number of bytes for people: ``12.3GB``."""
    return str(tqdm.format_sizeof(nbytes, "B"))


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
