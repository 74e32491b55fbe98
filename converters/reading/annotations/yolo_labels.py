"""One image of a YOLO dataset: its label file, read and made into values by a worker.

A line is an object: its class, then numbers that are fractions of the upright picture's width and
height.  Four are a box (middle, width, height), six and more a polygon; of poses, a box and
points.

Source: ``ultralytics/data/utils.py``, `verify_image_label`, 8.4; what reads the pictures for it,
``cv2.imread``, applies an Exif orientation.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from ...base import Deferred
from .annotated import Frame, upright_frame_of
from .shapes import Shape, numbers, object_values, of_box, of_polygon

__all__ = ["LabelledImage", "Plan"]

_LARGEST = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


class Plan(NamedTuple):
    """What all images of a dataset share."""

    fields: tuple[str, ...]  # in the schema's order
    classes: int | None  # how many there are, where that is known
    masks: str  # "", "classes", "instances"
    keypoints: tuple[int, int] | None  # how many, and of how many numbers each


class LabelledImage(Deferred):
    """Paths of an image and of its label file, which may be missing."""

    def __init__(self, image: str, label: str, split: list[int], plan: Plan) -> None:
        self.image, self.label, self.split, self.plan = image, label, split, plan

    def load(self) -> tuple[Any, ...]:
        """Read both."""
        data = read_regular(self.image)
        frame = upright_frame_of(data)
        found = [self._object(k, line, frame) for k, line in _lines(self.label)]
        values = {"image": data, **object_values([o[0] for o in found], frame, self.plan.masks)}
        if self.plan.keypoints:
            points = [o[1] for o in found]
            values["keypoints"] = np.array(points, np.float32).reshape(
                -1, self.plan.keypoints[0], 3
            )
        if "corners" in self.plan.fields:
            corners = [o[0].corners / (frame.width, frame.height) for o in found]
            values["corners"] = np.array(corners, np.float32).reshape(-1, 4, 2)
        values["split"] = self.split[0] if self.split else None
        return tuple(values[name] for name in self.plan.fields)

    def _object(self, number: int, line: str, frame: Frame) -> tuple[Shape, NDArray[Any] | None]:
        try:
            return self._parsed(line.split(), frame)
        except ValueError as error:
            raise SourceError(f"{os.path.basename(self.label)}, line {number}: {error}") from None

    def _parsed(self, parts: list[str], frame: Frame) -> tuple[Shape, NDArray[Any] | None]:
        label = _class_number(parts[0], self.plan.classes)
        given = numbers(parts[1:])
        points = None
        if self.plan.keypoints:
            count, width = self.plan.keypoints
            if len(given) != 4 + count * width:
                raise ValueError(
                    f"{len(given)} numbers; with kpt_shape [{count}, {width}] expected "
                    f"{4 + count * width}"
                )
            points = _points(given[4:].reshape(count, width))
            given = given[:4]
        if "corners" in self.plan.fields and len(given) != 8:
            raise ValueError(f"{len(given)} numbers; of an oriented box expected 8")
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
            return of_polygon(label, given.reshape(-1, 2) * size), points
        if min(given[2:]) < 0:
            raise ValueError(f"a box of {given[2]:g} x {given[3]:g}")
        middle, half = given[:2] * size, given[2:] * size / 2
        return of_box(label, [*(middle - half), *(middle + half)]), points


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


def _points(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return x, y and visibility; without one, a point at a negative place is not labelled."""
    if points.shape[1] == 2:
        points = np.column_stack([points, (points >= 0).all(1)])
    if points[:, :2].max() > 1 + _BEYOND:
        raise ValueError(f"a point is at {points[:, :2].max():g}, and fractions end at 1")
    return points


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
