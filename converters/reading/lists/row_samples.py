"""Lists in which a row is a sample: what fields the columns are, and the values of a row."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

from ..cells import parse_array, parse_bytes
from ..class_names import classes_of_texts, numbered
from ..fields import convert, named_field
from ..selection import joined
from ..small_memory import StringTable
from ..splits import in_usual_order
from .columns import ColumnGuess, is_label
from .image_finder import ImageFinder

__all__ = ["ListInfo", "RowSamples"]

_TRUTH = {"true": True, "false": False, "1": True, "0": False}
_BATCH = 500
_MOST_SPLITS = 20
_LIST = "list"
"""The sign between labels if cells are lists, as JSON or Python writes them."""


class ListInfo(NamedTuple):
    """What is known of a list before its rows are read."""

    place: str  # the file, for messages
    columns: list[str]  # the names of fields, one a column
    image: int  # the column of the images
    known: Mapping[str, Field | str]  # fields of the user, or of the list's schema
    channels: int
    finder_of: Callable[[bool], ImageFinder]  # takes whether the column is that of the images
    classes: tuple[str, ...] | None = None  # names of classes 0, 1, ..., if known
    kinds: list[set[type]] | None = None  # types of each column of JSON
    split: str | None = None  # the text in the column ``split`` of the rows that are taken


class RowSamples:
    """Rows, one a sample."""

    def __init__(
        self, info: ListInfo, rows: Iterable[list[str]], siblings: Iterable[list[str]] = ()
    ) -> None:
        """Read all rows once, and determine the columns' types.

        rows: lists of cells, one per column.
        siblings: rows of the lists of other splits; classes are those of all.
        """
        self._info, self._rows, self.notes = info, StringTable(), list[str]()
        self._finders: dict[str, ImageFinder] = {}
        self._signs: dict[str, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._guesses = [ColumnGuess(self._may_be_label(k)) for k in range(len(info.columns))]
        self._read(iter(rows), iter(siblings))
        fields = self._fields()
        if info.split is not None:
            del fields["split"]
        self.schema = Schema(fields)
        for name, field in fields.items():
            if isinstance(field, (ScalarField, ArrayField)) and field.classes is not None:
                self._numbers.setdefault(name, numbered(field.classes))

    def _read(self, rows: Iterator[list[str]], siblings: Iterator[list[str]]) -> None:
        """Keep the text of the rows that are taken; types and classes are those of all splits."""
        info, hashes, read = self._info, array("q"), False
        only = None if info.split is None else info.columns.index("split")
        while batch := list(itertools.islice(rows, _BATCH)):
            read = True
            self._see(batch)
            if only is not None:
                batch = [row for row in batch if row[only] == info.split]
            hashes.extend([hash(row[info.image]) for row in batch])
            for row in batch:
                self._rows.append(self._encoded(row))
        while batch := list(itertools.islice(siblings, _BATCH)):
            self._see(batch)
        if not read:
            raise SourceError(f"{info.place}: the manifest has a header but no rows")
        if only is not None and not self._rows:
            raise OptionError(
                f"split={info.split}: no row of {info.place} is of that split; there are "
                f"{joined(self._guesses[only].classes, 20)}"
            )
        self._group(np.frombuffer(hashes, np.int64))

    def _see(self, batch: list[list[str]]) -> None:
        for guess, cells in zip(self._guesses, zip(*batch, strict=True), strict=True):
            guess.see(cells)

    def _encoded(self, row: list[str]) -> str:
        """Return a row as one text; as JSON if a cell has the sign that else is between cells."""
        text = "\0".join(row)
        if text.count("\0") == len(row) - 1 and not text.startswith("\1"):
            return text
        return "\1" + json.dumps(row)

    def _cells(self, index: int) -> list[str]:
        text = self._rows[index]
        cells: list[str] = json.loads(text[1:]) if text.startswith("\1") else text.split("\0")
        return cells

    def _group(self, hashes: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Count the samples, and say if several rows are of one image.

        hashes: of the image of each row.
        """
        self.num_samples = len(hashes)
        hashes.sort()  # np.unique takes six times as long, and 60 MB for a million rows
        different = 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))
        if different < self.num_samples:
            self.notes.append(
                f"{self.num_samples:,} rows name {different:,} images, and each row is a sample "
                "(docs/recipes/datasets.md puts rows together)"
            )

    # -- what columns hold ---------------------------------------------------------------

    def _may_be_label(self, column: int) -> bool:
        info, name = self._info, self._info.columns[column]
        named = is_label(name) or name in ("split", "labels") or info.known.get(name) == "label"
        return named and column != info.image

    def _fields(self) -> dict[str, Field]:
        """Return the fields, that of the images first."""
        info = self._info
        main = info.columns[info.image]
        fields = {
            name: self._field(k, name, guess)
            for k, (name, guess) in enumerate(zip(info.columns, self._guesses, strict=True))
        }
        others = [n for n, f in fields.items() if isinstance(f, ImageField) and n != main]
        if guessed := [name for name in others if name not in info.known and name != "mask"]:
            self.notes.append(
                f"columns of image files: {', '.join(guessed)} (--field NAME=string keeps names)"
            )
        return {main: fields[main], **fields}

    def _field(self, column: int, name: str, guess: ColumnGuess) -> Field:
        """Return the field of a column, and find where its images are if it has such."""
        info = self._info
        types = info.kinds[column] - {type(None)} if info.kinds is not None else set[type]()
        is_there = False
        if column == info.image:
            self._add_finder(column)
        elif guess.is_image and guess.first and name not in info.known:
            self._add_finder(column)
            is_there = self._finders[name].is_there(guess.first)
        guess.conclude(is_there=is_there, are_numbers=bool(types) and str not in types)
        if guess.one_number and name not in info.known:
            self.notes.append(
                f"the texts of {name!r} are classes, as {' and '.join(guess.one_number)} are one "
                f"number (--field {name}=float reads numbers)"
            )
        if name in info.known:
            field = named_field(info.known[name], info.channels)
            if info.known[name] == "label" and not guess.is_int:
                field = ScalarField(classes=self._classes(guess, name))
        elif column == info.image:
            field = ImageField(channels=info.channels)
        elif name == "mask" or guess.is_image:
            mask = "mask" in name.lower()
            field = ImageField(channels=1 if mask else info.channels, mask=mask)
        elif is_label(name) or name == "labels":
            field = self._label_field(name, guess, types)
        else:
            field = self._plain_field(name, guess, types)
        if isinstance(field, ImageField) and name not in self._finders:
            self._add_finder(column)
        if isinstance(field, ImageField) and self._finders[name].note:
            self.notes.append(self._finders[name].note)
        return field

    def _label_field(self, name: str, guess: ColumnGuess, types: set[type]) -> Field:
        """Return the field of one label a row, or of several."""
        info, sign = self._info, ""
        if dict in types:
            raise SourceError(
                f"{info.place}: {name!r} has objects, not labels: {guess.first:.60}. Leave it out: "
                "--option columns=image=COLUMN"
            )
        if not guess.is_float and guess.classes:
            sign = self._sign_between(name, guess.classes)
        if sign:
            self._signs[name] = sign
            parts = ColumnGuess(True)
            for cell in guess.classes:
                parts.see(_labels_of(cell, sign))
            parts.conclude(is_there=False)
            named = not parts.is_int or info.classes is not None
            classes = self._classes(parts, name) if named else None
            return ArrayField("int64", (None,), classes=classes)
        if guess.is_int:
            return ScalarField("int64", classes=info.classes)
        if types == {bool} or not guess.classes or (guess.is_float and str not in types):
            return self._plain_field(name, guess, types)
        return ScalarField(classes=self._classes(guess, name))

    def _sign_between(self, name: str, cells: Sequence[str]) -> str:
        """Return the sign between the labels of a column; "" if a cell is one label.

        A comma or semicolon separates labels if most of the parts are in other cells, too:
        ``tench, Tinca tinca`` is one name.

        cells: the different cells that are not empty.
        """
        if all(cell[:1] == "[" and cell[-1:] == "]" for cell in cells):
            first = next((cell for cell in cells if "{" in cell), None)
            if first is not None:
                raise SourceError(
                    f"{self._info.place}: the cells of {name!r} are lists of objects, not labels: "
                    f"{first:.60}. Leave them out: --option columns=image=COLUMN"
                )
            self.notes.append(f"the cells of {name!r} are lists of labels")
            return _LIST
        sign = next((sign for sign in "|,; " if any(sign in cell for cell in cells)), "")
        several = [cell for cell in cells if sign and sign in cell]
        count = Counter(part for cell in cells for part in set(_labels_of(cell, sign)))
        parts = {part for cell in several for part in _labels_of(cell, sign)}
        shared = 2 * sum(count[part] > 1 for part in parts) > len(parts)
        if sign == "|" or (shared and (sign != " " or name == "labels")):
            self.notes.append(
                f"the cells of {name!r} have several labels, with {sign!r} between them (--field "
                f"{name}=label: each combination is a class)"
            )
            return sign
        if several and (shared or sign != " "):  # words of one name, more likely than not
            self.notes.append(
                f"cells of {name!r} such as {several[0]!r:.60} are one label each; write | between "
                "several labels"
            )
        return ""

    def _plain_field(self, name: str, guess: ColumnGuess, types: set[type]) -> Field:
        """Return the field of one number or text a row."""
        if types == {bool}:
            return ScalarField("bool")
        if types & {list, dict}:
            self.notes.append(
                f"the column {name!r} of lists or objects is kept as JSON text (--field "
                f"{name}=array reads lists of numbers)"
            )
            return StringField()
        if guess.is_float and str not in types:
            return ScalarField("int64" if guess.is_int else "float64")
        if name == "split" and 0 < len(guess.classes) <= _MOST_SPLITS:
            return ScalarField(classes=tuple(in_usual_order(guess.classes)))
        return StringField()

    def _classes(self, guess: ColumnGuess, name: str) -> tuple[str, ...]:
        if self._info.classes is not None and name in ("label", "labels"):
            return self._info.classes
        return classes_of_texts(guess.classes, f"{self._info.place}: the column {name!r}")

    def _add_finder(self, column: int) -> None:
        name = self._info.columns[column]
        self._finders[name] = finder = self._info.finder_of(column == self._info.image)
        finder.locate(lambda index: self._cells(index)[column], self.num_samples)

    # -- values of rows ------------------------------------------------------------------

    def _row(self, index: int) -> dict[str, str]:
        """Return the cells of a row by the names of fields."""
        return dict(zip(self._info.columns, self._cells(index), strict=True))

    def key_at(self, index: int) -> str:
        return self._name(index) or f"row {index + 1}"

    @property
    def images(self) -> ImageFinder:
        """What finds the images of the samples."""
        return self._finders[self._info.columns[self._info.image]]

    def _name(self, index: int) -> str:
        """Return the name of a sample's image in the list."""
        return self._cells(index)[self._info.image]

    def values(self, index: int) -> Any:
        """Return the values of a row, in the schema's order."""
        row = self._row(index)
        return tuple(self._value(name, field, row[name]) for name, field in self.schema.items())

    def path_at(self, index: int) -> str:
        """Return the path of the image of a sample; "" if its row does not fit."""
        with contextlib.suppress(ValueError):
            return os.fspath(self.images.path(self._name(index)))
        return ""

    def parts(self, index: int) -> tuple[Any, ...]:
        """Return the parts of a sample's fingerprint."""
        row = self._row(index)
        return list(row.values()), [self._finders[n].stat(row[n]) for n in self.schema.images]

    def _value(self, name: str, field: Field, cell: str) -> Any:
        if isinstance(field, StringField):
            return cell
        if isinstance(field, BytesField):
            return parse_bytes(cell)
        if name in self._signs:
            labels = _labels_of(cell, self._signs[name])
            return np.array([self._number_of(name, label) for label in labels], np.int64)
        if not cell.strip():
            raise ValueError(f"the column {name!r} is empty in this row")
        if isinstance(field, ImageField):
            return self._finders[name].path(cell)
        if isinstance(field, ArrayField):
            return convert(parse_array(cell, field), field, name)
        text = cell.strip()
        if field.dtype == "bool":
            if text.lower() not in _TRUTH:
                raise ValueError(f"{name!r} is {cell!r}, not true or false")
            return _TRUTH[text.lower()]
        if field.dtype.startswith("float"):
            return convert(float(text), field, name)
        return convert(self._number_of(name, cell), field, name)

    def _number_of(self, name: str, cell: str) -> int:
        """Return the number of a class, or a whole number, which may be written as a decimal."""
        known, text = self._numbers.get(name, {}), cell.strip()
        number = known.get(cell, known.get(text))
        if number is not None:
            return number
        if known and not text.lstrip("+-").isdecimal():
            raise ValueError(f"{name!r} is {text[:60]!r}, not one of its classes")
        with contextlib.suppress(ValueError):
            return int(text)
        with contextlib.suppress(ValueError):
            if (decimal := float(text)).is_integer():
                return int(decimal)
        raise ValueError(f"{name!r} is {text[:60]!r}, not a whole number")


def _labels_of(cell: str, sign: str) -> list[str]:
    """Return the labels in a cell; a blank stands for any white space."""
    parts = _listed(cell) if sign == _LIST else cell.split(sign) if sign else [cell]
    return [part.strip() for part in map(str, parts) if part.strip()]


_ENTRY = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\[\],'"\s]+)""")


def _listed(cell: str) -> Sequence[Any]:
    """Return the entries of a list as JSON or Python writes it."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(cell)
        return found if isinstance(found, list) else [found]
    return ["".join(entry) for entry in _ENTRY.findall(cell)]
