"""Stores of fsspec: ``hf://``, ``gs://`` by gcsfs, and all others that have a package."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec

from fastdata.errors import ObjectNotFoundError, OptionError, StorageError
from fastdata.storage.contract import MOST_READ_BYTES, Entry, Store
from fastdata.waits import said_while

__all__ = ["FsspecStore"]

TAGS = "ETag", "etag", "md5Hash", "checksum", "sha256", "oid", "blob_id"
"""Names of tags in the libraries.  Times are unsuitable: a library may report them in two ways."""


class FsspecStore(Store):
    """Objects below a URL of any scheme that fsspec knows; see `Store`.

    It is slower than obstore, and has tags only if the library has them.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        super().__init__(url)
        self._options = dict(options)
        given: dict[str, Any] = dict(options)
        if "anonymous" in given:
            given["anon"] = str(given.pop("anonymous")).lower() == "true"
        if url.startswith(("s3:", "s3a:")) and "endpoint" in given:
            given["endpoint_url"] = given.pop("endpoint")
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **given)
        except (ImportError, TypeError, ValueError) as error:
            raise OptionError(f"{url}: {error}") from error

    def __reduce__(self) -> tuple[type[FsspecStore], tuple[str, dict[str, str]]]:
        return FsspecStore, (self.url, self._options)

    def _place(self, key: str) -> str:
        return f"{self._root.rstrip('/')}/{key}" if key else self._root

    def _entry(self, facts: Mapping[str, Any]) -> Entry:
        key = facts["name"][len(self._root.rstrip("/")) :].removeprefix("/")
        tag = next((str(facts[name]) for name in TAGS if facts.get(name)), "")
        return Entry(key, int(facts["size"] or 0), tag)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield objects; all of them are listed before the first comes, to be in order."""
        with self._explained(prefix):
            place = self._place(prefix.rstrip("/"))
            self._files.invalidate_cache(place)
            found = self._files.find(place, detail=True)
        entries = [self._entry(facts) for facts in found.values()]
        yield from sorted(
            (one for one in entries if one.key.startswith(prefix)), key=lambda one: one.key
        )

    def head(self, key: str) -> Entry:
        """Return the size and the tag of an object."""
        with self._explained(key):
            self._files.invalidate_cache(self._place(key))
            facts = self._files.info(self._place(key))
        if facts["type"] != "file":
            raise ObjectNotFoundError(f"{self.url_of(key)}: there is no such object")
        return self._entry(facts)

    def read(
        self,
        key: str,
        start: int = 0,
        stop: int | None = None,
        *,
        tag: str = "",
        most_bytes: int = MOST_READ_BYTES,
    ) -> bytes | memoryview:
        """Return bytes of an object, after a check of its tag or its size."""
        if tag or stop is None:
            found = self.head(key)
            if tag and found.tag != tag:
                raise self.changed(key)
            if stop is None:  # its size may not be known
                self.check_size(key, found.size - start, most_bytes)
        if stop is not None and start >= stop:
            return b""
        with self._explained(key):
            data = bytes(self._files.cat_file(self._place(key), start=start, end=stop))
        self.check_size(key, len(data), most_bytes if stop is None else stop - start)
        self.check_range(key, data, start, stop)
        return data

    def put(self, key: str, data: bytes | Path) -> None:
        """Upload an object."""
        with self._explained(key):
            self._make_parents(key)
            if isinstance(data, Path):
                self._files.put_file(str(data), self._place(key))
            else:
                self._files.pipe_file(self._place(key), data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Upload an object unless it exists; `StorageError` if the library cannot do that."""
        # A library without this mode may ignore it, and replace the object.
        knows = "mode" in inspect.signature(self._files.pipe_file).parameters
        with self._explained(key):
            try:
                if not knows:
                    raise NotImplementedError
                self._make_parents(key)
                self._files.pipe_file(self._place(key), data, mode="create")
            except FileExistsError:
                return False
            except (TypeError, NotImplementedError, ValueError) as error:
                raise StorageError(
                    f"{self.url_of(key)}: {type(self._files).__name__} cannot write an object only "
                    "if there is none, which packing needs so that nothing is lost: pack to a "
                    "local folder, and copy that"
                ) from error
        return True

    def _make_parents(self, key: str) -> None:
        with contextlib.suppress(NotImplementedError, FileExistsError):
            self._files.makedirs(self._files._parent(self._place(key)), exist_ok=True)

    def remove(self, key: str) -> None:
        """Remove an object, if it exists."""
        with self._explained(key), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._place(key))

    @contextlib.contextmanager
    def _explained(self, key: str) -> Iterator[None]:
        """Turn any error of a library into one that names the URL."""
        self.check_process()
        try:
            with said_while(self.url_of(key)):
                yield
        except StorageError:
            raise
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"{self.url_of(key)}: there is no such object") from error
        except Exception as error:
            why = " ".join(str(error).split())[:500] or type(error).__name__
            raise StorageError(f"{self.url_of(key)}: {why}") from error
