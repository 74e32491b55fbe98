"""Lists with one box per row: boxes are grouped by image, in the order of the images.

In memory are four numbers and a class per box, and each image's name, once for every run of rows
with it.
"""

from __future__ import annotations

import itertools
import json
import os
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

from ...listing import DeferredSample
from ..box_forms import likely_unit
from ..class_names import MOST_CLASSES, numbered, of_one_number, one_form
from ..fields import BOXES
from ..selection import joined
from ..small_memory import StringTable
from ..splits import in_usual_order
from .boxed_image import BoxForm
from .columns import BoxRoles
from .image_finder import ImageFinder

__all__ = ["BoxSamples", "BoxTable"]

_UNLABELLED = -1


class BoxTable:
    """Boxes by image.

    `add` takes them in any order; after `group` they are reached by image.

    largest, whole :: the largest number of all boxes, and whether all numbers are whole.
    """

    def __init__(self) -> None:
        self._names, self._sizes = StringTable(), array("i")
        self._boxes, self._labels, self._runs = array("d"), array("q"), array("q")
        self._splits = array("i")
        self._last: str | None = None
        self._bad: dict[int, str] = {}
        self.largest, self.whole = 0.0, True
        self.num_images = 0

    def begin(self, name: str, size: tuple[int, int] = (0, 0), split: int = 0) -> None:
        """Say whose boxes are added next; height and width are 0 where they are not known."""
        if name != self._last:
            self._names.append(name)
            self._sizes.extend(size)
            self._splits.append(split)
            self._last = name

    def add(self, box: Iterable[float], label: int = _UNLABELLED) -> None:
        """Add a box of this image."""
        self._boxes.extend(box)
        self._labels.append(label)
        self._runs.append(len(self._names) - 1)

    def reject(self, reason: str) -> None:
        """Record an error in the rows of this image."""
        self._bad.setdefault(len(self._names) - 1, reason)

    def group(self) -> None:
        """Put boxes together by image, and images in the order in which they came."""
        names = map(self._names.__getitem__, range(len(self._names)))
        hashes = (xxhash.xxh3_64_intdigest(n.encode("utf-8", "surrogateescape")) for n in names)
        found = np.fromiter(hashes, np.uint64, len(self._names))
        _, first, image_of_run = np.unique(found, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        image_of_run = rank[image_of_run]
        self._first = np.sort(first)
        images = image_of_run[np.frombuffer(self._runs, np.int64)] if self._runs else np.zeros(0)
        if self._boxes:
            numbers = np.frombuffer(self._boxes, np.float64)
            self.largest = float(np.abs(numbers).max())
            self.whole = bool((numbers == np.floor(numbers)).all())
        self._order = np.argsort(images, kind="stable")
        self._starts = np.searchsorted(images[self._order], np.arange(len(first) + 1))
        self._reasons = {int(image_of_run[run]): why for run, why in self._bad.items()}
        self.num_images = len(first)

    def name(self, image: int) -> str:
        return self._names[int(self._first[image])]

    def split(self, image: int) -> int:
        return self._splits[int(self._first[image])]

    def size(self, image: int) -> tuple[int, int] | None:
        """Return height and width of an image; None where they are not known."""
        run = int(self._first[image])
        height, width = self._sizes[2 * run : 2 * run + 2]
        return (height, width) if height > 0 and width > 0 else None

    def of(self, image: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return boxes, shape [n, 4], and classes, shape [n], of an image."""
        if image in self._reasons:
            raise SourceError(self._reasons[image])
        rows = self._order[self._starts[image] : self._starts[image + 1]]
        boxes = np.frombuffer(self._boxes, np.float64).reshape(-1, 4) if self._boxes else _NONE
        labels = np.frombuffer(self._labels, np.int64) if self._labels else _NO_LABELS
        return boxes[rows], labels[rows]


_NONE, _NO_LABELS = np.zeros((0, 4)), np.zeros(0, np.int64)


class BoxSamples:
    """A list whose rows are boxes; a sample is an image with all of its boxes.

    schema: ``image``, ``boxes`` and, with classes, ``labels``.
    """

    def __init__(
        self,
        place: str,
        rows: Iterable[list[str]],
        *,
        image: int,
        roles: BoxRoles,
        form: BoxForm,
        finder: ImageFinder,
        channels: int,
        classes: tuple[str, ...] | None,
        split: int | None = None,
        only: str | None = None,
    ) -> None:
        """Read all rows.

        classes: the names of classes 0, 1, ..., if known.
        split: the column of the split, if there is one.
        only: the split that is taken; without it there is a field of the split.
        """
        self.notes = ["rows are boxes, a sample is an image (--option boxes=none: a row)"]
        self._place, self._table, self._finder = place, BoxTable(), finder
        self._image, self._roles = image, roles
        self._texts: dict[str, int] = {}
        self._split, self._splits, number = split, dict[str, int](), 0
        for number, row in enumerate(rows, 1):
            self._add(number, row, only)
        if not number:
            raise SourceError(f"{place}: the manifest has a header but no rows")
        self._table.group()
        self.num_samples = self._table.num_images
        if not self.num_samples:
            raise OptionError(
                f"split={only}: no row of {place} is of that split; there are "
                f"{joined(self._splits)}"
            )
        finder.locate(self._table.name, self.num_samples)
        self.notes += [finder.note] * bool(finder.note)
        if not form.unit:
            unit = likely_unit(self._table.largest, self._table.whole, place)
            form = form._replace(unit=unit)
            shown = "parts of the image's size" if unit == "normalised" else "pixels"
            self.notes.append(f"boxes are {form.form} in {shown} (--option boxes=FORM,UNIT)")
        self._form = form
        fields: dict[str, Field] = {
            "image": ImageField(channels=channels),
            "boxes": BOXES,
        }
        if roles.label is not None:
            found = self._number_classes(classes)
            fields["labels"] = ArrayField("int64", (None,), classes=found)
        if split is not None and only is None:
            names = in_usual_order(self._splits)
            fields["split"] = ScalarField(classes=tuple(names))
            self._final_splits = [names.index(name) for name in self._splits]
        self._labelled = roles.label is not None
        self.schema = Schema(fields)

    def _add(self, number: int, row: list[str], only: str | None) -> None:
        label, size = self._roles.label, self._roles.size
        name, place = row[self._image], 0
        if self._split is not None:
            place = self._splits.setdefault(row[self._split], len(self._splits))
            if only is not None and row[self._split] != only:
                if label is not None and row[label].strip():
                    self._number_of(row[label].strip())
                return
        if not name.strip():
            raise SourceError(f"{self._place}: row {number} names no image")
        table = self._table
        try:
            height, width = (int(float(row[k] or 0)) for k in size) if size else (0, 0)
            table.begin(name, (max(0, height), max(0, width)), place)
            cells = [row[k] for k in self._roles.boxes]
            text = row[label].strip() if label is not None else ""
            if not any(cell.strip() for cell in cells):
                return  # an image without boxes
            box = _numbers(cells)
            if label is not None and not text:
                raise ValueError("it has a box, but no class")
            table.add(box, self._number_of(text) if text else _UNLABELLED)
        except (ValueError, OverflowError) as error:
            table.begin(name, split=place)
            table.reject(f"row {number}: {error}")

    def _number_of(self, text: str) -> int:
        """Return the provisional number of a class: in the order in which they come."""
        number = self._texts.setdefault(text, len(self._texts))
        if len(self._texts) > MOST_CLASSES:
            raise OptionError(f"{self._place}: more than {MOST_CLASSES:,} different classes")
        return number

    def _number_classes(self, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """Give classes their final numbers; return their names, if they have names."""
        numeric = all(text.lstrip("+-").isdecimal() for text in self._texts)
        numeric = numeric and not of_one_number(self._texts)
        if names is None and not numeric:
            names = one_form(self._texts)
        numbers = numbered(names or ())
        self._unknown = {number: text for text, number in self._texts.items()}
        self._final = np.zeros(len(self._texts), np.int64)
        for text, number in self._texts.items():
            fits = names is None or (text.isdecimal() and int(text) < len(names))
            if text in numbers or (numeric and fits):
                self._final[number] = numbers[text] if text in numbers else int(text)
                del self._unknown[number]
        return names

    def key_at(self, index: int) -> str:
        return self._table.name(index)

    def values(self, index: int) -> DeferredSample:
        """Return the input of the worker for a sample's values."""
        boxes, labels = self._table.of(index)
        for number in np.unique(labels).tolist() if self._labelled else ():
            if number in self._unknown:
                raise SourceError(
                    f"it has a {self._unknown[number]!r}, which is none of the classes"
                )
        known: dict[str, Any] = {"boxes": boxes, "size": self._table.size(index)}
        if self._labelled:
            known["labels"] = self._final[labels]
        if "split" in self.schema:
            known["split"] = self._final_splits[self._table.split(index)]
        path = str(self._finder.path(self._table.name(index)))
        return DeferredSample(self._form, tuple(self.schema), [path], known)

    def path_at(self, index: int) -> str:
        """Return the path of the image of a sample; "" if its row does not fit."""
        try:
            return os.fspath(self._finder.path(self._table.name(index)))
        except ValueError:
            return ""

    def parts(self, index: int) -> tuple[Any, ...]:
        """Return the parts of a sample's fingerprint."""
        name = self._table.name(index)
        rows: tuple[bytes, ...] = ()
        try:
            boxes, labels = self._table.of(index)
            labels = self._final[labels] if self._labelled else labels
            rows = (boxes.tobytes(), labels.tobytes())
        except SourceError:  # it is a reject
            pass
        return name, *rows, self._finder.stat(name)


def _numbers(cells: list[str]) -> list[float]:
    """Return the four numbers of a box: of one list, or the hull of a quadrilateral."""
    if len(cells) == 1:
        text = cells[0].strip()
        parts = json.loads(text) if text.startswith("[") else text.replace(",", " ").split()
        if not isinstance(parts, list):
            raise ValueError(f"its box is {text[:60]!r}, not four numbers")
    else:
        parts = list(cells)
    try:
        numbers = [float(part) for part in parts]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) == 8 == len(cells):
        xs, ys = numbers[::2], numbers[1::2]
        numbers = [min(xs), min(ys), max(xs), max(ys)]
    if len(numbers) != 4 or not all(abs(number) < 1e9 for number in numbers):
        raise ValueError(
            f"its box is {','.join(itertools.islice(map(str, parts), 8))}, not 4 numbers"
        )
    return numbers
