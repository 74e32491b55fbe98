"""Map a file into memory without keeping it open.

``mmap.mmap`` keeps a descriptor of its own (before Python 3.13 it cannot do without), so that a
dataset of a thousand shards would be out of descriptors where a process may have 1,024.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["advise", "map_read_only"]

_FAILED = ctypes.c_void_p(-1).value

_system = ctypes.CDLL(None, use_errno=True)
_system.mmap.restype = ctypes.c_void_p
_system.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,  # off_t, where addresses have 64 bits
)
_system.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_system.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def map_read_only(descriptor: int, nbytes: int) -> NDArray[np.uint8]:
    """Return a file's first bytes as a read-only array, uint8 [nbytes].

    The array needs the descriptor no longer, survives a fork, and unmaps the file when it and all
    its views are gone.

    Raises
    ------
    OSError
    """
    address = _system.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # All views, of whatever kind, keep this object.
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _system.munmap, address, nbytes).atexit = False
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


def advise(address: int, nbytes: int, advice: int) -> None:
    """Tell the system how mapped memory, from the beginning of a page on, will be used."""
    _system.madvise(address, nbytes, advice)
