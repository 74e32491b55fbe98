"""Lists in which a row is a sample: what fields the columns are, and the values of a row."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

from ..cells import ColumnGuess, labels_of, parse_array, parse_bytes
from ..class_names import MOST_CLASSES, numbered
from ..fields import convert, named_field
from ..small_memory import StringTable
from ..splits import split_classes
from .columns import LABELS
from .image_finder import ImageFinder, folders_of

__all__ = ["ListInfo", "RowSamples"]

_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_BATCH = 500


def _encoded(row: list[str]) -> str:
    """Return a row as one text; as JSON where a cell has the sign that else stands between them."""
    text = "\0".join(row)
    if text.count("\0") == len(row) - 1 and not text.startswith("\1"):
        return text
    return "\1" + json.dumps(row)


def _decoded(text: str) -> list[str]:
    if text.startswith("\1"):
        cells: list[str] = json.loads(text[1:])
        return cells
    return text.split("\0")


class ListInfo(NamedTuple):
    """What is known of a list before its rows are read."""

    place: str  # the file, for messages
    columns: list[str]  # the names of fields, one a column
    image: int  # the column of the images
    known: Mapping[str, Field | str]  # fields of the user, or of the list's schema
    channels: int
    classes: tuple[str, ...] | None = None  # names of classes 0, 1, ..., if known
    kinds: list[set[type]] | None = None  # types of each column of JSON
    label_separator: str = ""  # between several labels of a sample; "" for one label


class RowSamples:
    """Rows, one a sample."""

    def __init__(
        self,
        info: ListInfo,
        rows: Iterable[list[str]],
        finder_of: Callable[[str, bool], ImageFinder],
    ) -> None:
        """Read all rows once, and determine the columns' types.

        rows: lists of cells, one per column.
        finder_of: takes the name of a column of images, and whether it is the main one.
        """
        self._info, self._rows, self.notes = info, StringTable(), list[str]()
        self._finder_of = finder_of
        guesses = [self._guess(k) for k in range(len(info.columns))]
        folders: list[set[str]] = [set() for _ in guesses]
        rows = iter(rows)
        while batch := list(itertools.islice(rows, _BATCH)):
            for row in batch:
                self._rows.append(_encoded(row))
            for k, cells in enumerate(zip(*batch, strict=True)):
                guesses[k].see(cells)
                if k == info.image or guesses[k].is_image:
                    folders[k] |= folders_of(cells)
        self.num_samples = len(self._rows)
        if not self.num_samples:
            raise SourceError(f"{info.place}: the manifest has a header but no rows")
        self._finders: dict[str, ImageFinder] = {}
        fields = {
            name: self._field(k, name, guess)
            for k, (name, guess) in enumerate(zip(info.columns, guesses, strict=True))
        }
        main = info.columns[info.image]
        others = [n for n, f in fields.items() if isinstance(f, ImageField) and n != main]
        if guessed := [name for name in others if name not in info.known and name != "mask"]:
            self.notes.append(
                f"columns of image files: {', '.join(guessed)} (--field NAME=string keeps names)"
            )
        order = sorted(fields, key=lambda name: name != main)
        self.schema = Schema({name: fields[name] for name in order})
        self._numbers = {
            name: numbered(field.classes)
            for name, field in fields.items()
            if isinstance(field, (ScalarField, ArrayField)) and field.classes is not None
        }

        for name in self.schema.images:
            k = info.columns.index(name)
            every = map(self.row, range(self.num_samples))
            if k != info.image and not guesses[k].is_image:  # images by the user's choice
                folders[k] = folders_of(row[name] for row in every)
                every = map(self.row, range(self.num_samples))
            self.notes += self._finders[name].outside(name, folders[k], every)

    # -- what columns hold ---------------------------------------------------------------

    def _guess(self, column: int) -> ColumnGuess:
        info, name = self._info, self._info.columns[column]
        several = info.label_separator if self._is_labels(name) else ""
        may_be = self._may_be_label(name) or name == "split" or bool(several)
        return ColumnGuess(may_be, several)

    def _is_labels(self, name: str) -> bool:
        return bool(self._info.label_separator) and name in ("label", "labels")

    def _may_be_label(self, name: str) -> bool:
        return name.lower() in LABELS or self._info.known.get(name) == "label"

    def _field(self, column: int, name: str, guess: ColumnGuess) -> Field:
        """Return the field of a column, and find where its images are if it has such."""
        info = self._info
        types = info.kinds[column] if info.kinds is not None else None
        if column == info.image:
            self._add_finder(name, column, True)
        guess.conclude(
            is_there=column != info.image and self._names_images(name, column, guess),
            are_numbers=types is not None and str not in types,
        )
        if guess.one_number and name not in info.known:
            self.notes.append(
                f"the texts of {name!r} are classes, as {' and '.join(guess.one_number)} are one "
                f"number (--field {name}=float reads numbers)"
            )
        if name in info.known:
            field = named_field(info.known[name], info.channels)
            if info.known[name] == "label" and not guess.is_int:
                field = ScalarField(classes=self._classes(guess, name))
            if isinstance(field, ImageField) and name not in self._finders:
                self._add_finder(name, column, False)
            return field
        if column == info.image:
            return ImageField(channels=info.channels)
        if name == "mask" or guess.is_image:
            if name not in self._finders:
                self._add_finder(name, column, False)
            mask = "mask" in name.lower()
            return ImageField(channels=1 if mask else info.channels, mask=mask)
        if self._is_labels(name):
            named = not guess.is_int or info.classes is not None
            classes = self._classes(guess, name) if named else None
            return ArrayField("int64", (None,), classes=classes)
        is_text = types is not None and str in types
        label = self._may_be_label(name)
        if types is not None and types <= {bool, type(None)} and bool in types:
            return ScalarField("bool")
        if types is not None and types & {list, dict}:
            return self._json_field(name, column)
        if guess.is_int and (label or not is_text):
            named = label and info.classes is not None
            return ScalarField("int64", classes=info.classes if named else None)
        if guess.is_float and not is_text:
            return ScalarField("float64")
        if label and guess.classes:
            return ScalarField(classes=self._classes(guess, name))
        if name == "split" and (found := split_classes(guess.classes)):
            return ScalarField(classes=found)
        return StringField()

    def _json_field(self, name: str, column: int) -> Field:
        """Return the field of a column of JSON lists: numbers, in as many dimensions."""
        for index in range(min(self.num_samples, 100)):
            try:
                value = json.loads(self._cells(index)[column] or "[]")
                array = parse_array(json.dumps(value), ArrayField("float64", (None,)))
            except (ValueError, KeyError, TypeError):
                break
            if array.size and array.dtype.kind in "biuf":
                whole = array.dtype.kind in "iu"
                shape = (None,) * array.ndim
                return ArrayField("int64" if whole else "float64", shape)
        self.notes.append(f"the column {name!r} of lists or objects is kept as JSON text")
        return StringField()

    def _classes(self, guess: ColumnGuess, name: str) -> tuple[str, ...]:
        if self._info.classes is not None and name in ("label", "labels"):
            return self._info.classes
        if len(guess.classes) > MOST_CLASSES:
            raise OptionError(
                f"{self._info.place}: the column {name!r} has more than {MOST_CLASSES:,} different "
                f"texts, too many for classes; keep it as text: --field {name}=string"
            )
        return guess.classes

    def _names_images(self, name: str, column: int, guess: ColumnGuess) -> bool:
        """Return whether a column with names of images has files of these names."""
        if not guess.is_image or not guess.first:
            return False
        finder = self._add_finder(name, column, False)
        if finder.is_there(guess.first):
            return True
        del self._finders[name]
        return False

    def _add_finder(self, name: str, column: int, main: bool) -> ImageFinder:
        finder = self._finder_of(name, main)
        count = min(self.num_samples, 1000)
        finder.locate(self._cells(index)[column] for index in range(count))
        if finder.note:
            self.notes.append(finder.note)
        self._finders[name] = finder
        return finder

    # -- values of rows ------------------------------------------------------------------

    def _cells(self, index: int) -> Sequence[str]:
        return _decoded(self._rows[index])

    def row(self, index: int) -> dict[str, str]:
        """Return the cells of a row by the names of fields."""
        return dict(zip(self._info.columns, self._cells(index), strict=True))

    def key_at(self, index: int) -> str:
        return self._cells(index)[self._info.image] or f"row {index + 1}"

    def values(self, index: int) -> tuple[Any, ...]:
        """Return the values of a row, in the schema's order."""
        row = self.row(index)
        return tuple(self._value(name, field, row) for name, field in self.schema.items())

    def parts(self, index: int) -> tuple[Any, ...]:
        """Return the parts of a sample's fingerprint."""
        row = self.row(index)
        files = [self._finders[name].stat(row[name], row) for name in self.schema.images]
        return list(row.values()), files

    def _value(self, name: str, field: Field, row: Mapping[str, str]) -> Any:
        cell = row[name]
        if isinstance(field, StringField):
            return cell
        if isinstance(field, BytesField):
            return parse_bytes(cell)
        if isinstance(field, ArrayField) and self._is_labels(name):
            return self._several(name, field, cell)
        if not cell.strip():
            raise ValueError(f"the column {name!r} is empty in this row")
        if isinstance(field, ImageField):
            return self._finders[name].path(cell, row)
        for text in (cell, cell.strip()) if name in self._numbers else ():
            if text in self._numbers[name]:
                return self._numbers[name][text]
        if isinstance(field, ArrayField):
            return convert(parse_array(cell, field), field, name)
        return self._number(name, field, cell)

    def _number(self, name: str, field: ScalarField, cell: str) -> Any:
        text = cell.strip()
        if field.dtype == "bool":
            if text.lower() not in _TRUTH:
                raise ValueError(f"{name!r} is {cell!r}, not true or false")
            return _TRUTH[text.lower()]
        if name in self._numbers and not text.lstrip("+-").isdecimal():
            raise ValueError(f"{name!r} is {cell!r}, which is none of its classes")
        number = float(cell) if field.dtype.startswith("float") else _whole(text, name)
        return convert(number, field, name)

    def _several(self, name: str, field: ArrayField, cell: str) -> Any:
        """Return the numbers of the labels that a cell lists."""
        labels = labels_of(cell, self._info.label_separator)
        known = self._numbers.get(name, {})
        for label in labels:
            if known and label not in known and not label.lstrip("+-").isdecimal():
                raise ValueError(f"{name!r} has {label[:60]!r}, which is none of its classes")
        numbers = [known[v] if v in known else _whole(v, name) for v in labels]
        return np.array(numbers, np.int64)


def _whole(text: str, name: str) -> int:
    """Return a whole number, which may be written as a decimal."""
    with contextlib.suppress(ValueError):
        return int(text)
    with contextlib.suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"{name!r} is {text[:60]!r}, not a whole number")
