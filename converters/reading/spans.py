"""Pieces of files, and how they are read without believing what a file claims.

A `FileSpan` is a few bytes that stand for many: the packing process sends it to a
worker, which reads the piece.  Reading is by ``os.pread`` from a descriptor that is kept
for a while, so that a chunk of neighbours costs one system call a sample.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

__all__ = [
    "MAX_RECORD",
    "FileSpan",
    "check_length",
    "close_files",
    "read_at",
]

MAX_RECORD = 1 << 30
"""Bytes that one record may have.  An image file of more would be rejected anyway."""

_KEPT_OPEN = 16


class FileSpan(NamedTuple):
    """A piece of a file; as an image value, an image file inside another file."""

    path: str
    offset: int  # In bytes
    length: int

    def read(self) -> bytes:
        """Return the bytes. Raises SourceError if the file ends before."""
        return read_at(self.path, self.offset, self.length)


class _Descriptor:
    """A file that is open until nobody uses it."""

    def __init__(self, path: str) -> None:
        self.number = open_regular(path)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(_KEPT_OPEN)
def _opened(path: str, inode: int, changed: int) -> _Descriptor:
    return _Descriptor(path)


def close_files() -> None:
    """Close the files that this process keeps open."""
    _opened.cache_clear()


def read_at(path: str | Path, offset: int, length: int) -> bytes:
    """Return a piece of a file; thread-safe, and safe after a fork.

    Nothing is allocated for bytes that the file does not have.

    Raises SourceError if the file ends before the piece does, or the piece is absurdly long.
    """
    name = os.fspath(path)
    check_length(length, name, offset)
    status = os.stat(name)
    file = _opened(name, status.st_ino, status.st_mtime_ns)
    if offset < 0 or offset + length > status.st_size:
        raise SourceError(
            f"{name}: a record of {length:,} bytes at byte {offset:,} reaches beyond the end of "
            f"the file, {status.st_size:,}: it is damaged or cut short"
        )
    data = os.pread(file.number, length, offset)
    while len(data) < length:  # somebody has just cut it
        more = os.pread(file.number, length - len(data), offset + len(data))
        if not more:
            raise SourceError(f"{name}: ends at byte {offset + len(data):,} while it is read")
        data += more
    return data


def check_length(length: int, name: str, offset: int) -> None:
    """Refuse a claimed length that no record has."""
    if not 0 <= length <= MAX_RECORD:
        raise SourceError(
            f"{name}: the record at byte {offset:,} claims {length:,} bytes; at most "
            f"{MAX_RECORD:,} are believed: the file is damaged"
        )
