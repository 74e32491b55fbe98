"""Throwing a file out of the page cache, and seeing that it is gone (Linux)."""

from __future__ import annotations

import os
import time

RESIDENT_AT_MOST = 0.01


def evict(path: str) -> None:
    """Throw a file that no process has mapped out of the page cache.

    Raises
    ------
    RuntimeError
        If more than 1% of it stays.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # pages that are not written yet cannot be dropped
        for _ in range(10):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            if resident(path) <= RESIDENT_AT_MOST:
                return
            time.sleep(0.1)
    finally:
        os.close(descriptor)
    raise RuntimeError(f"{resident(path):.0%} of {path} stays in memory: who else has it mapped?")


def resident(path: str) -> float:
    """Return which part of a file is in the page cache, from 0 to 1.

    Raises
    ------
    RuntimeError
        If the system does not tell.
    """
    # Here, as not every version of fastdata that is compared with has this module.
    from fastdata.measuring.page_cache import resident as fastdata_resident

    share = fastdata_resident([path])
    if share is None:
        raise RuntimeError(f"nobody tells which part of {path} is in memory")
    return share


def warm(path: str) -> None:
    """Read a file, so that it is in the page cache."""
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass
