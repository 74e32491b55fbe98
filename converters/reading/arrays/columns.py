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
from typing import Any

import numpy as np

from fastdata.errors import OptionError

from ..deferred import ValueSpan
from ..refusals import check_choice

__all__ = [
    "WORKER_BYTES",
    "Array",
    "ArrayColumn",
    "ConstantColumn",
    "ConvertedColumn",
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
    """How the user says that rows of an array are pictures."""

    last: bool
    """Whether channels are the last dimension, or there are none."""
    scale: float | None
    """What pixels are multiplied by, and rounded; None if they are as `pixels_of` takes them."""

    @classmethod
    def of(
        cls, where: str, column: ArrayColumn, layout: str | None, scale: float | None
    ) -> PictureLayout | None:
        """Return the layout that the options say; None without them.

        Raises OptionError if it does not fit.
        """
        if layout is not None:
            check_choice("layout", layout.lower(), ("nhw", "nhwc", "nchw"))
            if len(column.shape) != len(layout):
                raise OptionError(
                    f"{where}: {column.label!r} of shape {column.shape} is not layout={layout}. "
                    "Name another array: --option arrays=image=ARRAY,label=ARRAY"
                )
        if layout is None and scale is None:
            return None
        return cls((layout or "").lower() != "nchw", scale)

    def __call__(self, row: Array) -> Array:
        """Return a row as pixels; raises ValueError beyond 0 to 255."""
        if self.scale is not None:
            with np.errstate(all="ignore"):
                scaled = np.rint(row.astype(np.float64) * self.scale)
            if scaled.size and not (scaled.min() >= 0 and scaled.max() <= 255):  # or NaN
                raise ValueError(
                    f"pixels from {row.min()} to {row.max()} times scale={self.scale:g} are not "
                    "all from 0 to 255"
                )
            row = scaled.astype(np.uint8)
        return self.turned(row)

    def turned(self, row: Array) -> Array:
        """Return a row with its channels last."""
        return row if self.last else row.transpose(1, 2, 0)
