"""What the boxes of a list are, and an image with its boxes, put into pixels by a worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdata.regular_files import read_regular

from ..annotations.annotated import frame_of
from ..box_forms import BoxNumbers, parse_boxes

__all__ = ["BoxForm", "box_form"]


class BoxForm(NamedTuple):
    """What the four numbers of a box are."""

    form: str = ""  # form, unit: as in `BoxNumbers`
    unit: str = ""
    check_size: bool = True  # whether an image of another size than the list says is rejected

    def read(self, files: list[str], known: dict[str, Any]) -> dict[str, Any]:
        """Return image and boxes, as a `SampleReader`.

        known: ``boxes``, shape [n, 4], and ``size``, height and width as the list says them, or
            None.
        """
        data = read_regular(files[0])
        frame = frame_of(data, known.get("size"), self.check_size)
        numbers = BoxNumbers(self.form, self.unit)
        boxes = numbers.pixels(known["boxes"], frame.height, frame.width)
        placed = frame.boxes(boxes).astype(np.float32)
        return {"image": data, "boxes": placed.reshape(-1, 4)}


def box_form(words: Sequence[str], check_size: bool = True) -> BoxForm:
    """Return what the option ``boxes=`` says: a form, a unit, or both."""
    return BoxForm(*parse_boxes(words), check_size)
