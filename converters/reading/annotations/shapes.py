"""Objects of an image in one form: boxes and outlines.

A format's own module reads its syntax and says ``of_box`` or ``of_polygon``, in pixels of the
picture that was annotated.  The fields that come of these, and
their values, are the same for all: ``boxes`` and ``labels``, and a ``mask`` where it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Field, ImageField

from ..fields import BOXES
from .annotated import Frame
from .regions import paint

__all__ = [
    "Shape",
    "mask_field",
    "numbers",
    "object_fields",
    "object_values",
    "of_box",
    "of_polygon",
]

_MOST = 254
"""Classes or instances that a mask of 8 bits holds beside 0; 255 is left to what ignores it."""

_FARTHEST = 1e7


class Shape(NamedTuple):
    """One object."""

    label: int  # number of its class
    box: tuple[float, float, float, float]  # left, top, right, bottom
    corners: NDArray[np.float64]  # shape [n, 2]; its outline: x and y of each corner
    area: float  # of the outline


def numbers(values: Iterable[Any]) -> NDArray[np.float64]:
    """Return coordinates that data gives, as text or as numbers."""
    given = list(values)
    try:
        found = np.array([float(value) for value in given if not isinstance(value, bool)])
    except (TypeError, ValueError, OverflowError):
        found = np.full(1, math.nan)
    if len(found) != len(given) or not (np.abs(found) < _FARTHEST).all():
        shown = " ".join(map(str, given[:8]))
        raise ValueError(f"expected coordinates, found {shown[:80]!r}")
    return found


def of_polygon(label: int, points: NDArray[np.float64]) -> Shape:
    """Return an object with an outline, [n, 2]."""
    if len(points) < 3:
        raise ValueError(f"a polygon has three or more corners, not {len(points)}")
    x, y = points.T
    area = abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2
    box = (float(x.min()), float(y.min()), float(x.max()), float(y.max()))
    return Shape(label, box, points, area)


def of_box(label: int, box: Sequence[float]) -> Shape:
    """Return a rectangle: left, top, right, bottom."""
    left, top, right, bottom = map(float, box)
    if right < left or bottom < top:
        raise ValueError(f"the box from {left:g}, {top:g} to {right:g}, {bottom:g} is inside out")
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    area = (right - left) * (bottom - top)
    return Shape(label, (left, top, right, bottom), corners, area)


def mask_field(masks: str | None, classes: Sequence[str] | None) -> dict[str, Field]:
    """Return the field of masks that objects are painted into; none without the option."""
    if masks == "classes" and len(classes or ()) > _MOST:
        raise OptionError(
            f"masks=classes: a mask holds {_MOST} classes, and there are {len(classes or ())}. "
            "masks=instances has no such limit."
        )
    named = ("background", *classes) if classes and masks == "classes" else None
    return {"mask": ImageField(channels=1, mask=True, classes=named)} if masks else {}


def object_fields(masks: str | None, classes: tuple[str, ...] | None) -> dict[str, Field]:
    """Return the fields of objects in an image."""
    return {
        **mask_field(masks, classes),
        "boxes": BOXES,
        "labels": ArrayField("int64", (None,), classes=classes),
    }


def object_values(shapes: Sequence[Shape], frame: Frame, masks: str | None) -> dict[str, Any]:
    """Return the values of these fields but the image.

    masks: "", "classes", "instances"; the larger objects are painted first
    """
    boxes = np.array([shape.box for shape in shapes], np.float64).reshape(-1, 4)
    values: dict[str, Any] = {
        "boxes": frame.boxes(boxes).astype(np.float32),
        "labels": np.array([shape.label for shape in shapes], np.int64),
    }
    if masks:
        values["mask"] = _painted(shapes, frame, masks == "instances")
    return values


def _painted(shapes: Sequence[Shape], frame: Frame, instances: bool) -> NDArray[np.uint8]:
    greatest = len(shapes) if instances else max((shape.label + 1 for shape in shapes), default=0)
    if greatest > _MOST:
        what = f"instances; here are {greatest}" if instances else f"classes, not {greatest}"
        raise ValueError(f"a mask holds {_MOST} {what}")
    flat = frame.blank().reshape(-1)
    for k in sorted(range(len(shapes)), key=lambda k: -shapes[k].area):
        shape = shapes[k]
        value = k + 1 if instances else shape.label + 1
        outline = shape.corners.reshape(-1).tolist()
        paint(flat, frame.height, frame.width, [outline], value)
    return frame.mask(np.ascontiguousarray(flat.reshape(frame.width, frame.height).T))
