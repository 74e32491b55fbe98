"""One file of labelme: an image's shapes, and perhaps the image; read by a worker.

Source: ``labelme/_label_file.py`` and ``labelme/utils/shape.py``, 6.3.  labelme shows, and writes
coordinates of, the upright picture (`apply_exif_orientation`).
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastdata.codecs.image import MAX_PIXELS
from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from ..json_files import read_object
from .annotated import upright_frame_of
from .shapes import Shape, numbers, object_values, of_bitmap, of_box, of_ellipse, of_polygon

__all__ = ["AREAS", "LabelmeReader", "area_shapes", "embedded", "kind_of", "read_labelme"]

AREAS = ("polygon", "rectangle", "oriented_rectangle", "circle", "mask")
"""Shapes that have an inside; lines and points have none."""

_LARGEST = 256 << 20


@dataclass(frozen=True)
class LabelmeReader:
    """How a worker reads an image and its file of shapes, in which the image may be too."""

    classes: Mapping[str, int]  # numbers by their names
    masks: str | None
    check_size: bool

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return the values of an image; what is wrong is said with file and shape."""
        image, shapes = files
        content = read_labelme(Path(shapes))
        data = embedded(content) or b"" if image == shapes else read_regular(image)
        frame = upright_frame_of(data, _size(content), self.check_size)
        found = []
        for number, entry in area_shapes(content):
            try:
                found.append(_shape(entry, self.classes))
            except ValueError as error:
                place = f"{os.path.basename(shapes)}, shape {number}"
                raise SourceError(f"{place}: {error}") from None
        # As labelme does it: what stands later in the file lies above.
        values = object_values(found, frame, self.masks, range(len(found)))
        return {"image": data, **values}


def read_labelme(path: Path) -> dict[str, Any]:
    """Return what a file has."""
    content = read_object(path, _LARGEST)
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise SourceError(f"{path.name}: not of labelme: its shapes are no list of objects")
    return content


def area_shapes(content: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and entry of the shapes that have an inside."""
    for number, entry in enumerate(content["shapes"], 1):
        if kind_of(entry) in AREAS:
            yield number, entry


def kind_of(entry: dict[str, Any]) -> str:
    """Return what shape an entry is; old files do not say so of polygons."""
    return str(entry.get("shape_type") or "polygon")


def embedded(content: dict[str, Any]) -> bytes | None:
    """Return the image file in a file of shapes, if there is one."""
    text = content.get("imageData")
    if not isinstance(text, str) or not text:
        return None
    return _decoded(text, "imageData")


def _decoded(text: object, what: str) -> bytes:
    try:
        return base64.b64decode(text if isinstance(text, str) else "?", validate=True)
    except (binascii.Error, ValueError) as error:
        raise SourceError(f"its {what} is no base64: {error}") from None


def _size(content: dict[str, Any]) -> tuple[int, int] | None:
    """Return height and width as the file says them; None where it does not."""
    height, width = content.get("imageHeight"), content.get("imageWidth")
    if type(height) is int and type(width) is int and min(height, width) > 0:
        return height, width
    return None


def _shape(entry: dict[str, Any], classes: Mapping[str, int]) -> Shape:
    name, kind = entry.get("label"), kind_of(entry)
    if not isinstance(name, str) or name not in classes:
        raise ValueError(f"its label is {name!r:.80}, which is none of the classes")
    label = classes[name]
    points = _points(entry)
    if kind in ("polygon", "oriented_rectangle"):
        return of_polygon(label, points)
    if len(points) != 2:
        raise ValueError(f"a {kind} has 2 points, not {len(points)}")
    if kind == "rectangle":
        return of_box(label, [*points.min(0), *points.max(0)])
    if kind == "circle":
        radius = math.dist(*points)
        return of_ellipse(label, points[0], [radius, radius])
    (left, top), (right, bottom) = points.astype(int).tolist()
    bitmap = _bitmap(_decoded(entry.get("mask"), "mask"))
    if bitmap.shape != (bottom - top + 1, right - left + 1):
        raise ValueError(
            f"its mask has {bitmap.shape[1]} x {bitmap.shape[0]} pixels and its points are of "
            f"{right - left + 1} x {bottom - top + 1}"
        )
    return of_bitmap(label, left, top, bitmap)


def _points(entry: dict[str, Any]) -> NDArray[np.float64]:
    points = entry.get("points")
    pairs = points if isinstance(points, list) else []
    if not pairs or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise ValueError("its points are no list of x and y")
    return numbers(value for pair in pairs for value in pair).reshape(-1, 2)


def _bitmap(data: bytes) -> NDArray[np.bool_]:
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"its mask has {image.width} x {image.height} pixels")
            return np.asarray(image.convert("L")) > 0
    except ValueError:
        raise
    except Exception as error:  # PIL's plugins raise nearly anything on damaged files
        raise ValueError(f"its mask is no image: {type(error).__name__}: {error}") from None
