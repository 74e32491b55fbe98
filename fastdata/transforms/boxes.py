"""Boxes follow their images through geometry, and go where too little of them is left.

Along each axis, whatever a `Geometry` does to a place is one stretch, one shift and one
cut: windows cut to an interval, and an interval that is stretched, shifted and cut is one
again.  So a batch has a few numbers an image, however many steps were planned, and its boxes
are moved all at once, on the device where they are.  A warp moves the four corners of a box, and
the rectangle around them is the box from then on.

Boxes stay in line with their labels: a crop that misses one leaves it with a height or
width of 0.  `DropEmptyBoxes` drops such boxes.  How many are left is known only when they are
computed, so it is done where waiting costs nothing: on the CPU, beside all other fields, unless
boxes are moved on a device before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fastdata.errors import OptionError
from fastdata.schema import ArrayField, Schema
from fastdata.transforms.base import Sample, kind_of, names_tuple, parse, positive_number
from fastdata.transforms.displacement import at_places
from fastdata.transforms.geometry import CentreCut, Geometry, Ints, Scales, Windows
from fastdata.transforms.image_tensors import to_device
from fastdata.transforms.warps import Warps, adjugates

__all__ = [
    "BoundDrop",
    "Boxes",
    "DropEmptyBoxes",
    "boxes_by_image",
    "check_entries",
    "move_boxes",
    "restored_boxes",
    "transform_boxes",
]


class Boxes(NamedTuple):
    """Boxes of a batch, those of one image after another.

    Attributes
    ----------
    boxes : ndarray of float64, shape [m, 4]
        Left, top, right and bottom, in pixels from the top left corner.
    counts : ndarray of int64, shape [n]
        How many are of each image.
    kept : ndarray of int64, shape [m]
        Which of the boxes given these are: for their labels.
    """

    boxes: NDArray[np.float64]
    counts: Ints
    kept: Ints


def transform_boxes(
    geometry: Geometry,
    boxes: ArrayLike,
    counts: ArrayLike,
    *,
    drop_empty: bool = False,
    min_side: float = 0.0,
) -> Boxes:
    """Return boxes where `geometry` moves them, cut off at the edges of every crop.

    Parameters
    ----------
    geometry : Geometry
        Planned for n images.
    boxes : array_like, shape [m, 4]
        Left, top, right and bottom in pixels of the images as they are stored, those of
        the first image first.
    counts : array_like of int, shape [n]
        How many are of each image.
    drop_empty : bool
        Whether boxes of which nothing is left to see go; else they stay, with a height or
        width of 0.
    min_side : float
        With `drop_empty`: boxes go whose height or width is less, in pixels of the result.

    Returns
    -------
    Boxes

    Raises
    ------
    OptionError
        If shapes do not fit.

    Notes
    -----
    Thread-safe.  No work is done once an image or box.
    """
    corners, numbers = np.array(boxes, np.float64), np.asarray(counts, np.int64)
    if corners.shape != (numbers.sum(), 4) or numbers.shape != (len(geometry),):
        raise OptionError(
            f"boxes are [m, 4] with one count for each of {len(geometry)} images, m in all, not "
            f"{corners.shape} with counts of shape {numbers.shape} and sum {numbers.sum()}"
        )
    images = np.repeat(np.arange(len(geometry)), numbers)
    moved = _moved(geometry, torch.from_numpy(corners), images).numpy()
    kept = np.arange(len(moved))
    if drop_empty:
        sides = moved[:, 2:] - moved[:, :2]
        kept = np.flatnonzero(((sides > 0) & (sides >= min_side)).all(axis=1))
    return Boxes(moved[kept], np.bincount(images[kept], minlength=len(geometry)), kept)


def move_boxes(geometry: Geometry, boxes: Any, name: str = "boxes") -> Any:
    """Return a batch's field of boxes where `geometry` moves them, cut off at crops' edges.

    Parameters
    ----------
    geometry : Geometry
        Planned for n images.
    boxes : list of n tensors [..., 4], or tensor [n, ..., 4]
        Left, top, right and bottom in pixels of the images, of any dtype of numbers, on any
        one device.  Never written to.
    name : str
        Of the field, for messages.

    Returns
    -------
    list of tensors, or tensor
        As `boxes`: same shapes, dtype and device.  A box of which nothing is left to see has
        a height or width of 0.  Whole numbers are rounded, and kept within their dtype.
        Those of a list are views of one memory.

    Raises
    ------
    OptionError
        If these are no boxes of n images.

    Notes
    -----
    Thread-safe.  Computed in float64; a device is not waited for.
    """
    _check(boxes, len(geometry), name)
    if (geometry.identity and not geometry.centred) or not len(geometry):
        return boxes
    if isinstance(boxes, torch.Tensor):
        flat = boxes.reshape(-1, 4)
        counts = np.full(len(boxes), len(flat) // len(boxes))
    else:
        flat = torch.cat([some if some.ndim == 2 else some.reshape(-1, 4) for some in boxes])
        counts = np.array([some.numel() // 4 for some in boxes])
    moved = _moved(geometry, flat.double(), np.repeat(np.arange(len(geometry)), counts))
    moved = restored_boxes(moved, flat)
    if isinstance(boxes, torch.Tensor):
        return moved.view(boxes.shape)
    parts = torch.split(moved, counts.tolist())
    return [
        part if some.ndim == 2 else part.view(some.shape)  # a view takes 2 us
        for part, some in zip(parts, boxes, strict=True)
    ]


def _check(boxes: Any, count: int, name: str) -> None:
    """Raise `OptionError` unless these are boxes of so many images."""
    for some in boxes if isinstance(boxes, Sequence) else [boxes]:
        if not (isinstance(some, torch.Tensor) and some.ndim and some.shape[-1] == 4):
            raise OptionError(
                f"{name!r} holds boxes, tensors [..., 4], which geometric transforms move along; a "
                f"callable made {kind_of(some)} of some: put the geometric transforms before it"
            )
    if len(boxes) != count:
        raise OptionError(f"{name!r} holds boxes of {len(boxes)} images, not of {count}")


def _moved(geometry: Geometry, boxes: torch.Tensor, images: Ints) -> torch.Tensor:
    """Return boxes, float64 [m, 4], after `geometry`; `images`, int64 [m], says whose they are."""
    if geometry.parts:
        moved = boxes.clone()
        for places, part in geometry.parts:
            number = np.full(len(geometry), -1)
            number[places] = np.arange(len(places))
            own = np.flatnonzero(number[images] >= 0)
            rows = to_device(own, boxes.device)
            moved[rows] = _moved(part, boxes[rows], number[images[own]])
        return moved
    moved, rest = boxes, geometry
    for step in geometry.steps:
        if isinstance(step, Warps):
            at = rest.steps.index(step)
            before = Geometry.of(rest.source_height, rest.source_width)
            before = replace(before, steps=rest.steps[:at])
            moved = _stretched(before, moved, images)
            moved = _warped(step, moved, images)
            size = step.height, step.width
            rest = replace(
                rest, source_height=size[0], source_width=size[1], steps=rest.steps[at + 1 :]
            )
    moved = _stretched(rest, moved, images)
    for cut in geometry.centred:
        moved.masked_fill_(_cut_away(cut, boxes, images)[:, None], 0)
    return moved


def _warped(step: Warps, boxes: torch.Tensor, images: Ints) -> torch.Tensor:
    """Return boxes around where a warp moves the corners of `boxes`, cut off at the edges."""
    device = boxes.device
    x_by, y_by, depth_by = to_device(adjugates(step.matrix)[images], device)[:, :, None].unbind(1)
    ones = torch.ones_like(boxes)
    corners = torch.stack([boxes[:, [0, 2, 2, 0]], boxes[:, [1, 1, 3, 3]], ones], 2)
    depth = (corners * depth_by).sum(2)
    x, y = (corners * x_by).sum(2) / depth, (corners * y_by).sum(2) / depth
    # What reaches to the horizon of a perspective may be anywhere.
    beyond = ~((depth > 0).all(1) | (depth < 0).all(1))[:, None]
    height, width = (to_device(part[images], device)[:, None] for part in (step.height, step.width))
    if step.displacement is not None:
        # As torchvision does it: no inverse of the field, but near it where the field is smooth.
        pixels = torch.stack([x.ceil().clamp(min=0), y.ceil().clamp(min=0)], 2).long()
        pixels = torch.minimum(pixels, torch.stack([width, height], 2) - 1).view(-1, 2)
        of = np.repeat(images, 4)
        moved = at_places(
            step.keys[of], step.height[of], step.width[of], pixels, step.displacement
        ).view(-1, 4, 2)
        x, y = x - moved[..., 0], y - moved[..., 1]
    sides = []
    for places, length in ((x, width), (y, height)):
        low = torch.where(beyond, 0, places.amin(1, keepdim=True))
        high = torch.where(beyond, length, places.amax(1, keepdim=True))
        sides += [torch.minimum(side.clamp(min=0), length) for side in (low, high)]
    left, right, top, bottom = sides
    # A box that was empty stays empty.
    empty = ((boxes[:, 2:] - boxes[:, :2]) <= 0).any(1, keepdim=True)
    right, bottom = torch.where(empty, left, right), torch.where(empty, top, bottom)
    return torch.cat([left, top, right, bottom], 1)


def _stretched(geometry: Geometry, boxes: torch.Tensor, images: Ints) -> torch.Tensor:
    """Return boxes after a geometry without warps, as of `_moved`."""
    numbers = to_device(_motions(geometry)[images], boxes.device)
    scale, shift, low, high = numbers[:, :8].view(-1, 4, 1, 2).unbind(1)
    corners = boxes.view(-1, 2, 2)
    if geometry.transpose is not None:
        corners = torch.where(numbers[:, 10, None, None] > 0, corners.flip(2), corners)
    corners = corners * scale + shift
    corners = torch.minimum(torch.maximum(corners, low), high)
    # What was the right edge of a mirrored image is now its left one.
    across = torch.where(numbers[:, 8:9] > 0, corners[:, :, 0].flip(1), corners[:, :, 0])
    down = corners[:, :, 1]
    if numbers.shape[1] > 9:
        down = torch.where(numbers[:, 9:10] > 0, down.flip(1), down)
    return torch.stack([across, down], 2).view(-1, 4)


def _cut_away(cut: CentreCut, boxes: torch.Tensor, images: Ints) -> torch.Tensor:
    """Return which boxes have a centre outside the crop of their image, bool [m]."""
    before = _moved(cut.before, boxes, images)
    windows = to_device(cut.windows[images], boxes.device)
    centres = (before[:, :2] + before[:, 2:]) / 2
    low = windows[:, :2].flip(1)
    inside = (centres > low) & (centres < low + windows[:, 2:].flip(1))
    return ~inside.all(1) & to_device(cut.which[images], boxes.device)


def boxes_by_image(columns: Mapping[str, Any], count: int) -> list[NDArray[np.float64]]:
    """Return the boxes of each of n images, float64 [k, 4], those of all fields together.

    `columns` are fields of boxes as `move_boxes` takes them.
    """
    fields = []
    for name, boxes in columns.items():
        _check(boxes, count, name)
        parts = [some.reshape(-1, 4) for some in boxes]
        flat = torch.cat(parts).double().cpu().numpy() if parts else np.empty((0, 4))
        fields.append(np.split(flat, np.cumsum([len(part) for part in parts])[:-1]))
    if len(fields) == 1:
        return fields[0][:count]
    return [np.concatenate(parts) for parts in zip(*fields, strict=True)][:count]


def _motions(geometry: Geometry) -> NDArray[np.float64]:
    """Return what happens to places in each image: float64 [n, 9] or [n, 11].

    Pairs (across, down): times the first, plus the second, no less than the third and no
    more than the fourth.  Then whether the image is mirrored left to right; and, if any image is
    mirrored top to bottom or transposed, whether it is.
    """
    scale, shift = np.ones((len(geometry), 2)), np.zeros((len(geometry), 2))
    low, high = np.full_like(shift, -np.inf), np.full_like(shift, np.inf)
    size = np.stack([geometry.source_width, geometry.source_height], 1)
    for step in geometry.steps:
        after = np.stack([step.width, step.height], 1)
        if isinstance(step, Windows):
            corner = np.stack([step.left, step.top], 1)
            shift -= corner
            # A window that is all of an image cuts nothing.
            cuts = ((corner != 0) | (after != size)).any(1, keepdims=True)
            low = np.where(cuts, np.clip(low - corner, 0, after), low)
            high = np.where(cuts, np.clip(high - corner, 0, after), high)
        elif isinstance(step, Scales):
            factor = after / size
            scale, shift, low, high = (part * factor for part in (scale, shift, low, high))
        size = after
    flips = [geometry.flip]
    if geometry.flip_rows is not None or geometry.transpose is not None:
        none = np.zeros_like(geometry.flip)
        turned = none if geometry.transpose is None else geometry.transpose
        for part in (scale, shift, low, high):
            part[turned] = part[turned, ::-1]
        flips += [none if geometry.flip_rows is None else geometry.flip_rows, turned]
    for axis, (flip, length) in enumerate(
        zip(flips[:2], (geometry.width, geometry.height), strict=False)
    ):
        length = length[flip]
        scale[flip, axis] *= -1
        shift[flip, axis] = length - shift[flip, axis]
        low[flip, axis], high[flip, axis] = length - high[flip, axis], length - low[flip, axis]
    return np.concatenate([scale, shift, low, high, *(part[:, None] for part in flips)], 1)


def restored_boxes(boxes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return boxes, float [k, 4], in the dtype of `like`; whole numbers are rounded into it."""
    if not like.is_floating_point():
        limits = torch.iinfo(like.dtype)
        boxes = boxes.round().clamp(limits.min, limits.max)
    return boxes.to(like.dtype)


def check_entries(
    schema: Schema,
    sample: Sample,
    boxes: str,
    also: tuple[str, ...] | None,
    already_dropped: Sequence[str] = (),
) -> None:
    """Raise `OptionError` if boxes were dropped whose entries of other fields would stay.

    `sample` is as before, `also` the fields with one entry a box (None if the user has not named
    them), and `already_dropped` those whose entries are dropped already.
    """
    count = len(getattr(sample, boxes))
    for name, field in schema.items():
        if name in already_dropped:
            continue
        varies = isinstance(field, ArrayField) and field.shape[0] is None and name != boxes
        if also is None and varies and len(getattr(sample, name)) == count:
            raise OptionError(
                f"boxes of {boxes!r} were dropped, and {name!r} has one entry for each of the "
                f"{count} there were, as labels of boxes have. Name such fields, so that their "
                f"entries are dropped too: also={name!r}; or say that there are none: also=()"
            )
        if also and name in also and len(getattr(sample, name)) != count:
            raise OptionError(
                f"a sample has {count} {boxes!r}, but {len(getattr(sample, name))} {name!r}: "
                "fields named in also= have one entry a box"
            )


@dataclass(frozen=True)
class DropEmptyBoxes:
    """Leave out boxes of which too little is left, and their entries of other fields.

    Put it behind the geometric transforms.  Images whose boxes are all gone stay.

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
        parse(self, also=names_tuple)
        positive_number("min_side", self.min_side)

    def bind(self, schema: Schema) -> BoundDrop:
        """Return the same for the fields of `schema`, which are checked."""
        boxes = list(schema.boxes) if self.boxes is None else [self.boxes]
        if len(boxes) != 1 or boxes[0] not in schema.boxes:
            raise OptionError(
                f"DropEmptyBoxes drops from one field of boxes, not from "
                f"{' or '.join(map(repr, boxes)) or 'none'}; name one with boxes= (there are: "
                f"{', '.join(schema.boxes) or 'none; a field says boxes=True in its schema'})"
            )
        for name in (*boxes, *self.also):
            field = schema.get(name)
            varies = isinstance(field, ArrayField) and field.shape[0] is None
            if not varies or None in field.shape[1:]:  # type: ignore[union-attr]
                raise OptionError(
                    f"DropEmptyBoxes drops entries of {name!r}, which has to be an array field "
                    f"whose first length varies, and no other; it is {field or 'no field'}"
                )
        return BoundDrop(boxes[0], tuple(self.also), float(self.min_side))


@dataclass(frozen=True)
class BoundDrop:
    """A `DropEmptyBoxes` bound to the fields of a dataset; picklable and thread-safe."""

    boxes: str
    also: tuple[str, ...]
    min_side: float

    def __call__(self, values: dict[str, Any], indices: NDArray[np.int64]) -> None:
        """Drop from a batch: the lists of n tensors [k, ...] in `values` are replaced.

        `indices`, int64 [n], are the samples, for messages.  Waits for a GPU where boxes are
        on one.
        """
        names = (self.boxes, *self.also)
        for name in names:
            for some in values[name]:
                if not (isinstance(some, torch.Tensor) and some.ndim):
                    raise OptionError(
                        f"DropEmptyBoxes takes {name!r} as tensors [k, ...], but a callable made "
                        f"{type(some).__name__} of it; put DropEmptyBoxes before it"
                    )
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
        stays = (sides >= self.min_side).all(1).cpu().numpy()
        if stays.all():
            return
        images = np.repeat(np.arange(len(counts)), counts)
        new_counts = np.bincount(images[stays], minlength=len(counts)).tolist()
        rows = to_device(np.flatnonzero(stays), boxes.device)
        for name in names:
            whole = boxes if name == self.boxes else torch.cat(list(values[name]))
            values[name] = list(torch.split(whole[rows.to(whole.device)], new_counts))
