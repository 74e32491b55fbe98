"""labelme: one JSON file an image, with its shapes.

``{"shapes": [{"label": "cat", "shape_type": "polygon", "points": [[x, y], ...]}], "imagePath":
"0.jpg", "imageData": null, "imageHeight": 480, "imageWidth": 640}``, as https://labelme.io does it.

Source: ``labelme/_label_file.py`` and ``labelme/utils/shape.py``, 6.3.  labelme shows, and writes
coordinates of, the upright picture (`apply_exif_orientation`).
"""

from __future__ import annotations

import base64
import binascii
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.codecs.pillow import open_image
from fastdata.errors import ImageError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field

from .base import reject_reason
from .reading.annotations.annotated import upright_frame_of
from .reading.annotations.shapes import (
    Shape,
    numbers,
    object_fields,
    object_values,
    of_bitmap,
    of_box,
    of_ellipse,
    of_polygon,
)
from .reading.class_names import classes_of_texts, numbered
from .reading.image_files import files_below, is_image_name
from .reading.image_list import ImageListSource
from .reading.json_files import read_object
from .reading.locations import path_inside, printable, start_of_first
from .reading.options import CheckSize, ClassFile, PaintedMasks, SplitOption
from .reading.selection import left_out
from .reading.splits import split_folders_in

__all__ = ["LabelmeSource"]

_SHAPES = re.compile(rb'"shapes"\s*:\s*\[')
_OWN = re.compile(rb'"(shape_type|imagePath|points|flags)"\s*:')
_PEEK = 1 << 16


class LabelmeSource(ImageListSource):
    """Images with the boxes and classes of their shapes."""

    name = "labelme"
    summary = "labelme: a JSON file of polygons, rectangles, circles and masks for each image"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        inner = [*split_folders_in(folder), "annotations", "labels", "json", "jsons"]
        return any(_holds_shapes(folder / name) for name in ("", *inner))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        masks: PaintedMasks = None,
        classes: ClassFile = None,
        check_size: CheckSize = True,
    ) -> dict[str, Field]:
        if not location.is_dir():
            raise SourceError(f"{location}: not a folder")
        names = [name for name in split_folders_in(location) if any(_jsons(location, name))]
        splits = self.choose_splits(names or [""], split)
        labels: set[str] = set()
        self._kinds: Counter[str] = Counter()
        self._taken = 0
        for name in splits:
            for path in _jsons(location, name):
                labels |= self._add(path, self.split_number(name))
        if not self.num_samples:
            raise SourceError(f"{location}: no JSON files of labelme in it")
        known = classes_of_texts(labels, str(location), classes)
        self.reader = LabelmeReader(numbered(known), masks, check_size)
        shown = [f"{count:,} shapes of kind {kind}" for kind, count in self._kinds.items()]
        self.notes += left_out("of annotations", [*sorted(shown), "flags", "group_id"])
        images = sum(is_image_name(file) for name in splits for file in files_below(location, name))
        if images > self._taken:
            self.notes.append(f"{images - self._taken:,} images without a JSON file left out")
        return {**object_fields(masks, known), **self.split_field()}

    def _add(self, path: str, split: dict[str, int]) -> set[str]:
        """Add the image of a file; return the labels of its shapes."""
        try:
            content = read_labelme(self.root / path)
            image = self._image_of(path, content)
            self._taken += image != path
            self.add(image, path, **split)
        except (OSError, SourceError) as error:
            self.reject(path, reject_reason(path, error))
            return set()
        for entry in content["shapes"]:
            if kind_of(entry) not in AREAS:
                self._kinds[printable(kind_of(entry)[:40])] += 1
        labels = (entry.get("label") for _, entry in area_shapes(content))
        return {label for label in labels if isinstance(label, str)}

    def _image_of(self, path: str, content: dict[str, Any]) -> str:
        """Return the image of a file, relative to the root; the file where it is in there."""
        named = content.get("imagePath")
        if isinstance(named, str) and named:
            relative = os.path.join(os.path.dirname(path), named.replace("\\", "/"))
            beside = os.path.join(os.path.dirname(path), re.split(r"[/\\]", named)[-1])
            for name in (os.path.normpath(relative), beside):
                try:
                    if os.path.isfile(path_inside(self.root, name)):
                        return name
                except SourceError:  # outside of the folder: the next is inside
                    continue
        if embedded(content) is None:
            raise SourceError(
                f"its image {named!r:.200} is not in {self.root}, and not in the file"
            )
        return path


def _jsons(root: Path, place: str) -> Iterator[str]:
    return (name for name in files_below(root, place) if name.endswith(".json"))


def _holds_shapes(folder: Path) -> bool:
    """Tell whether the first JSON file of a folder has shapes."""
    start = start_of_first(folder, ".json", _PEEK)
    return bool(_SHAPES.search(start) and _OWN.search(start))


# -- one file, read by a worker ----------------------------------------------------------


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
        """Return the values of an image; errors name file and shape."""
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
        # As in labelme: later shapes are on top.
        values = object_values(found, frame, self.masks, range(len(found)))
        return {"image": data, **values}


def read_labelme(path: Path) -> dict[str, Any]:
    """Return the content of a file."""
    content = read_object(path, _LARGEST)
    shapes = content.get("shapes")
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise SourceError(f"{path.name}: not of labelme: its shapes are not a list of objects")
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
        raise ValueError("its points are not a list of x and y")
    return numbers(value for pair in pairs for value in pair).reshape(-1, 2)


def _bitmap(data: bytes) -> NDArray[np.bool_]:
    try:
        with open_image(data, MAX_PIXELS) as image:
            return np.asarray(image.convert("L")) > 0
    except ImageError as error:
        raise ValueError(f"its mask is not an image: {error}") from error
