"""Open files that users name: regular files, and nothing else.

A folder of images, or a list of them, may name a pipe that no process writes to, or a device
without an end.  Reading these would never end.
"""

from __future__ import annotations

import errno
import os
import stat

from fastdata.errors import NotRegularFileError, ResourceLimitError

__all__ = ["open_regular", "read_regular", "too_many_files"]

_KINDS = {
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


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Return the descriptor of a regular file, or a link to one; also an ``opener`` of `open`.

    `NotRegularFileError` if it is a pipe, a device or a folder, `ResourceLimitError` if there are
    too many open files, `OSError` if it cannot be opened.
    """
    try:
        # Non-blocking: opening a pipe would wait for its writer.  It changes nothing for a file.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _LIMITS:
            raise too_many_files(path, error.errno) from error
        if error.errno == errno.ENXIO:  # what the system says of a socket
            raise NotRegularFileError(f"{os.fspath(path)}: not a regular file") from error
        raise
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise NotRegularFileError(
            f"{os.fspath(path)}: {_KINDS.get(kind, 'a special file')}, not a regular file"
        )
    return descriptor


def read_regular(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file; raises what `open_regular` does.

    A file of more than `most_bytes` is a `NotRegularFileError` too.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > most_bytes:
            raise NotRegularFileError(
                f"{os.fspath(path)}: {size:,} bytes, where at most {most_bytes:,} are read at once"
            )
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


def too_many_files(path: str | os.PathLike[str], number: int) -> ResourceLimitError:
    """Return the error of a file for which the system has no descriptor, with its errno."""
    return ResourceLimitError(
        f"{os.fspath(path)}: cannot be opened: {os.strerror(number)}. Nothing is wrong "
        "with the file: this process, or the system, has as many open as it may. Raise the limit: "
        "ulimit -n 65536"
    )
