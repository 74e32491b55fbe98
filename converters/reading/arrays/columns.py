"""Arrays with one row a sample: what HDF5, zarr, NumPy and torch files have.

Each format makes an `ArrayColumn` of an array: rows of pixels or of bytes of image files, which are
read a block at a time, or whose places in the file are known.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError

from ..deferred import ValueSpan
from ..forward_reader import ForwardReader
from ..spans import read_at

__all__ = ["WORKER_BYTES", "ArrayColumn", "ListColumn", "StoredColumn", "missing_blocks", "scaled"]

WORKER_BYTES = 256
"""Smaller rows, labels say, are read in the packing process, many at once."""
_BLOCK_BYTES = 1 << 16
"""How much of a compressed file is read at once."""
_MOST_EMPTY = 1000
"""Limit of missing blocks per existing one."""
Array = np.ndarray[Any, Any]


class ArrayColumn(abc.ABC):
    """One value for each sample; without `prepare`, only its description is known.

    Attributes
    ----------
    label : str
        Its name in the format: the path of a dataset.
    shape : tuple of int
        Samples first; only ``(samples,)`` where rows are bytes or text; empty if not known.
    dtype : numpy.dtype or None
        None for bytes and text.
    kind : str
        "numbers", "bytes" of image files, or "text".
    refused : str
        The reason why it cannot be read, with the remedy.
    block : int
        Rows that are stored together, so that they are read together.
    read_by_workers : bool
        Whether workers read the rows, by `span`.
    compressed : bool
        Whether rows can be read only one behind the other.
    damage : str
        The reason why rows behind those last read are lost, or why the file is damaged behind them.
    """

    label: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    kind: str = "numbers"
    refused: str = ""
    block: int = 1
    read_by_workers: bool = False
    compressed: bool = False
    damage: str = ""

    def __str__(self) -> str:
        what = self.kind if self.dtype is None else str(self.dtype)
        return f"{what} of shape {self.shape}" + (" (cannot be read)" if self.refused else "")

    def prepare(self) -> list[str]:
        """Look closer at a column that is taken; return notes.  Raises SourceError on damage."""
        return []

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        """Return rows; an exception in the place of a row makes it a reject."""

    def span(self, index: int) -> Any:
        """Return the place of a row, something with a ``read()``, if it is `read_by_workers`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close files until the next read."""
        self.damage = ""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; 1 if not known."""
        # Python's integers: large numbers in a damaged file do not overflow.
        return 1 if self.dtype is None else math.prod(self.shape[1:]) * self.dtype.itemsize


class ListColumn(ArrayColumn):
    """Values in memory; an exception in the place of one is why it cannot be used."""

    def __init__(self, label: str, values: Sequence[Any] | Array) -> None:
        self.label, self.shape, self._values = label, (len(values),), values

    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        return self._values[start:stop]


class StoredColumn(ArrayColumn):
    """Rows at equal distances in a file, which may be compressed as a whole.

    Without `front`, workers read them.  Columns of one file may share a `front`.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        shape: tuple[int, ...],
        dtype: str | np.dtype[Any] = "u1",
        *,
        label: str = "",
        distance: int = 0,  # from row to row, in bytes; by default they lie behind each other
        front: ForwardReader | None = None,
        ends: bool = False,  # whether a compressed file is to end with them
    ) -> None:
        self.label, self._path, self._offset = label, path, offset
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._distance = distance or max(1, self.row_bytes)
        self._front, self._ends = front, ends
        self.compressed, self.block = front is not None, max(1, _BLOCK_BYTES // self._distance)
        self.read_by_workers = front is None and self.row_bytes >= WORKER_BYTES

    def span(self, index: int) -> ValueSpan:
        assert self.dtype is not None
        at, shape = self._offset + index * self._distance, self.shape[1:]
        return ValueSpan(str(self._path), at, self.row_bytes, "array", self.dtype.str, shape)

    def read(self, start: int, stop: int) -> Array:
        size = self.row_bytes
        at, length = self._offset + start * self._distance, (stop - start - 1) * self._distance
        if self._front is None:
            data = read_at(self._path, at, length + size)
        else:
            data, self.damage = self._front.read_some(at, length + size)
            if stop == self.shape[0] and self._ends and not self.damage:
                self.damage = self._front.more_at(at + length + self._distance)
        count = (len(data) - size) // self._distance + 1
        rows = np.ndarray((count, size), np.uint8, data, strides=(self._distance, 1))
        array: Array = rows.view(self.dtype).reshape(count, *self.shape[1:])
        return array

    def close(self) -> None:
        super().close()
        if self._front is not None:
            self._front.close()


def missing_blocks(
    place: str, shape: tuple[int, ...], stored: int, whole: int, fill: Any
) -> list[str]:
    """Return the note on blocks that were never written; SourceError if nearly none was.

    stored, whole: the number of blocks, and the number that the shape needs.
    """
    if whole > _MOST_EMPTY * stored:
        raise SourceError(
            f"{place}: claims the shape {shape}, but {stored:,} of its {whole:,} blocks are there: "
            "the file is damaged, or not complete"
        )
    note = f"{place}: {whole - stored:,} blocks are missing, which means that they are all {fill}"
    return [note] * (stored < whole)


def scaled(scale: float, row: Array) -> Array:
    """Return a row as pixels; raises ValueError beyond 0 to 255."""
    with np.errstate(all="ignore"):
        pixels = np.rint(row.astype(np.float64) * scale)
    if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 255):  # or NaN
        raise ValueError(
            f"pixels from {row.min()} to {row.max()} times scale={scale:g} are not all from 0 to "
            "255"
        )
    return pixels.astype(np.uint8)
