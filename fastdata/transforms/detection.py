"""Geometry of detection training: RandomZoomOut and RandomIoUCrop.

Semantics are torchvision's (`torchvision.transforms.v2`); the random numbers are fastdata's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.schema import Schema
from fastdata.transforms.base import (
    GeometricTransform,
    check_pixels,
    parse,
    positive_int,
    probability,
    range_pair,
)
from fastdata.transforms.boxes import transform_boxes
from fastdata.transforms.fill import fill_value
from fastdata.transforms.geometry import Geometry, Ints

__all__ = ["RandomIoUCrop", "RandomZoomOut"]

ROUNDS = 50
"""Options that are drawn for an image at most; torchvision draws until one succeeds.  With its
options, an image of which no crop is good enough is still undecided in 1 of 2,200 cases."""

TRIALS_AT_ONCE = 8

OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


@dataclass(frozen=True)
class RandomZoomOut(GeometricTransform):
    """Put an image at a random place of a larger canvas, with probability `p`.

    Parameters
    ----------
    fill : int, sequence of int or dict
        Values of the canvas, as in `Pad`.
    side_range : (float, float)
        Least and greatest side of the canvas, in sides of the image; from 1 up.
    p : float
        Probability that an image is put on a canvas.

    Raises
    ------
    OptionError
        For other values; from a loader, if a canvas could have more than 178,956,970 pixels, the
        limit for decoded images.

    Notes
    -----
    Draw 0 is compared with `p`; 1 is the side; 2 and 3 are the place, across and down.

    Liu et al., "SSD: Single shot multibox detector", ECCV 2016.
    """

    random_size: ClassVar[bool] = True

    fill: Any = 0
    side_range: tuple[float, float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        parse(self, fill=fill_value, side_range=range_pair, p=probability)
        if self.side_range[0] < 1:
            raise OptionError(f"side_range is a pair from 1 up, not {self.side_range!r}")

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        rows, columns = geometry.height, geometry.width
        low, high = self.side_range
        most = np.floor(rows * high) * np.floor(columns * high)
        name = f"RandomZoomOut(side_range={self.side_range})"
        check_pixels(name, most, geometry, draws, "Put a Resize before it")
        chance, side, across, down = draws.uniform(4).T
        side = np.where(chance < self.p, low + (high - low) * side, 1.0)
        height, width = (rows * side).astype(np.int64), (columns * side).astype(np.int64)
        top = ((height - rows) * down).astype(np.int64)
        left = ((width - columns) * across).astype(np.int64)
        return geometry.window(-top, -left, height, width, fill=self.fill)


@dataclass(frozen=True)
class RandomIoUCrop(GeometricTransform):
    """Crop a random rectangle that overlaps a box well enough: the crop of SSD training.

    For each image an option is drawn, the least overlap (intersection over union) of the crop with
    one of the boxes whose centre is inside.  With 1 or more the image stays as it is.  Else
    `trials` rectangles are tried; if none is good enough, another option is drawn, up to 50 times.
    An image without boxes stays as it is.

    Parameters
    ----------
    min_scale, max_scale : float
        Least and greatest side of the crop, in sides of the image; at most 1.
    min_aspect_ratio, max_aspect_ratio : float
        Least and greatest width / height of the crop.
    sampler_options : sequence of float, optional
        By default 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
    trials : int
        Rectangles that are tried with each option.

    Raises
    ------
    OptionError
        For other values; from a loader, if the data have no boxes.

    Notes
    -----
    A box whose centre is outside the crop gets a height and a width of 0, for `DropEmptyBoxes`
    (torchvision: `SanitizeBoundingBoxes`).  If there are several fields of boxes, the boxes of all
    decide.

    Round r draws its option by draw ``r * (1 + 4 * trials)``; each trial takes four more: width,
    height, left and top.

    Liu et al., "SSD: Single shot multibox detector", ECCV 2016.
    """

    random_size: ClassVar[bool] = True
    needs_boxes: ClassVar[bool] = True

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40

    def __post_init__(self) -> None:
        _, high = range_pair("min_scale, max_scale", (self.min_scale, self.max_scale))
        if high > 1:
            raise OptionError(f"max_scale is at most 1, not {high}: a crop is a part of the image")
        range_pair(
            "min_aspect_ratio, max_aspect_ratio", (self.min_aspect_ratio, self.max_aspect_ratio)
        )
        given = OPTIONS if self.sampler_options is None else self.sampler_options
        try:
            options = tuple(map(float, given))
        except (TypeError, ValueError):
            options = ()
        if not options or not all(0 <= one < math.inf for one in options):
            raise OptionError(f"sampler_options is a list of numbers from 0 up, not {given!r}")
        object.__setattr__(self, "sampler_options", options)
        parse(self, trials=positive_int)

    def check_fields(self, schema: Schema) -> None:
        if not schema.boxes:
            raise OptionError(
                "RandomIoUCrop crops by the boxes of an image, but the dataset has none: pack them "
                'with fields={"boxes": "boxes"} or --field boxes=boxes, or take RandomResizedCrop'
            )

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        if geometry.boxes is None:
            raise OptionError(
                "RandomIoUCrop crops by the boxes of images: plan with Geometry.with_boxes(boxes)"
            )
        counts = np.array([len(some) for some in geometry.boxes], np.int64)
        corners = np.concatenate([*geometry.boxes, np.empty((0, 4))])
        boxes = transform_boxes(geometry, corners, counts).boxes
        rectangles = np.zeros((len(geometry), 4), np.int64)
        rectangles[:, 2], rectangles[:, 3] = geometry.height, geometry.width
        cropped = np.zeros(len(geometry), np.bool_)
        undecided = np.flatnonzero(counts)
        boxes_of = np.split(np.arange(len(boxes)), np.cumsum(counts)[:-1]) if len(counts) else []
        for number in range(ROUNDS):
            if not len(undecided):
                break
            found, stays = self._round(
                geometry, _some(draws, undecided), number, undecided, boxes, boxes_of
            )
            good = found[:, 2] > 0
            rectangles[undecided[good]] = found[good]
            cropped[undecided[good]] = True
            undecided = undecided[~(good | stays)]
        return geometry.window(*rectangles.T, centres=cropped)

    def _round(
        self,
        geometry: Geometry,
        draws: Draws,
        number: int,
        images: Ints,
        boxes: NDArray[np.float64],
        boxes_of: list[Ints],
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Return rectangles for some images, [m, 4], empty where none was good, and which stay."""
        assert self.sampler_options is not None, "set in __post_init__"
        first = number * (1 + 4 * self.trials)
        options = np.array(self.sampler_options)
        least = options[draws.integers(len(options), first=first)[:, 0]]
        found = np.zeros((len(images), 4), np.int64)
        stays = least >= 1
        left_over = np.flatnonzero(~stays)
        for start in range(0, self.trials, TRIALS_AT_ONCE):
            if not len(left_over):
                break
            count = min(TRIALS_AT_ONCE, self.trials - start)
            own = images[left_over]
            uniform = _some(draws, left_over).uniform(4 * count, first=first + 1 + 4 * start)
            tried, good = self._tries(
                uniform.reshape(len(own), count, 4), geometry.height[own], geometry.width[own]
            )
            lengths = np.array([len(boxes_of[image]) for image in own])
            of_own = boxes[np.concatenate([boxes_of[image] for image in own])]
            overlaps = _overlaps(of_own, np.repeat(tried, lengths, 0))
            enough = overlaps >= np.repeat(least[left_over], lengths)[:, None]
            good &= np.logical_or.reduceat(enough, np.cumsum(lengths) - lengths)
            fits = good.any(1)
            found[left_over[fits]] = tried[fits, good[fits].argmax(1)]
            left_over = left_over[~fits]
        return found, stays

    def _tries(
        self, uniform: NDArray[np.float64], rows: Ints, columns: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """Return rectangles (top, left, height, width), [m, trials, 4], and which have a shape."""
        scale = self.min_scale + (self.max_scale - self.min_scale) * uniform[..., :2]
        rows, columns = rows[:, None], columns[:, None]
        width = (columns * scale[..., 0]).astype(np.int64)
        height = (rows * scale[..., 1]).astype(np.int64)
        left = ((columns - width) * uniform[..., 2]).astype(np.int64)
        top = ((rows - height) * uniform[..., 3]).astype(np.int64)
        aspect = width / np.maximum(height, 1)
        good = (width > 0) & (height > 0)
        good &= (aspect >= self.min_aspect_ratio) & (aspect <= self.max_aspect_ratio)
        return np.stack([top, left, height, width], -1), good


def _overlaps(boxes: NDArray[np.float64], rectangles: Ints) -> NDArray[np.float64]:
    """Return the overlap of each box, [k, 4], with its rectangles, [k, trials, 4].

    It is -1 where the centre of the box is not inside the rectangle.
    """
    low = rectangles[..., 1::-1].astype(np.float64)  # left and top
    high = low + rectangles[..., 3:1:-1]
    first, second = boxes[:, None, :2], boxes[:, None, 2:]
    centre = (first + second) / 2
    inside = ((low < centre) & (centre < high)).all(-1)
    both = np.clip(np.minimum(high, second) - np.maximum(low, first), 0, None).prod(-1)
    union = (second - first).prod(-1) + (high - low).prod(-1) - both
    return np.where(inside, both / np.where(union > 0, union, 1), -1)


def _some(draws: Draws, which: Ints) -> Draws:
    """Return the draws of some of the samples."""
    occurrences = None if draws.occurrences is None else draws.occurrences[which]
    return replace(draws, indices=draws.indices[which], occurrences=occurrences)
