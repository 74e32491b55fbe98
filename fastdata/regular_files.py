"""Open files that users name: regular files, and nothing else.

A folder of images, or a list of them, may name a pipe that no process writes to, or a device
without an end.  Reading these would never end.

Below the root of a `Mirror`, files are placeholders of objects in a store, with their names, sizes
and times, until they are opened here.  A placeholder reads as zeros, so that none is ever opened.
"""

from __future__ import annotations

import errno
import os
import stat
import weakref
from typing import Protocol

from fastdata.errors import NotRegularFileError, ResourceLimitError, StorageError

__all__ = [
    "KINDS",
    "PLACEHOLDER",
    "Mirror",
    "add_mirror",
    "is_placeholder",
    "mirror_of",
    "open_regular",
    "read_piece",
    "read_regular",
    "too_many_files",
    "with_urls",
]

KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}

MOST_BYTES = 1 << 30
"""Limit of a file that is read whole: an image, a list."""

_PIECE_BYTES = 1 << 20

_LIMITS = (errno.EMFILE, errno.ENFILE)

PLACEHOLDER = stat.S_ISVTX
"""The mode of a placeholder: nobody may read it, and a bit that no other file has tells it from
one whose owner wants it so, also to those who may read all."""


class Mirror(Protocol):
    """A folder of placeholders; it may be used by all threads of the process that made it.

    Raises what `fastdata.storage.Store` does.
    """

    url: str
    """What the folder stands for."""
    left_out: list[tuple[str, str]]
    """Keys of objects that have no file there, and why."""

    def open(self, path: str | os.PathLike[str], flags: int) -> int:
        """Return the descriptor of a file, which is downloaded if it was not."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes of an object, which nothing on the disk is made of."""

    def hold(self, path: str | os.PathLike[str], following: str | os.PathLike[str] = "") -> object:
        """Download a file, which stays as long as what is returned; and begin with another."""

    def check(self) -> None:
        """Raise, once, why the store gave nothing, where whoever asked took that for damage."""

    def drop(self) -> None:
        """Make placeholders again of the files that nobody reads."""

    def close(self) -> None:
        """Remove the folder."""


_mirrors: weakref.WeakValueDictionary[str, Mirror] = weakref.WeakValueDictionary()
"""By their roots, absolute and without links."""


def add_mirror(root: str, mirror: Mirror) -> None:
    """Have files below a folder opened by a mirror, as long as that lives."""
    _mirrors[root] = mirror


def mirror_of(path: str | os.PathLike[str]) -> Mirror | None:
    """Return the mirror that a file is in, if any."""
    if not _mirrors:
        return None
    name = os.path.normpath(os.fsdecode(path))
    found = (mirror for root, mirror in list(_mirrors.items()) if name.startswith(root + os.sep))
    return next(found, None)


def with_urls(text: str) -> str:
    """Return a message with URLs in the place of the mirrors' folders."""
    for root, mirror in list(_mirrors.items()) if _mirrors else ():
        text = text.replace(root, mirror.url)
    return text


def is_placeholder(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file stands for an object that is not here."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == PLACEHOLDER


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of a regular file, or a link to one; also an ``opener`` of `open`.

    `NotRegularFileError` if it is a pipe, a device or a folder, `ResourceLimitError` if there are
    too many open files, `StorageError` if it stands for an object that cannot be had, `OSError` if
    it cannot be opened.
    """
    mirror = mirror_of(path)
    try:
        # Non-blocking: opening a pipe would wait for its writer.  It changes nothing for a file.
        flags |= os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open(path, flags) if mirror is None else mirror.open(path, flags)
    except OSError as error:
        if error.errno in _LIMITS:
            raise too_many_files(path, error.errno) from error
        if error.errno == errno.ENXIO:  # what the system says of a socket
            raise NotRegularFileError(f"{os.fspath(path)}: not a regular file") from error
        if error.errno == errno.EACCES and is_placeholder(path):
            raise _not_here(path) from error
        raise
    mode = os.fstat(descriptor).st_mode
    kind = stat.S_IFMT(mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise NotRegularFileError(
            f"{os.fspath(path)}: {KINDS.get(kind, 'a special file')}, not a regular file"
        )
    if stat.S_IMODE(mode) == PLACEHOLDER:
        os.close(descriptor)
        raise _not_here(path)
    return descriptor


def _not_here(path: str | os.PathLike[str]) -> StorageError:
    return StorageError(
        f"{os.fspath(path)}: stands for an object of a store, which another process has listed; "
        "this one cannot download it"
    )


def read_regular(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file; raises what `open_regular` does.

    A file of more than `most_bytes` is a `NotRegularFileError` too.
    """
    mirror = mirror_of(path)
    if mirror is not None and is_placeholder(path):
        _check_size(path, os.stat(path).st_size, most_bytes)
        return mirror.read(os.fspath(path))
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        _check_size(path, size, most_bytes)
        # Three calls of the system fewer than a file object makes.
        data = os.read(descriptor, size + 1)
        if len(data) != size:  # it grows or shrinks, or its size is not told
            pieces = [data]
            while pieces[-1]:
                pieces.append(os.read(descriptor, _PIECE_BYTES))
            data = b"".join(pieces)
        return data
    finally:
        os.close(descriptor)


def _check_size(path: str | os.PathLike[str], size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise NotRegularFileError(
            f"{os.fspath(path)}: {size:,} bytes, where at most {most_bytes:,} are read at once"
        )


def read_piece(path: str | os.PathLike[str], count: int, *, at_end: bool = False) -> bytes:
    """Return the first bytes of a regular file, or the last; fewer of a shorter one.

    An object is not downloaded for them.  Raises what `open_regular` does.
    """
    mirror = mirror_of(path)
    if mirror is not None and is_placeholder(path):
        size = os.stat(path).st_size
        start = max(0, size - count) if at_end else 0
        return mirror.read(os.fspath(path), start, min(size, start + count))
    descriptor = open_regular(path)
    try:
        start = max(0, os.fstat(descriptor).st_size - count) if at_end else 0
        return os.pread(descriptor, count, start)
    finally:
        os.close(descriptor)


def too_many_files(path: str | os.PathLike[str], number: int) -> ResourceLimitError:
    """Return the error of a file for which the system has no descriptor, with its errno."""
    return ResourceLimitError(
        f"{os.fspath(path)}: cannot be opened: {os.strerror(number)}. Nothing is wrong "
        "with the file: this process, or the system, has as many open as it may. Raise the limit: "
        "ulimit -n 65536"
    )
