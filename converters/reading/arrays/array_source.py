"""Samples that are rows of arrays.

* Whole blocks are read, some MB at a time; where one cannot be, its samples alone are rejects.
* Nothing is read where a column knows where its rows are in the file: the workers do that.
* Pixels go to the workers as they are stored, and become H x W x C, uint8, there.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import Schema

from ...base import Deferred, IndexedSource, Reject, Sample, reason_of
from ..fingerprints import FileSource
from ..spans import FileSpan, close_files
from .columns import Column, check_rows
from .picture_layout import PictureLayout

__all__ = ["ArraySource", "Part"]

_READ_BYTES = 32 << 20
_READ_ROWS = 32
"""Rows read at once where blocks are smaller: as many as a chunk of the packer's."""
_PLACED_ROWS = 256


class Row(Deferred):
    """The values of a sample; what is to be done with pixels is done by the worker."""

    def __init__(self, values: tuple[Any, ...], layouts: tuple[PictureLayout | None, ...]) -> None:
        self.values, self.layouts = values, layouts

    def load(self) -> tuple[Any, ...]:
        """Read what the worker is to read, and bring pixels into their form."""
        return tuple(map(_finished, self.values, self.layouts))


def _finished(value: Any, layout: PictureLayout | None) -> Any:
    if isinstance(value, (bytes, FileSpan)):
        return value
    if hasattr(value, "read"):  # a `RowSpan`, or another place of a row
        value = value.read()
    if layout is None:
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
    def rows(self) -> int:
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


class ArraySource(FileSource, IndexedSource):
    """Samples that are rows of arrays.

    A subclass calls `_settle` with what it has found.
    """

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
        self._ends = list(itertools.accumulate(part.rows for part in parts))
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
                while row < part.rows:
                    stop = min(part.rows, row - row % rows + rows)  # as blocks lie
                    yield from _samples(part, row, stop, block)
                    row = stop
                row = 0
        finally:
            close_files()  # which `place` may have looked into

    def key_at(self, index: int) -> str:
        number, row = self._part(index)
        return self._parts[number].key(row)


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
