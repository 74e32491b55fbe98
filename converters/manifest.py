"""A CSV or TSV that lists images: ``path,label[,more columns]``.

Paths are relative to the manifest.  A first line in which no cell looks like
an image's file name, or names a file, is the header; without one the columns are
``path``, ``label``, ``column2`` and so on.  The path column becomes the field
``image``; a column ``mask`` holds paths of masks.  Other columns of image files become image
fields too, if every cell is called like one and the first is there: masks where ``mask`` is
in their name.  The rest hold int, float, or text, whichever fits all cells that are not empty
(a row with an empty cell in a column of numbers or images is rejected; a column of empty cells
is text).  Text in ``label``, ``class`` or ``target`` becomes class numbers in sorted order.
Field names are the columns' as far as a field can be called so: ``class`` becomes ``label``, or
``class_`` beside a ``label``.

Nothing is guessed where a schema lies beside the manifest, as `fastdata export`
leaves it there (``cells.py``).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

from .base import FieldSpec, IndexedSource, Sample
from .reading.cell_types import ColumnGuess
from .reading.cells import parse_array, parse_bytes, read_schema, schema_path
from .reading.field_names import safe_name
from .reading.fields import check_names, convert, named_field
from .reading.fingerprints import hash_samples
from .reading.image_files import is_image_name
from .reading.locations import first_bytes, path_of, stat_of
from .reading.string_table import StringTable

__all__ = ["ManifestSource"]

_PATH_COLUMNS = ("path", "image", "file", "filename", "image_path", "filepath")
_LABEL_COLUMNS = ("label", "class", "target")
_CELL_BYTES = 1 << 30
_TRUTH = {"true": True, "false": False, "1": True, "0": False}


class ManifestSource(IndexedSource):
    """Rows of a CSV or TSV file."""

    name = "manifest"
    summary = "a CSV or TSV with the columns path,label[,more]"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = path_of(location)
        if path is None or not path.is_file():
            return False
        if b"\0" in first_bytes(path) and not schema_path(path).exists():
            return False
        return path.suffix.lower() in (".csv", ".tsv", ".txt")

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        self.path = Path(location)
        self.notes = []
        self._rows = StringTable()
        rows = self._read()
        first = next(rows, None)
        if first is None:
            raise SourceError(f"{self.path}: the manifest is empty")
        header = not any(self._is_file(cell) for cell in first)
        columns = first if header else ["path", "label", *(f"column{k}" for k in range(2, 1000))]
        self._columns = _field_names(columns[: len(first)])
        self._image = next(
            (k for k, name in enumerate(self._columns) if name.lower() in _PATH_COLUMNS), 0
        )
        known = self._known_fields(channels)
        if not known and "image" not in self._columns:
            self._columns[self._image] = "image"
        elif images := [n for n, field in known.items() if isinstance(field, ImageField)]:
            self._image = self._columns.index(images[0])
        if len(set(self._columns)) < len(self._columns):
            raise SourceError(f"{self.path}: a column stands twice in the header {first}")
        if not header:
            self._rows.append(json.dumps(first))
        check_names(fields or {}, self._columns)
        self._settle(rows, channels, {**known, **(fields or {})})
        if known:
            self.schema = Schema({name: self.schema[name] for name in self._columns})

    def _is_file(self, cell: str) -> bool:
        return is_image_name(cell) or self._is_there(cell)

    def _is_there(self, cell: str) -> bool:
        try:
            return bool(cell) and (self.path.parent / cell).is_file()
        except (OSError, ValueError):  # no possible file name
            return False

    def _known_fields(self, channels: int) -> dict[str, Field]:
        """Return the fields of the columns that a schema beside the manifest tells."""
        schema = read_schema(self.path)
        known = schema.items() if schema is not None else ()
        fields = {name: field for name, field in known if name in self._columns}
        if channels == 1:
            grey = ImageField(channels=1)
            colour = ImageField(channels=3)
            fields = {name: grey if field == colour else field for name, field in fields.items()}
        return fields

    def _read(self) -> Iterator[list[str]]:
        """Yield the non-empty rows."""
        with open(self.path, opener=open_regular, newline="", encoding="utf-8-sig") as file:
            # The module's limit of 128 kB is meant against malformed files; arrays and
            # bytes may be larger.
            csv.field_size_limit(max(csv.field_size_limit(), _CELL_BYTES))
            line = 1
            try:
                delimiter = "\t" if "\t" in file.readline() else ","
                file.seek(0)
                # Strict: a quote that is never closed would swallow all rows behind it.
                reader = csv.reader(file, delimiter=delimiter, strict=True)
                for row in reader:
                    line = reader.line_num + 1
                    if row:
                        yield row
            except (csv.Error, UnicodeDecodeError) as error:
                raise SourceError(f"{self.path}, line {line}: {error}") from error

    def _settle(self, rows: Iterator[list[str]], channels: int, fields: FieldSpec) -> None:
        """Read all rows once; find out what the columns hold."""
        width = len(self._columns)
        guesses = [
            ColumnGuess(name.lower() in _LABEL_COLUMNS or fields.get(name) == "label")
            for name in self._columns
        ]
        for row in [json.loads(self._rows[0])] if len(self._rows) else []:
            for guess, cell in zip(guesses, row, strict=True):
                guess.see(cell)
        for row in rows:
            if len(row) != width:
                raise SourceError(
                    f"{self.path}: row {len(self._rows) + 1} has {len(row)} columns, not {width}: "
                    f"{row[:4]}. Quote cells that contain the separator."
                )
            self._rows.append(json.dumps(row, ensure_ascii=False))
            for guess, cell in zip(guesses, row, strict=True):
                guess.see(cell)
        self.num_samples = len(self._rows)
        if self.num_samples == 0:
            raise SourceError(f"{self.path}: the manifest has a header but no rows")
        for guess in guesses:
            guess.settle(is_there=self._is_there(guess.first))
        settled: dict[str, Field] = {}
        for k, (name, guess) in enumerate(zip(self._columns, guesses, strict=True)):
            if name in fields:
                field = named_field(fields[name], channels)
                if fields[name] == "label" and not guess.is_int:
                    field = ScalarField(classes=guess.classes)
            elif k == self._image:
                field = ImageField(channels=channels)
            elif name == "mask" or guess.is_image:
                mask = "mask" in name.lower()
                field = ImageField(channels=1 if mask else channels, mask=mask)
            elif guess.is_int:
                field = ScalarField("int64")
            elif guess.is_float:
                field = ScalarField("float64")
            elif name.lower() in _LABEL_COLUMNS and guess.classes:
                field = ScalarField(classes=guess.classes)
            else:
                field = StringField()
            settled[name] = field
        main = self._columns[self._image]
        others = [n for n, f in settled.items() if isinstance(f, ImageField) and n != main]
        if guessed := [name for name in others if name not in fields and name != "mask"]:
            self.notes.append(
                f"columns of image files: {', '.join(guessed)} (--field NAME=string keeps names)"
            )
        order = sorted(settled, key=lambda name: name != main)
        self.schema = Schema({name: settled[name] for name in order})
        self._numbers = {
            name: {label: k for k, label in enumerate(field.classes)}
            for name, field in settled.items()
            if isinstance(field, ScalarField) and field.classes is not None
        }

    def __getitem__(self, index: int) -> Sample:
        row = dict(zip(self._columns, json.loads(self._rows[index]), strict=True))
        values = tuple(self._value(name, field, row[name]) for name, field in self.schema.items())
        return Sample(row[self._columns[self._image]], values)

    def _value(self, name: str, field: Field, cell: str) -> Any:
        if isinstance(field, ImageField):
            if not cell.strip():
                raise ValueError(f"the column {name!r} is empty in this row")
            return self.path.parent / cell
        if isinstance(field, StringField):
            return cell
        if isinstance(field, BytesField):
            return parse_bytes(cell)
        if not cell.strip():
            raise ValueError(f"the column {name!r} is empty in this row")
        if name in self._numbers and cell in self._numbers[name]:
            return self._numbers[name][cell]
        if isinstance(field, ArrayField):
            return convert(parse_array(cell, field), field, name)
        if isinstance(field, ScalarField):
            if field.dtype == "bool":
                if cell.strip().lower() not in _TRUTH:
                    raise ValueError(f"{name!r} is {cell!r}, not true or false")
                return _TRUTH[cell.strip().lower()]
            if name in self._numbers and not cell.strip().lstrip("+-").isdecimal():
                raise ValueError(f"{name!r} is {cell!r}, which is none of its classes")
            number = float(cell) if field.dtype.startswith("float") else int(cell)
            return convert(number, field, name)
        raise AssertionError(f"no cell holds a {field.kind}")

    def key_at(self, index: int) -> str:
        return str(json.loads(self._rows[index])[self._image]) or f"row {index + 1}"

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        images = [k for k, name in enumerate(self._columns) if name in self.schema.images]

        def parts(index: int) -> tuple[Any, ...]:
            row = json.loads(self._rows[index])
            return row, [stat_of(self.path.parent / row[k]) for k in images]

        return hash_samples(self.num_samples, limit, parts)


def _field_names(columns: list[str]) -> list[str]:
    """Return columns' names as names of fields."""
    labelled = any(name.strip().lower() == "label" for name in columns)
    return [
        "label" if name.strip().lower() == "class" and not labelled else safe_name(name)
        for name in columns
    ]
