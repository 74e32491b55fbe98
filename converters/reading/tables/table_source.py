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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from ..selection import joined
from ..splits import choose_split, split_of
from .arrow_fields import (
    check_columns,
    choose_columns,
    class_names_of,
    features_of,
    kinds_of,
    resolve_columns,
    with_paths,
)
from .arrow_types import arrow, is_bytes, is_text, plain, table_errors, type_of
from .rows import MappedTable, RowLayout, first_values, key_reader, row_reader

__all__ = ["Block", "TableSource"]


class _Columns(NamedTuple):
    """The columns of a file, as those of some others are."""

    schema: Any
    features: dict[str, Any]  # what ``datasets`` says of them
    file: int  # the first such file


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

    def features_beside(self, file: int) -> dict[str, Any]:
        """Return the description of columns in files next to a table, as ``datasets`` does."""
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

        kinds_of_files = self._look_at_files()
        first = str(self.paths[kinds_of_files[0].file])
        exported = None if columns or images is not None else read_exported(self.paths, self.name)
        if exported is not None:
            self._resolve_exported(exported, kinds_of_files, fields, channels, classes)
            return
        try:
            schema, features = _of_all(kinds_of_files)
            kinds = kinds_of(schema, features, _first_bytes_of(self, schema), channels)
        except UnicodeDecodeError as error:
            raise SourceError(f"{first}: a column's name is no text: {error}") from error
        if images is not None:
            kinds = with_paths(kinds, columns, first, channels)
        chosen = choose_columns(schema, columns, kinds, self.notes, first)
        resolved = resolve_columns(chosen, kinds, fields or {}, channels)
        self._types = {column: type_of(schema, column) for column in chosen.values()}
        self._check_types(kinds_of_files)
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
        self._renumber(kinds_of_files, resolved, chosen, named=classes is not None)

    def _resolve_exported(
        self,
        exported: Exported,
        kinds_of_files: Sequence[_Columns],
        fields: FieldSpec | None,
        channels: int,
        classes: str | None,
    ) -> None:
        """Determine the schema from the description of an export."""
        self.packed_with, self.beside = exported.packed_with, [exported.path]
        resolved = named_classes(exported.resolve_fields(fields, channels), "label", classes)
        self.schema = Schema(resolved, stored=True)
        columns = tuple(exported.stored_as.values())
        self.layout = RowLayout(self.schema, columns, str(self.root), {}, True)
        for schema, _, file in kinds_of_files:
            check_columns(exported, self.schema, self.layout.needed, schema, self.paths[file])
        schema = kinds_of_files[0].schema
        self._types = {column: type_of(schema, column) for column in self.layout.needed}

    def _is_text(self, chosen: Mapping[str, str], name: str) -> bool:
        return chosen[name] in self._types and is_text(plain(self._types[chosen[name]]))

    # -- all files ----------------------------------------------------------------------

    def _look_at_files(self) -> list[_Columns]:
        """Collect the blocks of all files; return their columns, of files without rows at last."""
        self._blocks, self._kinds, self._layouts = Blocks(), array("i"), dict[int, RowLayout]()
        found: list[_Columns] = []
        empty: list[_Columns] = []
        failure = ""
        for file, path in enumerate(self.paths):
            self._blocks.begin_file()
            start, kind = self._blocks.num_rows, 0
            try:
                schema, size = self.table_schema(file), stat_of(path)[0]
                for number, rows in enumerate(self.blocks(file)):
                    if not isinstance(rows, str) and not 0 <= rows <= size:
                        rows = f"block {number} claims {rows:,} rows, in {size:,} bytes: damaged"
                    self._blocks.add(number, rows)
                features = {**self.features_beside(file), **features_of(schema.metadata)}
                columns = _Columns(schema, features, file)
                kind = _add_new(columns, found if self._blocks.num_rows > start else empty)
            except table_errors() as error:
                self._blocks.add(0, reject_reason(path, error))
                failure = failure or reason_of(error)
            self._kinds.append(kind)
        self.num_samples = self._blocks.num_rows
        if not found and not empty:
            raise SourceError(f"{self.paths[0]}: cannot be read: {failure}")
        return found or empty[:1]

    def _check_types(self, kinds_of_files: Sequence[_Columns]) -> None:
        """Refuse files whose columns are not those of the others."""
        types = [
            {n: plain(type_of(schema, n)) for n in self._types if schema.names.count(n) == 1}
            for schema, *_ in kinds_of_files
        ]
        common = [n for n in self._types if all(t.get(n) == plain(self._types[n]) for t in types)]
        for name, type_ in self._types.items():
            for columns, found in zip(kinds_of_files, types, strict=True):
                if found.get(name) != plain(type_):
                    other = next(
                        columns.file
                        for columns, found in zip(kinds_of_files, types, strict=True)
                        if found.get(name) == plain(type_)
                    )
                    raise OptionError(
                        f"{self.paths[columns.file]}: the column {name!r} is "
                        f"{found.get(name) or 'not there'}; in {self.paths[other]} it is {type_}. "
                        "Pack one kind of file at a time (name them in a pattern), or take the "
                        f"columns that all have: --option columns={','.join(common) or 'NAMES'}"
                    )

    def _renumber(
        self,
        kinds_of_files: Sequence[_Columns],
        resolved: Mapping[str, Field],
        chosen: Mapping[str, str],
        *,
        named: bool,
    ) -> None:
        """Give the classes of each file the numbers that they have in the first, by their names.

        named: whether the user names the classes of labels.
        """
        for name, field in resolved.items():
            if not chosen[name] or not isinstance(field, ScalarField) or not field.classes:
                continue
            if name in self.layout.numbers:  # text
                continue
            numbers = numbered(field.classes)
            for kind, (_, features, file) in enumerate(kinds_of_files):
                names = class_names_of(features, chosen[name], self.paths[file])
                if names == field.classes or (names is None and named):
                    continue
                if names is None or set(names) != set(field.classes):
                    raise SourceError(
                        f"{self.paths[file]}: the classes of {chosen[name]!r} are "
                        f"{joined(names or ())}; in {self.paths[kinds_of_files[0].file]} they are "
                        f"{joined(field.classes)}. A number may mean another class: write the "
                        "files with the same names, or pack them one at a time"
                    )
                layout = self._layouts.get(kind, self.layout)
                table = {old: numbers[each] for old, each in enumerate(names)}
                self._layouts[kind] = layout._replace(numbers={**layout.numbers, name: table})
                self.notes.append(
                    f"{self.paths[file].name}: the classes of {chosen[name]!r} are in another "
                    "order, so its labels are renumbered by their names"
                )

    def layout_of(self, file: int) -> RowLayout:
        """Return how the rows of a file become samples."""
        return self._layouts.get(self._kinds[file], self.layout)

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
        layout = self.layout_of(block.file)
        try:
            for batch in self.batches(block.file, block.number, list(self._types)):
                until = min(row + batch.num_rows, block.rows)
                if until > skip:
                    read = row_reader(batch, layout, split, mapped)
                    key = key_reader(batch, layout)
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


def _add_new(columns: _Columns, known: list[_Columns]) -> int:
    """Return the number of the columns among those that are known; add new ones."""
    for number, (schema, features, _) in enumerate(known):
        if schema.equals(columns.schema) and features == columns.features:
            return number
    known.append(columns)
    return len(known) - 1


def _of_all(kinds_of_files: Sequence[_Columns]) -> tuple[Any, dict[str, Any]]:
    """Return the columns of all files as one schema, and what ``datasets`` says of them."""
    schema, features, _ = kinds_of_files[0]
    for other, of_others, _ in kinds_of_files[1:]:
        for field in other:
            at = schema.get_field_index(field.name)
            if field.name not in schema.names:
                schema = schema.append(field)
            elif at >= 0 and str(schema.field(at).type) == "null":
                schema = schema.set(at, field)
        features = {**of_others, **features}
    return schema, features


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
