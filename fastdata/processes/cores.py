"""How many cores this process may use: less than the machine has, often.

``os.cpu_count()`` counts the machine's cores.  A scheduler may allow fewer
(affinity), a container a share of their time (cgroup quota), and torchrun
starts several processes that share them.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["MAX_WORKERS", "available_cores", "cpu_quota", "default_workers", "local_processes"]

MAX_WORKERS = 16
"""Most workers that "auto" takes.

Sixteen cores decode some 35,000 photographs a second; beyond that the Python
code between two images is what limits.
"""

CGROUP = Path("/sys/fs/cgroup")


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
