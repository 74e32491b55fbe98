"""Lists with one box per row: boxes are grouped by image, in the order of the images.

In memory is the text of the rows, with each image's name once for every run of rows with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field, ImageField, ScalarField

from ...listing import DeferredSample
from ..annotations.annotated import frame_of
from ..box_forms import BoxNumbers
from ..fields import BOXES
from ..splits import in_usual_order
from .columns import box_roles
from .row_samples import ListInfo, RowSamples

__all__ = ["BoxSamples"]

_LARGEST_PART = 2
"""From larger numbers on, boxes are pixels."""


class BoxSamples(RowSamples):
    """A list whose rows are boxes; a sample is an image with all of its boxes.

    schema: ``image``, ``boxes`` and, with classes, ``labels``.
    """

    def __init__(
        self, info: ListInfo, rows: Iterable[list[str]], form: BoxNumbers, check_size: bool
    ) -> None:
        """Read all rows.

        form: as far as the user says it.
        check_size: whether an image of another size than the list says is rejected.
        """
        roles = box_roles(info.columns, form.form)
        assert roles is not None
        self._roles, self._unit = roles, form.unit
        self._last, self._largest, self._whole = "", 0.0, True
        super().__init__(info, rows)
        self.notes.insert(0, "rows are boxes, a sample is an image (--option boxes=none: a row)")
        if roles.form == "corners":
            self.notes.append("boxes are the hulls of quadrilaterals: x1, y1, ..., x4, y4")
        form = BoxNumbers("xyxy" if roles.form == "corners" else roles.form, form.unit)
        if not form.unit:
            form = form._replace(unit=self._likely_unit())
            shown = "parts of the image's size" if form.unit == "normalised" else "pixels"
            self.notes.append(f"boxes are {form.form} in {shown} (--option boxes=FORM,UNIT)")
        self._reader = _BoxReader(form, check_size)

    def _likely_unit(self) -> str:
        if self._largest <= 1 and not self._whole:
            return "normalised"
        if self._largest <= _LARGEST_PART:
            raise SourceError(
                f"{self._info.place}: no number of a box is larger than {self._largest:g}; are "
                "these pixels, or parts of the image's size? Say which: --option boxes=pixels or "
                "--option boxes=normalised"
            )
        return "pixels"

    # -- rows ----------------------------------------------------------------------------

    def _may_be_label(self, column: int) -> bool:
        return column == self._roles.label or self._info.columns[column] == "split"

    def _see(self, batch: list[list[str]]) -> None:
        for column, guess in enumerate(self._guesses):
            if self._may_be_label(column):
                guess.see([row[column] for row in batch])
        for row in batch if not self._unit and self._largest <= _LARGEST_PART else ():
            try:
                numbers = _numbers([row[k] for k in self._roles.boxes])
            except ValueError:  # such an image is rejected when it is read
                continue
            self._largest = max(self._largest, max(numbers), -min(numbers))
            self._whole = self._whole and all(map(float.is_integer, numbers))

    def _encoded(self, row: list[str]) -> str:
        name = row[self._info.image]
        if name == self._last:
            row[self._info.image] = ""
        self._last = name
        return super()._encoded(row)

    def _group(self, hashes: NDArray[np.int64]) -> None:
        """Put rows together by image, and images in the order in which they came."""
        self._order = np.argsort(hashes, kind="stable")
        ordered = hashes[self._order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        by_first = np.argsort(self._order[starts])
        self._starts, self._ends = starts[by_first], np.r_[starts[1:], len(ordered)][by_first]
        self.num_samples = len(starts)

    def _fields(self) -> dict[str, Field]:
        info = self._info
        self._add_finder(info.image)
        fields: dict[str, Field] = {"image": ImageField(channels=info.channels), "boxes": BOXES}
        for column, guess in enumerate(self._guesses):
            guess.conclude(is_there=False)
            if column == self._roles.label:
                numbers = guess.is_int or not guess.first
                classes = info.classes if numbers else self._classes(guess, "labels")
                fields["labels"] = ArrayField("int64", (None,), classes=classes)
        if "split" in info.columns:
            splits = self._guesses[info.columns.index("split")].classes
            fields["split"] = ScalarField(classes=tuple(in_usual_order(splits)))
        return fields

    # -- samples -------------------------------------------------------------------------

    def _rows_of(self, index: int) -> list[list[str]]:
        """Return the rows of an image; the first has its name."""
        return list(map(self._cells, self._order[self._starts[index] : self._ends[index]].tolist()))

    def _name(self, index: int) -> str:
        return self._cells(int(self._order[self._starts[index]]))[self._info.image]

    def values(self, index: int) -> DeferredSample:
        """Return the input of the worker for a sample's values."""
        roles, rows = self._roles, self._rows_of(index)
        if not rows[0][self._info.image].strip():
            raise ValueError("the row of the box names no image")
        boxes, labels, numbers = list[list[str]](), list[int](), self._numbers.get("labels", {})
        for row in rows:
            cells = [row[k] for k in roles.boxes]
            if not "".join(cells).strip():
                continue  # an image without boxes
            boxes.append(cells)
            if roles.label is not None:
                text = row[roles.label]
                if text in numbers:
                    labels.append(numbers[text])
                elif text.strip():
                    labels.append(self._number_of("labels", text))
                else:
                    raise ValueError("it has a box, but no class")
        sides = [float(rows[0][k] or 0) for k in roles.size]
        size = tuple(int(side) for side in sides if 0 < side < 1e9)
        known: dict[str, Any] = {
            "boxes": boxes,
            "labels": np.array(labels, np.int64),
            "size": size if len(size) == 2 else None,
        }
        if "split" in self.schema:
            split = rows[0][self._info.columns.index("split")]
            known["split"] = self._number_of("split", split.strip())
        path = self.images.path(self._name(index))
        return DeferredSample(self._reader, tuple(self.schema), [str(path)], known)

    def parts(self, index: int) -> tuple[Any, ...]:
        """Return the parts of a sample's fingerprint."""
        return self._rows_of(index), self.images.stat(self._name(index))


class _BoxReader(NamedTuple):
    """How a worker reads an image and its boxes; see `SampleReader`."""

    form: BoxNumbers
    check_size: bool

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return image and boxes.

        known: ``boxes``, the cells of each, and ``size``, height and width as the list says them,
            or None.
        """
        data = read_regular(files[0])
        frame = frame_of(data, known["size"], self.check_size)
        boxes = np.array(list(map(_numbers, known["boxes"]))).reshape(-1, 4)
        boxes = self.form.pixels(boxes, frame.height, frame.width)
        placed = frame.boxes(boxes).astype(np.float32)
        return {"image": data, "boxes": placed.reshape(-1, 4)}


def _numbers(cells: list[str]) -> list[float]:
    """Return the four numbers of a box: of one list, or the hull of a quadrilateral."""
    parts: Any = cells
    try:
        if len(cells) == 1:
            text = cells[0].strip()
            parts = json.loads(text) if text.startswith("[") else text.replace(",", " ").split()
        numbers = list(map(float, parts))
    except (TypeError, ValueError, RecursionError):
        numbers = []
    if len(numbers) == 8 == len(cells):
        xs, ys = numbers[::2], numbers[1::2]
        numbers = [min(xs), min(ys), max(xs), max(ys)]
    if len(numbers) != 4 or not all(-1e9 < number < 1e9 for number in numbers):
        raise ValueError(f"its box is {','.join(cells):.60}, not 4 numbers")
    return numbers
