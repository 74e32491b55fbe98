"""Arrays with one row a sample: what HDF5, zarr, N5 and torch files have.

A `Column` is what a format gives: rows, of pixels or of bytes of image files, that can be
read a block at a time, or of which it knows where in the file they are.  A `PictureLayout`
says how a row is a picture.  ``array_source.py`` makes samples of them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError

from ..refusals import check_choice
from ..spans import MAX_RECORD, FileSpan, read_at

__all__ = [
    "Column",
    "FlatColumn",
    "NamesColumn",
    "PictureLayout",
    "RowSpan",
    "check_rows",
]

Array = np.ndarray[Any, Any]

LAYOUTS = ("nhw", "nhwc", "nchw")
_CHANNELS = (1, 3)


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
        """Return a `RowSpan`, a `FileSpan`, or what else has a ``read()`` for the worker."""
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
        if layout is not None:
            check_choice("layout", layout.lower(), LAYOUTS)
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
