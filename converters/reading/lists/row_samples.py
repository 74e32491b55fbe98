"""Lists in which a row is a sample: what fields the columns are, and the values of a row."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from array import array
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

from ..cells import ColumnGuess, parse_array, parse_bytes
from ..class_names import MOST_CLASSES, numbered
from ..fields import convert, named_field
from ..selection import joined
from ..small_memory import StringTable
from ..splits import split_classes
from .columns import is_label
from .image_finder import ImageFinder
from .labels import labels_of, sign_between

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
    sign: str | None = None  # between several labels of a sample; "" if there is one; None: look
    only: tuple[int, str] | None = None  # a column, and its text in the rows that are taken
    folder_label: bool = False  # whether the last column is the folder, which is the label


class RowSamples:
    """Rows, one a sample."""

    def __init__(
        self,
        info: ListInfo,
        rows: Iterable[list[str]],
        finder_of: Callable[[str, bool], ImageFinder],
        siblings: Iterable[list[str]] = (),
    ) -> None:
        """Read all rows once, and determine the columns' types.

        rows: lists of cells, one per column.
        siblings: rows of the lists of other splits; classes are those of all.
        finder_of: takes the name of a column of images, and whether it is the main one.
        """
        self._info, self._rows, self.notes = info, StringTable(), list[str]()
        self._finder_of = finder_of
        guesses = [ColumnGuess(self._may_be_label(k)) for k in range(len(info.columns))]
        named = array("q")
        rows = iter(rows)
        read = 0
        while batch := list(itertools.islice(rows, _BATCH)):
            read += len(batch)
            # Types and classes are those of all splits, so that they have the same numbers.
            for guess, cells in zip(guesses, zip(*batch, strict=True), strict=True):
                guess.see(cells)
            if info.only is not None:
                batch = [row for row in batch if row[info.only[0]] == info.only[1]]
            named.extend([hash(row[info.image]) for row in batch])
            for row in batch:
                self._rows.append(_encoded(row))
        siblings = iter(siblings)
        while batch := list(itertools.islice(siblings, _BATCH)):
            for guess, cells in zip(guesses, zip(*batch, strict=True), strict=True):
                guess.see(cells)
        self.num_samples = len(self._rows)
        if not read:
            raise SourceError(f"{info.place}: the manifest has a header but no rows")
        if info.only is not None and not self.num_samples:
            there = joined(guesses[info.only[0]].classes, 20)
            raise OptionError(
                f"split={info.only[1]}: no row of {info.place} is of that split; there are {there}"
            )
        hashes = np.frombuffer(named, np.int64)
        hashes.sort()  # np.unique takes six times as long, and 60 MB for a million rows
        different = self.num_samples and 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))
        if different < self.num_samples:
            self.notes.append(
                f"{self.num_samples:,} rows name {different:,} images, and each row is a sample "
                "(docs/recipes/datasets.md puts rows together)"
            )
        self._finders: dict[str, ImageFinder] = {}
        self._signs: dict[str, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
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
        for name, field in fields.items():
            if isinstance(field, (ScalarField, ArrayField)) and field.classes is not None:
                self._numbers.setdefault(name, numbered(field.classes))

    def leave_out(self, name: str) -> None:
        """Leave out a field."""
        self.schema = Schema({n: field for n, field in self.schema.items() if n != name})

    # -- what columns hold ---------------------------------------------------------------

    def _may_be_label(self, column: int) -> bool:
        info = self._info
        name = info.columns[column]
        if column == info.image:
            return False
        return is_label(name) or name in ("split", "labels") or info.known.get(name) == "label"

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
        if info.folder_label and column == len(info.columns) - 1:
            return self._folder_field(name, guess)
        if (is_label(name) or name == "labels") and name != "split":
            return self._label_field(column, name, guess)
        return self._plain_field(column, name, guess)

    def _folder_field(self, name: str, guess: ColumnGuess) -> Field:
        """Return the field of the folders of images, as paths below the folder of all."""
        folders = guess.classes
        above = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(*folders)
        names = [os.path.relpath(folder, above or ".") for folder in folders]
        classes = self._info.classes or tuple(names)
        numbers = numbered(classes)
        self._numbers[name] = {
            folder: numbers[name]
            for folder, name in zip(folders, names, strict=True)
            if name in numbers
        }
        return ScalarField(classes=classes)

    def _label_field(self, column: int, name: str, guess: ColumnGuess) -> Field:
        info = self._info
        types = info.kinds[column] if info.kinds is not None else set[type]()
        if types & {dict}:
            raise SourceError(
                f"{info.place}: {name!r} has objects, not labels: {guess.first:.60}. Leave it out: "
                "--option columns=image=COLUMN"
            )
        sign = info.sign
        if sign is None and not guess.is_float and guess.classes:
            sign, note = sign_between(info.place, name, guess.classes)
            self.notes += [note] * bool(note)
        if not sign or (guess.is_float and info.sign is None):
            return self._plain_field(column, name, guess)
        self._signs[name] = sign
        parts = ColumnGuess(True)
        for cell in guess.classes:
            with contextlib.suppress(ValueError):  # such a row is rejected when it is read
                parts.see(labels_of(cell, sign))
        parts.conclude(is_there=False)
        named = not parts.is_int or info.classes is not None
        return ArrayField("int64", (None,), classes=self._classes(parts, name) if named else None)

    def _plain_field(self, column: int, name: str, guess: ColumnGuess) -> Field:
        """Return the field of one number or text a row; a label may have classes."""
        info = self._info
        types = info.kinds[column] if info.kinds is not None else None
        is_text = types is not None and str in types
        label = is_label(name) or name == "labels"
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
        finder.locate(lambda index: self._cells(index)[column], self.num_samples)
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

    def path_at(self, index: int) -> str:
        """Return the path of the image of a sample; "" if its row does not fit."""
        try:
            return os.fspath(
                self._finders[self._info.columns[self._info.image]].path(
                    self.key_at(index), self.row(index)
                )
            )
        except ValueError:
            return ""

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
        if name in self._signs:
            return self._several(name, field, cell)
        if not cell.strip():
            raise ValueError(f"the column {name!r} is empty in this row")
        if isinstance(field, ImageField):
            return self._finders[name].path(cell, row)
        if name in self._numbers:
            found = self._numbers[name].get(cell, self._numbers[name].get(cell.strip()))
            if found is not None:
                return found
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

    def _several(self, name: str, field: Field, cell: str) -> Any:
        """Return the numbers of the labels that a cell lists."""
        labels = labels_of(cell, self._signs[name])
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
