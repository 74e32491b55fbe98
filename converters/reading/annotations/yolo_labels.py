"""One image of a YOLO dataset: its label file, read and made into values by a worker.

A line is an object: its class, then numbers that are fractions of the upright picture's width and
height.  Four are a box (middle, width, height), six and more a polygon; of poses, a box and
points.

Source: ``ultralytics/data/utils.py``, `verify_image_label`, 8.4; what reads the pictures for it,
``cv2.imread``, applies an Exif orientation.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from .annotated import Frame, upright_frame_of
from .shapes import Shape, numbers, object_values, of_box, of_polygon

__all__ = ["YoloReader"]

_LARGEST = 64 << 20
_BEYOND = 0.01
"""By how much Ultralytics lets coordinates lie outside of a picture."""


@dataclass(frozen=True)
class YoloReader:
    """How a worker reads an image and its label file, which may be missing."""

    classes: int | None  # how many there are, where that is known
    masks: str | None
    keypoints: tuple[int, int] | None  # how many, and of how many numbers each
    oriented: bool  # whether lines are oriented boxes

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; what is wrong is said with file and line."""
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
        shapes = [shape for shape, _ in found]
        values = {"image": data, **object_values(shapes, frame, self.masks)}
        if self.keypoints:
            points = np.array([points for _, points in found], np.float32)
            values["keypoints"] = points.reshape(-1, self.keypoints[0], 3)
        if self.oriented:
            corners = [shape.corners / (frame.width, frame.height) for shape in shapes]
            values["corners"] = np.array(corners, np.float32).reshape(-1, 4, 2)
        return values

    def _parsed(self, parts: list[str], frame: Frame) -> tuple[Shape, NDArray[Any] | None]:
        label = _class_number(parts[0], self.classes)
        given = numbers(parts[1:])
        points = None
        if self.keypoints:
            count, width = self.keypoints
            if len(given) != 4 + count * width:
                raise ValueError(
                    f"{len(given)} numbers; with kpt_shape [{count}, {width}] expected "
                    f"{4 + count * width}"
                )
            points = _points(given[4:].reshape(count, width))
            given = given[:4]
        if self.oriented and len(given) != 8:
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
