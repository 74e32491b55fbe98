"""Files that fastdata writes for itself: locks, states, lists of rejects, caches.

In a folder that others may write to, a link could lie under such a name and lead to a file of
the user.  No link is followed: what is opened is a regular file with one name, and what is
created was not there before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import IO, Any

from fastdata.errors import NotRegularFileError

__all__ = ["create_own", "open_own", "open_own_file"]


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Return the descriptor of an own file; also an ``opener`` of `open`.

    `NotRegularFileError` if a link, a pipe, a device or a folder has its name, or if the file has
    another name too; `OSError` as of `os.open`.
    """
    # Truncated only once it is known what was opened; a pipe must not be waited for.
    wanted = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, wanted, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_own(path, "a link") from None
        if error.errno == errno.ENXIO:
            raise _not_own(path, "a pipe or a socket") from None
        if error.errno == errno.EISDIR:
            raise _not_own(path, "a folder") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _not_own(path, "not a regular file")
        if status.st_nlink > 1:
            raise _not_own(path, "a hard link to a file that has another name, too")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_own(path: str | os.PathLike[str], mode: int = 0o644) -> int:
    """Return the descriptor of a new own file, for writing and reading.

    What has its name is removed first, without following it: an earlier process that was killed
    may have left it.  Raises `OSError`, for instance if a folder has the name.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags, mode)


def open_own_file(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> IO[Any]:
    """Open an own file as `open` does; raises what `open_own` does."""
    return open(path, mode, opener=open_own, **options)


def _not_own(path: str | os.PathLike[str], kind: str) -> NotRegularFileError:
    return NotRegularFileError(
        f"{os.fspath(path)}: {kind}, where fastdata keeps a file of its own. Nothing was written. "
        "Remove it, or choose another folder"
    )
