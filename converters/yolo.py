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

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import ArrayField, Field

from .listing import Listing
from .reading.annotations.annotated import Frame, upright_frame_of
from .reading.annotations.regions import MOST_VALUES, mask_field, paint
from .reading.annotations.yolo_layout import is_yolo, label_of, listed_images, yolo_layout
from .reading.class_names import read_class_names
from .reading.fields import BOXES
from .reading.image_files import files_below, is_image_name
from .reading.locations import first_bytes
from .reading.named_files import find_named
from .reading.options import ClassFile, Option, PaintedMasks, SplitOption

__all__ = ["YoloSource"]


class YoloSource(Listing):
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
        return {
            **mask_field(masks, names),
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=names),
            **self.split_field(),
        }

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
        label = find_named(self.root, label_of(name))
        labels = [os.path.relpath(label, self.root)] * os.path.isfile(label)
        self._unlabelled += not labels
        self.add(name, *labels, **split)

    def _check_counts(self, expected: bool) -> None:
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
            for label in self.names_of(index)[1:]:
                text = first_bytes(self.root / label, 1 << 16)
                widths |= {len(line.split()) for line in text.splitlines()}
        return widths - {0}


# -- one label file, read by a worker ----------------------------------------------------


_LARGEST = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


class _Object(NamedTuple):
    """One object, in pixels of the upright picture."""

    label: int
    corners: NDArray[np.float64]  # shape [n, 2]; of its outline, or of its box
    area: float


@dataclass(frozen=True)
class YoloReader:
    """How a worker reads an image and its label file, if it has one."""

    classes: int | None  # their number, if it is known
    masks: str | None
    numbers: int  # in each line, of poses; 0 for boxes and polygons

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; errors name file and line."""
        image, *labels = files
        data = read_regular(image)
        frame = upright_frame_of(data)
        found: list[_Object] = []
        for path in labels:
            for number, line in _lines(path):
                try:
                    found.append(self._parsed(line.split(), frame))
                except ValueError as error:
                    place = f"{os.path.basename(path)}, line {number}"
                    raise SourceError(f"{place}: {error}") from None
        boxes = [[*one.corners.min(0), *one.corners.max(0)] for one in found]
        values = {
            "image": data,
            "boxes": frame.boxes(np.array(boxes, np.float64).reshape(-1, 4)).astype(np.float32),
            "labels": np.array([one.label for one in found], np.int64),
        }
        return values | ({"mask": self._painted(found, frame)} if self.masks else {})

    def _parsed(self, parts: list[str], frame: Frame) -> _Object:
        label = _class_number(parts[0], self.classes)
        given = _coordinates(parts[1:])
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
            x, y = (corners := given.reshape(-1, 2) * size).T
            return _Object(label, corners, abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2)
        if min(given[2:]) < 0:
            raise ValueError(f"a box of {given[2]:g} x {given[3]:g}")
        middle, half = given[:2] * size, given[2:] * size / 2
        (left, top), (right, bottom) = middle - half, middle + half
        corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
        return _Object(label, corners, (right - left) * (bottom - top))

    def _painted(self, objects: list[_Object], frame: Frame) -> NDArray[np.uint8]:
        """Paint the numbers of classes or objects, the larger objects first."""
        instances = self.masks == "instances"
        values = [k + 1 if instances else one.label + 1 for k, one in enumerate(objects)]
        if max(values, default=0) > MOST_VALUES:
            raise ValueError(f"a mask holds {MOST_VALUES} {self.masks}; here are {max(values)}")
        flat = frame.blank().reshape(-1)
        for k in sorted(range(len(objects)), key=lambda k: -objects[k].area):
            outline = objects[k].corners.reshape(-1).tolist()
            paint(flat, frame.height, frame.width, [outline], values[k])
        return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))


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


def _lines(path: str) -> list[tuple[int, str]]:
    """Return the lines of a label file."""
    if os.path.getsize(path) > _LARGEST:
        raise SourceError(f"{os.path.basename(path)}: too large for a label file")
    try:
        text = read_regular(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError(f"{os.path.basename(path)}: not a text in UTF-8") from None
    return [(k, line) for k, line in enumerate(text.splitlines(), 1) if line.strip()]
