"""Destinations that users name: only files and folders of fastdata are replaced there.

Every command that writes to a path of its user does so through a `Destination`.  It checks the file
or folder at the path when the work begins, and again when the new one gets the name: another one
that has appeared meanwhile is kept.  Links, pipes, sockets and devices are never replaced.
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

_libc = ctypes.CDLL(None, use_errno=True)


class Kind(NamedTuple):
    """Something that fastdata writes; `why_not` says why a file or folder is not such, or ""."""

    name: str
    why_not: Callable[[Path], str]


class Destination:
    """A path that a user names, and the file or folder there.

    `DestinationExistsError` if that is not proven to be of the kind.  With ``replace=False``,
    nothing may be there when `put` is called.
    """

    def __init__(self, path: Path, kind: Kind, *, replace: bool = True) -> None:
        self.path, self._kind = path, kind
        self._seen = _identity(path) if replace else None
        if replace:
            self.check()

    def check(self, place: Path | None = None) -> None:
        """Check that the path, or `place`, is free, or has the file or folder of the beginning."""
        place = place or self.path
        if (found := _identity(place)) is None:
            return
        mode, why = os.lstat(place).st_mode, ""
        if found != self._seen:
            why = "appeared or changed meanwhile"
        elif stat.S_ISREG(mode) or stat.S_ISDIR(mode):
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

        `new` and `spare` are names in a folder of fastdata's own.  Both change places at once if
        the file system can; else a folder waits at `spare` meanwhile.  There it is checked again,
        and gets its name back if another program has put something else at the path just before.
        """
        is_new, spare = os.path.lexists(new), spare or new
        if is_new and _renamed(new, self.path, _NOREPLACE):
            return
        self.check()
        exists, is_file = os.path.lexists(self.path), not (new.is_dir() or self.path.is_dir())
        if is_new and exists and _renamed(new, self.path, _EXCHANGE):
            spare = new
        elif is_new and (is_file or not exists):
            os.replace(new, self.path)
            return
        elif exists:
            os.rename(self.path, spare)
        try:
            self.check(spare)
        except BaseException:
            exchanged = spare is new and os.path.lexists(self.path)
            if not (exchanged and _renamed(spare, self.path, _EXCHANGE)):
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
                with open(create_own(scratch, 0o666), "wb") as file:
                    file.write(data)
                self.put(scratch)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    scratch.unlink()


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file or folder from another one in its place; None if there is none."""
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    written = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns)
    return status.st_dev, status.st_ino, *written


def _renamed(old: Path, new: Path, flag: int) -> bool:
    """Rename by ``renameat2``; False if `new` exists (`_NOREPLACE`), or the system cannot."""
    call: Any = getattr(_libc, "renameat2", None)
    here = -100  # AT_FDCWD
    if call is None or not call(here, os.fsencode(old), here, os.fsencode(new), flag):
        return call is not None
    error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(new))
    if error.errno in LACKING or isinstance(error, FileExistsError):
        return False
    raise error


def foreign_name(folder: Path, own: Collection[str]) -> str:
    """Return the first name in a folder, at any depth, that is not `own`; "" if there is none.

    `own` are paths of files, relative to the folder.
    """
    folders: set[str] = set()
    for name in own:
        while (name := os.path.dirname(name)) and name not in folders:
            folders.add(name)
    for place, inside, files in os.walk(folder):
        start = os.path.relpath(place, folder)
        for name in sorted([*inside, *files]):
            path, mode = os.path.normpath(os.path.join(start, name)), os.lstat(f"{place}/{name}")
            known = folders if stat.S_ISDIR(mode.st_mode) else own
            if path not in known or stat.S_IFMT(mode.st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
                return path
    return ""


def check_apart(destination: Path, sources: Iterable[Path], *, around: bool = True) -> None:
    """Raise `DestinationExistsError` if a source is the destination, or lies inside it.

    Or `around` it: a folder in which the destination lies.
    """
    for source in sources:
        if _is_in(source, destination):
            how = "is" if _is_in(destination, source) else "contains"
        elif around and _is_in(destination, source):
            how = "lies in"
        else:
            continue
        raise DestinationExistsError(
            f"{destination} {how} the source {source}, so it is not replaced. Choose another "
            "destination, or move the source."
        )


def _is_in(path: Path, folder: Path) -> bool:
    """Tell whether a path is a file or folder, by any name, or lies in it."""
    real = Path(os.path.realpath(path))
    with contextlib.suppress(OSError):
        wanted = os.stat(folder)
        return any(
            os.path.exists(p) and os.path.samestat(p.stat(), wanted) for p in (real, *real.parents)
        )
    return False
