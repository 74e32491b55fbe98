"""The number of ranks on this machine, and of those that share this rank's cores.

Launchers set environment variables.  Without these, the ranks of a process group are counted among
the relatives of this process; other ranks take no part, as they may be anywhere in their programs.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from contextlib import suppress

import psutil

from fastdata.bounds import environment_int

__all__ = ["local_processes", "ranks_on_these_cores", "world_size"]

_COUNTS = (
    "LOCAL_WORLD_SIZE",  # torchrun
    "OMPI_COMM_WORLD_LOCAL_SIZE",  # Open MPI
    "MPI_LOCALNRANKS",  # Intel MPI, MPICH
    "MV2_COMM_WORLD_LOCAL_SIZE",  # MVAPICH
    "PMI_LOCAL_SIZE",
    "PALS_LOCAL_SIZE",  # Cray
)
_SLURM_COUNT = "SLURM_STEP_TASKS_PER_NODE"
"""Only ``srun`` sets it, for the tasks that it starts.  The script of ``sbatch`` is one process; it
has ``SLURM_PROCID`` all the same, and ``SLURM_NTASKS_PER_NODE`` of what it may start."""

_PER_NODES = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?")


def local_processes() -> int:
    """Return the number of ranks on this machine, 1 without distributed training.

    The variables of torchrun, MPI or ``srun`` come first.  Else, with a process group or a
    ``WORLD_SIZE``, relatives started by Lightning or ``torch.multiprocessing`` are counted, up to
    the world size.
    """
    for name in _COUNTS:
        if (count := _number(name)) is not None:
            return max(1, count)
    found = _tasks_of_slurm()
    if found <= 1 < world_size():
        found = _relatives(os.getpid(), world_size())
    return max(1, found)


def ranks_on_these_cores(local: int, cores: int) -> int:
    """Return how many of the `local` ranks, with this one, share its cores.

    ``srun`` and ``mpirun`` may give each rank its own cores (affinity).
    """
    if local == 1:
        return 1
    if (of_job := _number("SLURM_CPUS_ON_NODE")) and "SLURM_PROCID" in os.environ:
        return min(max(1, round(cores * local / of_job)), local)
    with suppress(psutil.Error, AttributeError):  # no affinity on macOS
        here = psutil.Process()
        parent = here.parent()
        others = [] if parent is None else [p for p in parent.children() if p.pid != here.pid]
        own = set(here.cpu_affinity())
        if len(others) >= local - 1:
            return min(1 + sum(not own.isdisjoint(p.cpu_affinity()) for p in others), local)
    return local


def world_size() -> int:
    """Return the world size of the process group, or of the environment."""
    # Not imported here: packing workers run without torch.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return _number("WORLD_SIZE") or 1


def _number(name: str) -> int | None:
    return environment_int(name, "rank")


def _tasks_of_slurm() -> int:
    """Return the number of tasks on this node, 1 outside ``srun``."""
    counts: list[int] = []
    for count, nodes in _PER_NODES.findall(os.environ.get(_SLURM_COUNT, "")):  # e.g. 4(x2),3
        counts += [int(count)] * min(int(nodes or 1), 100_000)
    node = _number("SLURM_NODEID") or 0
    return counts[node] if node < len(counts) else max(counts, default=1)


@functools.lru_cache(maxsize=4)
def _relatives(pid: int, most: int) -> int:
    """Return the number of ranks among this process, its siblings and its children.

    Lightning's processes, except the first, have ``LOCAL_RANK``; those of
    ``torch.multiprocessing`` have the same command line, except for numbers.
    """
    try:
        here = psutil.Process(pid)
        parent = here.parent()
        siblings = [] if parent is None else parent.children()
        last = max(_local_rank(process) for process in (here, *siblings, *here.children()))
        kind = _kind(here)
        alike = sum(_kind(process) == kind for process in siblings)
    except psutil.Error:
        return 1
    return min(max(1, last + 1, alike), most)


def _local_rank(process: psutil.Process) -> int:
    """Return the initial ``LOCAL_RANK`` of a process, by default 0."""
    with suppress(psutil.Error, OSError):
        text = process.environ().get("LOCAL_RANK", "")
        return int(text) if text.isdecimal() and len(text) < 10 else 0
    return 0


def _kind(process: psutil.Process) -> str:
    with suppress(psutil.Error):  # the process has ended
        return re.sub(r"\d+", "", " ".join(process.cmdline()))
    return ""
