"""Throwing a file out of the page cache, and seeing that it is gone (Linux)."""

from __future__ import annotations

import ctypes
import mmap
import os
import time

import numpy as np

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
    """Return which part of a file is in the page cache, from 0 to 1, by mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        # A private writable map: ctypes takes the address of writable memory only.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    anchor = ctypes.c_char.from_buffer(memory)
    pages = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
    failed = libc.mincore(
        ctypes.c_void_p(ctypes.addressof(anchor)),
        ctypes.c_size_t(len(memory)),
        pages.ctypes.data_as(ctypes.c_void_p),
    )
    del anchor
    memory.close()
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore failed for {path}")
    return float((pages & 1).mean())


def warm(path: str) -> None:
    """Read a file, so that it is in the page cache."""
    with open(path, "rb") as file:
        while file.read(1 << 24):
            pass
