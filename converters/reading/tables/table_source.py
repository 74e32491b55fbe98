"""Sources that are tables in files, read one block of rows at a time.

A block is a row group of Parquet, a record batch of Arrow.  Each takes three numbers in memory.
An unreadable block becomes one reject per row, so that damage does not change the numbers of later
samples.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField, Schema, StringField

from ...base import FieldSpec, IndexedSource, Reject, Sample, reason_of, reject_reason
from ..class_names import classes_of_texts, named_classes, numbered
from ..exported import Exported, read_exported
from ..fingerprints import FileSource
from ..lists.image_finder import folder_named
from ..locations import printable, stat_of
from ..options import ClassFile, Option
from ..refusals import no_files
from ..splits import choose_split, split_of
from .arrow_fields import (
    check_columns,
    choose_columns,
    features_of,
    kinds_of,
    resolve_columns,
    with_paths,
)
from .arrow_types import arrow, is_bytes, is_text, plain, table_errors, type_of
from .rows import MappedTable, RowLayout, first_values, key_reader, row_reader

__all__ = ["Block", "TableSource"]

_PLACES = 8
"""For a store, where rows are checked together."""
_PEEK = 16
"""Blocks in which the first values of columns of bytes are looked for."""


class Block(NamedTuple):
    """Rows that are read together."""

    file: int  # number of the file
    number: int  # in the file
    start: int  # the first row, counted over all files, and how many there are
    rows: int
    lost: str  # why it cannot be read at all; it then counts as one row


class Blocks:
    """The blocks of a source, in order."""

    def __init__(self) -> None:
        self.num_rows = 0
        self._files, self._numbers, self._starts = array("i"), array("q"), array("q")
        self._file_starts = array("q")
        self._lost: dict[int, str] = {}

    def begin_file(self) -> None:
        """Begin the blocks of the next file."""
        self._file_starts.append(self.num_rows)

    def add(self, number: int, rows: int | str) -> None:
        """Add a block by its number of rows; one that is lost by why it is."""
        if isinstance(rows, str):
            self._lost[len(self._files)] = rows
            rows = 1
        if rows > 0:
            self._files.append(len(self._file_starts) - 1)
            self._numbers.append(number)
            self._starts.append(self.num_rows)
            self.num_rows += rows

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Block:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = self._starts[index]
        behind = self._starts[index + 1] if index + 1 < len(self) else self.num_rows
        lost = self._lost.get(index, "")
        return Block(self._files[index], self._numbers[index], start, behind - start, lost)

    def number_of(self, row: int) -> int:
        """Return which block has a row, counted over all files."""
        return bisect_right(self._starts, row) - 1

    def block_of(self, row: int) -> Block:
        """Return the block that has a row. Raises IndexError if there is no such row."""
        if not 0 <= row < self.num_rows:
            raise IndexError(row)
        return self[self.number_of(row)]

    def in_file(self, row: int) -> tuple[int, int]:
        """Return the file of a row, and its number there."""
        file = bisect_right(self._file_starts, row) - 1
        return file, row - self._file_starts[file]


class TableSource(FileSource, IndexedSource):
    """Rows of tables; a subclass says what blocks a file has, and reads them."""

    @abc.abstractmethod
    def table_schema(self, file: int) -> Any:
        """Return the pyarrow.Schema of a file."""

    @abc.abstractmethod
    def blocks(self, file: int) -> Iterator[int | str]:
        """Yield the number of rows of each block, or the reason if it is lost."""

    @abc.abstractmethod
    def batches(self, file: int, block: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of a block as pyarrow.RecordBatch, not too many at once."""

    @abc.abstractmethod
    def row(self, index: int, block: Block) -> Sample | Reject:
        """Return one sample of a block."""

    def mapped(self, file: int) -> MappedTable | None:
        """Return where a file is in memory, if `batches` does not copy from it."""
        return None

    def features_beside(self) -> dict[str, Any]:
        """Return the description of columns in files next to the tables, as ``datasets`` does."""
        return {}

    @classmethod
    @abc.abstractmethod
    def files_of(cls, location: Any) -> list[Path]:
        """Return the files of a location; raises MissingExtraError if they cannot be read."""

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: Annotated[
            tuple[str, ...], Option("FIELD=COLUMN or COLUMN; default: all columns that fit a field")
        ] = (),
        split: Annotated[
            str | None, Option("only files of this split, by their names or those of their folders")
        ] = None,
        classes: ClassFile = None,
        images: Annotated[
            str | None, Option("the folder of the image files that a column of text names")
        ] = None,
    ) -> None:
        self.notes = []
        paths = self.files_of(location)
        if not paths:
            raise no_files(location, f"{self.name} files")
        is_folder = Path(location).is_dir()
        top = os.path.commonpath([path.parent.absolute() for path in paths])
        self.root = Path(location).absolute() if is_folder else Path(top)
        relative = [path.absolute().relative_to(self.root) for path in paths]
        splits = [split_of(path) for path in relative]
        taken = choose_split(paths, splits, split)
        self.paths = [paths[k] for k in taken]
        self._names = [printable(os.fspath(relative[k])) for k in taken]
        self._split_numbers = [0] * len(taken)

        first, schema = self._first_schema()
        exported = None if columns or images is not None else read_exported(self.paths, self.name)
        if exported is not None:
            self._resolve_exported(exported, schema, first, fields, channels, classes)
            return
        features = {**self.features_beside(), **features_of(schema.metadata)}
        try:
            kinds = kinds_of(schema, features, _first_bytes_of(self, schema), channels)
        except UnicodeDecodeError as error:
            raise SourceError(
                f"{self.paths[first]}: a column's name is no text: {error}"
            ) from error
        if images is not None:
            kinds = with_paths(kinds, columns, str(self.paths[first]), channels)
        chosen = choose_columns(schema, columns, kinds, self.notes, str(self.paths[first]))
        resolved = resolve_columns(chosen, kinds, fields or {}, channels)
        self._find_blocks(schema, chosen.values())
        as_label = {"label", *(name for name, kind in (fields or {}).items() if kind == "label")}
        for name in as_label & set(chosen):
            if isinstance(resolved[name], StringField) and (fields or {}).get(name) != "string":
                what, own = f"the column {chosen[name]!r}", classes if name == "label" else None
                names = classes_of_texts(_texts_of(self, self._blocks, chosen[name]), what, own)
                resolved[name] = ScalarField(classes=names)
        self._add_split(resolved, chosen, [splits[k] for k in taken])
        numbers = {
            name: numbered(field.classes)
            for name, field in resolved.items()
            if isinstance(field, ScalarField) and field.classes and self._is_text(chosen, name)
        }
        self.schema = Schema(named_classes(resolved, "label", classes))
        folder = ""
        if images is not None:
            folder = os.path.join(self.root, folder_named(self.root, images))
        self.layout = RowLayout(
            self.schema, tuple(chosen.values()), str(self.root), numbers, images=folder
        )

    def _resolve_exported(
        self,
        exported: Exported,
        schema: Any,
        first: int,
        fields: FieldSpec | None,
        channels: int,
        classes: str | None,
    ) -> None:
        """Determine schema and blocks from the description of an export."""
        self.packed_with, self.beside = exported.packed_with, [exported.path]
        resolved = named_classes(exported.resolve_fields(fields, channels), "label", classes)
        self.schema = Schema(resolved, stored=True)
        columns = tuple(exported.stored_as.values())
        self.layout = RowLayout(self.schema, columns, str(self.root), {}, True)
        check_columns(exported, self.schema, self.layout.needed, schema, self.paths[first])
        self._find_blocks(schema, self.layout.needed)

    def _first_schema(self) -> tuple[int, Any]:
        """Return the first file that can be read, and its schema."""
        failure = ""
        for file in range(len(self.paths)):
            try:
                return file, self.table_schema(file)
            except table_errors() as error:
                failure = failure or reason_of(error)
        raise SourceError(f"{self.paths[0]}: cannot be read: {failure}")

    def _is_text(self, chosen: Mapping[str, str], name: str) -> bool:
        return chosen[name] in self._types and is_text(plain(self._types[chosen[name]]))

    def _find_blocks(self, schema: Any, columns: Iterable[str]) -> None:
        """Collect the blocks of all files, with some of the columns."""
        self._types = {name: type_of(schema, name) for name in columns}
        self._blocks = Blocks()
        for file in range(len(self.paths)):
            self._blocks.begin_file()
            try:
                self._check_types(file)
                size = stat_of(self.paths[file])[0]
                for number, rows in enumerate(self.blocks(file)):
                    if not isinstance(rows, str) and not 0 <= rows <= size:
                        rows = f"block {number} claims {rows:,} rows, in {size:,} bytes: damaged"
                    self._blocks.add(number, rows)
            except table_errors() as error:
                if isinstance(error, OptionError):
                    raise
                self._blocks.add(0, reject_reason(self.paths[file], error))
        self.num_samples = self._blocks.num_rows

    def _check_types(self, file: int) -> None:
        schema = self.table_schema(file)
        for name, type_ in self._types.items():
            found = type_of(schema, name) if schema.names.count(name) == 1 else None
            if found is None or plain(found) != plain(type_):
                raise OptionError(
                    f"{self.paths[file]}: the column {name!r} is {found or 'not there'}; in "
                    f"{self.paths[0]} it is {type_}. Pack one kind of file at a time, or choose "
                    "the columns that all have: --option columns=image,label"
                )

    # -- classes and splits -------------------------------------------------------------

    def _add_split(
        self, resolved: dict[str, Field], chosen: dict[str, str], splits: list[str]
    ) -> None:
        """Add the field ``split`` where the files are of several."""
        there = sorted(set(splits), key=lambda s: (s == "", s != "train", s))
        if len(there) > 1 and "split" not in resolved:
            resolved["split"] = ScalarField(classes=tuple(split or "other" for split in there))
            chosen["split"] = ""
            self._split_numbers = [there.index(split) for split in splits]

    # -- rows ---------------------------------------------------------------------------

    def some(self, count: int) -> Iterator[Sample | Reject]:
        if self.mirror is None:
            return super().some(count)
        # Rows one behind the other, as a row in the middle of a block is read with those before it.
        places = np.linspace(0, self.num_samples - 1, min(_PLACES, self.num_samples))
        starts = sorted({self._blocks.block_of(int(at)).start for at in places})
        each = -(-count // len(starts)) if starts else 0
        runs = (itertools.islice(self.start_at(start), each) for start in starts)
        return itertools.chain.from_iterable(runs)

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        for number in range(max(0, self._blocks.number_of(start)), len(self._blocks)):
            block = self._blocks[number]
            yield from self._rows(block, max(0, start - block.start))

    def _rows(self, block: Block, skip: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a block, without the first few."""
        if skip >= block.rows:
            return
        if block.lost:
            yield Reject(self.key_at(block.start), block.lost)
            return
        row, reason = 0, "it has fewer rows than the file says"
        split, mapped = self._split_numbers[block.file], self.mapped(block.file)
        try:
            for batch in self.batches(block.file, block.number, list(self._types)):
                until = min(row + batch.num_rows, block.rows)
                if until > skip:
                    read = row_reader(batch, self.layout, split, mapped)
                    key = key_reader(batch, self.layout)
                    for at in range(max(row, skip), until):
                        yield self.sample(block.start + at, read, at - row, key)
                row = until
        except table_errors() as error:
            reason = reject_reason(self.key_at(block.start + row), error)
        for at in range(max(row, skip), block.rows):
            yield Reject(
                self.key_at(block.start + at),
                f"the block {block.number} that it is in is damaged: {reason}",
            )

    def sample(
        self,
        index: int,
        read: Callable[[int], tuple[Any, ...]],
        row: int,
        key: Callable[[int], str | None] = lambda row: None,
    ) -> Sample | Reject:
        """Return a sample, or why its row does not fit."""
        try:
            stored = key(row)
            return Sample(self.key_at(index) if stored is None else stored, read(row))
        except (ValueError, TypeError, arrow().ArrowException) as error:
            return Reject.of(self.key_at(index), error)

    def __getitem__(self, index: int) -> Sample | Reject:
        block = self._blocks.block_of(index)
        if block.lost:
            return Reject(self.key_at(index), block.lost)
        return self.row(index, block)

    def key_at(self, index: int) -> str:
        file, row = self._blocks.in_file(index)
        return f"{self._names[file]}@{row}"

    def fingerprint_key(self, index: int) -> str:
        return [*self._names, *(printable(path.name) for path in self.beside)][index]


def _first_bytes_of(tables: TableSource, schema: Any) -> dict[str, bytes]:
    """Return the first values of columns of bytes, to recognise images."""
    names = [f.name for f in schema if is_bytes(f.type) and schema.names.count(f.name) == 1]
    return first_values(_first_batches(tables, names), names)


def _first_batches(tables: TableSource, names: Sequence[str]) -> Iterator[Any]:
    for file, block in itertools.islice(_first_blocks(tables), _PEEK):
        with contextlib.suppress(*table_errors()):
            yield from itertools.islice(tables.batches(file, block, names), 1)


def _first_blocks(tables: TableSource) -> Iterator[tuple[int, int]]:
    for file in range(len(tables.paths)):
        with contextlib.suppress(*table_errors()):
            for block, rows in enumerate(tables.blocks(file)):
                if not isinstance(rows, str) and rows:
                    yield file, block


def _texts_of(tables: TableSource, blocks: Blocks, column: str) -> Iterator[str]:
    """Yield the texts of a column, each at least once; reads that column of all files."""
    unique = arrow(".compute").unique
    for block in map(blocks.__getitem__, range(len(blocks))):
        if block.lost:
            continue
        with contextlib.suppress(*table_errors()):  # its rows are rejected later
            for batch in tables.batches(block.file, block.number, [column]):
                batch.validate(full=True)
                values = unique(batch.column(batch.schema.names.index(column)))
                yield from filter(None, values.to_pylist())
