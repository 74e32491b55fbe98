"""Folders as stores: an object is a file, and its key the path below the folder."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastdata.errors import (
    DriveError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    full_disk_explained,
)
from fastdata.own_files import sync_directory, sync_file
from fastdata.regular_files import open_regular
from fastdata.storage.contract import MOST_READ_BYTES, Entry, Store

__all__ = ["LocalStore", "tag_of"]

_SCRATCH = ".fastdata-{}.new"
"""Names of unfinished files."""

_IS_SCRATCH = re.compile(r"\.fastdata-[0-9a-f]{16}\.new")

_COPY_BYTES = 1 << 20
_TRIES = 10


class LocalStore(Store):
    """Files below a folder, which the first `put` makes.

    Links to folders are followed, once.
    """

    is_local = True

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        super().__init__(str(self.folder))

    def __reduce__(self) -> tuple[type[LocalStore], tuple[str]]:
        return LocalStore, (str(self.folder),)

    def check_process(self) -> None:
        """Do nothing: files may be read in any process."""

    def path(self, key: str) -> Path:
        """Return the path of an object; refuse a key that leads out of the folder."""
        parts = key.split("/")
        if key and any(part in ("", ".", "..") for part in parts):
            raise StorageError(
                f"{self.url}: {key!r} is not a key: it has a part that is empty, . or .."
            )
        return self.folder.joinpath(*parts) if key else self.folder

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield all files below the folder, except unfinished ones."""
        yield from self._below(self.path(prefix.rstrip("/")), prefix, frozenset())

    def _below(
        self, folder: Path, prefix: str, above: frozenset[tuple[int, int]]
    ) -> Iterator[Entry]:
        try:
            status = os.stat(folder)
            with os.scandir(folder) as entries:
                found = list(entries)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(f"{folder}: {error.strerror}") from error
        inside = above | {(status.st_dev, status.st_ino)}
        # As object stores order keys: "a/b" comes after "a.txt", as "/" does after ".".
        named = sorted((f"{one.name}/" if one.is_dir() else one.name, one) for one in found)
        for name, one in named:
            if not name.endswith("/"):
                if not _IS_SCRATCH.fullmatch(name) and one.is_file():
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        yield _entry(f"{prefix}{name}", one.stat())
                continue
            try:
                there = one.stat()
            except FileNotFoundError:
                continue
            if (there.st_dev, there.st_ino) not in inside:
                yield from self._below(folder / one.name, f"{prefix}{name}", inside)

    def head(self, key: str) -> Entry:
        """Return the size and the tag of a file."""
        with self._explained(key):
            return _entry(key, os.stat(self.path(key)))

    def read(
        self,
        key: str,
        start: int = 0,
        stop: int | None = None,
        *,
        tag: str = "",
        most_bytes: int = MOST_READ_BYTES,
    ) -> bytes | memoryview:
        """Return the bytes of a file, or a range."""
        path = self.path(key)
        with self._explained(key), open(path, "rb", buffering=0, opener=open_regular) as file:
            found = _entry(key, os.fstat(file.fileno()))
            if tag and found.tag != tag:
                raise self.changed(key)
            if stop is None:
                self.check_size(key, found.size - start, most_bytes)
                stop = found.size
            if not 0 <= start <= stop <= found.size:
                raise StorageError(
                    f"{self.url_of(key)} has {found.size} bytes, and no range {start}-{stop}"
                )
            data = bytearray(stop - start)
            view = memoryview(data)
            read = 0
            while read < len(data):
                got = os.preadv(file.fileno(), [view[read:]], start + read)
                if not got:
                    raise ObjectChangedError(f"{self.url_of(key)} became shorter as it was read")
                read += got
            return view.toreadonly()

    def put(self, key: str, data: bytes | Path) -> None:
        """Write a file, which gets its name once it is on the disk."""
        target = self.path(key)
        with self._written(target, data) as scratch:
            os.replace(scratch, target)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write a file unless it exists."""
        target = self.path(key)
        if os.path.lexists(target):
            return False
        with self._written(target, data) as scratch:
            try:
                os.link(scratch, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise
                return self._create(target, data)
        return True

    @staticmethod
    def _create(target: Path, data: bytes) -> bool:
        """Write a file without hard links: readers may see it incomplete."""
        try:
            with open(target, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    @contextlib.contextmanager
    def _written(self, target: Path, data: bytes | Path) -> Iterator[Path]:
        """Write a file under a temporary name, for the block to rename; then sync the folder."""
        remedy = "Make room and try again."
        with full_disk_explained(target, remedy), self._explained(str(target), is_path=True):
            scratch = target.with_name(_SCRATCH.format(secrets.token_hex(8)))
            try:
                if not (isinstance(data, Path) and _is_linked(data, scratch)):
                    with _created(scratch) as file:
                        if isinstance(data, Path):
                            with open(data, "rb") as source:
                                shutil.copyfileobj(source, file, _COPY_BYTES)
                        else:
                            file.write(data)
                        file.flush()
                        sync_file(file.fileno(), scratch, data_only=True)
                yield scratch
            finally:
                scratch.unlink(missing_ok=True)
            sync_directory(target.parent)

    def remove(self, key: str) -> None:
        """Remove a file, if it exists, and its parents if they are empty."""
        path = self.path(key)
        with self._explained(key):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            while (path := path.parent) != self.folder:
                path.rmdir()

    def remove_unfinished(self) -> None:
        """Remove unfinished files, also those of killed processes.

        Object stores have only parts of uploads, which their lifecycle rules remove.
        """
        for folder, _, names in os.walk(self.folder):
            for name in filter(_IS_SCRATCH.fullmatch, names):
                path = Path(folder, name)
                if path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self, key: str, *, is_path: bool = False) -> Iterator[None]:
        """Turn errors of the system into ones that name the file."""
        name = key if is_path else self.url_of(key)
        try:
            yield
        except (StorageError, DriveError):
            raise
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"{name}: there is no such file") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            raise StorageError(f"{name}: {error.strerror or error}") from error


def _is_linked(source: Path, path: Path) -> bool:
    """Link a file to a second name, and sync it; False if links are not possible."""
    try:
        os.link(source, path)
    except OSError:  # another file system, or one without links
        return False
    with open(path, "rb") as file:
        sync_file(file.fileno(), path, data_only=True)
    return True


def _created(path: Path) -> IO[bytes]:
    """Make a file and its folder, which another process may be removing as empty."""
    for _ in range(_TRIES):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            return open(path, "xb")
    return open(path, "xb")


def tag_of(status: os.stat_result) -> str:
    """Return a tag that changes if a file is written to, replaced or copied."""
    return f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ctime_ns:x}-{status.st_ino:x}"


def _entry(key: str, status: os.stat_result) -> Entry:
    return Entry(key, status.st_size, tag_of(status))
