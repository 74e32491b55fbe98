"""The table of rows at the end of a LitData chunk, an Arrow file with a length and a mark behind.

Where rows are plain values alone, the table is all that a chunk has: its samples are empty.  The
file holds batches of the same number of rows, the last maybe of fewer; older versions wrote a
stream.  It is mapped into memory, so that an image is a place in it.  Source:
``append_arrow_row_footer`` in ``litdata/streaming/item_loader.py``, 0.2.76.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.regular_files import on_disk
from fastdata.schema import ImageField

from ...base import reason_of
from ..locations import last_bytes
from ..selection import TableColumn
from ..tables.arrow_fields import kinds_of
from ..tables.arrow_types import arrow, is_bytes, is_image_struct, table_errors
from ..tables.rows import MappedTable, RowLayout, first_values, row_reader

__all__ = ["RowTable", "has_table", "table_columns"]

_TAIL = struct.Struct("<I8s")
_MARK = b"LDARW01\0"
_FILE = b"ARROW1"
_BATCH = 256
"""Rows of a batch in what LitData writes."""


def has_table(path: Path) -> bool:
    """Tell whether a chunk ends with a table; one that cannot be read does not."""
    return last_bytes(path, len(_MARK)) == _MARK


class RowTable:
    """The table of a chunk, of as many `rows` as the chunk says at its start.

    Raises SourceError if there is no such table, or it has another number of rows.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._open(path)
        except table_errors() as error:
            raise SourceError(f"{path}: its table cannot be read: {reason_of(error)}") from error

    def _open(self, path: str) -> None:
        pa, ipc = arrow(), arrow(".ipc")
        whole = pa.memory_map(on_disk(path)).read_buffer()
        self._mapped = MappedTable(path, whole.address, whole.size)
        if whole.size < 4 + _TAIL.size:
            raise SourceError(f"a chunk of {whole.size} bytes")
        length, _ = _TAIL.unpack(whole[whole.size - _TAIL.size :])
        start = whole.size - _TAIL.size - length
        if start < 4:
            raise SourceError(f"{length:,} bytes, in a chunk of {whole.size:,}")
        self.rows = int.from_bytes(whole[:4], "little")
        table = whole.slice(start, length)
        self._file: Any = None
        self._batches: list[Any] = []
        if table[: len(_FILE)].to_pybytes() == _FILE:
            self._file = ipc.open_file(table)
            self.schema, count = self._file.schema, self._file.num_record_batches
        else:
            stream = ipc.open_stream(table)
            self._batches = list(stream)
            self.schema, count = stream.schema, len(self._batches)
        self._count = count
        self._step = self.rows if count == 1 else self._first_rows()
        if count != -(-self.rows // max(1, self._step)):
            raise SourceError(
                f"{count:,} batches of {self._step:,} rows do not make the {self.rows:,} samples "
                "that the chunk says it has"
            )

    def _first_rows(self) -> int:
        """Return the rows of a batch, of the first but for the last that can be read."""
        for number in range(self._count - 1):
            with contextlib.suppress(*table_errors()):
                return len(self._get(number))
        return _BATCH

    def _get(self, number: int) -> Any:
        if number >= self._count:
            raise SourceError(f"there is no batch {number}")
        return self._batches[number] if self._file is None else self._file.get_batch(number)

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yield where each batch begins and ends, in rows."""
        for first in range(0, self.rows, max(1, self._step)):
            yield first, min(self.rows, first + self._step)

    def row(self, row: int, layout: RowLayout) -> tuple[Any, ...]:
        """Return the values of one row; raises as `reader` does, ValueError if it does not fit."""
        first = row - row % self._step
        return self.reader(first, layout, row - first)(0)

    def reader(
        self, first: int, layout: RowLayout, only: int | None = None
    ) -> Callable[[int], tuple[Any, ...]]:
        """Return a function from a row's number in the batch that begins there to its values.

        `only` is the one row of it that is wanted, then number 0.  Raises SourceError if the batch
        is damaged.
        """
        number = first // self._step
        try:
            batch = self._get(number)
            if len(batch) != min(self._step, self.rows - first):
                raise SourceError(f"it has {len(batch):,} rows")
            if only is not None:
                batch = batch.slice(only, 1)
            taken = _taken(batch, layout.columns)
            _check_images(taken, layout)
            return row_reader(taken, layout, 0, self._mapped)
        except table_errors() as error:
            raise SourceError(
                f"{self._path}: batch {number} of its table is damaged: {reason_of(error)}"
            ) from error

    def first_batches(self, names: list[str]) -> Iterator[Any]:
        """Yield some columns of each batch that can be read."""
        for first, _ in self.batches():
            with contextlib.suppress(*table_errors()):  # the next may be whole
                yield _taken(self._get(first // self._step), names)


def table_columns(table: RowTable, channels: int) -> list[TableColumn]:
    """Return what can be taken from a table; columns inside others are ``outer.inner``."""
    leaves = _leaves(table.schema, "")
    schema = arrow().schema(leaves)
    names = [name for name, type_ in leaves if is_bytes(type_)]
    starts = first_values(table.first_batches(names), names)
    kinds = kinds_of(schema, {}, starts, channels)
    return [c if c.name else TableColumn("", None, "has no name") for c in kinds.values()]


def _leaves(children: Any, above: str) -> list[tuple[str, Any]]:
    found = []
    for child in children:
        inside = arrow(".types").is_struct(child.type) and not is_image_struct(child.type)
        if inside:
            found += _leaves(child.type, f"{above}{child.name}.")
        else:
            found.append((above + child.name, child.type))
    return found


def _check_images(batch: Any, layout: RowLayout) -> None:
    """Raise SourceError where a column of images has something else in this table."""
    for (name, field), column in zip(layout.schema.items(), batch.schema, strict=True):
        type_ = column.type
        there = is_bytes(type_) or is_image_struct(type_) or arrow(".types").is_null(type_)
        if isinstance(field, ImageField) and not there:
            raise SourceError(f"{name!r} is an image elsewhere, and {type_} here")


def _taken(batch: Any, names: Any) -> Any:
    """Return a batch of some leaves; one that a chunk lacks is null in it, as LitData has it."""
    batch.validate(full=True)
    leaves = _arrays(zip(batch.schema.names, batch.columns, strict=True), "")
    null = arrow().nulls(len(batch))
    arrays = [leaves.get(name, null) for name in names]
    return arrow().RecordBatch.from_arrays(arrays, list(names))


def _arrays(columns: Any, above: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, array in columns:
        inside = arrow(".types").is_struct(array.type) and not is_image_struct(array.type)
        if inside:
            # flatten() rather than field(): a null struct makes its entries null.
            names = [child.name for child in array.type]
            found |= _arrays(zip(names, array.flatten(), strict=True), f"{above}{name}.")
        else:
            found[above + name] = array
    return found
