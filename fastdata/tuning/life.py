"""One process from its start to its end, and all that it has started: nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

__all__ = ["Life"]

_SHM = Path("/dev/shm")


class Life:
    """One process, which leads a group of its own.

    Parameters
    ----------
    process : multiprocessing process
        That has been started.
    end : Connection
        To it.

    Attributes
    ----------
    fresh : bool
        Whether it has answered nothing yet.
    """

    def __init__(self, process: Any, end: Connection) -> None:
        self.process = process
        self.end = end
        self.fresh = True

    def exit_code(self) -> int | None:
        """Return how it ended, once it has; minus the signal, where that was one."""
        self.process.join(1.0)
        code: int | None = self.process.exitcode
        return code

    def kill(self) -> None:
        """End the process and all that it has started, and tidy up after them.  Idempotent."""
        leader = self.process.pid
        members = _tree(leader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.kill()
        self.process.kill()
        self.process.join()
        psutil.wait_procs(members, timeout=5.0)
        _remove_shared([leader, *(member.pid for member in members)])
        self.end.close()
        self.process.close()


def _tree(leader: int) -> list[psutil.Process]:
    """Return who was started by a process: its descendants, and its group's orphans."""
    found: dict[int, psutil.Process] = {}
    with contextlib.suppress(psutil.Error):
        found = {child.pid: child for child in psutil.Process(leader).children(recursive=True)}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid != leader and pid not in found and os.getpgid(pid) == leader:
                found[pid] = psutil.Process(pid)
    return list(found.values())


def _remove_shared(pids: Sequence[int]) -> None:
    """Remove memory that torch has named after processes which are no more."""
    if not _SHM.is_dir():
        return
    for file in _SHM.glob("torch_*"):
        match = re.match(r"torch_(\d+)_", file.name)
        if match and int(match[1]) in pids:
            file.unlink(missing_ok=True)
