"""Images with annotations: which picture boxes are of, and regions painted into masks.

In a source, boxes and masks refer to the rows and columns of the image file.  If a file has
an Exif orientation that swaps these, and the annotations state the swapped size, they refer
to the upright picture.

Regions are polygons and run lengths as COCO has them, painted pixel for pixel as ``pycocotools``
does it (``maskApi.c``: ``rleFrPoly``, ``rleFrString``).  Runs go down the columns, so a mask is
painted lying on its side: a flat array of W x H, in which a run is a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.image_header import claimed_by
from fastdata.codecs.limits import MAX_PIXELS, check_pixels
from fastdata.codecs.pillow import orient
from fastdata.errors import ImageError, OptionError
from fastdata.schema import Field, ImageField

from ...packing.boxes import turn_boxes

__all__ = [
    "Frame",
    "check_parts",
    "frame_of",
    "mask_field",
    "paint",
    "paint_objects",
    "runs_of_string",
    "upright_frame_of",
]

_BEYOND = 0.1
"""Boxes may exceed the picture by this part of its size."""


class Frame(NamedTuple):
    """The picture that annotations are of."""

    height: int  # height, width: in pixels
    width: int
    orientation: int  # exif orientation of the file, 1 to 8
    upright: bool  # whether the annotations are of the picture after that has been applied

    def boxes(self, boxes: Any) -> NDArray[np.float32]:
        """Return boxes, [n, 4], of the rows and columns of the file, as packing takes them."""
        found = np.asarray(boxes, np.float64).reshape(-1, 4)
        if self.upright:
            size = self.height, self.width
            of_file = size[::-1] if self.orientation >= 5 else size
            found = turn_boxes(found, self.orientation, of_file, back=True)
        return found.astype(np.float32)

    def blank(self) -> NDArray[np.uint8]:
        """Return a mask, H x W, of zeros."""
        check_pixels(self.height, self.width, MAX_PIXELS)
        return np.zeros((self.height, self.width), np.uint8)

    def mask(self, mask: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return a mask, H x W, upright, as packing takes pixels."""
        return mask if self.upright else orient(mask, self.orientation)


def frame_of(data: bytes, size: tuple[int, int] | None, check: bool = True) -> Frame:
    """Return the frame of an image file's annotations.

    data: the image file; only its header is read.
    size: height and width that the annotations state.
    """
    height, width, orientation = claimed_by(data)
    if height != width and size == (width, height) and orientation >= 5:
        return Frame(width, height, orientation, True)
    if check and size is not None and size != (height, width):
        raise ImageError(
            f"its annotations are of a picture of {size[1]} x {size[0]} pixels, and it has "
            f"{width} x {height} (--option check_size=false believes the picture)"
        )
    return Frame(height, width, orientation, False)


def upright_frame_of(data: bytes) -> Frame:
    """Return the frame of annotations that refer to the upright picture, as YOLO's do."""
    height, width, orientation = claimed_by(data)
    upright = (width, height) if orientation >= 5 else (height, width)
    return Frame(*upright, orientation, True)


def check_parts(boxes: NDArray[Any]) -> None:
    """Refuse boxes, N x 4 (x1, y1, x2, y2), unless they are parts of a picture's size."""
    if boxes.size and not (boxes.min() >= -_BEYOND and boxes.max() <= 1 + _BEYOND):  # or NaN
        raise ValueError(
            f"boxes from {boxes.min():g} to {boxes.max():g}: they should be parts of the "
            "picture's size, 0 to 1"
        )
    if np.any(boxes[:, 2:] < boxes[:, :2]):
        raise ValueError("a box ends before it begins")


# -- regions ------------------------------------------------------------------------------


_MOST_VALUES = 254
"""Classes or instances in a mask of 8 bits; 0 is the background, and 255 is ignored."""

_UPSAMPLING = 5
_FARTHEST_SIDES = 10
"""Sides of the picture that a corner may be away from it: the time of painting grows with them."""
_MOST_POINTS = 20_000_000
"""Along one outline, 5 a pixel.  That of a picture of 100 million pixels has 200,000."""


def mask_field(masks: str | None, classes: Sequence[str] | None) -> dict[str, Field]:
    """Return the field of masks that objects are painted into; none without the option."""
    if masks == "classes" and len(classes or ()) > _MOST_VALUES:
        raise OptionError(
            f"masks=classes: a mask holds {_MOST_VALUES} classes, and there are "
            f"{len(classes or ())}. masks=instances has no such limit."
        )
    named = ("background", *classes) if classes and masks == "classes" else None
    return {"mask": ImageField(channels=1, mask=True, classes=named)} if masks else {}


def paint_objects(
    frame: Frame,
    masks: str,
    labels: Sequence[int],
    order: Iterable[int],
    region: Callable[[int], Any],
) -> NDArray[np.uint8]:
    """Return a mask, H x W, of the numbers of classes or of objects, from 1 on.

    masks: "classes" or "instances".
    order: of the objects; later ones cover earlier ones.
    region: returns the ``segmentation`` of an object.
    """
    values = [k + 1 if masks == "instances" else label + 1 for k, label in enumerate(labels)]
    if max(values, default=0) > _MOST_VALUES:
        raise ValueError(f"a mask holds {_MOST_VALUES} {masks}; here are {max(values)}")
    flat = frame.blank().reshape(-1)
    for k in order:
        try:
            paint(flat, frame.height, frame.width, region(k), values[k])
        except ValueError as error:
            raise ValueError(f"object {k + 1}: {error}") from None
    return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))


def paint(flat: NDArray[np.uint8], height: int, width: int, region: Any, value: int) -> None:
    """Paint a region of an annotation, its ``segmentation``.

    flat: the mask, one column of pixels behind the other.
    region: polygons ``[[x, y, x, y, ...], ...]``, or ``{"size": [height, width], "counts": ...}``
        with counts as a list or a string.
    """
    if isinstance(region, dict):
        _paint(flat, np.cumsum(_runs(region, height, width)), value)
    elif isinstance(region, list) and region:
        for polygon in region:
            _paint(flat, np.sort(_crossings(polygon, height, width)), value)
    else:
        raise ValueError("its segmentation is neither polygons nor run lengths")


def _runs(region: dict[str, Any], height: int, width: int) -> NDArray[np.int64]:
    counts, size = region.get("counts"), region.get("size")
    if size != [height, width]:
        raise ValueError(f"its segmentation is of size {size}, and not [{height}, {width}]")
    if isinstance(counts, str):
        counts = runs_of_string(counts)
    if not isinstance(counts, list) or not all(type(c) is int and c >= 0 for c in counts):
        raise ValueError("its segmentation has counts that are not run lengths")
    if sum(counts) != height * width:
        raise ValueError(
            f"the runs of its segmentation have {sum(counts):,} pixels, not {height * width:,}"
        )
    return np.array(counts, np.int64)


def runs_of_string(text: str) -> list[int]:
    """Return the run lengths of compressed counts.

    Groups of 5 bits, low ones first, each in a character from "0" on; 0x20 says that more
    follow, 0x10 in the last that the number is negative.  From the fourth number on it is the
    difference to the last but one.
    """
    runs: list[int] = []
    number, shift = 0, 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("its segmentation has counts that are not compressed run lengths")
        number |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            number -= 1 << shift
        runs.append(number + runs[-2] if len(runs) > 2 else number)
        number, shift = 0, 0
    if shift:
        raise ValueError("the counts of its segmentation end too early")
    return runs


def _paint(flat: NDArray[np.uint8], turns: NDArray[np.int64], value: int) -> None:
    """Paint from the first to the second place, from the third to the fourth, and so on."""
    places = [*turns.tolist(), len(flat)]
    for start, stop in zip(places[::2], places[1::2], strict=False):
        flat[start:stop] = value


def _crossings(polygon: Any, height: int, width: int) -> NDArray[np.int64]:
    """Return the places where a path down the columns enters or leaves a polygon."""
    farthest = _FARTHEST_SIDES * max(height, width)
    if not isinstance(polygon, Sequence) or len(polygon) < 6 or len(polygon) % 2:
        raise ValueError("a polygon of its segmentation has not three or more pairs of numbers")
    if not all(type(n) in (int, float) and abs(n) <= farthest for n in polygon):
        raise ValueError("a polygon of its segmentation has numbers that are not near the picture")
    numbers = np.array(polygon, np.float64)
    # Astype cuts towards zero, as a cast does in C; so do the others below.
    corners = (_UPSAMPLING * numbers.reshape(-1, 2) + 0.5).astype(np.int64)
    xs, ys = corners.T
    x_end, y_end = np.roll(xs, -1), np.roll(ys, -1)
    across, down = np.abs(x_end - xs), np.abs(y_end - ys)
    flat = across >= down
    flip = np.where(flat, xs > x_end, ys > y_end)
    steps = np.maximum(across, down)
    if int(steps.sum()) + len(steps) > _MOST_POINTS:
        raise ValueError("a polygon of its segmentation reaches absurdly far")
    from_x, from_y = np.where(flip, x_end, xs), np.where(flip, y_end, ys)
    to_x, to_y = np.where(flip, xs, x_end), np.where(flip, ys, y_end)
    slope = np.where(flat, to_y - from_y, to_x - from_x) / np.maximum(steps, 1)

    # Points along the outline, 5 a pixel: steps[e] + 1 on edge e.
    edge = np.repeat(np.arange(len(steps)), steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - (steps + 1), steps + 1)
    step = np.where(flip[edge], steps[edge] - step, step)
    aside = slope[edge] * step + 0.5
    level = flat[edge]
    u = np.where(level, step + from_x[edge], (from_x[edge] + aside).astype(np.int64))
    v = np.where(level, (from_y[edge] + aside).astype(np.int64), step + from_y[edge])

    # Keep the places where the outline crosses the middle of a column of pixels.
    moved = u[1:] != u[:-1]
    before, after = u[:-1][moved], u[1:][moved]
    x = (np.minimum(before, after) + 0.5) / _UPSAMPLING - 0.5
    y = (np.minimum(v[:-1], v[1:])[moved] + 0.5) / _UPSAMPLING - 0.5
    inside = (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    rows = np.ceil(np.clip(y[inside], 0, height)).astype(np.int64)
    crossings: NDArray[np.int64] = x[inside].astype(np.int64) * height + rows
    return crossings
