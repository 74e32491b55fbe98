"""Where rows of variable length lie in an HDF5 file.

The HDF5 library reads such a row into as much memory as the file claims that it needs, up to
4 GiB.  Here the row is only found: in its place the array has 16 bytes, the length and the
address of an object in a global heap, and objects lie in the file as they are.  So workers
read them.  Source: HDF5 File Format Specification 3.0, sections III.E and VIII.A.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from ..spans import MAX_RECORD, FileSpan, read_at

__all__ = ["HeapPlaces"]

_REFERENCE = struct.Struct("<IQI")
"""Length, address of the collection, number of the object in it."""
_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")


class HeapPlaces:
    """The places of an array's rows of bytes.

    Parameters
    ----------
    path : Path
    dataset : h5py.Dataset
        One-dimensional, of bytes of variable length; is not kept.

    Raises
    ------
    LookupError
        If they cannot be found so: the array is compressed, or its file unusual.
    """

    def __init__(self, path: Path, dataset: Any) -> None:
        self._path = str(path)
        created = dataset.file.id.get_create_plist()
        if dataset.ndim != 1 or created.get_sizes() != (8, 8):
            raise LookupError("an unusual file")
        if dataset.id.get_create_plist().get_nfilters():
            raise LookupError("the references are compressed")
        self._base: int = created.get_userblock()
        if dataset.chunks and self._base:
            raise LookupError("releases of HDF5 differ in where blocks are")
        if dataset.chunks:
            self._rows: int = dataset.chunks[0]
            blocks = range(0, dataset.shape[0], self._rows)
            infos = (dataset.id.get_chunk_info_by_coord((at,)) for at in blocks)
            offsets = [-1 if i.byte_offset is None else i.byte_offset for i in infos]
        else:
            offset = dataset.id.get_offset()
            if offset is None:
                raise LookupError("the references are in the header")
            self._rows, offsets = max(1, dataset.shape[0]), [offset]
        self._offsets = np.array(offsets, np.int64)
        self._last: tuple[int, dict[int, tuple[int, int]]] = (-1, {})

    def place(self, index: int) -> FileSpan:
        """Return where a row is.

        Raises
        ------
        ValueError
            If there is nothing where it is said to be, or it was never written.
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
                f"{number} of the heap at byte {address:,}, where there are not so many: damaged"
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
