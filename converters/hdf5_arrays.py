"""HDF5 files of others: arrays of pictures, or of bytes of image files.

Nothing outside the file is read: external links and soft links that lead through them are not
followed; arrays that are external or virtual are refused, for they name other files.

The packing process only locates two kinds of data, which the workers read:

* Blocks that are compressed in the ways that HDF5 always has (deflate, shuffle, and the Fletcher-32
  checksum behind deflate, which checks itself): inflating pixels costs more than packing them.
* Rows of variable length.  The HDF5 library reads such a row into as much memory as the file claims
  to need, up to 4 GiB.  In the array, the row has 16 bytes: the length and the address of an object
  in a global heap, which is stored unchanged.  Locating and reading a row of 50 KB takes 85 us so,
  and 450 us by h5py in a worker.

Other arrays are read by the HDF5 library, in the packing process.  Source: HDF5 File Format
Specification 3.0, sections III.E, IV.A.2.l and VIII.A; ``H5Zdeflate.c``, ``H5Zshuffle.c``.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import FastdataError, SourceError

from .base import reason_of
from .reading.arrays.array_source import ArrayFile, ArraySource
from .reading.arrays.columns import WORKER_BYTES, ArrayColumn, StoredColumn, missing_blocks
from .reading.locations import files_at, first_bytes, printable
from .reading.refusals import already_packed, no_files
from .reading.spans import MAX_RECORD, FileSpan, read_at

__all__ = ["BlockRow", "Hdf5Source"]

_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = (0, 512, 1024, 2048)
_MOST_ARRAYS = 10_000
_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_MOST_ROWS = 64
"""Limit of rows in a block: more chunks of the packer would inflate it too often."""
_MOST_BYTES = 64 << 20
_LEAST_CACHED = 8 << 20
_MOST_BLOCKS = 1 << 16
"""Limit of cached blocks with parts of the same rows."""
_CHECKSUM_BYTES = 4
_REFERENCE = struct.Struct("<IQI")
"""Length, address of the collection, number of the object in it."""
_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")


class Hdf5Source(ArraySource):
    """Arrays of HDF5 files; several are one dataset, in their order."""

    name = "hdf5"
    summary = "HDF5 files with arrays of pictures or of image files"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        if not files or files[0].suffix == ".mat":  # MATLAB has dimensions in the opposite order
            return False
        start = first_bytes(files[0], _USER_BLOCKS[-1] + len(_MAGIC))
        return any(start.startswith(_MAGIC, at) for at in _USER_BLOCKS)

    def files(self, location: Any) -> Iterator[ArrayFile]:
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "HDF5 files")
        return map(_file, self.paths)


def _file(path: Path) -> ArrayFile:
    with _opened(path) as file:
        if file.attrs.get("format") == "fastdata" and "columns" in file:
            raise already_packed(path)
        return ArrayFile(str(path), printable(path.name), dict(_columns_of(path, file)))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; what h5py raises, and it raises nearly anything, is a `SourceError`."""
    try:
        with _open(path) as file:
            yield file
    except FastdataError:
        raise
    except Exception as error:
        raise SourceError(f"{path}: cannot be read as HDF5: {reason_of(error)}") from error


def _open(path: Path, **cache: int) -> Any:
    import h5py

    try:
        # Without locks: the file may be on a read-only file system, or open elsewhere.
        return h5py.File(path, "r", locking=False, **cache)
    except OSError:  # this process has it open with locks
        return h5py.File(path, "r", **cache)


def _columns_of(path: Path, file: Any) -> Iterator[tuple[str, _Hdf5Column]]:
    """Yield the arrays that an open file itself has: those that hard links lead to."""
    import h5py

    groups = [("", file)]
    seen = set()
    count = 0
    while groups:
        prefix, group = groups.pop()
        for name in group:
            inside = f"{prefix}{name}"
            found = None
            if isinstance(group.get(name, getlink=True), h5py.HardLink):
                found = group[name]
            if isinstance(found, h5py.Group):
                address = h5py.h5o.get_info(found.id).addr
                if address not in seen:  # a link back to a group above would never end
                    groups.append((f"{inside}/", found))
                    seen.add(address)
            elif found is None or isinstance(found, h5py.Dataset):
                yield inside, _Hdf5Column(path, inside, found)
            count += 1
            if count > _MOST_ARRAYS:
                raise SourceError(
                    f"{path}: more than {_MOST_ARRAYS:,} arrays: a dataset an image is not read. "
                    "Put the images in one array, or export them to class folders."
                )


class _Hdf5Column(ArrayColumn):
    """The rows of one HDF5 dataset; of a link to one if `dataset` is None."""

    def __init__(self, path: Path, name: str, dataset: Any) -> None:
        import h5py

        self._path, self._name, self.label = path, name, printable(name)
        self._cache: dict[str, int] = {}
        self._locate: Callable[[int], Any] | None = None
        self._block: tuple[int, BlockRow | None] = (-1, None)
        if dataset is None:
            self.kind = "link"
            self.refused = "a link, which is not followed; name the array that it leads to"
            return
        try:
            shape, dtype = dataset.shape, dataset.dtype
        except Exception as error:  # a type that NumPy has not
            self.kind, self.refused = "unknown", reason_of(error)
            return
        self.shape, self.refused = shape or (), _refusal(dataset)
        text = h5py.check_string_dtype(dtype)
        if h5py.check_vlen_dtype(dtype) == np.uint8 or (dtype.kind == "V" and not dtype.names):
            self.kind = "bytes"
        elif text is not None:
            self.kind = "bytes" if dtype.kind == "S" and dtype.itemsize > 255 else "text"
        else:
            self.dtype = dtype
            if dtype.kind not in "biufc":
                self.refused = self.refused or f"its type {dtype} is not a number, bytes or text"

    def prepare(self) -> list[str]:
        with _opened(self._path) as file:
            return self._prepare(file[self._name])

    def _prepare(self, dataset: Any) -> list[str]:
        """Determine how to read rows; return notes on missing data."""
        import h5py

        whole, stored = 1, 1
        if dataset.chunks:
            self.block = dataset.chunks[0]
            grid = zip(dataset.shape, dataset.chunks, strict=True)
            whole, stored = math.prod(-(-n // c) for n, c in grid), dataset.id.get_num_chunks()
            # The blocks of the last rows are kept, else a large one is inflated for each group of
            # rows.  HDF5 recommends 10 slots per block, as blocks in one slot evict each other.
            count, size = _band(dataset)
            self._cache = {
                "rdcc_nbytes": max(_LEAST_CACHED, min(size, MAX_RECORD)),
                "rdcc_nslots": 10 * min(count, _MOST_BLOCKS) + 521,
            }
        elif dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS:
            offset = dataset.id.get_offset()
            if offset is None:
                stored = 0
            elif self.dtype is not None and self.row_bytes >= WORKER_BYTES:
                self._locate = StoredColumn(self._path, offset, self.shape, self.dtype).span
        fill = dataset.fillvalue if self.kind == "numbers" else 0
        place = f"{self._path}: {self.label!r}"
        notes = missing_blocks(place, self.shape, stored, whole if dataset.size else 0, fill)
        if dataset.chunks and self.kind == "numbers" and self.row_bytes >= WORKER_BYTES:
            filters = _filters_of(dataset)
            self._locate = None if filters is None else partial(self._in_block, filters)
        if self.kind == "bytes" and h5py.check_vlen_dtype(dataset.dtype):
            with contextlib.suppress(LookupError):
                self._locate = _Heap(self._path, dataset).span
        self.read_by_workers = self._locate is not None
        return notes

    def read(self, start: int, stop: int) -> Any:
        try:
            rows = self._dataset[start:stop]
        except Exception as error:
            raise ValueError(
                f"{self._path}: rows {start:,} to {stop - 1:,} of {self.label!r} cannot be read: "
                f"{reason_of(error)}"
            ) from error
        if self.kind == "bytes":
            return [bytes(row) for row in rows]
        if self.kind == "text":
            return [row.decode("utf-8", "replace") for row in rows]
        return rows

    @cached_property
    def _dataset(self) -> Any:
        return _open(self._path, **self._cache)[self._name]

    def span(self, index: int) -> Any:
        assert self._locate is not None
        return self._locate(index)

    def _in_block(self, filters: tuple[int, ...], index: int) -> Any:
        first = index - index % self.block
        if self._block[0] != first:
            dataset, block = self._dataset, None
            at = dataset.id.get_chunk_info_by_coord((first, *(0 for _ in self.shape[1:])))
            if at.byte_offset is not None:
                applied = tuple(f for n, f in enumerate(filters) if not at.filter_mask >> n & 1)
                place = str(self._path), at.byte_offset, at.size, applied
                block = BlockRow(*place, dataset.dtype.str, dataset.chunks, 0)
            self._block = (first, block)
        block = self._block[1]
        if block is None:  # it was never written
            return self.read(index, index + 1)[0]
        return block._replace(row=index - first)


def _band(dataset: Any) -> tuple[int, int]:
    """Return the number of blocks with parts of the same rows, and their bytes."""
    beyond = zip(dataset.shape[1:], dataset.chunks[1:], strict=True)
    count = math.prod(-(-n // c) for n, c in beyond)
    return count, count * math.prod(dataset.chunks) * dataset.dtype.itemsize


def _refusal(dataset: Any) -> str:
    """Return the reason why an array is not read; empty if it is."""
    import h5py

    if dataset.external or dataset.is_virtual:
        files = f" ({dataset.external[0][0]!r})" if dataset.external else ""
        return (
            f"its data may be in other files{files}, which are not opened on the word of this one. "
            "Copy it into this file, with h5py: new[name] = old[name][...]"
        )
    creation = dataset.id.get_create_plist()
    for number in range(creation.get_nfilters()):
        code, _, _, name = creation.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            return (
                f"it is compressed by filter {code} ({name.decode(errors='replace')}), which this "
                "HDF5 library has not. Repack it: h5repack -f GZIP=4 IN OUT"
            )
    if dataset.chunks:
        size = _band(dataset)[1]
        if not creation.get_nfilters():  # one block at a time is in memory
            size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if size > MAX_RECORD:
            rows = "x".join(map(str, (1, *dataset.shape[1:])))
            return (
                f"the blocks that have a part of the same rows, of shape {dataset.chunks}, take "
                f"{size:,} bytes; at most {MAX_RECORD:,} are believed. Repack it with blocks of "
                f"whole rows: h5repack -l {dataset.name}:CHUNK={rows} IN OUT"
            )
    return ""


def _filters_of(dataset: Any) -> tuple[int, ...] | None:
    """Return an array's filters, in the order of writing; None where workers cannot undo them."""
    if dataset.dtype.kind not in "biuf" or dataset.file.userblock_size:
        return None  # behind a user block, releases of HDF5 differ in what blocks' places are
    creation = dataset.id.get_create_plist()
    filters = tuple(creation.get_filter(n)[0] for n in range(creation.get_nfilters()))
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    known = set(filters) <= {_DEFLATE, _SHUFFLE, _FLETCHER}
    checked = _FLETCHER not in filters or _DEFLATE in filters
    whole = dataset.chunks[1:] == dataset.shape[1:]  # rows are not cut
    small = dataset.chunks[0] <= _MOST_ROWS and size <= _MOST_BYTES
    return filters if known and checked and whole and small else None


class BlockRow(NamedTuple):
    """A row of a block that the worker reads."""

    path: str
    offset: int  # of the block as it is stored, in bytes
    length: int
    filters: tuple[int, ...]  # that were applied to it, in the order of writing
    dtype: str
    shape: tuple[int, ...]  # of the block
    row: int  # in the block

    def read(self) -> np.ndarray[Any, Any]:
        """Return the row; the last blocks are cached, since their other rows are wanted next.

        Raises SourceError or ValueError if the block is damaged.
        """
        status = os.stat(self.path)
        row: np.ndarray[Any, Any] = _block(self._replace(row=0), status.st_mtime_ns)[self.row]
        return row


@lru_cache(2)
def _block(place: BlockRow, changed: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(place.dtype)
    size = math.prod(place.shape) * dtype.itemsize
    data = read_at(place.path, place.offset, place.length)
    for number in reversed(place.filters):
        if number == _FLETCHER:
            data = data[:-_CHECKSUM_BYTES]
        elif number == _DEFLATE:
            try:  # one byte more than expected shows that there are more
                most = size + _CHECKSUM_BYTES + 1
                data = zlib.decompressobj().decompress(data, most)
            except zlib.error as error:
                raise ValueError(
                    f"{place.path}: the block at byte {place.offset:,} is damaged: {error}"
                ) from error
        elif dtype.itemsize > 1 and len(data) == size:
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    if len(data) != size:
        raise ValueError(
            f"{place.path}: the block at byte {place.offset:,} has {len(data):,} bytes, not "
            f"{size:,}: damaged"
        )
    return np.frombuffer(data, dtype).reshape(place.shape)


class _Heap:
    """Locates the rows of variable length of a one-dimensional dataset of bytes.

    Raises LookupError if the array is compressed, or its file unusual.
    """

    def __init__(self, path: Path, dataset: Any) -> None:
        self._path = str(path)
        created, filters = dataset.file.id.get_create_plist(), dataset.id.get_create_plist()
        self._base: int = created.get_userblock()
        # Behind a user block, releases of HDF5 differ in where blocks are.
        chunks, offsets = dataset.chunks, [None if dataset.chunks else dataset.id.get_offset()]
        plain = dataset.ndim == 1 and created.get_sizes() == (8, 8) and not filters.get_nfilters()
        if not plain or (self._base if chunks else offsets == [None]):
            raise LookupError("its references cannot be located")
        self._rows: int = chunks[0] if chunks else max(1, dataset.shape[0])
        if chunks:
            places = ((at,) for at in range(0, dataset.shape[0], self._rows))
            infos = map(dataset.id.get_chunk_info_by_coord, places)
            offsets = [-1 if info.byte_offset is None else info.byte_offset for info in infos]
        self._offsets = np.array(offsets, np.int64)
        self._last: tuple[int, dict[int, tuple[int, int]]] = (-1, {})

    def span(self, index: int) -> FileSpan:
        """Return where a row is.

        Raises ValueError if there is nothing where it is said to be, or it was never written.
        """
        block = int(self._offsets[index // self._rows])
        at = block + index % self._rows * _REFERENCE.size
        reference = read_at(self._path, at, _REFERENCE.size) if block >= 0 else bytes(16)
        length, address, number = _REFERENCE.unpack(reference)
        if not length:
            raise ValueError(f"{self._path}: nothing was ever written in this row")
        if self._last[0] != address:  # neighbours are in one collection
            self._last = (address, _objects(self._path, self._base + address))
        offset, size = self._last[1].get(number, (0, -1))
        if size < length:
            raise ValueError(
                f"{self._path}: the reference at byte {at:,} is to {length:,} bytes in object "
                f"{number} of the heap at byte {address:,}, which has fewer: damaged"
            )
        return FileSpan(self._path, offset, length)


def _objects(path: str, start: int) -> dict[int, tuple[int, int]]:
    """Return offset and size of the objects of a global heap collection."""
    signature, version, size = _COLLECTION.unpack(read_at(path, start, _COLLECTION.size))
    if signature != b"GCOL" or version != 1 or not _COLLECTION.size <= size <= MAX_RECORD:
        raise ValueError(f"{path}: no heap of objects at byte {start:,}: damaged")
    found = {}
    at, end = start + _COLLECTION.size, start + size
    while at + _OBJECT.size <= end:
        number, _, _, length = _OBJECT.unpack(read_at(path, at, _OBJECT.size))
        if number == 0:  # the free space, which is last
            break
        found[number] = (at + _OBJECT.size, length)
        at += _OBJECT.size + -(-length // 8) * 8
    return found
