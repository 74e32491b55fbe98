"""One file of a dataset, mapped into memory without being kept open.

``mmap.mmap`` keeps a descriptor of its own (before Python 3.13 it cannot do without), so that a
dataset of a thousand shards would be out of descriptors where a process may have 1,024.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import (
    LACKING,
    DatasetNotFoundError,
    DriveError,
    FormatError,
    NotRegularFileError,
    ResourceLimitError,
    ShardCorruptError,
)
from fastdata.formats.layout import FOOTER_BYTES, checksum
from fastdata.native.library import loaded_library
from fastdata.printable import printable
from fastdata.regular_files import open_regular

__all__ = ["MappedFile", "map_read_only", "shortened_files"]

_watched: dict[int, tuple[Path, int]] = {}
"""What this process has mapped, and the files' lengths then."""

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


class MappedFile:
    """A shard's file as a read-only array of bytes, which needs no descriptor.

    The array survives a fork, and unmaps the file when it and all its views are gone.  Raises
    `DatasetNotFoundError` if there is no such file, `FormatError` if it cannot be opened or is too
    short for a shard, `ResourceLimitError` at the limit of open files or memory maps, `DriveError`
    if the drive does not support memory maps.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            raise DatasetNotFoundError(
                f"{path}: no such file. Make it with: fastdata pack IMAGES {path}"
            ) from None
        except ResourceLimitError:
            raise
        except NotRegularFileError as error:
            raise FormatError(f"{path}: not a fastdata shard: {error.strerror}") from error
        except OSError as error:
            raise FormatError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(descriptor)
            self._identity = _identity_of(status)
            if status.st_size < FOOTER_BYTES:
                raise FormatError(
                    f"{path}: not a fastdata shard: {status.st_size} bytes are too few for one"
                )
            self.array = map_read_only(descriptor, status.st_size)
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise ResourceLimitError(
                    f"{path}: cannot be mapped: {error.strerror}. Nothing is wrong with "
                    "the file: this process has as much mapped as it may. Raise the limit "
                    "(ulimit -v unlimited; sysctl vm.max_map_count), or pack into fewer shards"
                ) from error
            if error.errno in LACKING:
                raise DriveError(
                    f"{path.parent}: its drive lacks memory maps ({error.strerror}), so "
                    f"{path.name} cannot be read there. Copy the dataset to a local disk"
                ) from error
            raise FormatError(f"{path}: cannot be mapped: {error.strerror}") from error
        finally:
            os.close(descriptor)
        _watch(self.array, path)

    def was_written_to(self, header: slice, header_checksum: int) -> bool:
        """Return whether the file has been written to since the last call.

        A file that was replaced by renaming, or removed, can be read as before.
        `ShardCorruptError` if the header or length is not as it was: something else was written
        over it, or it was cut short.
        """
        try:
            now = _identity_of(os.stat(self.path))
        except OSError:
            return False
        before = self._identity
        if now == before or now[:2] != before[:2]:
            return False
        if now[2] != before[2] or checksum(self.array[header]) != header_checksum:
            raise ShardCorruptError(
                f"{self.path}: something else was written over this shard while it was in use: it "
                f"had {before[2]} bytes when it was opened, and has {now[2]} now. "
                "Restore it and start again; put a new file in the place of one by renaming "
                "(mv), never by writing over it (cp)."
            )
        self._identity = now
        return True

    def read_soon(self, starts: NDArray[Any], ends: NDArray[Any]) -> None:
        """Ask the system to read these ranges, int64 [n] each; returns before they are read.

        Does nothing where the system has no such call.
        """
        advice = getattr(mmap, "MADV_WILLNEED", None)
        if advice is None:
            return
        address, size = self.array.ctypes.data, len(self.array)
        starts = np.clip(starts, 0, size) // mmap.PAGESIZE * mmap.PAGESIZE
        lengths = np.maximum(np.clip(ends, 0, size) - starts, 0)
        library = loaded_library()
        if library is not None:
            # Each call from Python gives up the interpreter's lock, and waits for it again.
            library.fd_read_soon(address, starts.ctypes.data, lengths.ctypes.data, len(starts))
            return
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            _system.madvise(address + start, length, advice)


def map_read_only(descriptor: int, nbytes: int) -> NDArray[np.uint8]:
    """Map a file; raises `OSError`.

    The map is private: it shares the page cache all the same, and drives without shared maps (FUSE
    with direct I/O) support it.
    """
    address = _system.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # All views, of whatever kind, keep this object alive.
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    weakref.finalize(memory, _system.munmap, address, nbytes).atexit = False
    array: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
    array.flags.writeable = False
    return array


def _identity_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return which file it is, and what changes when it is written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _watch(memory: NDArray[np.uint8], path: Path) -> None:
    """Name a file if its memory cannot be read, as long as that is mapped.

    The kernel ends a process by SIGBUS that reads behind the end of a file which was cut short
    after it was mapped.  The compiled library has a handler that prints the file's name first.
    """
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
