"""The cache folder: whose it is, which datasets are in it, and what may be removed of it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import psutil
import xxhash
from numpy.typing import NDArray

from fastdata.bounds import check_int
from fastdata.errors import NotRegularFileError, OptionError, StorageError
from fastdata.formats.manifest import MANIFEST, check_shard_name
from fastdata.own_files import (
    check_own,
    create_own,
    make_own_folder,
    open_own,
    open_own_file,
    open_own_folder,
)
from fastdata.storage import Entry

__all__ = ["CacheFolder", "CachedDataset", "CachedShard", "default_cache_folder", "punch_hole"]

DATASET = "dataset.json"
PRESENT = "present"
"""A byte for each sample: 0 while its images are not there, and another one each time they come.

Then as many bytes of the downloader's own: not 0 where some of them may be there."""

_MARK = "fastdata-cache.json"
_NEW_MARK = f".{_MARK}."
_MARKED = {"format": "fastdata cache", "version": 1}

_SOCKET, _LOCK, _LOG = "downloader.sock", "downloader.lock", "downloader.log"

_PREFIX = "fastdata-"
"""Of the folders of datasets."""

_SCRATCH = ".fastdata-", ".new"
"""Beginning and end of the names of folders in which datasets are being made."""

_SAID_BYTES = 2000

_LAUNCH = """
import fcntl, os, sys
folder, lock, path = sys.argv[1:]
flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
lock = os.open(os.path.join(folder, lock), flags, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit()  # there is one
if os.fork():
    os._exit(0)
sys.path[:] = path.split("\\n")
from fastdata.remote.downloader import main
main(folder)
"""
"""The lock is the process's that goes on: it inherits it, and keeps it as long as it lives."""

_OF_NETWORKS = "nfs", "cifs", "smb", "9p", "afs", "fuse.sshfs", "lustre", "gpfs", "beegfs", "ceph"
"""Beginnings of the names of file systems that several machines share."""

_PUNCH_HOLE, _KEEP_SIZE = 2, 1
"""Of Linux's ``falloc.h``."""

_NO_HOLES = "Choose a folder on a local disk (ext4, XFS, Btrfs, tmpfs) with cache_dir=, --cache-dir"


def default_cache_folder() -> Path:
    """Return the folder of ``FASTDATA_CACHE``, or one among the user's caches."""
    given = os.environ.get("FASTDATA_CACHE")
    return Path(given) if given else platformdirs.user_cache_path("fastdata") / "blocks"


@dataclass(frozen=True)
class CachedShard:
    """A shard of a dataset in the cache: its file there, the object, and what that was."""

    file: str
    key: str
    size: int
    tag: str
    num_samples: int

    def check(self) -> None:
        """Raise ValueError if what came out of a file cannot be true."""
        texts: list[object] = [self.file, self.key, self.tag]
        check_int("file_bytes", self.size, error=ValueError)
        check_int("num_samples", self.num_samples, error=ValueError)
        # A sample takes more than a byte.
        if not all(isinstance(text, str) for text in texts) or self.num_samples >= self.size:
            raise ValueError(f"{self} cannot be true")
        check_shard_name(self.file)

    @property
    def entry(self) -> Entry:
        """The object as the store has it."""
        return Entry(self.key, self.size, self.tag)


@dataclass(frozen=True)
class CachedDataset:
    """A dataset in the cache; `folder` is its own one, `options` those of its store."""

    folder: Path
    url: str
    options: dict[str, str]
    shards: tuple[CachedShard, ...]
    block_size: int
    """Samples that are fetched and removed together."""
    is_file: bool
    """Whether the URL is that of a shard, and not of a folder of them."""
    column_bytes: int = 0
    """What its files took on the disk when there was no image in them."""

    @property
    def location(self) -> Path:
        """What `fastdata.open` takes."""
        return self.folder / self.shards[0].file if self.is_file else self.folder

    @property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return sum(shard.num_samples for shard in self.shards)

    def write(self, folder: Path | None = None) -> None:
        """Write it down in its folder, or in one that will become it: this marks it as ours."""
        body = {**asdict(self), "folder": self.folder.name}
        scratch = (folder or self.folder) / f"{DATASET}.new"
        with open(create_own(scratch), "w") as file:
            json.dump(body, file, indent=1)
        os.replace(scratch, scratch.with_name(DATASET))

    @classmethod
    def read(cls, folder: Path, *, is_scratch: bool = False) -> CachedDataset | None:
        """Return what was written down; None where that is not there, or is damaged.

        A folder `is_scratch` if the dataset is still being made there.
        """
        try:
            check_own(folder, os.lstat(folder), "a folder")
            with open_own_file(folder / DATASET) as file:
                body = json.load(file)
            shards = tuple(CachedShard(**shard) for shard in body["shards"])
            for shard in shards:
                shard.check()
            for name in ("block_size", "column_bytes"):
                check_int(name, body[name], error=ValueError)
            found = cls(**{**body, "folder": folder, "shards": shards})
            is_here = is_scratch or body["folder"] == folder.name
            is_true = isinstance(body["url"], str) and isinstance(body["options"], dict)
            return found if is_here and is_true and shards else None
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None

    @property
    def key(self) -> str | None:
        """Name of these very files, by their inodes; None if one is missing, or not as it was made.

        Files that were removed, and made again, have another one as long as somebody has the first
        ones open.
        """
        sizes = {shard.file: shard.size for shard in self.shards}
        numbers = []
        try:
            for name, size in {PRESENT: max(1, 2 * self.num_samples), **sizes}.items():
                status = os.stat(self.folder / name)
                check_own(self.folder / name, status)
                if status.st_size != size:
                    return None
                numbers.append(status.st_ino)
        except OSError:
            return None
        return f"{self.folder.name}/{xxhash.xxh3_64_hexdigest(repr(numbers).encode())}"

    def present(self) -> NDArray[np.bool_]:
        """Return which samples have their images there, bool [num_samples]."""
        found: NDArray[np.bool_] = np.zeros(self.num_samples, np.bool_)
        with contextlib.suppress(OSError), open_own_file(self.folder / PRESENT) as file:
            there = np.frombuffer(file.read(self.num_samples), np.uint8)
            found[: len(there)] = there > 0
        return found

    @property
    def num_present(self) -> int:
        """How many samples have their images there."""
        return int(np.count_nonzero(self.present()))

    @property
    def disk_bytes(self) -> int:
        """What its files take on the disk, holes left out."""
        total = 0
        for path in self.folder.iterdir():
            with contextlib.suppress(OSError):
                total += path.lstat().st_blocks * 512
        return total


@dataclass(frozen=True)
class CacheFolder:
    """A folder that is ours, on a disk of this machine; use `open` to make one."""

    path: Path

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> CacheFolder:
        """Make the folder if there is none; raise an `OptionError` where it cannot be used."""
        folder = Path(path).absolute()
        try:
            make_own_folder(folder)
            mark = folder / _MARK
            names = [name for name in os.listdir(folder) if not name.startswith(_NEW_MARK)]
            if _MARK not in names:
                if names:
                    raise OptionError(
                        f"{folder} is neither empty nor a cache of fastdata: choose another folder "
                        "for the cache (cache_dir=, --cache-dir)"
                    )
                _check_file_system(folder)
                # Several ranks may open a new folder at once: none may see half a mark.
                descriptor, new = tempfile.mkstemp(prefix=_NEW_MARK, dir=folder)
                with open(descriptor, "w") as file:
                    json.dump(_MARKED, file)
                os.replace(new, mark)
            else:
                with open_own_file(mark) as file:
                    marked = json.load(file)
                if marked != _MARKED:
                    raise OptionError(
                        f"the cache in {folder} was made by another release: remove that folder, "
                        "or choose another (cache_dir=, --cache-dir)"
                    )
        except NotRegularFileError as error:
            raise OptionError(
                f"the cache folder cannot be used: {error} (cache_dir=, --cache-dir, "
                "FASTDATA_CACHE). Each user needs one of their own"
            ) from error
        except ValueError as error:
            if isinstance(error, OptionError):
                raise
            raise OptionError(f"{folder / _MARK} is damaged: remove that folder") from error
        except OSError as error:
            raise OptionError(
                f"the cache folder {folder} cannot be used: {error.strerror}. "
                "Choose another with cache_dir=, --cache-dir"
            ) from error
        return cls(folder)

    # -- datasets --------------------------------------------------------------------------------

    def datasets(self) -> list[CachedDataset]:
        """Return the datasets that are there, the one that was opened last at the end."""
        found = []
        for path in self._folders(_PREFIX, ""):
            if (dataset := CachedDataset.read(path)) is not None:
                found.append(dataset)
        return sorted(found, key=lambda one: (one.folder / DATASET).stat().st_mtime_ns)

    def folder_of(self, name: str) -> Path:
        """Return the folder of a dataset."""
        return self.path / f"{_PREFIX}{name}"

    def remove(self, dataset: CachedDataset) -> None:
        """Remove a dataset that nobody reads: the files that we made, and the folder if empty.

        It is no dataset from the first moment on; its list of our files goes last.
        """
        files = [shard.file for shard in dataset.shards]
        for name in (PRESENT, *files, MANIFEST, f"{DATASET}.new", DATASET):
            path = dataset.folder / name
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()
        with contextlib.suppress(OSError):
            dataset.folder.rmdir()

    def remove_unfinished(self) -> None:
        """Remove what processes that have ended were making, by their lists of files."""
        for path in self._folders(*_SCRATCH):
            dataset = CachedDataset.read(path, is_scratch=True)
            if dataset is not None:
                self.remove(dataset)
            elif {DATASET, f"{DATASET}.new"}.issuperset(os.listdir(path)):  # begun just before
                for file in path.iterdir():
                    file.unlink()
                path.rmdir()

    def _folders(self, prefix: str, suffix: str) -> list[Path]:
        """Return the folders with such names; links to folders are left out."""
        with os.scandir(self.path) as entries:
            return [
                Path(one.path)
                for one in entries
                if one.name.startswith(prefix)
                and one.name.endswith(suffix)
                and one.is_dir(follow_symlinks=False)
            ]

    def scratch(self) -> Path:
        """Make a folder in which a dataset can be made."""
        prefix, suffix = _SCRATCH
        return Path(tempfile.mkdtemp(suffix, prefix, self.path))

    # -- the downloader --------------------------------------------------------------------------

    def start_downloader(self) -> None:
        """Start one, unless there is one; it is nobody's child, and outlives this process.

        `is_served` is true from now on, until it ends; it takes a while until it listens.  Raises
        a `StorageError` where the folder has gone.
        """
        with self._in_use(), open_own_file(self.path / _LOG, "ab") as said:
            subprocess.run(
                [sys.executable, "-c", _LAUNCH, str(self.path), _LOCK, "\n".join(sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd="/",
                start_new_session=True,  # a Ctrl-C is not meant for it
                check=False,
            )

    @property
    def is_served(self) -> bool:
        """Whether there is a downloader, which may not listen yet."""
        with self._in_use():
            lock = open_own(self.path / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Explain what becomes of a folder while processes use it."""
        try:
            yield
        except NotRegularFileError:
            raise
        except FileNotFoundError as error:
            raise StorageError(
                f"the cache folder {self.path} was removed while it was in use: start again, and "
                "it is made anew"
            ) from error
        except OSError as error:
            raise StorageError(
                f"the cache folder {self.path} cannot be used any more: {error.strerror}. "
                "Choose another with cache_dir=, --cache-dir"
            ) from error

    @property
    def files(self) -> tuple[int | None, int | None]:
        """The inodes of the lock and the socket: others once somebody has removed them."""
        found: list[int | None] = []
        for name in (_LOCK, _SOCKET):
            try:
                found.append(os.stat(self.path / name).st_ino)
            except OSError:
                found.append(None)
        return found[0], found[1]

    @property
    def said(self) -> str:
        """The end of what downloaders have said."""
        with contextlib.suppress(OSError), open_own_file(self.path / _LOG) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _SAID_BYTES))
            said: bytes = file.read()
            return said.decode(errors="replace").strip()
        return ""

    def listen(self) -> socket.socket:
        """Return the socket to which processes connect; for who has the lock."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK((self.path / _SOCKET).lstat().st_mode):
                (self.path / _SOCKET).unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with self._short() as path:
            listener.bind(path)
            os.chmod(path, 0o600)
        listener.listen(64)
        return listener

    def connect(self) -> socket.socket | None:
        """Return a connection to the downloader; None where there is none."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._short() as path:
                check_own(self.path / _SOCKET, os.lstat(path), "a socket")
                connection.connect(path)
        except OSError as error:
            connection.close()
            if isinstance(error, NotRegularFileError):
                raise
            return None
        return connection

    @contextlib.contextmanager
    def _short(self) -> Iterator[str]:
        """Give the socket's path in the 107 bytes that there are for it."""
        descriptor = open_own_folder(self.path)
        try:
            by_descriptor = Path(f"/proc/self/fd/{descriptor}")
            yield str((by_descriptor if by_descriptor.exists() else self.path) / _SOCKET)
        finally:
            os.close(descriptor)


def _check_file_system(folder: Path) -> None:
    """Raise an `OptionError` where files cannot have holes, or other machines see them."""
    inside = [
        part
        for part in psutil.disk_partitions(all=True)
        if folder.resolve().is_relative_to(part.mountpoint)
    ]
    kind = max(inside, key=lambda part: len(part.mountpoint)).fstype if inside else ""
    if kind.startswith(_OF_NETWORKS):
        raise OptionError(
            f"the cache folder {folder} is on {kind}, which other machines see too, and where "
            f"memory maps and locks cannot be relied on. {_NO_HOLES}"
        )
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 16))
        file.flush()
        try:
            punch_hole(file.fileno(), 0, 1 << 15)
        except OSError as error:
            raise OptionError(
                f"files in the cache folder {folder} ({kind}) cannot have holes "
                f"({error.strerror}). {_NO_HOLES}"
            ) from error


def punch_hole(descriptor: int, start: int, length: int) -> None:
    """Give the disk back what a range of a file takes; it reads as zeros then."""
    fallocate: Any = getattr(_libc, "fallocate", None)
    if fallocate is None:
        raise OSError(0, "this system has no call for it")
    if fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, length):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


_libc = ctypes.CDLL(None, use_errno=True)
if hasattr(_libc, "fallocate"):
    _libc.fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long
