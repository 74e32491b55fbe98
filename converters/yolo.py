"""YOLO: images, and a text file for each with a line for every object.

::

    data.yaml                     names, train, val
    images/train/000000000009.jpg
    labels/train/000000000009.txt     45 0.479492 0.688771 0.955609 0.5955

Source: https://docs.ultralytics.com/datasets/ and ``ultralytics/data`` (8.4), which trains on them;
Darknet's lists, and Roboflow's and CVAT's exports.

A line of a label file is an object: its class, then numbers that are fractions of the upright
picture's width and height.  Four are a box (middle, width, height), six and more a polygon.
Source: ``ultralytics/data/utils.py``, `verify_image_label`, 8.4.  It reads pictures with
``cv2.imread``, which applies an Exif orientation.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field

from .reading.annotations.annotated import Frame, upright_frame_of
from .reading.annotations.regions import mask_field, paint_objects
from .reading.annotations.yolo_layout import is_yolo, label_of, listed_images, yolo_layout
from .reading.class_names import read_class_names
from .reading.fields import BOXES
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import first_bytes
from .reading.named_files import find_named
from .reading.options import ClassFile, PaintedMasks, SplitOption

__all__ = ["YoloSource"]


class YoloSource(ImageListSource):
    """Images with the boxes and classes of their objects."""

    name = "yolo"
    summary = "YOLO: data.yaml, images and labels (boxes, polygons)"
    parts = ("*.yaml|classes.txt|obj.names", "**/labels/**/*.txt")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return is_yolo(Path(location))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
    ) -> dict[str, Field]:
        layout = yolo_layout(location)
        self.root, self.beside = layout.root, layout.beside
        splits = self.choose_splits(list(layout.splits), split)
        if layout.absent:
            self.notes.append(f"test, which {layout.beside[0].name} names, is not there")
        names = read_class_names(classes) if classes else layout.classes
        self.reader = YoloReader(None if names is None else len(names), masks)
        self._unlabelled = 0
        for name in splits:
            for place in layout.splits[name]:
                self._add_all(place, self.split_number(name))
        self._check_counts(masks)
        if names is None:
            self.notes.append("no names of classes (--option classes=FILE gives them)")
        return {
            **mask_field(masks, names),
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=names),
            **self.split_field(),
        }

    def _add_all(self, place: str, split: dict[str, int]) -> None:
        """Add an image, or the images of a folder or of a list."""
        path = self.root / place
        if path.is_dir():
            names = files_below(self.root, place)
        elif is_image_name(place):
            names = iter([place])
        else:
            self.beside.append(path)
            names = self._listed(path)
        for name in filter(is_image_name, names):
            label = find_named(self.root, label_of(name))
            labels = [os.path.relpath(label, self.root)] * os.path.isfile(label)
            self._unlabelled += not labels
            self.add(name, *labels, **split)

    def _listed(self, path: Path) -> Iterator[str]:
        for line, name, problem in listed_images(self.root, path):
            if problem:
                self.reject(f"{name} ({path.name}, line {line})", problem)
            else:
                yield name

    def _check_counts(self, masks: str | None) -> None:
        if not self.num_samples:
            raise SourceError(f"{self.root}: no images where its description says")
        if self._unlabelled == self.num_samples:
            raise SourceError(
                f"{self.root}: none of {self.num_samples:,} images has a label file; of "
                f"{self.names_of(0)[0]} expected {label_of(self.names_of(0)[0])}"
            )
        if self._unlabelled:
            self.notes.append(
                f"{self._unlabelled:,} of {self.num_samples:,} images have no label file and are "
                "taken for images without objects"
            )
        widths = set() if masks else self._widths()
        if widths == {9}:
            raise SourceError(
                f"{self.root}: each label has 8 numbers, as oriented boxes have, whose angle is "
                "not kept. --option masks=classes paints them and takes their upright boxes"
            )
        if any(width > 5 for width in widths):
            self.notes.append(
                "of polygons their boxes are taken (--option masks=classes paints them)"
            )

    def _widths(self) -> set[int]:
        """Return how many numbers the lines of the first label files have."""
        widths: set[int] = set()
        for index in range(min(self.num_samples, 50)):
            for label in self.names_of(index)[1:]:
                text = first_bytes(self.root / label, 1 << 16)
                widths |= {len(line.split()) for line in text.splitlines()}
        return widths - {0}


# -- one label file, read by a worker ----------------------------------------------------


_LARGEST = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


@dataclass(frozen=True)
class YoloReader:
    """How a worker reads an image and its label file, if it has one."""

    classes: int | None  # their number, if it is known
    masks: str | None

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and line."""
        image, *paths = files
        data = read_regular(image)
        frame = upright_frame_of(data)
        labels: list[int] = []
        outlines: list[NDArray[np.float64]] = []
        for path in paths:
            text = read_regular(path, _LARGEST).decode("utf-8-sig")
            for number, line in enumerate(text.splitlines(), 1):
                try:
                    if parts := line.split():
                        labels.append(_class_number(parts[0], self.classes))
                        outlines.append(_outline(_coordinates(parts[1:]), frame))
                except ValueError as error:
                    place = f"{os.path.basename(path)}, line {number}"
                    raise SourceError(f"{place}: {error}") from None
        values = {
            "image": data,
            "boxes": frame.boxes([[*one.min(0), *one.max(0)] for one in outlines]),
            "labels": np.array(labels, np.int64),
        }
        if self.masks:  # the larger objects below
            order = sorted(range(len(outlines)), key=lambda k: -_area(outlines[k]))
            values["mask"] = paint_objects(
                frame, self.masks, labels, order, lambda k: [outlines[k].reshape(-1).tolist()]
            )
        return values


def _outline(given: NDArray[np.float64], frame: Frame) -> NDArray[np.float64]:
    """Return the corners of a polygon or a box, [n, 2], in pixels of the upright picture."""
    if len(given) < 4 or len(given) % 2:
        raise ValueError(
            f"{len(given)} numbers; expected 4 of a box, or x and y of three or more corners"
        )
    if given.min() < -_BEYOND or given.max() > 1 + _BEYOND:
        raise ValueError(
            "coordinates are fractions of width and height, from 0 to 1, "
            f"not {given[np.argmax(np.abs(given - 0.5))]:g}"
        )
    size = np.array([frame.width, frame.height], np.float64)
    if len(given) > 4:
        return given.reshape(-1, 2) * size
    if min(given[2:]) < 0:
        raise ValueError(f"a box of {given[2]:g} x {given[3]:g}")
    middle, half = given[:2] * size, given[2:] * size / 2
    (left, top), (right, bottom) = middle - half, middle + half
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])


def _area(outline: NDArray[np.float64]) -> float:
    x, y = outline.T
    return abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1)))


def _coordinates(parts: list[str]) -> NDArray[np.float64]:
    with contextlib.suppress(ValueError):
        found = np.array(list(map(float, parts)))
        if np.isfinite(found).all():
            return found
    raise ValueError(f"expected coordinates, found {' '.join(parts[:8])[:80]!r}")


def _class_number(text: str, classes: int | None) -> int:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not (number.is_integer() and 0 <= number < 1 << 31):
        raise ValueError(f"its class is {text[:40]!r}, not a number from 0 on")
    if classes is not None and number >= classes:
        raise ValueError(f"its class is {int(number)}, and there are {classes}")
    return int(number)
