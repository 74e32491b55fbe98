"""The exception tree of fastdata.

Everything fastdata raises on purpose is a `FastdataError`; each class is also
the builtin that code written against plain Python would catch.  A message
has the value, the expectation, the place, and the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator

from fastdata.printable import printable_lines

__all__ = [
    "LACKING",
    "PACKED",
    "PACK_ELSEWHERE",
    "REMEDIES",
    "DatasetNotFoundError",
    "DestinationExistsError",
    "DestinationLockedError",
    "DiskFullError",
    "DriveError",
    "FastdataError",
    "FileCorruptError",
    "FormatError",
    "ImageError",
    "JobChangedError",
    "MachineError",
    "MissingExtraError",
    "NotRegularFileError",
    "ObjectChangedError",
    "ObjectNotFoundError",
    "OptionError",
    "PartsMissingError",
    "RejectedError",
    "ResourceLimitError",
    "ShardCorruptError",
    "SourceError",
    "StorageError",
    "WorkerError",
    "add_note",
    "did_you_mean",
    "drive_explained",
    "full_disk_explained",
    "is_of_machine",
    "not_there",
]


PACKED = (".lmdb", ".h5", ".hdf5")
"""Suffixes of files that `fastdata.pack` makes."""


class FastdataError(Exception):
    """Base of every error that fastdata raises on purpose.

    Its text can be printed: names and keys out of data are escaped, so that they move no cursor.
    """

    def __str__(self) -> str:
        return printable_lines(super().__str__())


class OptionError(FastdataError, ValueError):
    """An argument or option has a value that cannot be used."""


class SourceError(FastdataError, ValueError):
    """The input of a pack cannot be read or is of no known format."""


class ImageError(FastdataError, ValueError):
    """One image cannot be decoded or encoded; the message is the reason."""


class RejectedError(FastdataError, ValueError):
    """A sample was rejected while packing with ``on_error="stop"``."""


class DatasetNotFoundError(FastdataError, FileNotFoundError):
    """There is no dataset, or a shard of one is missing, at the path given."""


class DestinationExistsError(FastdataError, FileExistsError):
    """The destination of a pack or export is already there."""


class DestinationLockedError(FastdataError, RuntimeError):
    """Another process is packing to the same destination."""


class JobChangedError(FastdataError, ValueError):
    """An unfinished pack was started with other options or another source."""


class PartsMissingError(FastdataError, RuntimeError):
    """A pack in parts has no plan yet, or parts of it are missing."""


class DiskFullError(FastdataError, OSError):
    """The destination's file system has no room left."""


class DriveError(FastdataError, OSError):
    """The drive of a folder does not support locks, fsync or memory maps."""


class NotRegularFileError(FastdataError, OSError):
    """A path is a pipe, a device or a folder; or fastdata's own file is not the user's alone."""

    @property
    def strerror(self) -> str:  # type: ignore[override]
        """The message without the path."""
        return str(self).rpartition(": ")[2]


class StorageError(FastdataError, OSError):
    """A store of objects cannot be read or written; the message has the URL and the reason."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """A store has no object with this key."""


class ObjectChangedError(StorageError):
    """An object has changed since it was listed."""


class ResourceLimitError(FastdataError, OSError):
    """The process has reached its limit of open files or memory maps."""


class MachineError(FastdataError, OSError):
    """A sample cannot be read because of permissions, I/O, memory or limits, not its data."""


class FormatError(FastdataError, ValueError):
    """A file is not a fastdata shard, or is of a version this release lacks."""


class ShardCorruptError(FastdataError, ValueError):
    """A shard's bytes are not those that were written."""


class FileCorruptError(ShardCorruptError):
    """A sample of files that are not packed cannot be read, or would be rejected by a pack."""


class WorkerError(FastdataError, RuntimeError):
    """A worker process or thread died or could not be started."""


class MissingExtraError(FastdataError, ImportError):
    """An optional dependency is needed; the message has the install line."""


_OPEN_FILES = "Raise the limit of open files: ulimit -n 65536."

REMEDIES = {
    errno.EFBIG: "The size of a file has a limit: raise it (ulimit -f unlimited), use a drive that "
    "takes larger files, or several shards.",
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.EAGAIN: "No more processes or threads can start: use fewer workers, or raise ulimit -u.",
    errno.ENOSPC: "Make room, or use another disk (TMPDIR=FOLDER for temporary files).",
    errno.EDQUOT: "Your quota is used up: make room, or use another disk.",
    errno.EROFS: "Choose a folder that can be written.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
"""What helps against errors of the system."""

_OF_DATA = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EINVAL,
        errno.EILSEQ,
        errno.EOVERFLOW,
        errno.ENXIO,
    }
)
"""System errors for a missing file, an invalid name, or an invalid position."""


def is_of_machine(error: BaseException | None) -> bool:
    """Return whether the machine is the cause of an error, not the data.

    Examples are permissions, I/O errors, too little memory or descriptors, a store that does not
    answer, and a missing library.  The causes of an error are checked, too.
    """
    for _ in range(10):  # an error may be its own cause
        if error is None or isinstance(error, (ObjectChangedError, ObjectNotFoundError)):
            return False
        if isinstance(
            error,
            (
                ConnectionError,
                ImportError,
                MachineError,
                MemoryError,
                ResourceLimitError,
                StorageError,
                TimeoutError,
            ),
        ):
            return True
        if isinstance(error, OSError) and error.errno and error.errno not in _OF_DATA:
            return True
        # LMDB, torch and OpenCV have their own types; Python has none for threads.
        if type(error).__name__.endswith("MemoryError") or any(
            text in str(error)
            for text in (
                "can't start new thread",
                "(-4:Insufficient memory)",
                "DefaultCPUAllocator: can't allocate memory",
            )
        ):
            return True
        error = error.__cause__
    return False


def add_note(error: BaseException, note: str) -> None:
    """Add a line to an error's message (PEP 678; Python 3.10 lacks it)."""
    if hasattr(error, "add_note"):
        error.add_note(note)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{note}", *error.args[1:])


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" with the known name that is nearest; "" if none is near.

    A name that begins with the word is the nearest.
    """
    names = {name.lower(): name for name in known}
    nearest = [name for name in names if name.startswith(word.lower())][:1]
    nearest = nearest or difflib.get_close_matches(word.lower(), names, n=1)
    return f" Did you mean {names[nearest[0]]!r}?" if nearest else ""


def not_there(path: str | os.PathLike[str]) -> str:
    """Return the message that a path does not exist, with the nearest name that does."""
    folder, name = os.path.split(os.fsdecode(path).rstrip(os.sep))
    beside: list[str] = []
    with contextlib.suppress(OSError, UnicodeError):
        beside = [one for one in os.listdir(folder or ".") if one.isprintable()]
    # By their stems first: any two short names with one suffix are alike.
    stem, stems = os.path.splitext(name)[0], {os.path.splitext(one)[0] for one in beside}
    alike = set(difflib.get_close_matches(stem, stems))
    found = [one for one in sorted(beside) if os.path.splitext(one)[0] in alike]
    near = did_you_mean(name, sorted(found, key=lambda one: not one.endswith(PACKED)))
    return f"{os.fspath(path)}: no such file or directory.{near}"


@contextlib.contextmanager
def full_disk_explained(path: str | os.PathLike[str], remedy: str) -> Iterator[None]:
    """Turn errors about a full disk into a `DiskFullError` with a remedy."""
    try:
        yield
    except DiskFullError:
        raise  # explained already
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            if error.errno == errno.EFBIG:
                remedy = re.sub(r"Make room,? (and )?(.)", lambda m: m[2].upper(), remedy)
                remedy = f"{REMEDIES[errno.EFBIG]} {remedy}"
            raise DiskFullError(error.errno, f"{path}: {error.strerror}. {remedy}") from error
        raise


PACK_ELSEWHERE = "Pack on a local disk and copy the finished dataset there"

LACKING = (
    errno.EINVAL,
    errno.ENODEV,
    errno.ENOLCK,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
)
"""System errors for calls that a drive (NFS, FUSE, Lustre) does not support."""


@contextlib.contextmanager
def drive_explained(
    folder: str | os.PathLike[str], lacks: str, remedy: str = PACK_ELSEWHERE
) -> Iterator[None]:
    """Turn errors about an unsupported call into a `DriveError`."""
    try:
        yield
    except DriveError:
        raise
    except OSError as error:
        if error.errno in LACKING:
            raise DriveError(
                f"{os.fspath(folder)}: its drive lacks {lacks} ({error.strerror}). {remedy}"
            ) from error
        raise
