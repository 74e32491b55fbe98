"""The form and unit of boxes: the option ``boxes=``, and a guess by the numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError, SourceError

from .options import Option

__all__ = ["BoxNumbers", "BoxesOption", "fitting_forms", "parse_boxes"]

_FORMS = ("xyxy", "xywh", "cxcywh", "yxyx")
_UNITS = ("pixels", "normalised")
_TOLERANCE = 1.0
"""Pixels that a box may exceed its image by."""

BoxesOption: TypeAlias = Annotated[
    tuple[str, ...], Option("what boxes are: xyxy, xywh, cxcywh or yxyx, and pixels or normalised")
]


class BoxNumbers(NamedTuple):
    """The form and the unit of boxes; empty where they are not known."""

    # ``xyxy``: left, top, right, bottom.  ``xywh``: left, top, width, height.  ``cxcywh``: the
    # centre, then width and height.  ``yxyx``: top, left, bottom, right, as TensorFlow has it.
    form: str = ""
    unit: str = ""  # ``pixels`` or ``normalised``: parts of the image's width and height

    def pixels(self, boxes: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
        """Return boxes, [n, 4], as left, top, right and bottom in pixels of an image.

        Raises SourceError if one is inside out or outside of the image.
        """
        corners = self.corners(boxes, height, width)
        for box in corners.tolist():
            left, top, right, bottom = box
            shown = ", ".join(f"{value:g}" for value in box)
            if not all(map(math.isfinite, box)) or right < left or bottom < top:
                raise SourceError(f"its box {shown} (left, top, right, bottom) is inside out")
            if left >= width or top >= height or right < 0 or bottom < 0:
                raise SourceError(
                    f"its box {shown} (left, top, right, bottom) is outside of the picture, which "
                    f"has {width} x {height} pixels. The numbers may mean something "
                    "else: --option boxes=xyxy, xywh, cxcywh or yxyx, and pixels or normalised"
                )
        return corners

    def corners(self, boxes: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
        """Return boxes as `pixels` does, without a check."""
        boxes = boxes.reshape(-1, 4).astype(np.float64)
        if self.form == "yxyx":
            boxes = boxes[:, [1, 0, 3, 2]]
        elif self.form != "xyxy":
            first, size = boxes[:, :2], boxes[:, 2:]
            start = first if self.form == "xywh" else first - size / 2
            boxes = np.concatenate([start, start + size], 1)
        return boxes * [width, height, width, height] if self.unit == "normalised" else boxes

    def fits(self, boxes: NDArray[Any], size: tuple[int, int] | None) -> bool:
        """Tell whether boxes may be of this form, by the size of their image as far as known."""
        height, width = size or (1, 1)
        left, top, right, bottom = self.corners(boxes, height, width).T
        known = size is not None or self.unit == "normalised"
        slack = _TOLERANCE if size is not None or self.unit == "pixels" else 0.01
        inside = (left >= -slack) & (top >= -slack) & (right >= left) & (bottom >= top)
        if known:
            inside &= (right <= width + slack) & (bottom <= height + slack)
        return bool(inside.all())


def parse_boxes(words: Sequence[str], *, whole: bool = False) -> BoxNumbers:
    """Return the form and the unit in the option ``boxes=``; it may have only one.

    whole: whether it has to say both.
    """
    chosen = {"form": "", "unit": ""}
    for word in words:
        part = "form" if word in _FORMS else "unit"
        if word not in (*_FORMS, *_UNITS) or chosen[part]:
            raise OptionError(
                f"boxes={','.join(words)}: expected none, one of {', '.join(_FORMS)}, and "
                f"{' or '.join(_UNITS)}"
            )
        chosen[part] = word
    if whole and words and not all(chosen.values()):
        raise OptionError(f"boxes={','.join(words)}: say both: boxes=xywh,pixels")
    return BoxNumbers(**chosen)


def fitting_forms(
    boxes: Sequence[NDArray[Any]], sizes: Sequence[tuple[int, int] | None]
) -> list[BoxNumbers]:
    """Return the forms and units that fit the boxes of some images, [n, 4] each.

    sizes: height and width of each image; None where it is not known.
    """
    numbers = np.concatenate([each.reshape(-1) for each in boxes] or [np.zeros(0)])
    if not numbers.size:
        return []
    units = list(_UNITS)
    if numbers.max() > 2:
        units.remove("normalised")
    elif not np.array_equal(numbers, np.rint(numbers)):
        units.remove("pixels")
    return [
        form
        for form in itertools.starmap(BoxNumbers, itertools.product(_FORMS, units))
        if all(map(form.fits, boxes, sizes))
    ]
