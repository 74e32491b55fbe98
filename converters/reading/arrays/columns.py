"""Arrays with one row a sample: what HDF5, zarr, N5 and torch files have.

A `Column` is what a format gives: rows, of pixels or of bytes of image files, that can be
read a block at a time, or of which it knows where in the file they are.  ``picture_layout.py`` says
how a row is a picture, ``array_source.py`` makes samples of them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..spans import MAX_RECORD, FileSpan, read_at

__all__ = [
    "Column",
    "FlatColumn",
    "NamesColumn",
    "RowSpan",
    "check_rows",
]

Array = np.ndarray[Any, Any]


class RowSpan(NamedTuple):
    """A row that lies in a file as it is; the worker reads it.

    Attributes
    ----------
    path : str
    offset : int
        In bytes.
    dtype : str
        With the byte order, as ``numpy.dtype.str``.
    shape : tuple of int
    """

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Array:
        """Return the row.

        Raises
        ------
        SourceError
            If the file ends before.
        """
        dtype = np.dtype(self.dtype)
        count = int(np.prod(self.shape, dtype=np.int64))
        data = read_at(self.path, self.offset, count * dtype.itemsize)
        return np.frombuffer(data, dtype).reshape(self.shape)


class Column(abc.ABC):
    """One value a sample.

    Attributes
    ----------
    label : str
        What the format calls it: the path of a dataset.
    shape : tuple of int
        Samples first; only ``(samples,)`` where rows are bytes or text.
    dtype : numpy.dtype or None
        None where rows are bytes, or text.
    block : int
        Rows that are stored together, so that they are read together.
    placed : bool
        Whether workers read the rows, where `place` tells.
    contiguous : bool
        Whether all rows lie one behind the other as they are, so that `place` could tell.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    block: int = 1
    placed: bool = False
    contiguous: bool = False

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        """Return rows; an exception in the place of one is why that one cannot be read."""

    def place(self, index: int) -> Any:
        """Return a `RowSpan`, a `FileSpan`, or what else has a ``read()`` for the worker.

        Asked only of columns that are `placed`.
        """
        raise NotImplementedError(f"{self.label} is read by blocks")

    @property
    def row_bytes(self) -> int:
        """Of one row, as far as that is known."""
        if self.dtype is None:
            return 1
        row = 1
        for length in self.shape[1:]:
            row *= length  # Python's integers: what a damaged file claims does not overflow
        return row * self.dtype.itemsize


def check_rows(where: str, column: Column) -> None:
    """Refuse what no dataset of pictures has, before anything is allocated for it.

    Raises
    ------
    SourceError
    """
    if column.row_bytes > MAX_RECORD:
        raise SourceError(
            f"{where}: a row of {column.label!r} claims {column.row_bytes:,} bytes (shape "
            f"{column.shape}); at most {MAX_RECORD:,} are believed: the file is damaged"
        )


class FlatColumn(Column):
    """Image files end to end in one array of bytes, and where each begins and ends.

    Parameters
    ----------
    flat : Column
        uint8, one-dimensional.
    starts, ends : numpy.ndarray of int64
    """

    dtype = None

    def __init__(self, flat: Column, starts: Array, ends: Array) -> None:
        self._flat, self._starts, self._ends = flat, starts, ends
        self.label, self.shape = flat.label, (len(starts),)
        self.placed = flat.contiguous
        self.block = 1

    def _bounds(self, index: int) -> tuple[int, int]:
        start, end = int(self._starts[index]), int(self._ends[index])
        if not 0 <= start <= end <= self._flat.shape[0]:
            raise ValueError(
                f"bytes {start:,} to {end:,} of {self.label!r}, which has {self._flat.shape[0]:,}"
            )
        if end - start > MAX_RECORD:
            raise ValueError(f"an image file of {end - start:,} bytes is not believed")
        return start, end

    def read(self, start: int, stop: int) -> Sequence[Any]:
        rows: list[Any] = []
        for index in range(start, stop):
            try:
                rows.append(bytes(self._flat.read(*self._bounds(index))))
            except Exception as error:
                rows.append(error)
        return rows

    def place(self, index: int) -> FileSpan:
        start, end = self._bounds(index)
        path, offset, _, _ = self._flat.place(start)
        return FileSpan(path, offset, end - start)


class NamesColumn(Column):
    """Names of classes, as their numbers."""

    dtype = np.dtype("int64")

    def __init__(self, names: Column, classes: Sequence[str]) -> None:
        self._names = names
        self._numbers = {name: number for number, name in enumerate(classes)}
        self.label, self.shape, self.block = names.label, names.shape, names.block

    def read(self, start: int, stop: int) -> Sequence[Any]:
        return [
            self._numbers.get(name, ValueError(f"{name!r} is none of the classes"))
            for name in self._names.read(start, stop)
        ]
