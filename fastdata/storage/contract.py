"""The contract of all stores."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import ObjectChangedError, ObjectNotFoundError, StorageError

__all__ = ["MOST_READ_BYTES", "MOST_TEXT_BYTES", "Entry", "Store"]

MOST_READ_BYTES = 1 << 30
"""Size limit of an object that is read whole: an image, a list of rejects."""

MOST_TEXT_BYTES = 1 << 28
"""Size limit of a manifest, a plan, a receipt, or a shard's header."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a store."""

    key: str
    """Path below the store's URL, with ``/`` between its parts."""
    size: int
    """Bytes."""
    tag: str
    """Changes whenever the object is written; "" if the store has no tags."""


class Store(abc.ABC):
    """Objects below a URL: bytes with a key, written atomically.

    Thread-safe.  A forked process must open its own store: the parent's connections would block
    there, so using them is a `StorageError`.  A pickle has the URL and the options, never
    credentials.

    Every method raises `StorageError` with the URL: `ObjectNotFoundError` if the object does not
    exist, `ObjectChangedError` if it has changed.  Transient errors (a busy server, a lost
    connection) are retried for minutes before.
    """

    is_local = False
    """Whether objects are files with a `path`."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Has no ``/`` at its end, and no credentials."""
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def url_of(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{key}" if key else self.url

    def changed(self, key: str) -> ObjectChangedError:
        """Return the error for an object that has changed."""
        return ObjectChangedError(
            f"{self.url_of(key)} has changed since it was listed. Start again to list it again; "
            "start a pack again at another destination"
        )

    def check_process(self) -> None:
        """Raise a `StorageError` in a process that was forked from the one that made this."""
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.url}: this store was opened before the process was forked, and its "
                "connections do not work here: open it in this process"
            )

    @abc.abstractmethod
    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield all objects whose keys begin with a prefix, sorted by key.

        The prefix is "" or ends with ``/``.
        """

    @abc.abstractmethod
    def head(self, key: str) -> Entry:
        """Return the entry of an object without reading it."""

    @abc.abstractmethod
    def read(
        self,
        key: str,
        start: int = 0,
        stop: int | None = None,
        *,
        tag: str = "",
        most_bytes: int = MOST_READ_BYTES,
    ) -> bytes | memoryview:
        """Return the bytes of an object, or a range.

        `StorageError` if the object ends before `stop`, or if there are more than `most_bytes`
        without a `stop`; `ObjectChangedError` if a `tag` is given and the object has another one.
        """

    @abc.abstractmethod
    def put(self, key: str, data: bytes | Path) -> None:
        """Write or replace an object, from bytes or a file.

        Do not change the file afterwards: it may become the object itself.
        """

    @abc.abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether it was written.

        Of several concurrent writers, one succeeds.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""

    def exists(self, key: str) -> bool:
        """Return whether an object exists."""
        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def check_range(self, key: str, data: bytes | memoryview, start: int, stop: int | None) -> None:
        """Raise a `StorageError` if a server sent another range than the requested one."""
        if stop is not None and len(data) != stop - start:
            raise StorageError(
                f"{self.url_of(key)} gave {len(data)} bytes for the range {start}-{stop}"
            )

    def check_size(self, key: str, size: int, most_bytes: int) -> None:
        """Raise a `StorageError` if an object is larger than the limit."""
        if size > most_bytes:
            raise StorageError(
                f"{self.url_of(key)} has {size:,} bytes or more, where at most {most_bytes:,} are "
                "read: it is another kind of object, or the server is out of order"
            )

    def path(self, key: str) -> Path:
        """Return the path of an object of a local store."""
        raise StorageError(f"{self.url_of(key)} is not a file on this machine")
