"""What every store does."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import ObjectChangedError, ObjectNotFoundError, StorageError

__all__ = ["MOST_READ_BYTES", "MOST_TEXT_BYTES", "Entry", "Store"]

MOST_READ_BYTES = 1 << 30
"""Limit of an object that is read whole: an image, a list of rejects."""

MOST_TEXT_BYTES = 1 << 28
"""Limit of a manifest, a plan or a receipt, and of a shard's header."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object of a store."""

    key: str
    """Below the store's URL, with ``/`` between its parts."""
    size: int
    """Bytes."""
    tag: str
    """Of this content: another one once the object was written anew; "" where a store has none."""


class Store(abc.ABC):
    """Objects below a URL: bytes with a key, which are there whole or not at all.

    For any number of threads.  A process that was forked makes its own, as it may not use the
    connections of another: here that is a `StorageError`, and no process that waits for ever.
    Pickled, it is its URL and options, never credentials.

    Every method raises `StorageError`, which names the URL: `ObjectNotFoundError` where there is
    no such object, `ObjectChangedError` where it is no more the one that was asked for.  What may
    pass (a busy server, a connection that was cut) was tried again before, for minutes.
    """

    is_local = False
    """Whether objects are files, whose paths `path` returns."""

    def __init__(self, url: str) -> None:
        self.url = url
        """Without a ``/`` at its end, and without credentials."""
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def url_of(self, key: str) -> str:
        """Return the URL of an object."""
        return f"{self.url}/{key}" if key else self.url

    def changed(self, key: str) -> ObjectChangedError:
        """Return the error for an object that is no more the one that was asked for."""
        return ObjectChangedError(
            f"{self.url_of(key)} has changed since it was listed. Start again, and it is listed "
            "anew; a pack of it begins anew at another destination"
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
        """Yield all objects whose keys begin with a prefix, by their keys.

        The prefix is "" or ends with ``/``.  Nothing is yielded where there is nothing.
        """

    @abc.abstractmethod
    def head(self, key: str) -> Entry:
        """Return what is known of an object without reading it."""

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
        """Return the bytes of an object, or a range of them.

        A range that ends after the object is a `StorageError`: it is never cut short.  Without a
        `stop`, more than `most_bytes` are one, too.  With a `tag`, another content of the object
        is an `ObjectChangedError`.
        """

    @abc.abstractmethod
    def put(self, key: str, data: bytes | Path) -> None:
        """Write an object, from bytes or a file, in place of any other.

        The file must not be changed afterwards: it may become the object itself.
        """

    @abc.abstractmethod
    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object, unless there is one; return whether it was written.

        Of several writers at once, one writes.
        """

    @abc.abstractmethod
    def remove(self, key: str) -> None:
        """Remove an object, if there is one."""

    def exists(self, key: str) -> bool:
        """Return whether there is an object."""

        try:
            self.head(key)
        except ObjectNotFoundError:
            return False
        return True

    def check_range(self, key: str, data: bytes | memoryview, start: int, stop: int | None) -> None:
        """Raise a `StorageError` where a server gave other than the range that was asked for."""
        if stop is not None and len(data) != stop - start:
            raise StorageError(
                f"{self.url_of(key)} gave {len(data)} bytes for the range {start}-{stop}"
            )

    def check_size(self, key: str, size: int, most_bytes: int) -> None:
        """Raise a `StorageError` if a server sends, or announces, more than is to be read."""
        if size > most_bytes:
            raise StorageError(
                f"{self.url_of(key)} has {size:,} bytes or more, where at most {most_bytes:,} are "
                "read: it is not what it should be, or the server is out of order"
            )

    def path(self, key: str) -> Path:
        """Return the path of an object of a local store."""
        raise StorageError(f"{self.url_of(key)} is no file on this machine")
