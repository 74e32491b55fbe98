"""Files and folders that fastdata makes for itself: locks, states, lists of rejects, caches.

An own file, folder or socket belongs to the user of this process, and no other user may write to
it: `check_own`.  Whatever lies in its place otherwise is neither read nor written.  Links are never
followed: only regular files with one name are opened, and a created file is always new.  What is
opened is checked once more, by its descriptor.  Only a destination that the user names may be a
link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import stat
from pathlib import Path
from typing import IO, Any

from fastdata.errors import NotRegularFileError, drive_explained

__all__ = [
    "check_own",
    "create_own",
    "make_own_folder",
    "open_own",
    "open_own_file",
    "open_own_folder",
    "remove_own",
    "sync_directory",
    "sync_file",
]

_KINDS = {errno.ELOOP: "a link", errno.ENXIO: "a pipe or a socket", errno.EISDIR: "a folder"}

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_own(
    path: str | os.PathLike[str], status: os.stat_result, expected: str = "a file"
) -> None:
    """Raise `NotRegularFileError` if another user owns a file, folder or socket, or may write it.

    `status` is that of an open descriptor, or of `os.lstat`.
    """
    if stat.S_ISLNK(status.st_mode):
        raise _not_own(path, "a link", expected)
    user, mode = os.geteuid(), stat.S_IMODE(status.st_mode)
    if status.st_uid != user:
        raise _not_own(path, f"another user's ({status.st_uid}, and you are {user})", expected)
    if mode & _OTHERS_WRITE:
        remedy = f"If all is yours, run chmod go-w {shlex.quote(os.fspath(path))}; else remove it"
        raise _not_own(path, f"other users may write there (mode {mode:o})", expected, remedy)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o644) -> int:
    """Return the descriptor of an own file; also an ``opener`` of `open`.

    `NotRegularFileError` if it is a link, a pipe, a device or a folder, if the file has a second
    name, or by `check_own`; else `OSError` as from `os.open`.
    """
    # Truncate only after the checks; O_NONBLOCK, since opening a pipe would block.
    wanted = (flags & ~os.O_TRUNC) | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        descriptor = os.open(path, wanted, mode)
    except OSError as error:
        if error.errno in _KINDS:
            raise _not_own(path, _KINDS[error.errno]) from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _not_own(path, "not a regular file")
        if status.st_nlink > 1:
            raise _not_own(path, "a hard link to a file that has another name, too")
        check_own(path, status)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def create_own(path: str | os.PathLike[str], mode: int = 0o644) -> int:
    """Return the descriptor of a new own file, for writing and reading.

    An existing file, which a killed process may have left, or a link is removed first.  Raises
    `OSError`, for instance if a folder has the name.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags, mode)


def open_own_file(path: str | os.PathLike[str], mode: str = "rb", **options: Any) -> IO[Any]:
    """Open an own file as `open` does, with the checks of `open_own`."""
    return open(path, mode, opener=open_own, **options)


def make_own_folder(path: Path, mode: int = 0o700) -> None:
    """Make a folder and its parents, unless it exists; raise what `open_own_folder` does.

    The parents are the user's, and may be links.  `FileNotFoundError` if another process removes
    the folder meanwhile.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise _not_own(path.parent, "no folder", "a folder") from None
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode)
    os.close(open_own_folder(path))


def open_own_folder(path: str | os.PathLike[str]) -> int:
    """Return the descriptor of an own folder.

    `NotRegularFileError` if it is a link or a file, or by `check_own`; else `OSError`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        kind = "a link" if os.path.islink(path) else "no folder"
        raise _not_own(path, kind, "a folder") from None
    try:
        check_own(path, os.fstat(descriptor), "a folder")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_file(descriptor: int, path: str | os.PathLike[str], *, data_only: bool = False) -> None:
    """Wait until a file is on the disk; `DriveError` if its drive cannot do that."""
    with drive_explained(os.path.dirname(path), "fsync"):
        if data_only:
            os.fdatasync(descriptor)
        else:
            os.fsync(descriptor)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Wait until the renames in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with drive_explained(path, "fsync of folders"):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_own(path: str | os.PathLike[str]) -> None:
    """Remove an own file or folder, if it exists; links are not followed."""
    try:
        is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _not_own(
    path: str | os.PathLike[str], kind: str, expected: str = "a file", remedy: str = "Remove it"
) -> NotRegularFileError:
    return NotRegularFileError(
        f"{os.fspath(path)}: {kind}, where fastdata keeps {expected} of its own. Nothing was "
        f"written. {remedy}, or choose another folder"
    )
