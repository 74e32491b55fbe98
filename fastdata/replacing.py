"""Places that users name: what stands there is replaced only if it is proven to be fastdata's.

Every command that writes where its user says does so through a `Destination`.  It looks at the
place when the work begins, and again when the new file or folder gets the name: what is replaced
is what was looked at.  Links, pipes, sockets and devices are never replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import LACKING, DestinationExistsError, full_disk_explained
from fastdata.own_files import create_own, remove_own
from fastdata.regular_files import KINDS

__all__ = ["Destination", "Kind", "check_apart", "foreign_name"]

_NOREPLACE, _EXCHANGE = 1, 2
"""Flags of Linux's ``renameat2``."""

_AT_FDCWD = -100

_libc = ctypes.CDLL(None, use_errno=True)


class Kind(NamedTuple):
    """Something that fastdata writes, and how it is told from what others write."""

    name: str
    """With its article, for messages."""
    why_not: Callable[[Path], str]
    """Says what speaks against a regular file or a folder; "" if it is proven to be of the kind."""


class Destination:
    """A place that a user names, and what stands there.

    `DestinationExistsError` if that is not proven to be of the kind.  With ``replace=False``,
    nothing may stand there when `put` is called.
    """

    def __init__(self, path: Path, kind: Kind, *, replace: bool = True) -> None:
        self.path, self._kind = path, kind
        self._seen: object = None
        if replace and os.path.lexists(path):
            self._seen = _identity(path)
            self.check()

    def check(self) -> None:
        """Check that nothing is at the path, or what was there when this was made."""
        if os.path.lexists(self.path):
            self._check(self.path)

    def _check(self, place: Path) -> None:
        """Check what stood at the path when this was made, and is at `place` now."""
        mode = os.lstat(place).st_mode
        if _identity(place) != self._seen:
            raise DestinationExistsError(
                f"{self.path} appeared or changed meanwhile, so it is not replaced. Move it "
                "elsewhere, and run the same command again."
            )
        why = ""
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            why = self._kind.why_not(place)
        else:
            why = f"is {KINDS.get(stat.S_IFMT(mode), 'a special file')}, not {self._kind.name}"
        if why:
            raise DestinationExistsError(
                f"{self.path} {why}, so it is not replaced. Move that elsewhere, or choose another "
                "destination."
            )

    def put(self, new: Path, *, spare: Path | None = None) -> None:
        """Give `new` the path, and remove what had it; if there is no `new`, only remove that.

        `new` and `spare` are names in a folder of fastdata's own.  Where the file system can, both
        change places at once; else a folder waits at `spare` meanwhile.  Behind that it is checked
        again, and gets its name back if another program has put something else there just before.
        """
        is_new, spare = os.path.lexists(new), spare or new
        if is_new and _renamed(new, self.path, _NOREPLACE):
            return
        if not os.path.lexists(self.path):
            if is_new:
                os.rename(new, self.path)
            return
        self._check(self.path)
        if is_new and _renamed(new, self.path, _EXCHANGE):
            spare = new
        elif is_new and not new.is_dir() and not self.path.is_dir():
            os.replace(new, self.path)
            return
        else:
            os.rename(self.path, spare)
        try:
            self._check(spare)
        except BaseException:
            if not (_renamed(spare, self.path, _EXCHANGE if spare is new else _NOREPLACE)):
                os.rename(spare, self.path)
            raise
        if is_new and spare is not new:
            os.rename(new, self.path)
        remove_own(spare)

    def write(self, data: bytes) -> None:
        """Write a file, which gets the name when it is complete; `DiskFullError` without room."""
        scratch = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with full_disk_explained(self.path, "Make room, or choose another disk."):
            try:
                with open(create_own(scratch), "wb") as file:
                    file.write(data)
                self.put(scratch)
            except BaseException:
                with contextlib.suppress(OSError):
                    scratch.unlink()
                raise


def _identity(path: Path) -> object:
    """Return what tells a file or folder from another one that takes its place."""
    status = os.lstat(path)
    written = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
    return status.st_dev, status.st_ino, *written


def _renamed(old: Path, new: Path, flag: int) -> bool:
    """Rename by ``renameat2``; False if `new` exists (`_NOREPLACE`), or the system cannot."""
    call: Any = getattr(_libc, "renameat2", None)
    if call is None or not call(
        _AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flag)
    ):
        return call is not None
    number = ctypes.get_errno()
    error = OSError(number, os.strerror(number), os.fspath(new))
    if number in LACKING or isinstance(error, FileExistsError):
        return False
    raise error


def foreign_name(folder: Path, own: Collection[str]) -> str:
    """Return the first name in a folder that is neither an `own` file nor a folder of such.

    `own` are paths relative to the folder.  "" if there is no other name, at any depth.
    """
    folders: set[str] = set()
    for name in own:
        while (name := os.path.dirname(name)) and name not in folders:
            folders.add(name)
    stack = [""]
    while stack:
        inside = stack.pop()
        with os.scandir(folder / inside) as entries:
            found = sorted(entries, key=lambda one: one.name)
        for one in found:
            name = os.path.join(inside, one.name)
            if name in folders and one.is_dir(follow_symlinks=False):
                stack.append(name)
            elif name not in own or not one.is_file(follow_symlinks=False):
                return name
    return ""


def check_apart(
    destination: Path, sources: Iterable[str | os.PathLike[str]], *, around: bool = True
) -> None:
    """Raise `DestinationExistsError` if a source is the destination, or lies inside it.

    Or `around` it: a folder in which the destination lies.
    """
    whole = _places(destination)
    for source in sources:
        places = _places(source)
        if whole[0] is not None and whole[0] in places:
            how = "is" if whole[0] == places[0] else "contains"
        elif around and places[0] in whole[1:]:
            how = "lies in"
        else:
            continue
        raise DestinationExistsError(
            f"{destination} {how} the source {os.fspath(source)}, so it is not replaced. Choose "
            "another destination, or move the source."
        )


def _places(path: str | os.PathLike[str]) -> list[tuple[int, int] | None]:
    """Return device and inode of a path and of all folders that it is in; None of a missing one."""
    real = Path(os.path.realpath(path))
    found: list[tuple[int, int] | None] = []
    for one in (real, *real.parents):
        try:
            status = os.stat(one)
            found.append((status.st_dev, status.st_ino))
        except OSError:
            found.append(None)
    return found
