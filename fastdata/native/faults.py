"""Files that are mapped into memory, named when one of them cannot be read any more.

The kernel ends a process by SIGBUS that reads behind the end of a file which was cut short after
it was mapped.  The compiled library has a handler that prints the file's name first; without that
library the process ends without a message.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastdata.native.library import loaded_library
from fastdata.printable import printable

__all__ = ["shortened_files", "watch"]

_watched: dict[int, tuple[Path, int]] = {}
"""What this process has mapped, and the files' lengths then."""


def watch(memory: NDArray[np.uint8], path: Path) -> None:
    """Name a file if its memory cannot be read, as long as that is mapped."""
    _watched[id(memory)] = path, len(memory)
    weakref.finalize(memory, _watched.pop, id(memory), None).atexit = False
    library = loaded_library()
    if library is None:
        return
    names = os.fsencode(path), printable(path).encode()
    watched = library.fd_watch_map(memory.ctypes.data, len(memory), *names)
    weakref.finalize(memory, library.fd_unwatch_map, ctypes.c_void_p(watched)).atexit = False


def shortened_files() -> list[Path]:
    """Return the files that this process has mapped and that have become shorter since."""
    shortened = []
    for path, length in list(_watched.values()):
        try:
            if os.stat(path).st_size < length:
                shortened.append(path)
        except OSError:
            continue  # removed: what was mapped can be read as before
    return sorted(set(shortened))
