"""A directory that one pack, append or export owns.

A POSIX record lock rather than ``flock``: worker processes do not inherit it, so that the
kernel drops it the moment the owner dies.  It does not keep out threads of the same
process, and would be lost were they to open and close the file; `_locked_here` keeps them out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from fastdata.errors import DestinationExistsError, DestinationLockedError, drive_explained
from fastdata.own_files import make_own_folder, open_own

__all__ = ["DirectoryLock"]

_FILE = "lock"
_locked_here: set[str] = set()
"""Real paths of the directories that threads of this process have locked."""
_guard = threading.Lock()


class DirectoryLock:
    """Locks a directory for this process and thread; makes it if it is missing.

    `DestinationLockedError` if another process, or another thread of this one, holds the lock;
    `activity` is for its message.  `DestinationExistsError` if the directory has names that are
    `ours` but no lock file: fastdata did not make it, and those files would be removed.
    `DriveError` if its drive has no locks.
    """

    def __init__(
        self, directory: Path, ours: Callable[[str], object], activity: str = "packing"
    ) -> None:
        _refuse_foreign(directory, ours)
        self._directory = directory
        self._descriptor, self._real = _lock(directory, activity)

    @property
    def is_locked(self) -> bool:
        """Whether the lock is still held."""
        return self._descriptor >= 0

    def release(self, *, finished: bool = False) -> None:
        """Release the lock, and remove the directory if it is empty.  Idempotent.

        With `finished`, the lock file goes even if the directory has other files.
        """
        if not self.is_locked:
            return
        with contextlib.suppress(OSError):
            if finished or os.listdir(self._directory) == [_FILE]:
                # Others may wait for the lock: remove its file while we hold it.
                os.unlink(self._directory / _FILE)
                os.rmdir(self._directory)
        os.close(self._descriptor)
        self._descriptor = -1
        with _guard:
            _locked_here.discard(self._real)


def _refuse_foreign(directory: Path, ours: Callable[[str], object]) -> None:
    try:
        names = os.listdir(directory)
    except OSError:  # missing, or not a folder: locking reports it
        return
    found = next(filter(ours, sorted(names)), None)
    # The listing may lack the lock if another process changes the directory meanwhile.
    if found is not None and _FILE not in names and os.path.lexists(directory / found):
        raise DestinationExistsError(
            f"{directory} is in the way: it has {found}, which fastdata did not make. "
            "Move it elsewhere, or choose another destination."
        )


def _lock(directory: Path, activity: str) -> tuple[int, str]:
    """Return the open lock file, and the directory's entry in `_locked_here`."""
    real = os.path.realpath(directory)
    with _guard:
        if real in _locked_here:
            raise DestinationLockedError(
                f"{directory}: another thread of this process is {activity} there. Wait for it, "
                "or choose another destination."
            )
        _locked_here.add(real)
    try:
        while True:
            try:
                make_own_folder(directory)
            except FileNotFoundError:
                continue  # another process removed it meanwhile
            path = directory / _FILE
            try:
                descriptor = open_own(path, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError:
                continue  # another process finished, and removed the directory
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = os.stat(path).st_ino == os.fstat(descriptor).st_ino
            except FileNotFoundError:
                current = False
            except OSError as error:
                holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
                os.close(descriptor)
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    with drive_explained(directory.parent, "file locks"):
                        raise
                raise DestinationLockedError(
                    f"{directory}: another process ({holder or 'just started'}) is {activity} "
                    "there. Wait for it, or choose another destination."
                ) from None
            if current:
                with contextlib.suppress(OSError):  # a full disk: the number is only for messages
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)
                return descriptor, real
            os.close(descriptor)  # the file was removed while we waited for it
    except BaseException:
        with _guard:
            _locked_here.discard(real)
        raise
