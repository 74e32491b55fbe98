"""Boxes of which nothing, or too little, is left to see go, and what belongs to them.

Boxes stay in line with their labels: a crop that misses one leaves it with a height or
width of 0.  Who wants them gone says so with `DropEmptyBoxes`.  How many are left is known
only when they are computed, so it is done where waiting costs nothing: on the CPU, with the
rest of what is no image, unless boxes are moved on a device before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Schema
from fastdata.transforms.some import to_device

__all__ = ["BoundDrop", "DropEmptyBoxes"]


@dataclass(frozen=True)
class DropEmptyBoxes:
    """Leave out boxes of which too little is left, and their entries of other fields.

    To be put behind the geometric transforms; it takes no time of pixels.  Images whose
    boxes are all gone stay.

    Parameters
    ----------
    boxes : str, optional
        The field of boxes, of shape (None, 4); by default the only one.
    also : str or sequence of str
        Fields with an entry a box, such as classes: arrays whose first length varies.
    min_side : float
        Boxes less high or less wide than this go, in pixels of the image as it is then;
        above 0.

    Raises
    ------
    OptionError
        If `min_side` is not above 0; where the fields are not as said; and when run, if the
        fields of a sample differ in length.

    Notes
    -----
    As torchvision's `SanitizeBoundingBoxes` with `min_size`, whose default 1.0 is.

    Examples
    --------
    >>> DropEmptyBoxes(also=("classes",), min_side=4)
    DropEmptyBoxes(boxes=None, also=('classes',), min_side=4)
    """

    boxes: str | None = None
    also: str | Sequence[str] = ()
    min_side: float = 1.0

    def __post_init__(self) -> None:
        also = (self.also,) if isinstance(self.also, str) else tuple(self.also)
        object.__setattr__(self, "also", also)
        try:
            right = 0 < float(self.min_side) < math.inf
        except (TypeError, ValueError):
            right = False
        if not right:
            raise OptionError(f"min_side is a number above 0, not {self.min_side!r}")

    def bind(self, schema: Schema) -> BoundDrop:
        """Return the same for the fields of `schema`, which are checked."""
        found = list(schema.boxes) if self.boxes is None else [self.boxes]
        if len(found) != 1 or found[0] not in schema.boxes:
            raise OptionError(
                f"DropEmptyBoxes drops from one field of boxes, not from "
                f"{' or '.join(map(repr, found)) or 'none'}; name one with boxes= (there are: "
                f"{', '.join(schema.boxes) or 'none; a field says boxes=True in its schema'})"
            )
        for name in (*found, *self.also):
            field = schema.get(name)
            varies = isinstance(field, ArrayField) and field.shape[0] is None
            if not varies or None in field.shape[1:]:  # type: ignore[union-attr]
                raise OptionError(
                    f"DropEmptyBoxes drops entries of {name!r}, which has to be an array field "
                    f"whose first length varies, and no other; it is {field or 'no field'}"
                )
        return BoundDrop(found[0], tuple(self.also), float(self.min_side))


@dataclass(frozen=True)
class BoundDrop:
    """A `DropEmptyBoxes` that knows its fields; picklable and thread-safe."""

    boxes: str
    also: tuple[str, ...]
    min_side: float

    def __call__(self, values: dict[str, Any], indices: NDArray[np.int64]) -> None:
        """Drop from a batch.

        Parameters
        ----------
        values : dict of str to field
            Those that are changed are replaced: lists of n tensors [k, ...], on one device.
            A GPU is waited for.
        indices : ndarray of int64, shape [n]
            Samples, for messages.
        """
        names = (self.boxes, *self.also)
        for name in names:
            _check_tensors(name, values[name])
        counts = [len(some) for some in values[self.boxes]]
        for name in self.also:
            lengths = [len(some) for some in values[name]]
            if lengths != counts:
                at = next(i for i, n in enumerate(lengths) if n != counts[i])
                raise OptionError(
                    f"sample {indices[at]} has {counts[at]} {self.boxes!r}, but {lengths[at]} "
                    f"{name!r}: fields named in also= have one entry a box"
                )
        if not counts:
            return
        boxes = torch.cat(list(values[self.boxes]))
        sides = boxes[:, 2:].double() - boxes[:, :2].double()
        seen = (sides >= self.min_side).all(1).cpu().numpy()
        if seen.all():
            return
        left = np.bincount(np.repeat(np.arange(len(counts)), counts)[seen], minlength=len(counts))
        kept = to_device(np.flatnonzero(seen), boxes.device)
        for name in names:
            whole = boxes if name == self.boxes else torch.cat(list(values[name]))
            values[name] = list(torch.split(whole[kept.to(whole.device)], left.tolist()))


def _check_tensors(name: str, value: Any) -> None:
    wrong = [some for some in value if not (isinstance(some, torch.Tensor) and some.ndim)]
    if wrong:
        raise OptionError(
            f"DropEmptyBoxes takes {name!r} as tensors [k, ...], but a callable made "
            f"{type(wrong[0]).__name__} of it; put DropEmptyBoxes before it"
        )
