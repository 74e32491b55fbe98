"""Samples that are rows of arrays: the fields of arrays, and the reading of rows.

* Several files are one dataset, in their order; the choice of arrays in the first holds for all.
* Whole blocks are read, some MB at a time; only the samples of an unreadable block are rejects.
* If a column knows the offsets of its rows in the file, the workers read them.
* What rows are, images or masks say, is decided by `fields.py`, as everywhere.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    Field,
    ScalarField,
    Schema,
    StringField,
)

from ...base import FieldSpec, IndexedSource, Reject, Sample, reason_of, reject_reason
from ..box_forms import BoxesOption, BoxNumbers, parse_boxes
from ..class_names import MOST_CLASSES, classes_of_texts, named_classes
from ..deferred import DeferredValues
from ..field_names import is_image_name, is_mask_name
from ..fields import (
    check_names,
    field_of,
    image_field,
    is_whole_label,
    named_field,
    resolve_boxes,
)
from ..fingerprints import FileSource
from ..locations import printable
from ..options import ArraysOption, ClassFile, ScaleOption
from ..refusals import not_seekable
from ..selection import ARRAYS
from ..spans import MAX_RECORD, close_files
from .columns import ArrayColumn, ListColumn, scaled
from .roles import chosen_arrays

__all__ = ["ArrayFile", "ArraySource", "Part"]

_READ_BYTES = 32 << 20
_READ_ROWS = 32
"""Rows read at once where blocks are smaller: as many as a chunk of the packer's."""
_ROWS_BY_WORKERS = 256
_STEP = 4096
"""Rows of a small column, of texts or labels, that are read at once."""
_PEEK = 16
"""Rows that show the kinds of fields."""


class ArrayFile(NamedTuple):
    """What one file has."""

    where: str  # its path, for messages
    name: str  # for keys
    columns: Mapping[str, ArrayColumn]  # by their paths in the file
    usual: tuple[str, ...] = ()  # the choice without usual names, as in the option `arrays`
    split: str = ""  # which split its rows are of, if files have several


class Part(NamedTuple):
    """A file's share of a dataset."""

    name: str  # of rows, for keys: file and array
    columns: tuple[ArrayColumn, ...]  # in the schema's order, of one length
    forms: tuple[Callable[[Any], Any] | None, ...] = ()  # how workers change values
    lost: tuple[Reject, ...] = ()  # what should be behind the rows
    before: str = "["  # before, after: around the number of a row in keys
    after: str = "]"

    @property
    def rows(self) -> int:
        return self.columns[0].shape[0] if self.columns else 0

    def key(self, index: int) -> str:
        """Return the name of a row."""
        return f"{self.name}{self.before}{index}{self.after}"

    def in_split(self, number: int) -> Part:
        """Return the part with a last column that says which split it is of."""
        column = ListColumn("split", np.broadcast_to(number, self.rows))
        forms = (*self.forms, None) if self.forms else ()
        return self._replace(columns=(*self.columns, column), forms=forms)

    def rows_at_once(self) -> tuple[int, int]:
        """Return the number of rows to read at once, and the rows per block."""
        pictures = [column for column in self.columns if not column.read_by_workers]
        if not pictures or self.columns[0].read_by_workers:
            return _ROWS_BY_WORKERS, _READ_ROWS
        first = max(pictures, key=lambda column: column.row_bytes)
        block = max(1, first.block)
        fitting = max(1, _READ_BYTES // max(1, first.row_bytes))
        rows = block * max(1, _READ_ROWS // block)
        return (rows, block) if rows <= fitting else (min(block, fitting),) * 2

    def check(self) -> None:
        """Refuse what no dataset of pictures has, before anything is allocated for it."""
        for column in self.columns:
            if not 0 < column.row_bytes <= MAX_RECORD:
                raise SourceError(
                    f"{self.name}: a row of {column.label!r}, of shape {column.shape}, claims "
                    f"{column.row_bytes:,} bytes, not 1 to {MAX_RECORD:,}: the file is damaged, or "
                    "not the one with the pictures"
                )
        lengths = {column.label: column.shape[0] for column in self.columns}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {count:,}" for name, count in lengths.items())
            raise SourceError(
                f"{self.name}: arrays of one dataset have as many rows each, but {shown}. Name "
                "those that belong together: --option arrays=image=ARRAY,label=ARRAY"
            )


class ArraySource(FileSource, IndexedSource):
    """Samples that are rows of arrays; a subclass has `files`, or calls `set_parts`."""

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: ArraysOption = (),
        scale: ScaleOption = None,
        classes: ClassFile = None,
        boxes: BoxesOption = (),
    ) -> None:
        self.notes = []
        self._channels, self._fields, self._arrays = channels, fields or {}, arrays
        self._scale, self._classes = scale, classes
        self._boxes = parse_boxes(boxes, whole=True)
        resolved: dict[str, Field] = {}
        parts: list[Part] = []
        left_out: list[str] = []
        notes: list[str] = []
        splits: list[str] = []
        for file in self.files(location):
            chosen, left = chosen_arrays(file.where, file.columns, arrays or file.usual)
            for array in chosen.values():
                self.notes += file.columns[array].prepare()
            found, forms, part = self._part_of(file, chosen, notes)
            if parts and (list(found.items()), forms) != (list(resolved.items()), self.box_forms):
                raise SourceError(
                    f"{file.where}: its arrays are of other kinds than those of the first file: "
                    f"{found}, not {resolved}"
                )
            resolved, self.box_forms = found, forms
            part.check()
            parts.append(part)
            splits += [file.split] * bool(file.split)
            left_out += [f"{file.where}: {note}" for note in ARRAYS.left_out(map(printable, left))]
        self.notes += [*dict.fromkeys(notes), *left_out]
        resolved = named_classes(resolved, "label", classes)
        if splits:
            if "split" in resolved:
                raise SourceError("an array is called split, and arrays are of several splits")
            resolved["split"] = ScalarField(classes=tuple(splits))
            parts = [part.in_split(number) for number, part in enumerate(parts)]
        self.schema = Schema(resolved)
        self.set_parts(parts)
        if not self.num_samples:
            raise SourceError(f"{parts[0].name}: has no rows")

    def files(self, location: Any) -> Iterable[ArrayFile]:
        """Return what each file at a location has; sets `paths`."""
        raise NotImplementedError

    def _part_of(
        self, file: ArrayFile, chosen: Mapping[str, str], notes: list[str]
    ) -> tuple[dict[str, Field], dict[str, BoxNumbers], Part]:
        """Return the fields, the forms of boxes, and the columns of one file."""
        where, given = file.name, self._fields
        columns = {name: file.columns[path] for name, path in chosen.items() if name != "classes"}
        check_names(given, list(columns))
        resolved: dict[str, Field] = {}
        values: dict[str, list[Any]] = {}
        for name, column in columns.items():
            rows = values[name] = _first_rows(where, name, column)
            if name == "label" and column.kind == "text" and given.get(name, "label") == "label":
                what = f"{where}: {column.label!r}"
                names = classes_of_texts(_texts(where, column), what, self._classes)
                resolved[name] = ScalarField(classes=names)
            elif given.get(name) == "array" and column.dtype is not None:
                resolved[name] = _field_of_type(where, name, column, column.dtype)
            elif name in given:
                resolved[name] = named_field(given[name], self._channels)
            else:
                rows = [] if self._scale and is_image_name(name) else rows  # any become pixels
                resolved[name] = _field_of(where, name, column, rows, self._channels, notes)
        forms = resolve_boxes(resolved, values, self._boxes, given, notes)
        label = resolved.get("label")
        if "classes" in chosen and isinstance(label, ScalarField) and label.classes is None:
            names = tuple(_texts(where, file.columns[chosen["classes"]]))
            if len(names) <= MOST_CLASSES and "int" in label.dtype:
                resolved["label"] = ScalarField(label.dtype, names)
        name = f"{where}:{next(iter(columns.values())).label}"
        part = Part(name, tuple(columns.values()))
        if self._scale:
            images = (n not in given and is_image_name(n) for n in columns)
            change = partial(scaled, self._scale)
            part = part._replace(forms=tuple(change if image else None for image in images))
        return resolved, forms, part

    def set_parts(self, parts: Sequence[Part]) -> None:
        """Determine samples."""
        self._parts = parts
        self._ends = list(itertools.accumulate(part.rows + len(part.lost) for part in parts))
        self.num_samples = self._ends[-1]

    def indexed(self) -> IndexedSource:
        for part in self._parts:
            if any(column.compressed for column in part.columns):
                raise not_seekable(part.name)
        return self

    def _place(self, index: int) -> tuple[int, Part, int]:
        """Return the number of a sample's part, the part, and the row there."""
        if not 0 <= index < self.num_samples:
            raise IndexError(index)
        number = bisect.bisect_right(self._ends, index)
        return number, self._parts[number], index - (self._ends[number - 1] if number else 0)

    def __getitem__(self, index: int) -> Sample | Reject:
        _, part, row = self._place(index)
        lost = row >= part.rows
        return part.lost[row - part.rows] if lost else next(_samples(part, row, row + 1))

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        if start >= self.num_samples:
            return
        number, _, row = self._place(start)
        try:
            for part in self._parts[number:]:
                yield from _rows_from(part, row)
                yield from part.lost[max(0, row - part.rows) :]
                row = 0
        finally:
            close_files()  # which `span` may have looked into
            for part in self._parts:
                for column in part.columns:
                    column.close()

    def key_at(self, index: int) -> str:
        _, part, row = self._place(index)
        return part.lost[row - part.rows].key if row >= part.rows else part.key(row)


def _rows_from(part: Part, row: int) -> Iterator[Sample | Reject]:
    rows, block = part.rows_at_once()
    while row < part.rows:
        stop = min(part.rows, row - row % rows + rows)  # as blocks lie
        yield from _samples(part, row, stop, block)
        row = stop
        if any(column.damage for column in part.columns):
            return


def _samples(part: Part, start: int, stop: int, block: int = 1) -> Iterator[Sample | Reject]:
    """Yield some samples, read together or, after an error, block by block."""
    try:
        columns = [
            [_span(column, row) for row in range(start, stop)]
            if column.read_by_workers
            else _plain(column.read(start, stop))
            for column in part.columns
        ]
        whole = min(map(len, columns))
        damage = next((column.damage for column in part.columns if column.damage), "")
        if whole < stop - start and not damage:
            raise ValueError(f"an array ends before row {stop:,}")
    except Exception as error:  # what libraries raise on damage
        if stop - start <= block:
            reason = reject_reason(part.key(start), error)
            yield from (Reject(part.key(row), reason) for row in range(start, stop))
            return
        while start < stop:
            end = min(stop, start - start % block + block)
            yield from _samples(part, start, end, block)
            start = end
        return
    for row, values in enumerate(zip(*columns, strict=False), start):  # perhaps of some whole rows
        bad = next((value for value in values if isinstance(value, Exception)), None)
        if bad is not None:
            yield Reject.of(part.key(row), bad)
        else:
            yield Sample(part.key(row), DeferredValues(values, part.forms))
    if damage:
        count = part.rows - start - whole
        lost = f"; {count:,} rows from here on are lost" if count else ""
        yield Reject(part.key(start + whole), damage + lost)


def _plain(rows: Any) -> Any:
    """Return whole numbers as Python's, which are sent to workers in half the time."""
    numbers = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iub"
    return rows.tolist() if numbers else rows


def _span(column: ArrayColumn, row: int) -> Any:
    try:
        return column.span(row)
    except Exception as error:
        return error


def _first_rows(where: str, name: str, column: ArrayColumn) -> list[Any]:
    """Return rows that show the kind of a column: all of small labels; none if it is damaged."""
    if column.kind == "bytes" or not 0 < column.row_bytes <= MAX_RECORD:
        return []
    count = min(_PEEK, column.shape[0], max(1, _READ_BYTES // column.row_bytes))
    with contextlib.suppress(Exception):  # what libraries raise on damage; its rows are rejects
        if name == "label" and column.dtype is not None and column.dtype.kind == "f":
            return [row for rows in _blocks(where, column) for row in rows]
        return [row for row in column.read(0, count) if not isinstance(row, Exception)]
    return []


def _field_of(
    where: str, name: str, column: ArrayColumn, values: list[Any], channels: int, notes: list[str]
) -> Field:
    if column.kind == "text":
        return StringField()
    called = is_image_name(name) or is_mask_name(name)
    if column.dtype is None or (called and not values):
        return image_field(name, channels)
    if name == "label" and column.dtype.kind in "ui":
        return _field_of_type(where, name, column, np.dtype("int64"))
    if called or (values and math.prod(column.shape[1:]) != 1):
        try:
            return field_of(values, channels, name, notes)
        except SourceError as error:
            raise SourceError(
                f"{where}: {column.label!r}: {error}. --option scale=FACTOR multiplies pixels to "
                "be 0 to 255, and --option arrays=image=ARRAY takes another array"
            ) from None
    whole = is_whole_label(name, [np.reshape(value, ()) for value in values])
    return _field_of_type(where, name, column, np.dtype("int64") if whole else column.dtype)


def _field_of_type(
    where: str, name: str, column: ArrayColumn, dtype: np.dtype[Any]
) -> ScalarField | ArrayField:
    """Return the field of numbers of a type in the shape of a column's rows."""
    if dtype.name not in SCALAR_DTYPES:
        raise OptionError(
            f"{where}: {column.label!r} is {column.dtype}; a field can be "
            f"{', '.join(SCALAR_DTYPES)}. Name its kind: --field {name}=int"
        )
    shape = column.shape[1:]
    return ScalarField(dtype.name) if math.prod(shape) == 1 else ArrayField(dtype.name, shape)


def _texts(where: str, column: ArrayColumn) -> Iterator[str]:
    values = itertools.chain.from_iterable(_blocks(where, column))
    return (name.strip() for name in values if isinstance(name, str))


def _blocks(where: str, column: ArrayColumn) -> Iterator[Any]:
    """Yield all that a small column has, some thousand rows at a time.

    Raises SourceError if it cannot be read: without it, no sample can be.
    """
    for start in range(0, column.shape[0], _STEP):
        try:
            yield column.read(start, min(start + _STEP, column.shape[0]))
        except Exception as error:  # what libraries raise on damage
            raise SourceError(f"{where}: {column.label!r}: {reason_of(error)}") from error
