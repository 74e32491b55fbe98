"""Processes that end together with all that they have started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Collection
from pathlib import Path

import psutil

__all__ = ["kill_descendants", "kill_group", "lead_group"]

_SHM = Path("/dev/shm")


def lead_group() -> None:
    """Make this process the leader of a group, in which all that it starts stays.

    A Ctrl-C of the terminal, which is meant for the parent, does not reach it.
    """
    os.setpgid(0, 0)


def kill_group(leader: int) -> None:
    """Kill the leader of a group, its members and its descendants, and tidy up after them.

    The leader is left for its parent to reap.
    """
    members = _members(leader)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
    for member in members:
        with contextlib.suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(members, timeout=5.0)
    _remove_shared_memory([leader, *(member.pid for member in members)])


def kill_descendants() -> None:
    """Kill all that this process has started, and tidy up; it must be a subreaper (prctl).

    Descendants that have lost their parents are its children then, whatever their sessions are.
    """
    killed: set[int] = set()
    while True:
        for child in psutil.Process().children(recursive=True):
            killed.add(child.pid)
            with contextlib.suppress(psutil.Error):
                child.kill()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    _remove_shared_memory(killed)


def _members(leader: int) -> list[psutil.Process]:
    """Return the descendants of a process, and the orphans of its group."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        found = {child.pid: child for child in psutil.Process(leader).children(recursive=True)}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid != leader and pid not in found and os.getpgid(pid) == leader:
                found[pid] = psutil.Process(pid)
    return list(found.values())


def _remove_shared_memory(pids: Collection[int]) -> None:
    """Remove memory that torch has named after processes which have ended."""
    if not _SHM.is_dir():
        return
    for file in _SHM.glob("torch_*"):
        match = re.match(r"torch_(\d+)_", file.name)
        if match and int(match[1]) in pids:
            file.unlink(missing_ok=True)
