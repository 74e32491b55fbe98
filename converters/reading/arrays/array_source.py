"""Samples that are rows of arrays: the fields of arrays, and the reading of rows.

* Several files are one dataset, in their order; the choice of arrays in the first holds for all.
* Whole blocks are read, some MB at a time; only the samples of an unreadable block are rejects.
* If a column knows the offsets of its rows in the file, the workers read them.
* Pixels go to the workers as stored, and become H x W x C, uint8, there.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

from ...base import FieldSpec, IndexedSource, Reject, Sample, reason_of, reject_reason
from ..class_names import MOST_CLASSES, classes_of_texts, named_classes, numbered
from ..deferred import DeferredValues
from ..fields import check_names, named_field
from ..fingerprints import FileSource
from ..locations import printable
from ..refusals import not_seekable
from ..selection import ARRAYS
from ..spans import MAX_RECORD, close_files
from .columns import Array, ArrayColumn, ConstantColumn, ConvertedColumn, FlatColumn, PictureLayout
from .roles import chosen_arrays

__all__ = ["ArrayFile", "ArrayOptions", "ArraySource"]

_READ_BYTES = 32 << 20
_READ_ROWS = 32
"""Rows read at once where blocks are smaller: as many as a chunk of the packer's."""
_ROWS_BY_WORKERS = 256
_STEP = 4096
"""Rows of a small column, of texts or offsets, that are read at once."""


class ArrayOptions(NamedTuple):
    """What the user says of a dataset of arrays."""

    channels: int
    fields: FieldSpec
    arrays: tuple[str, ...] = ()  # field=array; empty for usual names
    layout: str | None = None
    scale: float | None = None
    classes: str | None = None  # a file of names of classes


class ArrayFile(NamedTuple):
    """What one file has."""

    where: str  # its path, for messages
    name: str  # for keys
    columns: Mapping[str, ArrayColumn]  # by their paths in the file
    usual: tuple[str, ...] = ()  # the choice without usual names, as in ArrayOptions.arrays


class _Part(NamedTuple):
    """A file's share of a dataset."""

    file: str  # its name, for keys
    columns: tuple[ArrayColumn, ...]  # in the schema's order, of one length
    layouts: tuple[PictureLayout | None, ...]  # of each column; None where it holds no pixels

    @property
    def rows(self) -> int:
        return self.columns[0].shape[0]

    def key(self, index: int) -> str:
        """Return a sample's name: file, array and row."""
        return f"{self.file}:{self.columns[0].label}[{index}]"

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
        for column, layout in zip(self.columns, self.layouts, strict=True):
            if layout is not None and column.row_bytes == 0:
                raise SourceError(
                    f"{self.file}: {column.label!r} of shape {column.shape} has no pixels, however "
                    "many rows it claims: the file is damaged, or not the one with the pictures"
                )
            if column.row_bytes > MAX_RECORD:
                raise SourceError(
                    f"{self.file}: a row of {column.label!r} claims {column.row_bytes:,} bytes "
                    f"(shape {column.shape}); at most {MAX_RECORD:,} are believed: the file is "
                    "damaged"
                )
        lengths = {column.label: column.shape[0] for column in self.columns}
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{name!r} has {count:,}" for name, count in lengths.items())
            raise SourceError(
                f"{self.file}: arrays of one dataset have as many rows each, but {shown}. Name "
                "those that belong together: --option arrays=image=ARRAY,label=ARRAY"
            )


class ArraySource(FileSource, IndexedSource):
    """Samples that are rows of arrays; a subclass lists its files and calls `read_arrays`."""

    _only_forward = ""
    """A file with arrays that can be read only from their front, if there is one."""

    def read_arrays(
        self,
        files: Iterable[ArrayFile],
        options: ArrayOptions,
        splits: Sequence[str] = (),
    ) -> None:
        """Determine `schema`, `notes` and samples.

        Each file belongs to one of the `splits`, if given.  Raises OptionError or SourceError if
        an array does not fit its field, or files differ.
        """
        resolved: dict[str, Field] = {}
        parts: list[_Part] = []
        left_out: list[str] = []
        for file in files:
            chosen, left = chosen_arrays(file.where, file.columns, options.arrays or file.usual)
            for array in chosen.values():
                self.notes += file.columns[array].prepare()
            fields, part = _part_of(file, chosen, options)
            if parts and list(fields.items()) != list(resolved.items()):
                raise SourceError(
                    f"{file.where}: its arrays are of other kinds than those of the first file: "
                    f"{fields}, not {resolved}"
                )
            resolved = fields
            parts.append(part)
            if any(column.compressed for column in part.columns):
                self._only_forward = file.where
            left_out += [f"{file.where}: {note}" for note in ARRAYS.left_out(map(printable, left))]
        self.notes += left_out
        resolved = named_classes(resolved, "label", options.classes)
        if splits:
            parts = self._add_splits(resolved, parts, tuple(splits))
        for part in parts:
            part.check()
        self.schema, self._parts = Schema(resolved), parts
        self._ends = list(itertools.accumulate(part.rows for part in parts))
        self.num_samples = self._ends[-1] if self._ends else 0
        if not self.num_samples:
            raise SourceError(f"{parts[0].file}: {parts[0].columns[0].label!r} has no rows")

    def _add_splits(
        self, resolved: dict[str, Field], parts: list[_Part], splits: tuple[str, ...]
    ) -> list[_Part]:
        """Add the field ``split``; each part is of one."""
        if "split" in resolved:
            raise SourceError("an array is called split, and arrays are of several splits")
        resolved["split"] = ScalarField(classes=splits)
        self.notes.append(
            f"the field 'split' is which of {', '.join(splits)} a picture is in "
            "(--option split=NAME takes one)"
        )
        return [
            part._replace(
                columns=(*part.columns, ConstantColumn("split", part.rows, number)),
                layouts=(*part.layouts, None),
            )
            for number, part in enumerate(parts)
        ]

    def indexed(self) -> IndexedSource:
        if self._only_forward:
            raise not_seekable(self._only_forward)
        return self

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
            close_files()  # which `span` may have looked into

    def key_at(self, index: int) -> str:
        number, row = self._part(index)
        return self._parts[number].key(row)


def _samples(part: _Part, start: int, stop: int, block: int = 1) -> Iterator[Sample | Reject]:
    """Yield some samples, read together or, after an error, block by block."""
    try:
        columns = [
            [_span(column, row) for row in range(start, stop)]
            if column.read_by_workers
            else column.read(start, stop)
            for column in part.columns
        ]
        for column, rows in zip(part.columns, columns, strict=True):
            if len(rows) != stop - start:
                raise ValueError(f"{column.label!r} ends before row {stop:,}")
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
    for row, values in enumerate(zip(*columns, strict=True), start):
        bad = next((value for value in values if isinstance(value, Exception)), None)
        if bad is not None:
            yield Reject.of(part.key(row), bad)
        else:
            yield Sample(part.key(row), DeferredValues(values, part.layouts))


def _span(column: ArrayColumn, row: int) -> Any:
    try:
        return column.span(row)
    except Exception as error:
        return error


def _part_of(
    file: ArrayFile, chosen: Mapping[str, str], options: ArrayOptions
) -> tuple[dict[str, Field], _Part]:
    """Return the fields and columns of one file, for known arrays."""
    where, fields, channels = file.name, options.fields, options.channels
    columns = {name: file.columns[path] for name, path in chosen.items() if name != "classes"}
    check_names(fields, [name for name in columns if name != "offsets"])
    offsets = columns.pop("offsets", None)
    if columns["image"].dtype == np.uint8 and len(columns["image"].shape) == 1:
        columns["image"] = _flat(where, columns["image"], offsets, columns.get("label"))
    resolved: dict[str, Field] = {}
    layouts: list[PictureLayout | None] = []
    for name, found in columns.items():
        field = named_field(fields[name], channels) if name in fields else None
        is_text = found.kind == "text"
        if name == "label" and is_text and fields.get(name, "label") == "label":
            what = f"{where}: {found.label!r}"
            names = classes_of_texts(_texts(where, found), what, options.classes)
            columns[name] = ConvertedColumn(found, functools.partial(_numbers, numbered(names)))
            field = ScalarField(classes=names)
        elif field is None:
            field = _field_of(where, name, found, channels, is_text)
        resolved[name] = field
        layouts.append(None)
        if isinstance(field, ImageField) and found.dtype is not None:
            scale = None if field.mask else options.scale
            layouts[-1] = PictureLayout.of(where, found, options.layout, scale, field.mask)
    label = resolved.get("label")
    if "classes" in chosen and isinstance(label, ScalarField) and label.classes is None:
        names = tuple(_texts(where, file.columns[chosen["classes"]]))
        if len(names) <= MOST_CLASSES and "int" in label.dtype:
            resolved["label"] = ScalarField(label.dtype, names)
    return resolved, _Part(where, tuple(columns.values()), tuple(layouts))


def _field_of(where: str, name: str, column: ArrayColumn, channels: int, text: bool) -> Field:
    if name == "image":
        return ImageField(channels=channels)
    if name == "mask":
        return ImageField(channels=1, mask=True)
    if text:
        return StringField()
    if column.dtype is None:  # bytes: image files
        return ImageField(channels=channels)
    dtype, shape = column.dtype.newbyteorder("=").name, column.shape[1:]
    if name == "label" and np.dtype(dtype).kind in "ui":
        dtype = "int64"
    if dtype not in SCALAR_DTYPES:
        raise OptionError(
            f"{where}: {column.label!r} is {column.dtype}; a field can be "
            f"{', '.join(SCALAR_DTYPES)}. Say what it becomes: --field {name}=int"
        )
    return ScalarField(dtype) if all(n == 1 for n in shape) else ArrayField(dtype, shape)


def _flat(
    where: str, flat: ArrayColumn, offsets: ArrayColumn | None, label: ArrayColumn | None
) -> FlatColumn:
    """Return image files that lie end to end."""
    if offsets is None or offsets.dtype is None or offsets.dtype.kind not in "ui":
        raise OptionError(
            f"{where}: {flat.label!r} is one row of {flat.shape[0]:,} bytes; where each image file "
            "in it begins must be told: --option arrays=image=ARRAY,offsets=ARRAY,label=ARRAY"
        )
    if len(offsets.shape) != 1 or offsets.shape[0] > max(1, flat.shape[0]) + 1:
        raise OptionError(f"{where}: {offsets.label!r} of shape {offsets.shape} has no offsets")
    read = [np.asarray(rows).astype(np.int64) for rows in _blocks(where, offsets)]
    numbers: Array = np.concatenate(read or [np.zeros(0, np.int64)])
    total, count = flat.shape[0], len(numbers)
    rises = bool(np.all(np.diff(numbers) >= 0))
    first, last = (int(numbers[0]), int(numbers[-1])) if count else (0, total)
    if (label is not None and label.shape[0] == count - 1) or (
        rises and (first, last) == (0, total)
    ):
        return FlatColumn(flat, numbers[:-1], numbers[1:])
    if rises and last == total:
        return FlatColumn(flat, np.insert(numbers[:-1], 0, 0), numbers)
    if int(numbers.sum()) == total:
        ends = np.cumsum(numbers)
        return FlatColumn(flat, ends - numbers, ends)
    if first != 0:
        raise OptionError(
            f"{where}: {offsets.label!r} is neither where image files begin or end among the "
            f"{total:,} bytes of {flat.label!r}, nor how long they are"
        )
    return FlatColumn(flat, numbers, np.append(numbers[1:], total))


def _texts(where: str, column: ArrayColumn) -> Iterator[str]:
    values = itertools.chain.from_iterable(_blocks(where, column))
    return (name for name in values if isinstance(name, str))


def _numbers(by_name: Mapping[str, int], names: Iterable[str]) -> list[Any]:
    """Return the numbers of classes, with an error for each invalid value."""
    return [by_name.get(name, ValueError(f"{name!r} is none of the classes")) for name in names]


def _blocks(where: str, column: ArrayColumn) -> Iterator[Any]:
    """Yield all that a small column has, some thousand rows at a time.

    Raises SourceError if it cannot be read: without it, no sample can be.
    """
    for start in range(0, column.shape[0], _STEP):
        try:
            yield column.read(start, min(start + _STEP, column.shape[0]))
        except Exception as error:  # what libraries raise on damage
            raise SourceError(f"{where}: {column.label!r}: {reason_of(error)}") from error
