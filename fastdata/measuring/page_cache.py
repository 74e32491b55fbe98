"""Whether files are in the page cache: a rate from memory is none of a slow disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

__all__ = ["WARM_AT_LEAST", "read_within", "resident"]

WARM_AT_LEAST = 0.98
_CHUNK = 1 << 24


def resident(paths: Iterable[str | os.PathLike[str]]) -> float | None:
    """Return which part of some files is in the page cache, from 0 to 1, by mincore(2).

    None where the system does not report it.  Linux reports it only to those who may write to a
    file; for others all of it seems to be in memory, so that "warm" is then a guess.
    """
    if not sys.platform.startswith("linux"):
        return None
    there = pages = 0
    try:
        for path in paths:
            found = _pages(path)
            there += int(np.count_nonzero(found & 1))
            pages += len(found)
    except (OSError, ValueError, AttributeError):
        return None
    return there / pages if pages else 1.0


def _pages(path: str | os.PathLike[str]) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a byte for each page of a file, whose lowest bit is set if it is in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return np.zeros(0, np.uint8)
        # A private writable map: ctypes takes the address of writable memory only.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    try:
        anchor = ctypes.c_char.from_buffer(memory)
        pages = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)
        failed = libc.mincore(
            ctypes.c_void_p(ctypes.addressof(anchor)),
            ctypes.c_size_t(len(memory)),
            pages.ctypes.data_as(ctypes.c_void_p),
        )
        del anchor
    finally:
        memory.close()
    if failed:
        raise OSError(ctypes.get_errno(), f"mincore failed for {path}")
    return pages


def read_within(paths: Iterable[str | os.PathLike[str]], seconds: float, most_bytes: int) -> bool:
    """Read files, so that they are in memory, until the time is up; return whether all was read.

    Files of more than `most_bytes` altogether are not begun: they would push each other out.
    """
    files = [Path(path) for path in paths]
    if sum(file.stat().st_size for file in files) > most_bytes:
        return False
    end = time.monotonic() + seconds
    for file in files:
        with open(file, "rb", buffering=0) as opened:
            while opened.read(_CHUNK):
                if time.monotonic() > end:
                    return False
    return True
