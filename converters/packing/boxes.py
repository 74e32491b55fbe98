"""Boxes follow their images into a shard, and out of it again.

In a source, boxes are in pixels of the image *file* as its rows and columns lie there; in a
shard they are in pixels of the stored image.  In between packing may turn an image upright,
as its Exif orientation says, then resize it, then cut its middle out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import ImageError
from fastdata.schema import Field, ImageField, Schema

from ..reading.box_forms import BoxNumbers

__all__ = ["Placement", "check_masks", "image_with_boxes", "place_boxes", "turn_boxes"]

_BACK = {6: 8, 8: 6}
"""Orientations that another one undoes; the rest undo themselves."""


class Placement(NamedTuple):
    """Where the pixels of an image file are in a shard."""

    size: tuple[int, int]
    """Height and width of the image, upright."""
    orientation: int
    """The Exif orientation, 1 to 8, by which it was turned upright."""
    resized: tuple[int, int]
    """Height and width after resizing."""
    window: tuple[int, int, int, int] | None = None
    """What was then cut out: top, left, height, width."""


def image_with_boxes(schema: Schema) -> str:
    """Return the image field that boxes belong to: the first that is no mask, if there is one."""
    fields = schema.images
    return next((name for name, field in fields.items() if not field.mask), next(iter(fields)))


def check_masks(fields: Iterable[tuple[str, Field]], images: Mapping[str, Any]) -> None:
    """Refuse a mask whose size differs from that of its image, the first field without `mask`.

    images: objects with height and width, by field.
    """
    here = [(n, f) for n, f in fields if isinstance(f, ImageField) and n in images]
    image = next((images[name] for name, field in here if not field.mask), None)
    for name, field in here:
        mask = images[name]
        if image and field.mask and (mask.height, mask.width) != (image.height, image.width):
            raise ImageError(
                f"the mask {name!r} has {mask.width} x {mask.height} pixels and its image "
                f"{image.width} x {image.height}: both must have the same size"
            )


def place_boxes(
    boxes: NDArray[Any], placement: Placement, form: BoxNumbers | None = None
) -> NDArray[Any]:
    """Return boxes of an image file, [..., 4], in pixels of the image as it is stored.

    form: what their numbers are; by default left, top, right and bottom, in pixels of the file.
    Left, top, right and bottom, of the same dtype: whole numbers are rounded and kept within its
    range.  Boxes outside of the window have a height or width of 0; without a window, what was
    outside of the image is so still.
    """
    size, orientation, resized, window = placement
    if form is not None:
        height, width = size[::-1] if orientation >= 5 else size
        boxes = form.pixels(boxes, height, width).astype(boxes.dtype)
    upright = turn_boxes(boxes, orientation, size)
    if resized == size and window is None:
        return upright
    factor = np.array([resized[1] / size[1], resized[0] / size[0]] * 2)
    moved = upright.astype(np.float64) * factor
    if window is not None:
        top, left, height, width = window
        moved = np.clip(moved - [left, top, left, top], 0, [width, height, width, height])
    return _cast(moved, boxes.dtype)


def turn_boxes(
    boxes: NDArray[Any], orientation: int, size: tuple[int, int], *, back: bool = False
) -> NDArray[Any]:
    """Return boxes, [..., 4], after an Exif orientation, 1 to 8, has been applied to the image.

    `size` is the height and width of the image that the boxes returned are of.  `back` undoes
    the orientation instead.
    """
    if orientation == 1:
        return boxes
    if back:
        orientation = _BACK.get(orientation, orientation)
    height, width = size
    left, top, right, bottom = np.moveaxis(boxes.astype(np.float64), -1, 0)
    if orientation in (5, 6, 7, 8):
        left, top, right, bottom = top, left, bottom, right
    if orientation in (3, 4, 7, 8):
        top, bottom = height - bottom, height - top
    if orientation in (2, 3, 6, 7):
        left, right = width - right, width - left
    return _cast(np.stack([left, top, right, bottom], -1), boxes.dtype)


def _cast(boxes: NDArray[np.float64], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return boxes.astype(dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(boxes), limits.min, limits.max).astype(dtype)
