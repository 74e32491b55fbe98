"""Append-only files that hold a shard's columns while it is being written.

A spool knows only how to append, to make what it has durable, and to go back
to a length that is known to be good.  That is all that resuming after a crash
needs, and memory does not grow with the shard.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

__all__ = ["Spool", "copy_into", "sync_directory"]

_BUFFER_BYTES = 1 << 18


class Spool:
    """One append-only file.

    Parameters
    ----------
    path : Path
    length : int
        Bytes known to be good; whatever a crash left beyond them is dropped.
    """

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path = path
        self._file = io.BufferedWriter(io.FileIO(path, "ab"), _BUFFER_BYTES)
        if os.fstat(self._file.fileno()).st_size < length:
            self._file.close()
            raise ValueError(f"{path} is shorter than the {length} bytes that were recorded")
        self._file.truncate(length)
        self.length = length

    def append(self, data: Any) -> None:
        """Write a bytes-like object at the end."""
        self._file.write(data)
        self.length += data.nbytes if hasattr(data, "nbytes") else len(data)

    def sync(self) -> None:
        """Return once everything appended is on the disk."""
        self._file.flush()
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        """Close the file, keeping it."""
        try:
            self._file.close()
        except OSError:
            # What could not be flushed (a full disk) is beyond the last
            # committed length anyway, and is dropped on resuming.
            self._file.raw.close()


def copy_into(source: Path, length: int, descriptor: int, offset: int) -> None:
    """Copy `length` bytes of a file into an open one, in the kernel where it can."""
    with open(source, "rb") as file:
        done = 0
        while done < length:
            try:
                count = os.copy_file_range(
                    file.fileno(), descriptor, length - done, done, offset + done
                )
            except OSError:
                # Not supported between these file systems: by hand.
                block = os.pread(file.fileno(), min(length - done, 1 << 22), done)
                count = os.pwrite(descriptor, block, offset + done)
            if count == 0:
                raise OSError(f"{source}: only {done} of {length} bytes could be read")
            done += count


def sync_directory(path: Path) -> None:
    """Return once the renames in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
