"""Files and folders that fastdata makes for itself: locks, states, lists of rejects, caches.

In a folder that others may write to, a link could lie under such a name and lead to a file of
the user.  No link is followed: what is opened is a regular file with one name, and what is
created was not there before.  A destination that the user names is different: it may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from pathlib import Path
from typing import IO, Any

from fastdata.errors import NotRegularFileError, drive_explained

__all__ = [
    "create_own",
    "make_own_folder",
    "open_own",
    "open_own_file",
    "remove_own",
    "sync_directory",
    "sync_file",
]


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
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


def create_own(path: str | os.PathLike[str], mode: int = 0o666) -> int:
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


def make_own_folder(path: Path) -> None:
    """Make a folder, and those above it, unless it is there.

    `NotRegularFileError` if a link or a file has its name.  The folders above it are the user's,
    and may be links.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        if os.path.lexists(path) and not path.is_dir():
            raise _not_own(path, "no folder", "a folder") from None
        if not path.is_dir():
            raise  # it was there, and is gone again
    if path.is_symlink():
        raise _not_own(path, "a link", "a folder")


def sync_file(descriptor: int, path: str | os.PathLike[str], *, data_only: bool = False) -> None:
    """Return once a file is on the disk; `DriveError` if its drive has no such promise."""
    with drive_explained(os.path.dirname(path), "fsync"):
        if data_only:
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Return once the renames in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with drive_explained(path, "fsync of folders"):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_own(path: str | os.PathLike[str]) -> None:
    """Remove an own file or folder, if it is there; what a link leads to stays."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _not_own(
    path: str | os.PathLike[str], kind: str, expected: str = "a file"
) -> NotRegularFileError:
    return NotRegularFileError(
        f"{os.fspath(path)}: {kind}, where fastdata keeps {expected} of its own. Nothing was "
        "written. Remove it, or choose another folder"
    )
