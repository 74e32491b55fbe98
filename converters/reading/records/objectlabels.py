"""The labels of a RecordIO file for detection: a head, then so many numbers an object.

::

    2  5  | 0  0.1  0.1  0.5  0.9 | 3  ...
    A  B    class  xmin ymin xmax ymax

A is how many numbers the head has (others may follow the two), B how many an object has; boxes are
parts of the picture's width and height, and an object of class -1 fills up.  Source: MXNet's
``ImageDetIter`` (``python/mxnet/image/detection.py``) and the detection tutorial of GluonCV.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..annotations.annotated import frame_of

__all__ = ["objects_of", "placed_objects", "width_of_objects"]

_BEYOND = 0.1
"""How much of a picture's size a box may stand out of it; more is no part of a size."""


def objects_of(labels: Any) -> tuple[Any, Any]:
    """Return boxes, N x 4 in parts of the picture, and classes.

    Raises
    ------
    ValueError
        If these are no labels of objects.
    """
    numbers = np.asarray(labels, np.float64)
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        raise ValueError("the labels have no head of objects")
    head, width = numbers[:2]
    if not (head.is_integer() and width.is_integer() and 2 <= head <= len(numbers) and width >= 5):
        raise ValueError(f"the labels begin with {head:g} and {width:g}, which is no head")
    if (len(numbers) - int(head)) % int(width):
        raise ValueError(f"{len(numbers)} labels are not a head of {head:g} and {width:g} each")
    rows = numbers[int(head) :].reshape(-1, int(width))
    rows = rows[rows[:, 0] != -1]
    classes, boxes = rows[:, 0], rows[:, 1:5]
    if np.any(classes < 0) or np.any(classes != np.rint(classes)):
        raise ValueError("the class of an object is no whole number")
    if boxes.size and not (boxes.min() >= -_BEYOND and boxes.max() <= 1 + _BEYOND):
        raise ValueError(f"boxes from {boxes.min():g} to {boxes.max():g}: no parts of a picture")
    if np.any(boxes[:, 2:] < boxes[:, :2]):
        raise ValueError("a box ends before it begins")
    return boxes, classes.astype(np.int64)


def width_of_objects(rows: Sequence[Any]) -> int:
    """Return how many numbers objects have, if labels are of objects; else 0.

    Parameters
    ----------
    rows : sequence
        The labels of the first records, of which one at least must have an object.
    """
    found = 0
    try:
        for row in rows:
            found += len(objects_of(row)[1])
    except ValueError:
        return 0
    return int(rows[0][1]) if found else 0


def placed_objects(labels: Any, image: bytes) -> tuple[Any, Any]:
    """Return boxes in pixels of the image file, and classes.

    Raises
    ------
    ValueError
        If these are no labels of objects, or the image cannot be read.
    """
    boxes, classes = objects_of(labels)
    frame = frame_of(image, None)
    size = (frame.width, frame.height, frame.width, frame.height)
    return (boxes * size).astype(np.float32), classes
