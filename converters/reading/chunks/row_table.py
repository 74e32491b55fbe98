"""The table of rows at the end of a LitData chunk, an Arrow file with a length and a mark behind.

Where rows are plain values alone, the table is all that a chunk has: its samples are empty.  The
file holds batches of the same number of rows, the last maybe of fewer; older versions wrote a
stream.  It is mapped into memory, so that an image is a place in it.  Source:
``append_arrow_row_footer`` in ``litdata/streaming/item_loader.py``, 0.2.76.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import mirror_of, on_disk
from fastdata.schema import Field, ImageField, Schema

from ...base import Reject, reason_of, reject_reason
from ...scan import Found, Input, Row
from ..locations import last_bytes, map_files
from ..selection import TableColumn
from ..spans import FileSpan
from ..tables.arrow_fields import kinds_of
from ..tables.arrow_types import arrow, is_bytes, is_image_struct, table_errors
from ..tables.rows import MappedTable, RowLayout, first_values, row_reader
from .chunk_source import ChunkIndex

__all__ = ["Tables"]

_TAIL = struct.Struct("<I8s")
_MARK = b"LDARW01\0"
_FILE = b"ARROW1"
_BATCH = 256
"""Rows of a batch in what LitData writes."""
_MOST_OPEN = 16


class Tables(NamedTuple):
    """The chunks of an index that are tables."""

    chunks: ChunkIndex
    flags: list[bool]  # of each chunk: whether it ends with a table
    # A cache of the instance, so that files are closed with it: an open chunk of a store takes
    # space on the disk.
    open: Callable[[str], RowTable]
    layout: RowLayout | None = None  # how a row becomes a sample

    @classmethod
    def of(cls, index: ChunkIndex) -> Tables | None:
        """Return the tables of an index, which are not compressed as chunks; None without any."""
        marks = map_files(functools.partial(last_bytes, count=len(_MARK)), index.paths)
        flags = [mark == _MARK for mark in marks]
        if not any(flags):
            return None
        index.codecs = ["" if f else c for f, c in zip(flags, index.codecs, strict=True)]
        most = _MOST_OPEN if mirror_of(index.path) is None else 1
        return cls(index, flags, functools.lru_cache(most)(RowTable))

    def columns(self, channels: int) -> list[TableColumn]:
        """Return the columns of the first table that can be read."""
        failure = ""
        for number in (number for number, flag in enumerate(self.flags) if flag):
            try:
                return _table_columns(self._table(number), channels)
            except table_errors() as error:
                failure = failure or str(error)
        raise SourceError(f"{self.chunks.path}: no sample can be read: {failure}")

    def first(self, fields: Mapping[str, Field], chosen: tuple[str, ...]) -> dict[str, list[Any]]:
        """Return the first values of each field; images as bytes."""
        layout = RowLayout(Schema(fields), chosen, str(self.chunks.root), {})
        scan = self.chunks.scan(self._replace(layout=layout).rows)
        rows = scan.first(lambda values: values[0], self.chunks.path, "sample can be read")
        columns = zip(*rows, strict=True)
        return {
            name: [one.read() if isinstance(one, FileSpan) else one for one in column]
            for name, column in zip(fields, columns, strict=True)
        }

    def _table(self, number: int) -> RowTable:
        table = self.open(str(self.chunks.paths[number]))
        self.chunks.check_count(number, table.rows)
        return table

    def rows(self, input: Input, start: int, stop: int | None) -> Iterator[Found]:
        """Yield the rows of a table: each is one value, the values of a sample."""
        assert self.layout is not None
        if not self.flags[input.number]:
            raise SourceError(f"{input.path}: is not a table of rows")
        try:
            table = self._table(input.number)
        except (OSError, SourceError) as error:
            lost = f"its {self.chunks.counts[input.number]:,} samples are lost"
            raise SourceError(f"{reject_reason(input.path, error)}; {lost}") from error
        for first, end in table.batches() if stop is None else [(start, stop)]:
            try:
                read = table.reader(first, self.layout, None if stop is None else stop - start)
            except SourceError as error:
                reason = reject_reason(input.key(first), error)
                yield from ((r, r + 1, Reject(input.key(r), reason)) for r in range(first, end))
                continue
            for row in range(first, end):
                try:
                    yield row, row + 1, Row(input.key(row), (read(row - first),))
                except table_errors() as error:
                    yield row, row + 1, Reject.of(input.key(row), error)


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

    def reader(
        self, first: int, layout: RowLayout, count: int | None = None
    ) -> Callable[[int], tuple[Any, ...]]:
        """Return a function from a row's number behind `first` to its values.

        `count` are the rows of the batch that are wanted; without it all, and `first` is where the
        batch begins.  Raises SourceError if the batch is damaged.
        """
        number, skipped = divmod(first, self._step)
        try:
            batch = self._get(number)
            if len(batch) != min(self._step, self.rows - first + skipped):
                raise SourceError(f"it has {len(batch):,} rows")
            if count is not None:
                batch = batch.slice(skipped, count)
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


def _table_columns(table: RowTable, channels: int) -> list[TableColumn]:
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
