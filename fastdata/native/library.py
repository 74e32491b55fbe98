"""Find and load the compiled library, once a process."""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

from fastdata.installing import BUILD_AGAIN

__all__ = ["FILE", "compiled", "library", "loaded_library"]

VERSION = 2
"""Of the interface; ``VERSION`` in crops.c is the same."""

FILE = Path(__file__).with_name("_native.so")
"""Of any Python: nothing of Python's API is in it (setup.py)."""


def compiled() -> bool:
    """Return whether the compiled library is there and to be used."""
    return library() is not None


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library; None where it is not there, or not to be used for images.

    It is not used where ``FASTDATA_NATIVE=0`` is set, nor on processors without AVX2, where other
    libraries are faster.
    """
    loaded = loaded_library()
    return loaded if loaded is not None and loaded.fd_is_fast() else None


@functools.cache
def loaded_library() -> ctypes.CDLL | None:
    """Return the compiled library for what has nothing to do with speed; None without one.

    Warns
    -----
    RuntimeWarning
        If it does not fit these Python files: built before they changed, or for another machine.
    """
    if os.environ.get("FASTDATA_NATIVE") == "0":
        return None
    if not FILE.exists():
        return None
    try:
        loaded = ctypes.CDLL(str(FILE))
        version = int(loaded.fd_version())
    except (AttributeError, OSError) as error:
        _warn(str(error))
        return None
    if version != VERSION:
        _warn(f"its version is {version}, not {VERSION}")
        return None
    loaded.fd_render_crops.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int32,
    ]
    loaded.fd_render_crops.restype = None
    loaded.fd_gather_rows.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    loaded.fd_gather_rows.restype = None
    loaded.fd_watch_map.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_char_p,
    ]
    loaded.fd_watch_map.restype = ctypes.c_void_p
    loaded.fd_unwatch_map.argtypes = [ctypes.c_void_p]
    loaded.fd_unwatch_map.restype = None
    return loaded


def _warn(reason: str) -> None:
    warnings.warn(
        f"fastdata's compiled library {FILE} is not used, as it does not fit ({reason}); "
        f"everything works, but slower. Install fastdata again to build it anew: {BUILD_AGAIN} (in "
        "the repository's folder: pip install -e .)",
        RuntimeWarning,
        stacklevel=5,
    )
