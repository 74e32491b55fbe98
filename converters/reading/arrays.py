"""Datasets as arrays with one row a sample: HDF5, zarr, N5, torch files.

A `Column` is what a format gives: rows, of pixels or of bytes of image files, that can be
read a block at a time.  `ArraySource` makes samples of some columns of one length:

* it reads whole blocks (of the file), some MB at a time, and where one cannot be read,
  its samples alone are rejects;
* it reads nothing where a column knows where its rows are in the file: the workers do;
* pixels go to the workers as they are stored, and become H x W x C there.
"""

from __future__ import annotations

import abc
import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Schema

from ..base import Deferred, IndexedSource, Reject, Sample, reason_of
from .locations import hash_files
from .spans import MAX_RECORD, FileSpan, close_files, read_at

__all__ = [
    "ArraySource",
    "Column",
    "FlatColumn",
    "NamesColumn",
    "Part",
    "PictureLayout",
    "RowSpan",
    "check_rows",
]

Array = np.ndarray[Any, Any]

LAYOUTS = ("nhw", "nhwc", "nchw")
_CHANNELS = (1, 3)
_READ_BYTES = 32 << 20
_READ_ROWS = 32
"""Rows read at once where blocks are smaller: as many as a chunk of the packer's."""
_PLACED_ROWS = 256


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
        Whether `place` tells where rows are.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    block: int = 1
    placed: bool = False

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        """Return rows; an exception in the place of one is why that one cannot be read."""

    def place(self, index: int) -> Any:
        """Return a `RowSpan` or `FileSpan`."""
        raise NotImplementedError

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
        self.placed = flat.placed
        self.block = _READ_ROWS

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


@dataclass(frozen=True)
class PictureLayout:
    """How a row of an array is a picture.

    Attributes
    ----------
    order : {"nhw", "nhwc", "nchw"}
    scale : float or None
        Pixels are multiplied by it and rounded; None where they are 8-bit numbers already.
    """

    order: Literal["nhw", "nhwc", "nchw"]
    scale: float | None = None

    @classmethod
    def of(
        cls,
        where: str,
        column: Column,
        *,
        layout: str | None = None,
        scale: float | None = None,
        mask: bool = False,
    ) -> PictureLayout:
        """Find out how a column holds pictures.

        Raises
        ------
        OptionError
            If it does not, or needs an option to; the message says which.
        """
        if layout is not None and layout.lower() not in LAYOUTS:
            raise OptionError(f"layout={layout!r} is not one of {', '.join(LAYOUTS)}")
        shape, dtype = column.shape, column.dtype
        what = f"{where}: {column.label!r} is {dtype} of shape {shape}"
        fitting = _orders(shape)
        order = layout.lower() if layout is not None else next(iter(fitting), None)
        if order not in fitting:
            raise OptionError(
                f"{what}; pictures are N x H x W, or N x H x W x C or N x C x H x W with 1 or 3 "
                "channels. Name another array: --option arrays=image=ARRAY,label=ARRAY"
                + (f" (layout={layout} does not fit this one)" if layout else "")
            )
        if dtype is None or dtype.kind not in "buif":
            raise OptionError(f"{what}, which are no pixels")
        if scale is None and dtype != np.uint8:
            if not mask or dtype.kind == "f":
                raise OptionError(
                    f"{what}; pixels are uint8. Say by what they are multiplied to be 0 to 255: "
                    "--option scale=255 (of 0 to 1), scale=1 (of 0 to 255), scale=0.00389105 (of "
                    "16 bits)"
                )
            scale = 1.0
        return cls(order, scale)  # type: ignore[arg-type]

    def picture(self, row: Array) -> Array:
        """Return a row as uint8 pixels, H x W or H x W x C.

        Raises
        ------
        ValueError
            If scaled pixels are beyond 0 to 255.
        """
        if self.scale is not None:
            with np.errstate(all="ignore"):
                scaled = np.rint(row.astype(np.float64) * self.scale)
            if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255):  # or NaN
                raise ValueError(
                    f"pixels from {row.min()} to {row.max()} times scale={self.scale:g} are not "
                    "all from 0 to 255"
                )
            row = scaled.astype(np.uint8)
        return row.transpose(1, 2, 0) if self.order == "nchw" else row


def _orders(shape: tuple[int, ...]) -> list[str]:
    """Return in which orders an array can be pictures, the likeliest first."""
    if len(shape) == 3:
        return ["nhw"]
    if len(shape) != 4:
        return []
    last = ["nhwc"] if shape[3] in _CHANNELS else []
    return last + (["nchw"] if shape[1] in _CHANNELS else [])


class Row(Deferred):
    """The values of a sample; what is to be done with pixels is done by the worker."""

    def __init__(self, values: tuple[Any, ...], layouts: tuple[PictureLayout | None, ...]) -> None:
        self.values, self.layouts = values, layouts

    def load(self) -> tuple[Any, ...]:
        """Read what the worker is to read, and bring pixels into their form."""
        return tuple(map(_finished, self.values, self.layouts))


def _finished(value: Any, layout: PictureLayout | None) -> Any:
    if isinstance(value, RowSpan):
        value = value.read()
    if layout is None or isinstance(value, (bytes, FileSpan)):
        return value
    return layout.picture(value)


class Part(NamedTuple):
    """A file's share of a dataset.

    Attributes
    ----------
    file : str
        Name of the file, for keys.
    columns : tuple of Column
        In the schema's order, of one length.
    layouts : tuple of PictureLayout or None
        Of each column; None where it holds no pixels.
    """

    file: str
    columns: tuple[Column, ...]
    layouts: tuple[PictureLayout | None, ...]

    @property
    def count(self) -> int:
        """Samples in it."""
        return self.columns[0].shape[0]

    def key(self, index: int) -> str:
        """Return a sample's name: file, array and row."""
        return f"{self.file}:{self.columns[0].label}[{index}]"

    def rows_at_once(self) -> tuple[int, int]:
        """Return how many rows are read at once, and how many of these one block has."""
        pictures = [column for column in self.columns if not column.placed]
        if not pictures or self.columns[0].placed:
            return _PLACED_ROWS, _READ_ROWS
        first = max(pictures, key=lambda column: column.row_bytes)
        block = max(1, first.block)
        fitting = max(1, _READ_BYTES // max(1, first.row_bytes))
        rows = block * max(1, _READ_ROWS // block)
        return (rows, block) if rows <= fitting else (min(block, fitting),) * 2


class ArraySource(IndexedSource):
    """Samples that are rows of arrays.

    A subclass calls `_settle` with what it has found.
    """

    paths: Sequence[Path]
    """Files that fingerprints are of."""

    def _settle(self, schema: Schema, parts: Sequence[Part]) -> None:
        """Take the columns of all files.

        Raises
        ------
        SourceError
            If columns of a file have different lengths, or absurd ones.
        """
        for part in parts:
            for column in part.columns:
                check_rows(part.file, column)
            lengths = {column.label: column.shape[0] for column in part.columns}
            if len(set(lengths.values())) > 1:
                told = ", ".join(f"{name!r} has {count:,}" for name, count in lengths.items())
                raise SourceError(
                    f"{part.file}: arrays of one dataset have as many rows each, but {told}. Name "
                    "those that belong together: --option arrays=image=ARRAY,label=ARRAY"
                )
        self.schema, self._parts = schema, list(parts)
        self._ends = list(itertools.accumulate(part.count for part in parts))
        self.num_samples = self._ends[-1] if self._ends else 0
        if not self.num_samples:
            raise SourceError(f"{parts[0].file}: {parts[0].columns[0].label!r} has no rows")

    def _part(self, index: int) -> tuple[int, int]:
        """Return the number of the part that a sample is in, and its row there."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        return number, index - (self._ends[number - 1] if number else 0)

    def __getitem__(self, index: int) -> Sample | Reject:
        number, row = self._part(index)
        return next(_samples(self._parts[number], row, row + 1))

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        if start >= self.num_samples:
            return
        number, row = self._part(start)
        try:
            for part in self._parts[number:]:
                rows, block = part.rows_at_once()
                while row < part.count:
                    stop = min(part.count, row - row % rows + rows)  # as blocks lie
                    yield from _samples(part, row, stop, block)
                    row = stop
                row = 0
        finally:
            close_files()  # which `place` may have looked into

    def key_at(self, index: int) -> str:
        number, row = self._part(index)
        return self._parts[number].key(row)

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_files(self.paths)

    def fingerprint_key(self, index: int) -> str:
        return str(self.paths[index])


def _samples(part: Part, start: int, stop: int, block: int = 1) -> Iterator[Sample | Reject]:
    """Yield some samples; where they cannot be read together, block by block."""
    try:
        columns = [
            [_placed(column, row) for row in range(start, stop)]
            if column.placed
            else column.read(start, stop)
            for column in part.columns
        ]
        for column, rows in zip(part.columns, columns, strict=True):
            if len(rows) != stop - start:
                raise ValueError(f"{column.label!r} ends before row {stop:,}")
    except Exception as error:  # what libraries raise on damage
        if stop - start <= block:
            reason = reason_of(error)
            yield from (Reject(part.key(row), reason) for row in range(start, stop))
            return
        while start < stop:
            end = min(stop, start - start % block + block)
            yield from _samples(part, start, end, block)
            start = end
        return
    for row, values in enumerate(zip(*columns, strict=True), start):
        bad = next((value for value in values if isinstance(value, Exception)), None)
        if bad is not None:
            yield Reject(part.key(row), reason_of(bad))
        else:
            yield Sample(part.key(row), Row(values, part.layouts))


def _placed(column: Column, row: int) -> Any:
    try:
        return column.place(row)
    except Exception as error:
        return error
