"""The compiled part: plain C, loaded by ctypes, which makes crops faster where it was built.

It has no Python API, so the interpreter's lock is released while it works and
one source serves every Python, also free-threaded.  It is optional: an install
without a C compiler succeeds and lacks it, and everything works without it.
Building it: ``scripts/README.md``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from importlib.machinery import PathFinder

__all__ = ["VERSION", "library"]

VERSION = 1
"""What ``fd_version()`` of a fitting build returns: FD_VERSION in ``fastdata.h``."""

_REMEDY = (
    "Until it is built again, the slower Python path is used. To build it, run "
    "`pip install -e .` in the repository's folder, or install fastdata again."
)


# No lock: one held by another thread during a fork would never be released in the child.  Threads
# that come here together each load it, which the system makes the same handle.
@functools.cache
def library() -> ctypes.CDLL | None:
    """Load the compiled part, the first time; later calls return the same.

    Safe to call from any thread and after a fork; loaded before a fork, the
    children have it at no cost.

    Returns
    -------
    ctypes.CDLL or None
        None where it was not built, where its build does not fit, and where the
        environment variable ``FASTDATA_NATIVE`` is 0, which is read only once.

    Warns
    -----
    RuntimeWarning
        Once, if there is a build and it cannot be used: it is of another
        version than this Python code, or of another system.
    """
    if os.environ.get("FASTDATA_NATIVE") == "0":
        return None
    # Found as an extension module would be, whose file has this Python's tag in its name; but it
    # has no PyInit function and is never imported.
    spec = PathFinder.find_spec(f"{__name__}._native", __path__)
    if spec is None or spec.origin is None:
        return None
    try:
        loaded = ctypes.CDLL(spec.origin)
        found = loaded.fd_version()
    except (OSError, AttributeError) as error:
        _warn(f"fastdata's compiled part cannot be loaded: {error}. {_REMEDY}")
        return None
    if found != VERSION:
        _warn(
            f"fastdata's compiled part is of version {found}, and this fastdata needs {VERSION}: "
            f"{spec.origin} was built from other sources. {_REMEDY}"
        )
        return None
    return loaded


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)
