"""YOLO: images, and a text file for each with a line for every object.

::

    data.yaml                     names, train, val
    images/train/000000000009.jpg
    labels/train/000000000009.txt     45 0.479492 0.688771 0.955609 0.5955

Source: https://docs.ultralytics.com/datasets/ and ``ultralytics/data`` (8.4), which trains on them;
Darknet's lists, and Roboflow's and CVAT's exports.

A line of a label file is an object: its class, then numbers that are fractions of the upright
picture's width and height.  Four are a box (middle, width, height), six and more a polygon; of
poses, a box and points.  Source: ``ultralytics/data/utils.py``, `verify_image_label`, 8.4; what
reads the pictures for it, ``cv2.imread``, applies an Exif orientation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field

from .reading.annotations.annotated import Frame, upright_frame_of
from .reading.annotations.shapes import (
    Shape,
    numbers,
    object_fields,
    object_values,
    of_box,
    of_polygon,
)
from .reading.annotations.yolo_layout import is_yolo, label_of, listed_images, yolo_layout
from .reading.class_names import read_class_names
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.locations import first_bytes
from .reading.named_files import find_named
from .reading.options import ClassFile, Option, PaintedMasks, SplitOption

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
        root: Annotated[
            str | None, Option("the folder that names in data.yaml are relative to")
        ] = None,
    ) -> dict[str, Field]:
        layout = yolo_layout(location, root or "")
        self.root = layout.root
        splits = self.choose_splits(list(layout.splits), split)
        self.beside = layout.beside
        if layout.absent:
            self.notes.append(f"test, which {layout.beside[0].name} names, is not there")
        names = read_class_names(classes) if classes else layout.classes
        self.reader = YoloReader(None if names is None else len(names), masks, layout.numbers)
        self._unlabelled = 0
        for name in splits:
            for place in layout.splits[name]:
                self._add_all(place, self.split_number(name))
        self._check_counts(bool(masks or layout.numbers))
        if names is None:
            self.notes.append("no names of classes (--option classes=FILE gives them)")
        if layout.numbers:
            self.notes.append("keypoints left out: the boxes of poses are taken")
        return {**object_fields(masks, names), **self.split_field()}

    def _add_all(self, place: str, split: dict[str, int]) -> None:
        """Add the images of a folder, or of a list."""
        path = self.root / place
        if path.is_dir():
            for name in filter(is_image_name, files_below(self.root, place)):
                self._add(name, split)
            return
        if is_image_name(place):
            self._add(place, split)
            return
        self.beside.append(path)
        for line, name, problem in listed_images(self.root, path):
            if problem:
                self.reject(f"{name} ({path.name}, line {line})", problem)
            elif is_image_name(name):
                self._add(name, split)

    def _add(self, name: str, split: dict[str, int]) -> None:
        label = os.path.relpath(find_named(self.root, label_of(name)), self.root)
        self._unlabelled += not os.path.isfile(os.path.join(self.root, label))
        self.add(name, label, **split)

    def _check_counts(self, expected: bool) -> None:
        if not self.num_samples:
            raise SourceError(f"{self.root}: no images where its description says")
        if self._unlabelled == self.num_samples:
            raise SourceError(
                f"{self.root}: none of {self.num_samples:,} images has a label file; of "
                f"{self.names_of(0)[0]} expected {self.names_of(0)[1]}"
            )
        if self._unlabelled:
            self.notes.append(
                f"{self._unlabelled:,} of {self.num_samples:,} images have no label file and are "
                "taken for images without objects"
            )
        widths = set() if expected else self._widths()
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
            if index not in self._rejects:
                text = first_bytes(self.root / self.names_of(index)[1], 1 << 16)
                widths |= {len(line.split()) for line in text.splitlines()}
        return widths - {0}


# -- one label file, read by a worker ----------------------------------------------------


_LARGEST = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


@dataclass(frozen=True)
class YoloReader:
    """How a worker reads an image and its label file, which may be missing."""

    classes: int | None  # how many there are, where that is known
    masks: str | None
    numbers: int  # in each line, of poses; 0 for boxes and polygons

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and line."""
        image, labels = files
        data = read_regular(image)
        frame = upright_frame_of(data)
        found = []
        for number, line in _lines(labels):
            try:
                found.append(self._parsed(line.split(), frame))
            except ValueError as error:
                place = f"{os.path.basename(labels)}, line {number}"
                raise SourceError(f"{place}: {error}") from None
        return {"image": data, **object_values(found, frame, self.masks)}

    def _parsed(self, parts: list[str], frame: Frame) -> Shape:
        label = _class_number(parts[0], self.classes)
        given = numbers(parts[1:])
        if self.numbers:
            if len(given) != self.numbers:
                raise ValueError(f"{len(given)} numbers; by kpt_shape expected {self.numbers}")
            given = given[:4]
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
            return of_polygon(label, given.reshape(-1, 2) * size)
        if min(given[2:]) < 0:
            raise ValueError(f"a box of {given[2]:g} x {given[3]:g}")
        middle, half = given[:2] * size, given[2:] * size / 2
        return of_box(label, [*(middle - half), *(middle + half)])


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


def _lines(path: str) -> list[tuple[int, str]]:
    """Return the lines of a label file; none where there is no file, which is no object."""
    try:
        if os.path.getsize(path) > _LARGEST:
            raise SourceError(f"{os.path.basename(path)}: too large for a label file")
        text = read_regular(path).decode("utf-8-sig")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError:
        raise SourceError(f"{os.path.basename(path)}: not a text in UTF-8") from None
    return [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
