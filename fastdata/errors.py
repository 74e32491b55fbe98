"""The exception tree of fastdata.

Everything fastdata raises on purpose is a `FastdataError`; each class is also
the builtin that code written against plain Python would catch.  A message
names the value that was found, what was expected, the place, and the remedy.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
from collections.abc import Iterable, Iterator

from fastdata.printable import printable_lines

__all__ = [
    "LACKING",
    "PACK_ELSEWHERE",
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
]


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
    """The drive of a folder lacks what fastdata needs of it: locks, fsync, or memory maps."""


class NotRegularFileError(FastdataError, OSError):
    """A file is to be read that is none: a pipe, a device, a folder."""

    @property
    def strerror(self) -> str:  # type: ignore[override]
        """What callers that know the path say behind it."""
        return str(self).rpartition(": ")[2]


class StorageError(FastdataError, OSError):
    """A store of objects cannot be read or written; the message has the URL and the reason."""


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no object with a key."""


class ObjectChangedError(StorageError):
    """An object is no more the one that was listed."""


class ResourceLimitError(FastdataError, OSError):
    """The system gives no more of what reading takes: open files, or memory maps."""


class MachineError(FastdataError, OSError):
    """A sample cannot be read, and its data are not the cause: permission, I/O, memory, limits."""


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
"""What the system says of a missing file, a name that cannot be one, or a position out of data."""


def is_of_machine(error: BaseException | None) -> bool:
    """Tell whether the machine is the cause of an error, and not the data that were read.

    So are lack of permission, I/O errors, lack of memory or descriptors, a store that does not
    answer, and a missing library.  An error with such a cause counts as well.
    """
    for _ in range(_MOST_CAUSES):
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
        # LMDB, torch and OpenCV have types of their own, and Python none for a thread.
        if type(error).__name__.endswith("MemoryError") or any(
            text in str(error) for text in ("can't start new thread", "(-4:Insufficient memory)")
        ):
            return True
        error = error.__cause__
    return False


_MOST_CAUSES = 10
"""An error may be its own cause."""


def add_note(error: BaseException, note: str) -> None:
    """Add a line to what an error says, whatever its type (PEP 678; Python 3.10 lacks it)."""
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


@contextlib.contextmanager
def full_disk_explained(path: str | os.PathLike[str], remedy: str) -> Iterator[None]:
    """Turn what the system says of a full disk into a `DiskFullError` with a remedy."""
    try:
        yield
    except DiskFullError:
        raise  # explained already, by what this calls
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
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
"""What the system says of a call that a drive does not know: NFS, FUSE, Lustre."""


@contextlib.contextmanager
def drive_explained(
    folder: str | os.PathLike[str], lacks: str, remedy: str = PACK_ELSEWHERE
) -> Iterator[None]:
    """Turn what the system says of a call that a drive lacks into a `DriveError`."""
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
