"""Lists with one box per row: boxes are grouped by image, in the order of the images.

In memory are four numbers and a class per box, and each image's name, once for every run of rows
with it.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, Field, ImageField, Schema

from ..box_forms import likely_unit
from ..class_names import MOST_CLASSES, numbered, of_one_number, one_form
from ..fields import BOXES
from ..image_list import DeferredSample
from ..small_memory import StringTable
from .boxed_image import BoxForm
from .columns import LABELS, BoxRoles
from .image_finder import ImageFinder, folders_of

__all__ = ["BoxSamples", "BoxTable", "ObjectCells"]

_UNLABELLED = -1


class BoxTable:
    """Boxes by image.

    `add` takes them in any order; after `group` they are reached by image.

    largest, whole :: the largest number of all boxes, and whether all numbers are whole.
    """

    def __init__(self) -> None:
        self._names, self._sizes = StringTable(), array("i")
        self._boxes, self._labels, self._runs = array("d"), array("q"), array("q")
        self._last: str | None = None
        self._bad: dict[int, str] = {}
        self.largest, self.whole = 0.0, True
        self.num_images = 0

    def begin(self, name: str, size: tuple[int, int] = (0, 0)) -> None:
        """Say whose boxes are added next; height and width are 0 where they are not known."""
        if name != self._last:
            self._names.append(name)
            self._sizes.extend(size)
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
    ) -> None:
        """Read all rows.

        classes: the names of classes 0, 1, ..., if known.
        """
        self.notes = ["rows are boxes, a sample is an image (--option boxes=none: a row)"]
        self._place, self._table, self._finder = place, BoxTable(), finder
        self._image, self._roles = image, roles
        self._texts: dict[str, int] = {}
        for number, row in enumerate(rows, 1):
            self._add(number, row)
        self._table.group()
        self.num_samples = self._table.num_images
        if not self.num_samples:
            raise SourceError(f"{place}: the manifest has a header but no rows")
        finder.locate(self._table.name(k) for k in range(min(self.num_samples, 1000)))
        self.notes += [finder.note] * bool(finder.note)
        folders = folders_of(map(self._table.name, range(self.num_samples)))
        every = ({"image": self._table.name(k)} for k in range(self.num_samples))
        self.notes += finder.outside("image", folders, every)
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
        self._labelled = roles.label is not None
        self.schema = Schema(fields)

    def _add(self, number: int, row: list[str]) -> None:
        label, size = self._roles.label, self._roles.size
        name = row[self._image]
        if not name.strip():
            raise SourceError(f"{self._place}: row {number} names no image")
        table = self._table
        try:
            height, width = (int(float(row[k] or 0)) for k in size) if size else (0, 0)
            table.begin(name, (max(0, height), max(0, width)))
            cells = [row[k] for k in self._roles.boxes]
            text = row[label].strip() if label is not None else ""
            if not any(cell.strip() for cell in cells):
                return  # an image without boxes
            box = _numbers(cells)
            if label is not None and not text:
                raise ValueError("it has a box, but no class")
            table.add(box, self._number_of(text) if text else _UNLABELLED)
        except (ValueError, OverflowError) as error:
            table.begin(name)
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
        path = str(self._finder.path(self._table.name(index)))
        return DeferredSample(self._form, tuple(self.schema), [path], known)

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
    """Return the four numbers of a box, from four cells or one list."""
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
    if len(numbers) != 4 or not all(abs(number) < 1e9 for number in numbers):
        raise ValueError(
            f"its box is {','.join(itertools.islice(map(str, parts), 6))}, not 4 numbers"
        )
    return numbers


# -- boxes in a cell --------------------------------------------------------------------


_BOXES = ("bbox", "bboxes", "boxes")
_CLASSES = (
    "category", "categories", "category_id", "category_ids", "labels", "classes", *LABELS,
)  # fmt: skip


class ObjectCells:
    """The objects of each row, as text.

    labelled: whether objects have classes.
    """

    def __init__(self, classes: tuple[str, ...] | None = None) -> None:
        self.texts, self._classes = StringTable(), classes
        self._names: set[str] = set()
        self._keys: tuple[str, str] = ("", "")
        self._numbers: dict[str, int] | None = None

    def append(self, cell: str) -> None:
        """Add the objects of a row."""
        self.texts.append(cell)
        try:
            value = json.loads(cell or "{}")
        except (ValueError, RecursionError):
            return  # the row is rejected when it is read
        if isinstance(value, dict):
            boxes = next((key for key in _BOXES if key in value), self._keys[0])
            labels = next((key for key in _CLASSES if key in value), self._keys[1])
            self._keys = (boxes, labels)
            if isinstance(value.get(labels), list):
                self._names |= {label for label in value[labels] if isinstance(label, str)}

    @property
    def labelled(self) -> bool:
        return bool(self._keys[1])

    def fields(self) -> dict[str, Field]:
        """Return the fields of boxes and classes."""
        if not self._keys[0]:
            raise SourceError("the column 'objects' has no bbox; take it out, or rename it")
        names = self._classes or one_form(self._names) or None
        self._numbers = numbered(names or ())
        fields: dict[str, Field] = {"boxes": BOXES}
        if self.labelled:
            fields["labels"] = ArrayField("int64", (None,), classes=names)
        return fields

    def __getitem__(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return boxes, shape [n, 4], and classes, shape [n], of a row."""
        value = json.loads(self.texts[index] or "{}")
        if not isinstance(value, dict):
            raise ValueError(f"its objects are {str(value)[:60]!r}, not boxes and classes")
        boxes = np.array(value.get(self._keys[0]) or np.zeros((0, 4)), np.float64)
        labels = value.get(self._keys[1]) or []
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not isinstance(labels, list):
            raise ValueError(f"its boxes have the shape {boxes.shape}, not n x 4")
        if self.labelled and len(labels) != len(boxes):
            raise ValueError(f"it has {len(boxes)} boxes and {len(labels)} classes")
        return boxes, np.array([self._number(label) for label in labels], np.int64)

    def _number(self, label: Any) -> int:
        assert self._numbers is not None
        if isinstance(label, str) and label in self._numbers:
            return self._numbers[label]
        if isinstance(label, int) and not isinstance(label, bool):
            return label
        raise ValueError(f"an object's class is {str(label)[:60]!r}, which is none of the classes")
