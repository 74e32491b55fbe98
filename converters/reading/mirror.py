"""A store of objects as a folder of placeholders, which formats read like any folder.

The store is listed once.  Each object becomes a sparse file of its size, with a time computed from
the object's tag, the same in every process: so patterns, names, sizes and fingerprints work as for
a folder.  Data are downloaded on demand: the whole object when `open_regular` opens it, ranges by
`read_regular`, `read_piece` and `RangedFile` (``parquet.py``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import multiprocessing.util
import os
import shutil
import tempfile
import threading
import time
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import xxhash

from fastdata.errors import (
    DiskFullError,
    FastdataError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    full_disk_explained,
)
from fastdata.own_files import open_own_folder
from fastdata.regular_files import PLACEHOLDER, add_mirror, is_placeholder, with_urls
from fastdata.storage import Entry, Store
from fastdata.waits import said_while

from .small_memory import StringTable
from .spans import close_files

__all__ = ["Mirror", "StoredFiles"]

_PREFIX, _MARK = "fastdata-mirror-", ".fastdata-mirror"
"""Prefix of the folders' names, and the file inside that marks them as ours."""

_MAKE_ROOM = "Objects are downloaded there: make room, or set TMPDIR to a larger folder."

_PIECE_BYTES = 8 << 20
_PIECES = 8
"""Pieces of an object that come at once: one stream of a cloud's store has some 85 MB/s."""

_OF_NAMES = errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ
_ABANDONED_SECONDS = 60
"""After which a folder without a lock is not one that is just being made."""


@dataclass(frozen=True)
class StoredFiles:
    """Files below the URL of a store that a name or a pattern stands for."""

    store: Store
    pattern: str


class Mirror:
    """The folder of placeholders of a store; see `fastdata.regular_files.Mirror`.

    It is removed with `close`, with the last reference to it, and as the process ends; that of a
    process that was killed, by the next mirror on the machine.
    """

    def __init__(self, store: Store) -> None:
        self._store, self.url = store, store.url
        # What is below the URL, listed once and sorted by key; some 100 bytes an object.
        self._keys, self._sizes, self._tags = StringTable(), array("q"), StringTable()
        self._guard, self._busy = threading.Lock(), dict[str, threading.RLock]()
        self._holders: Counter[str] = Counter()
        self._released: deque[str] = deque()
        """Paths released by a reader.  No lock: finalizers run in any thread."""
        self._here: set[str] = set()
        self._failure: FastdataError | None = None
        self._is_closed = False
        self._ahead = ThreadPoolExecutor(1)
        _remove_abandoned()
        self._scratch = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX))
        Path(self._scratch, _MARK).touch()
        lock = os.open(self._scratch, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.suppress(OSError):  # as on NFS; then it never looks abandoned
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # This is called by the process alone that has made it, children of multiprocessing too.
        self._remove = multiprocessing.util.Finalize(
            self, _remove, (self._scratch, lock), exitpriority=0
        )
        # Called as the folder is in a local copy.
        self.root = os.path.join(self._scratch, self.url.rstrip("/").rpartition("/")[2] or "root")
        self.left_out: list[tuple[str, str]] = []
        add_mirror(self.root, self)
        waiting = said_while(lambda: f"the list of {self.url}, {len(self._keys):,} objects so far,")
        with full_disk_explained(self._scratch, _MAKE_ROOM), waiting:
            self._make_placeholders()

    def _make_placeholders(self) -> None:
        os.mkdir(self.root)
        folders = {self.root}
        for entry in self._store.list():
            self._keys.append(entry.key)
            self._sizes.append(entry.size)
            self._tags.append(entry.tag)
            path = self.path(entry.key)
            folder = os.path.dirname(path)
            if entry.key.endswith("/") and not entry.size:  # what consoles make for a folder
                continue
            try:
                _check_name(entry.key)
                if folder not in folders:
                    os.makedirs(folder, exist_ok=True)
                    folders.add(folder)
                with open(path, "xb") as file:
                    _become_placeholder(file, entry)
            except (FileExistsError, NotADirectoryError):
                why = "another object has this key, or a part of it: a file cannot be a folder too"
                self.left_out.append((entry.key, why))
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in _OF_NAMES:
                    raise
                why = f"this key cannot be the name of a file: {getattr(error, 'strerror', error)}"
                self.left_out.append((entry.key, why))

    def path(self, key: str) -> str:
        """Return the path of a key, or of a pattern."""
        return os.path.join(self.root, key) if key else self.root

    def _entry_at(self, path: str | os.PathLike[str]) -> Entry | None:
        key = os.path.relpath(os.fsdecode(path), self.root)
        at = bisect_left(self._keys, key)
        if at == len(self._keys) or self._keys[at] != key:
            return None
        return Entry(key, self._sizes[at], self._tags[at])

    # -- reading -------------------------------------------------------------------------

    def open(self, path: str | os.PathLike[str], flags: int) -> int:
        """Return the descriptor of a file, which is downloaded if it was not."""
        name = os.path.normpath(os.fsdecode(path))
        with self._alone(name), self._asked():
            self._fetch(name)
            return os.open(name, flags)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return bytes of an object, which nothing on the disk is made of."""
        entry = self._entry_at(os.path.normpath(path))
        if entry is None:
            raise ObjectNotFoundError(f"{with_urls(path)}: there is no such object")
        with self._asked():
            stop = entry.size if stop is None else stop
            data = bytes(self._store.read(entry.key, start, stop, tag=entry.tag))
        if len(data) != stop - start:
            raise ObjectChangedError(f"{self._store.url_of(entry.key)} ends while it is read")
        return data

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        """Keep why the store gave nothing, which many readers take for damage of a file."""
        try:
            yield
        except (ObjectChangedError, ObjectNotFoundError):
            raise
        except (DiskFullError, StorageError) as error:
            self._failure = error
            raise

    def check(self) -> None:
        """Raise, once, the error of the store that a reader mistook for damage."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Have errors name URLs, and not files of the mirror."""
        try:
            yield
        except Exception as error:
            self.check()
            if isinstance(error, FastdataError):
                error.args = tuple(with_urls(a) if isinstance(a, str) else a for a in error.args)
            raise
        self.check()

    # -- whole files ---------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self, path: str) -> Iterator[None]:
        """Let one thread at a time make a file another."""
        with self._guard:
            lock = self._busy.setdefault(path, threading.RLock())
        with lock:
            yield

    def _fetch(self, path: str) -> None:
        """Download a file, unless it is here or is not an object."""
        entry = self._entry_at(path) if is_placeholder(path) else None
        if entry is None:
            return
        with full_disk_explained(self._scratch, _MAKE_ROOM), self._replaced(path) as file:
            copy = partial(self._copy, file.fileno(), entry)
            waiting = said_while(f"the download of {self._store.url_of(entry.key)}")
            with waiting, ThreadPoolExecutor(_PIECES) as pool:
                for _ in pool.map(copy, range(0, entry.size, _PIECE_BYTES)):
                    pass
            os.fchmod(file.fileno(), 0o600)
            os.utime(file.fileno(), ns=_times(entry))
        self._here.add(path)

    def _copy(self, descriptor: int, entry: Entry, start: int) -> None:
        if self._is_closed:
            raise StorageError(f"{self._store.url_of(entry.key)}: is not wanted any more")
        stop = min(entry.size, start + _PIECE_BYTES)
        data = memoryview(self._store.read(entry.key, start, stop, tag=entry.tag))
        while data:
            written = os.pwrite(descriptor, data, start)
            data, start = data[written:], start + written

    @contextlib.contextmanager
    def _replaced(self, path: str) -> Iterator[IO[bytes]]:
        """Write a file that takes the place of another once it is whole."""
        descriptor, scratch = tempfile.mkstemp(dir=self._scratch)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                yield file
            os.replace(scratch, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
            raise

    def hold(self, path: str | os.PathLike[str], following: str | os.PathLike[str] = "") -> object:
        """Download a file, which stays as long as the returned object; begin with another one.

        `ObjectChangedError` or `ObjectNotFoundError` if it has changed since it was listed.
        """
        name = os.path.normpath(os.fsdecode(path))
        self._release()
        with self._alone(name), self._asked():
            self._fetch(name)
            self._holders[name] += 1
        held = _Held(self._released, name)
        if following:
            self._ahead.submit(self._fetch_ahead, os.path.normpath(os.fsdecode(following)))
        return held

    def _fetch_ahead(self, path: str) -> None:
        # Opening the file tries again, and raises the error.
        with contextlib.suppress(FastdataError, OSError), self._alone(path):
            self._fetch(path)

    def _release(self) -> None:
        """Make placeholders again of files whose last holder is gone."""
        with contextlib.suppress(IndexError):
            while True:
                path = self._released.popleft()
                with self._alone(path):
                    self._holders[path] -= 1
                    if not self._holders[path]:
                        del self._holders[path]
                        self._empty(path)

    def drop(self) -> None:
        """Turn released files into placeholders again."""
        self._release()
        for path in list(self._here):
            with self._alone(path):
                if path not in self._holders:
                    self._empty(path)

    def _empty(self, path: str) -> None:
        entry = self._entry_at(path)
        if entry is not None and path in self._here and not self._is_closed:
            # Never in place: the file may be open, or mapped into memory.
            with contextlib.suppress(OSError), self._replaced(path) as file:
                _become_placeholder(file, entry)
            self._here.discard(path)
            close_files()

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        self._is_closed = True
        self._ahead.shutdown(cancel_futures=True)
        close_files()
        self._remove()


class _Held:
    """Keeps a file downloaded until the last sample with a piece of it is gone."""

    def __init__(self, released: deque[str], path: str) -> None:
        self._released, self._path = released, path

    def __del__(self) -> None:
        self._released.append(self._path)


# -- files and folders -----------------------------------------------------------------------------


def _check_name(key: str) -> None:
    """Raise ValueError for a key that would lead elsewhere, or that obstore cannot read."""
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ValueError("a part of it is empty, . or ..")
    if any(c < " " or c == "\x7f" for c in key):
        raise ValueError("it has a control character")


def _times(entry: Entry) -> tuple[int, int]:
    """Return times that another content has not; whole seconds, which every file system keeps."""
    seconds = xxhash.xxh3_64_intdigest(entry.tag.encode()) % (1 << 31)
    return seconds * 10**9, seconds * 10**9


def _become_placeholder(file: IO[bytes], entry: Entry) -> None:
    os.truncate(file.fileno(), entry.size)
    try:
        os.fchmod(file.fileno(), PLACEHOLDER)
    except OSError as error:  # pragma: no cover (of systems that keep this bit for folders)
        raise StorageError(f"{file.name}: its file system has no placeholders: {error}") from error
    os.utime(file.fileno(), ns=_times(entry))


def _remove(scratch: str, lock: int) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    os.close(lock)


def _remove_abandoned() -> None:
    """Remove the folders of mirrors of killed processes, which are not locked."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # as another user's
            lock = open_own_folder(folder)
            try:
                is_new = time.time() - os.fstat(lock).st_ctime < _ABANDONED_SECONDS
                if is_new or not (folder / _MARK).is_file():
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
