"""Boxes follow their images through geometry."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastdata.errors import OptionError
from fastdata.transforms.geometry import Geometry, Ints, Windows

__all__ = ["Boxes", "transform_boxes"]


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
        With `drop_empty`: boxes go whose height or width is this or less, in pixels of the
        result.

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
    height, width = geometry.source_height, geometry.source_width
    for step in geometry.steps:
        if isinstance(step, Windows):
            places -= np.stack([step.left, step.top, step.left, step.top], 1)[of]
            places = np.clip(places, 0, np.stack([step.width, step.height] * 2, 1)[of])
        else:
            factor = np.stack([step.width / width, step.height / height] * 2, 1)
            places *= factor[of]
        height, width = step.height, step.width
    flip = geometry.flip[of]
    mirrored = geometry.width[of, None] - places[:, [2, 0]]
    places[:, [0, 2]] = np.where(flip[:, None], mirrored, places[:, [0, 2]])
    kept = np.arange(len(places))
    if drop_empty:
        kept = np.flatnonzero((places[:, 2:] - places[:, :2] > min_side).all(axis=1))
    return Boxes(places[kept], np.bincount(of[kept], minlength=len(geometry)), kept)
