"""Whether files are in the page cache: a rate from memory is none of a slow disk."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Sequence

import numpy as np

__all__ = ["WARM_AT_LEAST", "read_within", "resident"]

WARM_AT_LEAST = 0.98


def resident(paths: Sequence[str | os.PathLike[str]]) -> float | None:
    """Return the share of some files that is in the page cache, from 0 to 1, by mincore(2).

    None if the system does not report it.  Linux reports it only to users who may write to a file;
    for others all of it seems to be in memory, so "warm" is then a guess.
    """
    if not sys.platform.startswith("linux"):
        return None
    mincore = ctypes.CDLL(None).mincore
    there = count = 0
    try:
        for path in filter(os.path.getsize, paths):
            memory = np.memmap(path, np.uint8, "r")
            pages = np.zeros(-(-len(memory) // mmap.PAGESIZE), np.uint8)  # the lowest bit counts
            address, found = (ctypes.c_void_p(array.ctypes.data) for array in (memory, pages))
            if mincore(address, ctypes.c_size_t(len(memory)), found):
                return None
            there += int(np.count_nonzero(pages & 1))
            count += len(pages)
    except (OSError, ValueError):
        return None
    return there / count if count else 1.0


def read_within(paths: Sequence[str | os.PathLike[str]], seconds: float, most_bytes: int) -> bool:
    """Read files into memory until the time is up; return whether all was read.

    Files of more than `most_bytes` altogether are not begun: they would evict each other.
    """
    if sum(map(os.path.getsize, paths)) > most_bytes:
        return False
    end = time.monotonic() + seconds
    for path in paths:
        with open(path, "rb", buffering=0) as opened:
            while opened.read(1 << 24):
                if time.monotonic() > end:
                    return False
    return True
