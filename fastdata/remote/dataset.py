"""A dataset in the cache, for the process that fills it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastdata.errors import (
    DatasetNotFoundError,
    FastdataError,
    FormatError,
    ObjectNotFoundError,
    ShardCorruptError,
    StorageError,
    full_disk_explained,
)
from fastdata.formats.manifest import MANIFEST, Manifest, ShardEntry, check_shard_name
from fastdata.formats.reader import ShardReader, mean_image_bytes, spread_samples
from fastdata.formats.sparse import columns_only
from fastdata.own_files import open_own, open_own_file
from fastdata.remote.extents import PAGE_BYTES, Extents
from fastdata.remote.folder import (
    PRESENT,
    CachedDataset,
    CachedShard,
    CacheFolder,
    punch_hole,
)
from fastdata.sampling.shuffle import BlockShuffle
from fastdata.storage import Entry, Store, open_store
from fastdata.storage.contract import MOST_TEXT_BYTES

__all__ = ["StoredDataset", "find_dataset", "removed"]

_REQUESTS = 16
"""Objects that are opened at once."""

_MOST_EXTENTS = 256
"""Shards of which it is known where their images are: 32 bytes an image."""

_OTHER_FOLDER = "Make room, or choose another cache with cache_dir=, --cache-dir."

_LARGEST_READ = 1 << 24
"""Bytes of a request at most: what comes in one piece is in memory in one piece."""


def removed(url: str, folder: CacheFolder) -> StorageError:
    """Return the error for those who read files that are in the cache no more."""
    return StorageError(
        f"{url}: its files were removed from the cache {folder.path} while they were read: open it "
        "again, and it is fetched anew"
    )


def find_dataset(folder: CacheFolder, url: str, options: Mapping[str, str]) -> CachedDataset:
    """Look what is at a URL, and make its files in the cache if they are not there.

    Raises `DatasetNotFoundError` where there is no dataset, `FormatError` and `ShardCorruptError`
    where there is one that cannot be read, and `StorageError`.
    """
    url = url.rstrip("/")
    store = open_store(url, options)
    try:
        manifest, listed = _read_manifest(store)
    except ObjectNotFoundError:
        return _of_file(folder, url, options)
    found = {one.key: one for one in _look_up(store, [shard.file for shard in listed])}
    shards = []
    for shard in listed:
        entry = found.get(shard.file)
        place = store.url_of(shard.file)
        if entry is None:
            raise DatasetNotFoundError(
                f"{place}: this shard of the dataset is missing. "
                "Restore it from a copy, or pack the dataset again."
            )
        if entry.size != shard.file_bytes:
            raise ShardCorruptError(
                f"{place}: {shard.file_bytes} bytes were written but the object has {entry.size}. "
                "Restore it from a copy, or pack the dataset again."
            )
        shards.append(CachedShard(shard.file, shard.file, entry.size, entry.tag, shard.num_samples))
    return _made(folder, store, url, options, shards, manifest)


def _read_manifest(store: Store) -> tuple[bytes, tuple[ShardEntry, ...]]:
    """Return a manifest and the shards that it lists; one that is damaged is read again, once."""
    for last in (False, True):
        data = bytes(store.read(MANIFEST, most_bytes=MOST_TEXT_BYTES))
        try:
            return data, Manifest.from_bytes(data, store.url_of(MANIFEST)).shards
        except FormatError:
            if last:
                raise
    raise AssertionError


def _of_file(folder: CacheFolder, url: str, options: Mapping[str, str]) -> CachedDataset:
    """Return the dataset of a URL that may be a shard."""
    parent, _, name = url.rpartition("/")
    try:
        check_shard_name(name)
    except ValueError as error:
        raise DatasetNotFoundError(f"{url}: {error}. Give it another name") from None
    try:
        if parent.endswith(("/", ":")):
            raise ObjectNotFoundError(url)
        store = open_store(parent, options)
        entry = store.head(name)
    except ObjectNotFoundError:
        raise DatasetNotFoundError(
            f"{url}: there is no dataset, neither a shard of this name nor a {MANIFEST} below it. "
            f"Make it with: fastdata pack IMAGES {url} --shard-size 1GB"
        ) from None
    return _made(
        folder, store, url, options, [CachedShard(name, name, entry.size, entry.tag, -1)], None
    )


def _look_up(store: Store, keys: list[str]) -> Iterator[Entry]:
    """Yield what is known of objects, by one listing where the store has such."""
    try:
        yield from store.list()
        return
    except StorageError:  # a plain HTTP server
        pass
    with ThreadPoolExecutor(_REQUESTS) as pool:
        for key, entry in zip(keys, pool.map(lambda key: _head(store, key), keys), strict=True):
            if entry is not None:
                yield Entry(key, entry.size, entry.tag)


def _head(store: Store, key: str) -> Entry | None:
    try:
        return store.head(key)
    except ObjectNotFoundError:
        return None


def _made(
    folder: CacheFolder,
    store: Store,
    url: str,
    options: Mapping[str, str],
    shards: list[CachedShard],
    manifest: bytes | None,
) -> CachedDataset:
    """Return the dataset in the cache that is of these very objects; made now, if need be."""
    which = [url, dict(options), [[one.key, one.size, one.tag] for one in shards]]
    content = json.dumps(which, sort_keys=True).encode() + (manifest or b"")
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", url.rpartition("/")[2])[:64]
    place = folder.folder_of(f"{readable}-{xxhash.xxh3_64_hexdigest(content)}")
    there = CachedDataset.read(place)
    if there is not None and _is_sound(there):
        there.write()  # opened last
        return there
    empty = tuple(replace(one, num_samples=0) for one in shards)
    made = CachedDataset(place, url, dict(options), empty, 1, manifest is None)
    with full_disk_explained(folder.path, _OTHER_FOLDER):
        scratch = folder.scratch()
        try:
            made.write(scratch)  # first of all, what may be removed of it
            counted, block_size = _columns_of(store, shards, scratch)
            if manifest is not None:
                (scratch / MANIFEST).write_bytes(manifest)
            made = replace(made, shards=counted, block_size=block_size)
            made = replace(made, column_bytes=replace(made, folder=scratch).disk_bytes)
            made.write(scratch)
            if there is not None or place.exists():
                folder.remove(there or made)
            _rename(scratch, place)
        except BaseException:
            folder.remove(replace(made, folder=scratch))
            raise
    return made


def _rename(scratch: Path, place: Path) -> None:
    try:
        os.rename(scratch, place)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise StorageError(
            f"{place} is in the way, and has what fastdata did not make: move it elsewhere, or "
            "choose another cache with cache_dir=, --cache-dir"
        ) from None


def _is_sound(dataset: CachedDataset) -> bool:
    """Return whether its files are there, with headers and columns as they were packed."""
    if dataset.key is None:
        return False
    try:
        for shard in dataset.shards:
            reader = ShardReader(dataset.folder / shard.file)
            if not all(map(reader.column_is_intact, reader.header.columns)):
                return False
    except (FastdataError, OSError):
        return False
    return True


def _columns_of(
    store: Store, shards: list[CachedShard], folder: Path
) -> tuple[tuple[CachedShard, ...], int]:
    """Make files of shards in a folder, without images; return these shards and a block's size."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        paths = list(pool.map(lambda one: columns_only(store, one.entry, folder), shards))
    readers = list(map(ShardReader, paths))
    counted = []
    for reader, shard in zip(readers, shards, strict=True):
        if shard.num_samples not in (-1, len(reader)):
            raise ShardCorruptError(
                f"{store.url_of(shard.key)} has {len(reader)} samples, not the "
                f"{shard.num_samples} that the manifest says. Pack the dataset again."
            )
        counted.append(replace(shard, num_samples=len(reader)))
    samples = sum(map(len, readers))
    with open_own_file(folder / PRESENT, "xb") as file:
        # Taken at once: it is counted, and where the disk is full, writing to a map of it is fatal.
        os.posix_fallocate(file.fileno(), 0, max(1, 2 * samples))
    return tuple(counted), BlockShuffle.in_lanes(samples, _mean_bytes(readers)).block_size


def _mean_bytes(readers: list[ShardReader]) -> float:
    """Return what `Dataset._mean_sample_bytes` does."""
    starts = np.concatenate(([0], np.cumsum(list(map(len, readers)), dtype=np.int64)))
    some = spread_samples(int(starts[-1]))
    shards = np.searchsorted(starts, some, side="right") - 1
    return mean_image_bytes(
        (reader, (some - starts[number])[shards == number]) for number, reader in enumerate(readers)
    )


def _runs_of(samples: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last + 1 of ascending numbers that follow one another."""
    for run in np.split(samples, np.flatnonzero(np.diff(samples) > 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1


class StoredDataset:
    """A dataset in the cache, which is filled and emptied; for several threads.

    Neighbours share pages of the file.  So what is being fetched is never part of a hole: neither
    the samples themselves, nor the pages that they have in common with others.
    """

    def __init__(self, cached: CachedDataset) -> None:
        self.cached = cached
        with open_own_file(cached.folder / PRESENT, "r+b") as file:
            bytes_of_samples = np.memmap(file, np.uint8, "r+").view(np.ndarray)
        counts = [shard.num_samples for shard in cached.shards]
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self.num_samples = int(self.starts[-1])
        self.present = bytes_of_samples[: self.num_samples]
        self._touched = bytes_of_samples[self.num_samples :][: self.num_samples]
        self.total_bytes = sum(shard.size for shard in cached.shards)
        self.used_bytes = cached.disk_bytes
        """What all its files take on the disk."""
        self.key = cached.key
        """See `CachedDataset.key`; None where somebody is just removing them."""
        self._files: dict[int, int] = {}
        found = [os.stat(self._path(number)) for number in range(len(cached.shards))]
        self._inodes = [status.st_ino for status in found]
        self._disk = [status.st_blocks * 512 for status in found]
        self._measuring = threading.Lock()
        self._marking = threading.Lock()
        self._under_way: list[tuple[int, int]] = []
        """Samples that are being fetched, by first and last + 1; some may be in several."""
        self._store: Store | None = None
        self._turn = int.from_bytes(os.urandom(1), "little")
        self._extents = lru_cache(_MOST_EXTENTS)(self._read_extents)
        # What a downloader that was killed had begun to fetch, or to remove.
        for run in _runs_of(np.flatnonzero((self._touched > 0) & (self.present == 0))):
            self._remove(*run)

    @property
    def is_there(self) -> bool:
        """Whether its files are still those in the folder."""
        return self.key is not None and self.cached.key == self.key

    def _removed(self) -> StorageError:
        return removed(self.cached.url, CacheFolder(self.cached.folder.parent))

    def close(self) -> None:
        """Close its files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}

    # -- samples ---------------------------------------------------------------------------------

    def fetch(self, first: int, last: int) -> int:
        """Fetch the images of samples `first` to `last` - 1; return the bytes that came.

        Raises `StorageError`, or an `OSError` where the disk is full.
        """
        with self._marking:  # a hole that is being made is done, and the next one leaves these out
            self._under_way.append((first, last))
            self._touched[first:last] = 1
        try:
            fetched = sum(self._fetch(*part) for part in self._in_shards(first, last))
        except BaseException:
            with self._marking:
                self._under_way.remove((first, last))
            with contextlib.suppress(OSError):
                self.remove(first, last)
            raise
        with self._marking:
            # Behind the data, so that whoever sees it sees that too.
            self._turn = self._turn % 255 + 1
            self.present[first:last] = self._turn
            self._under_way.remove((first, last))
        return fetched

    def _fetch(self, number: int, first: int, last: int) -> int:
        shard, descriptor = self.cached.shards[number], self._file(number)
        fetched = 0
        for start, stop in self._extents(number).ranges(first, last):
            # Taken before anything comes: a disk that is full is known in time.
            os.posix_fallocate(descriptor, start, stop - start)
            for at in range(start, stop, _LARGEST_READ):
                until = min(at + _LARGEST_READ, stop)
                data = memoryview(self.store.read(shard.key, at, until, tag=shard.tag))
                fetched += len(data)
                while data:
                    written = os.pwrite(descriptor, data, at)
                    data, at = data[written:], at + written
        self._measure(number)
        return fetched

    def disk_size(self, first: int, last: int) -> int:
        """Return what samples `first` to `last` - 1 take on the disk, at most."""
        total = 0
        for number, begin, end in self._in_shards(first, last):
            for start, stop in self._extents(number).ranges(begin, end):
                total += -(-stop // PAGE_BYTES) * PAGE_BYTES - start // PAGE_BYTES * PAGE_BYTES
        return total

    def remove(self, first: int, last: int) -> None:
        """Make holes of the images of samples `first` to `last` - 1, but of those under way.

        They are not present any more before the first byte goes.
        """
        with self._marking:
            goes = np.ones(last - first, np.bool_)
            for low, high in self._under_way:
                goes[max(low - first, 0) : max(high - first, 0)] = False
            for run in _runs_of(np.flatnonzero(goes) + first):
                self._remove(*run)

    def _remove(self, first: int, last: int) -> None:
        self.present[first:last] = 0
        for number, begin, end in self._in_shards(first, last):
            start, stop = int(self.starts[number]), int(self.starts[number + 1])
            kept = self.present[start:stop] > 0
            for low, high in self._under_way:
                kept[max(low - start, 0) : max(high - start, 0)] = True
            for low, high in self._extents(number).holes(begin, end, kept):
                punch_hole(self._file(number), low, high - low)
            self._measure(number)
        self._touched[first:last] = 0

    @property
    def store(self) -> Store:
        """Where it is fetched from."""
        if self._store is None:
            url = self.cached.url
            parent = url.rpartition("/")[0] if self.cached.is_file else url
            self._store = open_store(parent, self.cached.options)
        return self._store

    def _in_shards(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield shards, and which of their samples these are."""
        number = int(np.searchsorted(self.starts, first, side="right")) - 1
        while first < last:
            start, stop = int(self.starts[number]), int(self.starts[number + 1])
            if stop > first:
                yield number, first - start, min(last, stop) - start
            first, number = max(first, stop), number + 1

    def _path(self, number: int) -> Path:
        return self.cached.folder / self.cached.shards[number].file

    def _file(self, number: int) -> int:
        if number not in self._files:
            # Two threads may both open it; one of the descriptors is then closed again.
            try:
                descriptor = open_own(self._path(number), os.O_RDWR)
            except FileNotFoundError as error:
                raise self._removed() from error
            if os.fstat(descriptor).st_ino != self._inodes[number]:
                os.close(descriptor)
                raise self._removed()
            if self._files.setdefault(number, descriptor) != descriptor:
                os.close(descriptor)
        return self._files[number]

    def _measure(self, number: int) -> None:
        """Look what a shard's file takes on the disk now."""
        with self._measuring:
            now = os.fstat(self._file(number)).st_blocks * 512
            self.used_bytes += now - self._disk[number]
            self._disk[number] = now

    def _read_extents(self, number: int) -> Extents:
        reader = ShardReader(self._path(number))
        if len(reader) != self.cached.shards[number].num_samples:
            raise FormatError(f"{self._path(number)} is not as it was: clear the cache")
        return Extents(reader)
