"""Arrays with one row a sample: what HDF5, zarr, N5, NumPy and torch files have.

An `ArrayColumn` is what a format gives: rows, of pixels or of bytes of image files, that can be
read a block at a time, or of which it knows where in the file they are.  A `PictureLayout` says
how a row is a picture.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastdata.errors import OptionError

from ..deferred import ValueSpan
from ..refusals import check_choice
from ..spans import MAX_RECORD, FileSpan

__all__ = [
    "WORKER_BYTES",
    "Array",
    "ArrayColumn",
    "ConstantColumn",
    "ConvertedColumn",
    "FlatColumn",
    "PictureLayout",
]

WORKER_BYTES = 256
"""Smaller rows, labels say, are read in the packing process, many at once."""
Array = np.ndarray[Any, Any]


class ArrayColumn(abc.ABC):
    """One value a sample; without `prepare`, only what describes it is known."""

    label: str
    """What the format calls it: the path of a dataset."""
    shape: tuple[int, ...] = ()
    """Samples first; only ``(samples,)`` where rows are bytes or text."""
    dtype: np.dtype[Any] | None = None
    """None where rows are bytes or text."""
    kind: str = "numbers"
    """Or "bytes" of image files, or "text"."""
    refused: str = ""
    """Why it cannot be read, with what helps; empty where it can."""
    block: int = 1
    """Rows that are stored together, so that they are read together."""
    read_by_workers: bool = False
    """Whether workers read the rows, by `span`."""
    contiguous: tuple[str, int] | None = None
    """Path and offset in bytes of the first row, where all rows lie one behind the other there."""
    compressed: bool = False
    """Whether rows can be read only one behind the other."""

    def __str__(self) -> str:
        what = self.kind if self.dtype is None else str(self.dtype)
        return f"{what} of shape {self.shape}" + (" (cannot be read)" if self.refused else "")

    def prepare(self) -> list[str]:
        """Look closer at a column that is taken; return notes.  Raises SourceError on damage."""
        return []

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        """Return rows; an exception in the place of one is why that one cannot be read."""

    def span(self, index: int) -> Any:
        """Return the place of a row, something with a ``read()``, if it is `read_by_workers`."""
        assert self.contiguous is not None
        assert self.dtype is not None
        (path, first), size = self.contiguous, self.row_bytes
        offset, shape = first + index * size, self.shape[1:]
        return ValueSpan(path, offset, size, "array", self.dtype.str, shape)

    def lies_at(self, path: Path, offset: int) -> None:
        """Note that all rows lie in a file one behind the other; workers read them if not small."""
        self.contiguous = str(path), offset
        self.read_by_workers = self.row_bytes >= WORKER_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, 1 where that is not known."""
        # Python's integers: what a damaged file claims does not overflow.
        return 1 if self.dtype is None else math.prod(self.shape[1:]) * self.dtype.itemsize


class FlatColumn(ArrayColumn):
    """Image files end to end in an array of uint8; `starts`, `ends` (int64) tell where each is."""

    def __init__(self, flat: ArrayColumn, starts: Array, ends: Array) -> None:
        self._flat, self._starts, self._ends = flat, starts, ends
        self.label, self.shape = flat.label, (len(starts),)
        self.read_by_workers = flat.contiguous is not None

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

    def span(self, index: int) -> FileSpan:
        assert self._flat.contiguous is not None
        (path, first), (start, end) = self._flat.contiguous, self._bounds(index)
        return FileSpan(path, first + start, end - start)


class ConvertedColumn(ArrayColumn):
    """Whole numbers that are made of the rows of another column."""

    dtype = np.dtype("int64")

    def __init__(
        self, column: ArrayColumn, convert: Callable[[Any], Sequence[Any] | Array]
    ) -> None:
        self._column, self._convert = column, convert
        self.label, self.shape, self.block = column.label, column.shape, column.block
        self.compressed, self.refused = column.compressed, column.refused

    def read(self, start: int, stop: int) -> Sequence[Any] | Array:
        return self._convert(self._column.read(start, stop))


class ConstantColumn(ArrayColumn):
    """One number for all rows: which split they are of."""

    dtype = np.dtype("int64")

    def __init__(self, label: str, rows: int, value: int) -> None:
        self.label, self.shape, self._value = label, (rows,), value

    def read(self, start: int, stop: int) -> Array:
        return np.full(stop - start, self._value)


@dataclass(frozen=True)
class PictureLayout:
    """How a row of an array is a picture: the order of its dimensions, what makes it 8-bit."""

    order: Literal["nhw", "nhwc", "nchw"]
    scale: float | None = None
    """Pixels are multiplied by it and rounded; None where they are 8-bit numbers already."""

    @classmethod
    def of(
        cls, where: str, column: ArrayColumn, layout: str | None, scale: float | None, mask: bool
    ) -> PictureLayout:
        """Return how a column holds pictures.

        Raises OptionError if it does not, or needs an option to; the message says which.
        """
        if layout is not None:
            check_choice("layout", layout.lower(), ("nhw", "nhwc", "nchw"))
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

    def __call__(self, row: Array) -> Array:
        """Return a row as uint8 pixels, H x W or H x W x C; raises ValueError beyond 0 to 255."""
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
    last = ["nhwc"] if shape[3] in (1, 3) else []
    return last + (["nchw"] if shape[1] in (1, 3) else [])
