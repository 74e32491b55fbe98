"""What the boxes of a list are, and an image with its boxes, put into pixels by a worker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular

from ..annotations.annotated import frame_of

__all__ = ["BoxForm", "box_form", "likely_unit"]

_FORMS = ("xyxy", "xywh", "cxcywh", "yxyx")
UNITS = ("pixels", "normalised")


class BoxForm(NamedTuple):
    """What the four numbers of a box are."""

    # ``xyxy``: left, top, right, bottom.  ``xywh``: left, top, width, height.  ``cxcywh``: the
    # centre, then width and height.  ``yxyx``: top, left, bottom, right.  "" where it is not known
    form: str = ""
    unit: str = ""  # ``pixels``, ``normalised`` (parts of the image's width and height), or ""
    check_size: bool = True  # whether an image of another size than the list says is rejected

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return image and boxes, as a `SampleReader`.

        known: ``boxes``, shape [n, 4], and ``size``, height and width as the list says them, or
            None.
        """
        data = read_regular(files[0])
        frame = frame_of(data, known.get("size"), self.check_size)
        boxes = corners(known["boxes"], self.form)
        if self.unit == "normalised":
            boxes = boxes * [frame.width, frame.height, frame.width, frame.height]
        for box in boxes.tolist():
            left, top, right, bottom = box
            shown = ", ".join(f"{value:g}" for value in box)
            if not all(map(math.isfinite, box)) or right < left or bottom < top:
                raise SourceError(f"its box {shown} (left, top, right, bottom) is inside out")
            if left >= frame.width or top >= frame.height or right < 0 or bottom < 0:
                raise SourceError(
                    f"its box {shown} (left, top, right, bottom) is outside of the picture, which "
                    f"has {frame.width} x {frame.height} pixels. The numbers may mean something "
                    "else: --option boxes=xyxy, xywh or cxcywh, and pixels or normalised"
                )
        placed = frame.boxes(boxes).astype(np.float32)
        return {"image": data, "boxes": placed.reshape(-1, 4)}


def box_form(words: Sequence[str], check_size: bool = True) -> BoxForm:
    """Return what the option ``boxes=`` says: a form, a unit, or both."""
    chosen = {"form": "", "unit": ""}
    for word in words:
        part = "form" if word in _FORMS else "unit"
        if word not in (*_FORMS, *UNITS) or chosen[part]:
            raise OptionError(
                f"boxes={','.join(words)}: expected none, one of {', '.join(_FORMS)}, and "
                f"{' or '.join(UNITS)}"
            )
        chosen[part] = word
    return BoxForm(chosen["form"], chosen["unit"], check_size)


def likely_unit(largest: float, whole: bool, place: str) -> str:
    """Return the unit of boxes, by the largest of all numbers and whether all are whole."""
    if largest <= 1 and not whole:
        return "normalised"
    if largest <= 2:
        raise SourceError(
            f"{place}: no number of a box is larger than {largest:g}; are these pixels, or parts "
            "of the image's size? Say which: --option boxes=pixels or --option boxes=normalised"
        )
    return "pixels"


def corners(boxes: NDArray[np.float64], form: str) -> NDArray[np.float64]:
    """Return boxes of any form as left, top, right, bottom."""
    boxes = boxes.reshape(-1, 4)
    if form in ("xyxy", "yxyx"):
        return boxes if form == "xyxy" else boxes[:, [1, 0, 3, 2]]
    first, size = boxes[:, :2], boxes[:, 2:]
    start = first if form == "xywh" else first - size / 2
    return np.concatenate([start, start + size], 1)
