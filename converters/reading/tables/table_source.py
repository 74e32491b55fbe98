"""Sources that are tables in files, read one block of rows at a time.

A block is a row group of Parquet, or a record batch of Arrow.
An unreadable block becomes one reject per row, so that damage does not change the numbers of later
samples.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
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
from ..box_forms import BoxesOption, parse_boxes
from ..class_names import classes_of_texts, named_classes, numbered
from ..exported import Exported, read_exported
from ..field_names import BOXES
from ..fields import check_names, is_whole_label, named_field, resolve_boxes
from ..fingerprints import FileSource
from ..locations import printable, stat_of
from ..options import ClassFile, Option
from ..python_samples import file_of
from ..refusals import no_files
from ..selection import joined
from ..splits import choose_split, split_of, splits_next_to
from .arrow_fields import (
    arrow,
    choose_columns,
    class_names_of,
    features_of,
    is_bytes,
    kinds_of,
    plain,
    table_errors,
    type_of,
)
from .rows import MappedTable, RowLayout, row_reader

__all__ = ["Block", "TableSource"]


class _Columns(NamedTuple):
    """The columns of a file, as those of some others are."""

    schema: Any
    features: dict[str, Any]  # their description by ``datasets``
    file: int  # the first such file


_PEEK = 16
"""Blocks in which the first values of columns of bytes are looked for."""


class Block(NamedTuple):
    """Rows that are read together."""

    file: int  # number of the file
    number: int  # in the file
    start: int  # the first row, counted over all files, and how many there are
    rows: int
    lost: str  # why it cannot be read at all; it then counts as one row


class TableSource(FileSource, IndexedSource):
    """Rows of tables; a subclass says what blocks a file has, and reads them."""

    @abc.abstractmethod
    def look(self, path: Path) -> tuple[Any, dict[str, Any], Iterable[int | str]]:
        """Return the pyarrow.Schema of a file, what ``datasets`` says of its columns in files next
        to it, and for each block the number of rows or the reason why it is lost.
        """

    @abc.abstractmethod
    def batches(self, path: Path, block: int, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of a block as pyarrow.RecordBatch, not too many at once."""

    def row(self, index: int, block: Block) -> Sample | Reject:
        """Return one sample of a block."""
        return next(self._rows(block, index - block.start, 1))

    def mapped(self, path: Path) -> MappedTable | None:
        """Return where a file is in memory, if `batches` does not copy from it."""
        return None

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
        boxes: BoxesOption = (),
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
        # Of other splits the classes count.
        next_to = splits_next_to(Path(location)) if Path(location).is_file() else []
        others = (path for k, path in enumerate(paths) if k not in set(taken))
        self._others = [path for path in (*others, *next_to) if path.is_file()]

        self._look_at_files()
        first = str(self.paths[self._columns[0].file])
        exported = None if columns else read_exported(self.paths, self.name)
        if exported is not None:
            self._resolve_exported(exported, fields, channels, classes)
            return
        try:
            schema, features = _of_all(self._columns)
            blobs = [f.name for f in schema if is_bytes(f.type) and schema.names.count(f.name) == 1]
            starts = {name: b"".join(self._first_values(name, 1)) for name in blobs}
            kinds = kinds_of(schema, features, starts, channels)
        except UnicodeDecodeError as error:
            raise SourceError(f"{first}: the name of a column is not text: {error}") from error
        chosen = choose_columns(schema, columns, kinds, self.notes, first)
        self._types = {column: type_of(schema, column) for column in chosen.values()}
        self._check_types()
        given = fields or {}
        check_names(given, list(chosen))
        features_before = self._features_before()
        resolved: dict[str, Field] = {}
        numbers: dict[str, dict[str, int]] = {}
        for name, column in chosen.items():
            kind, own = given.get(name), kinds[column].field
            assert own is not None
            names = class_names_of(features_before, column, first) or ()
            if isinstance(own, ScalarField) and set(own.classes or ()) == set(names):
                own = dataclasses.replace(own, classes=names or None)
            # Text and numbers stay as they are if the user calls them labels; classes follow.
            if kind is None or (kind == "label" and isinstance(own, (ScalarField, StringField))):
                resolved[name] = own
            else:
                resolved[name] = named_field(kind, channels)
            text = isinstance(resolved[name], StringField)
            if text and kind != "string" and (name == "label" or kind == "label"):
                own_names = classes if name == "label" else None
                texts = filter(None, self._values(column, of_all_splits=True))
                found = classes_of_texts(texts, f"the column {column!r}", own_names)
                resolved[name], numbers[name] = ScalarField(classes=found), numbered(found)
        label = resolved.get("label")
        if isinstance(label, ScalarField) and "float" in label.dtype and "label" not in given:
            is_whole = is_whole_label("label", self._values(chosen["label"]))
            resolved["label"] = ScalarField() if is_whole else label
        form = parse_boxes(boxes, whole=True)
        if form.form or any(name.lower() in BOXES for name in resolved):
            rows = {name: self._first_values(chosen[name]) for name in resolved}
            self.box_forms = resolve_boxes(resolved, rows, form, given, self.notes)
        there = sorted({splits[k] for k in taken}, key=lambda s: (s == "", s != "train", s))
        if len(there) > 1 and "split" not in resolved:
            resolved["split"] = ScalarField(classes=tuple(name or "other" for name in there))
            chosen["split"] = ""
            self._split_numbers = [there.index(splits[k]) for k in taken]
        self.schema = Schema(named_classes(resolved, "label", classes))
        self.layout = RowLayout(self.schema, tuple(chosen.values()), str(self.root), numbers)
        self._renumber(resolved, chosen, named=classes is not None)
        self.beside = self._others if numbers else ()

    def _resolve_exported(
        self,
        exported: Exported,
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
        for schema, _, file in self._columns:
            for column in self.layout.needed:
                if schema.names.count(column) != 1:
                    there = f"{self.paths[file]} has not one column {column!r}, as it should"
                    raise exported.misfit(there)

    # -- all files ----------------------------------------------------------------------

    def _look_at_files(self) -> None:
        """Collect the blocks of all files, and the different columns that files with rows have."""
        self._blocks, self._file_starts, self.num_samples = list[Block](), array("q"), 0
        self._columns, self._kinds = list[_Columns](), array("i")
        self._layouts: dict[int, RowLayout] = {}
        empty: list[_Columns] = []
        failure = ""
        for file, path in enumerate(self.paths):
            self._file_starts.append(self.num_samples)
            kind = 0
            try:
                if not path.is_file():  # to open a pipe would wait
                    raise SourceError(f"{path}: not a regular file")
                schema, beside, blocks = self.look(path)
                size = stat_of(path)[0]
                for number, rows in enumerate(blocks):
                    if not isinstance(rows, str) and not 0 <= rows <= size:
                        rows = f"block {number} claims {rows:,} rows, in {size:,} bytes: damaged"
                    self._add_block(file, number, rows)
                features = {**beside, **features_of(schema)}
                has_rows = self.num_samples > self._file_starts[-1]
                known = self._columns if has_rows else empty
                kinds = enumerate(known)
                same = (k for k, c in kinds if c.schema.equals(schema) and c.features == features)
                kind = next(same, len(known))
                if kind == len(known):
                    known.append(_Columns(schema, features, file))
            except table_errors() as error:
                self._add_block(file, 0, reject_reason(path, error))
                failure = failure or reason_of(error)
            self._kinds.append(kind)
        self._columns = self._columns or empty[:1]
        if not self._columns:
            raise SourceError(f"{self.paths[0]}: cannot be read: {failure}")

    def _add_block(self, file: int, number: int, rows: int | str) -> None:
        """Add a block by its number of rows; a lost one by the reason."""
        lost, rows = (rows, 1) if isinstance(rows, str) else ("", rows)
        if rows > 0:
            self._blocks.append(Block(file, number, self.num_samples, rows, lost))
            self.num_samples += rows

    def _check_types(self) -> None:
        """Refuse files whose columns are not those of the others."""
        found = {
            name: [
                str(plain(type_of(schema, name))) if schema.names.count(name) == 1 else "not there"
                for schema, *_ in self._columns
            ]
            for name in self._types
        }
        common = [name for name, types in found.items() if len(set(types)) == 1]
        for name in (name for name in found if name not in common):
            wanted = str(plain(self._types[name]))
            at = next(k for k, type_ in enumerate(found[name]) if type_ != wanted)
            raise OptionError(
                f"{self.paths[self._columns[at].file]}: the column {name!r} is {found[name][at]}; "
                f"in {self.paths[self._columns[found[name].index(wanted)].file]} it is {wanted}. "
                "Pack one kind of file at a time (name them in a pattern), or take the columns "
                f"that all have: --option columns={','.join(common) or 'NAMES'}"
            )

    def _renumber(
        self, resolved: Mapping[str, Field], chosen: Mapping[str, str], *, named: bool
    ) -> None:
        """Give the classes of each file the numbers that they have in the first, by their names.

        named: whether the user names the classes of labels.
        """
        for name, column in chosen.items():
            field = resolved[name]
            if not column or not isinstance(field, ScalarField) or not field.classes:
                continue
            names_in = [
                class_names_of(c.features, column, self.paths[c.file]) for c in self._columns
            ]
            own = next(filter(None, names_in), None)
            # A split that is not taken may come first.
            wanted = field.classes if own and set(own) == set(field.classes) else own
            for kind, names in enumerate(names_in):
                # Without any names, they are the user's, or texts.
                if wanted is None or names == wanted or (names is None and named):
                    continue
                file = self.paths[self._columns[kind].file]
                if names is None or set(names) != set(wanted):
                    first = self.paths[self._columns[names_in.index(own)].file]
                    raise SourceError(
                        f"{file}: the classes of {column!r} are {joined(names or ())}; in {first} "
                        f"they are {joined(wanted)}. A number may mean another class: write the "
                        "files with the same names, or pack them one at a time"
                    )
                layout = self._layouts.get(kind, self.layout)
                table = {old: wanted.index(each) for old, each in enumerate(names)}
                self._layouts[kind] = layout._replace(numbers={**layout.numbers, name: table})
                self.notes.append(
                    f"{file.name}: the classes of {column!r} are in another order, so its labels "
                    "are renumbered by their names"
                )

    def _features_before(self) -> dict[str, Any]:
        """Return what ``datasets`` says of the first of all files, if its split is not taken."""
        first = min([*self.paths, *self._others], key=os.path.abspath)
        if first in self._others:
            with contextlib.suppress(*table_errors()):
                schema, beside, _ = self.look(first)
                return {**beside, **features_of(schema)}
        return {}

    def layout_of(self, file: int) -> RowLayout:
        """Return how the rows of a file become samples."""
        return self._layouts.get(self._kinds[file], self.layout)

    def _first_values(self, column: str, most: int = _PEEK) -> list[Any]:
        """Return some values of a column: images as bytes or paths, numbers as arrays."""
        found: list[Any] = []
        whole = (block for block in self._blocks if not block.lost)
        for block in itertools.islice(whole, _PEEK):
            batches = self.batches(self.paths[block.file], block.number, [column])
            with contextlib.suppress(*table_errors()):  # the next may be whole
                for batch in itertools.islice(batches, 1):
                    batch.validate(full=True)
                    array = batch.column(batch.schema.names.index(column)).drop_null()
                    values = array.slice(0, most).to_pylist()
                    found += (np.array(v) if isinstance(v, list) else file_of(v) for v in values)
            if len(found) >= most:
                break
        return found[:most]

    def _values(self, column: str, *, of_all_splits: bool = False) -> Iterator[Any]:
        """Yield the values of a column, each at least once; reads that column of all files."""
        blocks = [(self.paths[block.file], block.number) for block in self._blocks]
        for path in self._others if of_all_splits else ():
            with contextlib.suppress(*table_errors()):
                blocks += [(path, number) for number, _ in enumerate(self.look(path)[2])]
        unique = arrow(".compute").unique
        for block in blocks:
            # Rows that are lost are rejected later; another split may lack the column.
            with contextlib.suppress(*table_errors()):
                for batch in self.batches(*block, [column]):
                    batch.validate(full=True)
                    values = unique(batch.column(batch.schema.names.index(column)))
                    yield from (value for value in values.to_pylist() if value is not None)

    # -- rows ---------------------------------------------------------------------------

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        for block in itertools.islice(self._blocks, max(0, self._number_of(start)), None):
            yield from self._rows(block, max(0, start - block.start))

    def _rows(self, block: Block, skip: int, most: int | None = None) -> Iterator[Sample | Reject]:
        """Yield the samples of a block, without the first few; `most` limits their number."""
        end = block.rows if most is None else min(block.rows, skip + most)
        if skip >= end:
            return
        if block.lost:
            yield Reject(self.key_at(block.start), block.lost)
            return
        done, first, reason = skip, 0, "it has fewer rows than the file says"
        path, split = self.paths[block.file], self._split_numbers[block.file]
        mapped, layout = self.mapped(path), self.layout_of(block.file)
        try:
            for batch in self.batches(path, block.number, layout.needed):
                until = min(first + batch.num_rows, end)
                if until > done:
                    part = batch.slice(done - first, until - done)
                    read = row_reader(part, layout, split, mapped)
                    for row in range(until - done):
                        yield self._sample(block.start + done, read, row)
                        done += 1
                first += batch.num_rows
                if first >= end:
                    return
        except table_errors() as error:
            reason = reject_reason(self.key_at(block.start + done), error)
        for row in range(done, end):
            yield Reject(
                self.key_at(block.start + row),
                f"the block {block.number} that it is in is damaged: {reason}",
            )

    def _sample(
        self, index: int, read: Callable[[int], tuple[str | None, tuple[Any, ...]]], row: int
    ) -> Sample | Reject:
        """Return a sample, or why its row does not fit."""
        try:
            key, values = read(row)
            return Sample(self.key_at(index) if key is None else key, values)
        except (ValueError, TypeError, arrow().ArrowException) as error:
            return Reject.of(self.key_at(index), error)

    def __getitem__(self, index: int) -> Sample | Reject:
        block = self._block_at(index)
        return Reject(self.key_at(index), block.lost) if block.lost else self.row(index, block)

    def key_at(self, index: int) -> str:
        file = bisect_right(self._file_starts, index) - 1
        return f"{self._names[file]}@{index - self._file_starts[file]}"

    def _number_of(self, row: int) -> int:
        return bisect_right(self._blocks, row, key=lambda block: block.start) - 1

    def _block_at(self, row: int) -> Block:
        if not 0 <= row < self.num_samples:
            raise IndexError(row)
        return self._blocks[self._number_of(row)]


def _of_all(kinds_of_files: Sequence[_Columns]) -> tuple[Any, dict[str, Any]]:
    """Return the columns of all files as one schema, with their description by ``datasets``."""
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
