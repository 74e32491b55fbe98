"""Blocks of HDF5 arrays that workers read and decompress themselves.

Inflating pixels costs more than packing them does, so where a block is compressed only in the
ways that HDF5 always has (deflate, shuffle, and the Fletcher-32 checksum behind deflate, which
checks itself) the packing process says only where it is.  Other arrays it reads by HDF5.
Source: HDF5 File Format Specification 3.0, section IV.A.2.l, and ``H5Zdeflate.c``,
``H5Zshuffle.c``.
"""

from __future__ import annotations

import functools
import os
import zlib
from typing import Any, NamedTuple

import numpy as np

from ..spans import read_at

__all__ = ["BlockRow", "filters_of"]

_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_MOST_ROWS = 64
"""A block that more chunks of the packer's share would be inflated too often."""
_MOST_BYTES = 64 << 20
_CHECKSUM_BYTES = 4


def filters_of(dataset: Any) -> tuple[int, ...] | None:
    """Return an array's filters, in the order of writing; None where workers cannot undo them.

    Parameters
    ----------
    dataset : h5py.Dataset
    """
    if not dataset.chunks or dataset.dtype.kind not in "biuf" or dataset.file.userblock_size:
        return None  # behind a user block, releases of HDF5 differ in what blocks' places are
    creation = dataset.id.get_create_plist()
    filters = tuple(creation.get_filter(n)[0] for n in range(creation.get_nfilters()))
    size = int(np.prod(dataset.chunks, dtype=object)) * dataset.dtype.itemsize
    known = set(filters) <= {_DEFLATE, _SHUFFLE, _FLETCHER}
    checked = _FLETCHER not in filters or _DEFLATE in filters
    whole = dataset.chunks[1:] == dataset.shape[1:]  # rows are not cut
    small = dataset.chunks[0] <= _MOST_ROWS and size <= _MOST_BYTES
    return filters if known and checked and whole and small else None


class BlockRow(NamedTuple):
    """A row of a block that the worker reads.

    Attributes
    ----------
    path : str
    offset, length : int
        Of the block as it is stored, in bytes.
    filters : tuple of int
        Those that were applied to it, in the order of writing.
    dtype : str
    shape : tuple of int
        Of the block.
    row : int
        In the block.
    """

    path: str
    offset: int
    length: int
    filters: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    row: int

    def read(self) -> np.ndarray[Any, Any]:
        """Return the row; the last blocks are kept, since its other rows are wanted next.

        Raises
        ------
        SourceError, ValueError
            If the block is damaged.
        """
        status = os.stat(self.path)
        row: np.ndarray[Any, Any] = _block(self._replace(row=0), status.st_mtime_ns)[self.row]
        return row


@functools.lru_cache(2)
def _block(place: BlockRow, changed: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(place.dtype)
    size = int(np.prod(place.shape, dtype=object)) * dtype.itemsize
    data = read_at(place.path, place.offset, place.length)
    for number in reversed(place.filters):
        if number == _FLETCHER:
            data = data[:-_CHECKSUM_BYTES]
        elif number == _DEFLATE:
            data = _inflated(data, size + _CHECKSUM_BYTES, place)
        elif dtype.itemsize > 1 and len(data) == size:
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    if len(data) != size:
        raise ValueError(
            f"{place.path}: the block at byte {place.offset:,} has {len(data):,} bytes, not "
            f"{size:,}: damaged"
        )
    return np.frombuffer(data, dtype).reshape(place.shape)


def _inflated(data: bytes, size: int, place: BlockRow) -> bytes:
    """Inflate so many bytes and one more: that tells that there are too many."""
    try:
        return zlib.decompressobj().decompress(data, size + 1)
    except zlib.error as error:
        raise ValueError(
            f"{place.path}: the block at byte {place.offset:,} is damaged: {error}"
        ) from error
