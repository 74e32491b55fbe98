"""Boxes follow their images through geometry.

Along each axis, whatever a `Geometry` does to a place is one stretch, one shift and one
cut: windows cut to an interval, and an interval that is stretched, shifted and cut is one
again.  So a batch has a few numbers an image, however many steps were planned, and its boxes
are moved all at once, on the device where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fastdata.errors import OptionError
from fastdata.transforms.geometry import Geometry, Ints, Windows
from fastdata.transforms.some import to_device

__all__ = ["Boxes", "move_boxes", "transform_boxes"]


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
    places, numbers = np.array(boxes, np.float64), np.asarray(counts, np.int64)
    if places.shape != (numbers.sum(), 4) or numbers.shape != (len(geometry),):
        raise OptionError(
            f"boxes are [m, 4] with one count for each of {len(geometry)} images, m in all, not "
            f"{places.shape} with counts of shape {numbers.shape} and sum {numbers.sum()}"
        )
    of = np.repeat(np.arange(len(geometry)), numbers)
    places = _moved(geometry, torch.from_numpy(places), of).numpy()
    kept = np.arange(len(places))
    if drop_empty:
        sides = places[:, 2:] - places[:, :2]
        kept = np.flatnonzero(((sides > 0) & (sides >= min_side)).all(axis=1))
    return Boxes(places[kept], np.bincount(of[kept], minlength=len(geometry)), kept)


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
    if geometry.identity or not len(geometry):
        return boxes
    if isinstance(boxes, torch.Tensor):
        flat = boxes.reshape(-1, 4)
        counts = np.full(len(boxes), len(flat) // len(boxes))
    else:
        flat = torch.cat([some if some.ndim == 2 else some.reshape(-1, 4) for some in boxes])
        counts = np.array([some.numel() // 4 for some in boxes])
    moved = _moved(geometry, flat.double(), np.repeat(np.arange(len(geometry)), counts))
    if not flat.is_floating_point():
        limits = torch.iinfo(flat.dtype)
        moved = moved.round_().clamp_(limits.min, limits.max)
    moved = moved.to(flat.dtype)
    if isinstance(boxes, torch.Tensor):
        return moved.view(boxes.shape)
    parts = torch.split(moved, counts.tolist())
    return [
        part if some.ndim == 2 else part.view(some.shape)  # a view takes 2 us
        for part, some in zip(parts, boxes, strict=True)
    ]


def _check(boxes: Any, count: int, name: str) -> None:
    """Raise `OptionError` unless these are boxes of so many images."""
    each = [boxes] if isinstance(boxes, torch.Tensor) else boxes
    wrong = [
        some
        for some in (each if isinstance(each, Sequence) else [boxes])
        if not (isinstance(some, torch.Tensor) and some.ndim and some.shape[-1] == 4)
    ]
    if wrong:
        kind = type(wrong[0]).__name__
        shape = getattr(wrong[0], "shape", None)
        raise OptionError(
            f"{name!r} holds boxes, tensors [..., 4], which geometric transforms move along; a "
            f"callable made {kind}{f' of shape {tuple(shape)}' if shape is not None else ''} of "
            "some: put the geometric transforms before it"
        )
    if len(boxes) != count:
        raise OptionError(f"{name!r} holds boxes of {len(boxes)} images, not of {count}")


def _moved(geometry: Geometry, places: torch.Tensor, of: Ints) -> torch.Tensor:
    """Return boxes, float64 [m, 4], of the images `of`, int64 [m], after `geometry`."""
    numbers = to_device(_motions(geometry)[of], places.device)
    scale, shift, low, high = numbers[:, :8].view(-1, 4, 1, 2).unbind(1)
    corners = places.view(-1, 2, 2) * scale + shift
    corners = torch.minimum(torch.maximum(corners, low), high)
    # What was the right edge of a mirrored image is now its left one.
    across = torch.where(numbers[:, 8:] > 0, corners[:, :, 0].flip(1), corners[:, :, 0])
    return torch.stack([across, corners[:, :, 1]], 2).view(-1, 4)


def _motions(geometry: Geometry) -> NDArray[np.float64]:
    """Return what happens to places in each image: float64 [n, 9].

    Pairs (across, down): times the first, plus the second, no less than the third and no
    more than the fourth.  Then whether the image is mirrored.
    """
    scale, shift = np.ones((len(geometry), 2)), np.zeros((len(geometry), 2))
    low, high = np.full_like(shift, -np.inf), np.full_like(shift, np.inf)
    size = np.stack([geometry.source_width, geometry.source_height], 1)
    for step in geometry.steps:
        after = np.stack([step.width, step.height], 1)
        if isinstance(step, Windows):
            corner = np.stack([step.left, step.top], 1)
            shift -= corner
            low, high = np.clip(low - corner, 0, after), np.clip(high - corner, 0, after)
        else:
            factor = after / size
            scale, shift, low, high = (part * factor for part in (scale, shift, low, high))
        size = after
    flip, width = geometry.flip, geometry.width[geometry.flip]
    scale[flip, 0] *= -1
    shift[flip, 0] = width - shift[flip, 0]
    low[flip, 0], high[flip, 0] = width - high[flip, 0], width - low[flip, 0]
    return np.concatenate([scale, shift, low, high, flip[:, None]], 1)
