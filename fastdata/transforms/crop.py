"""Crops: random and resized, random with padding, and centred.

Semantics are torchvision's (`torchvision.transforms.v2`); the
random numbers are fastdata's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import GeometricTransform, range_pair, size_pair
from fastdata.transforms.geometry import Geometry, Interpolation, Ints

__all__ = ["CenterCrop", "RandomCrop", "RandomResizedCrop"]

TRIES = 10
"""Rectangles that `RandomResizedCrop` tries before it falls back, as torchvision does."""


@dataclass(frozen=True)
class RandomResizedCrop(GeometricTransform):
    """Crop a random rectangle and resize it: the crop of ImageNet training.

    Area is uniform in `scale` times the image's area, the aspect ratio (width
    over height) log-uniform in `ratio`, the position uniform.  The first of 10
    tries that fits is taken; if none does, the largest centred rectangle
    with an aspect ratio within `ratio`.

    Parameters
    ----------
    size : int or (int, int)
        Output size: a square side, or (height, width).
    scale : (float, float)
        Least and greatest share of the image's area.
    ratio : (float, float)
        Least and greatest width / height of the crop.
    interpolation : {"bilinear", "bicubic", "nearest"}
        Masks always take nearest neighbour.
    antialias : bool, optional
        True: torchvision's pixels, always antialiased.  False: never.  None:
        only where the crop shrinks 1.4-fold or more, which is faster and
        54 dB from torchvision's pixels in the mean.

    Notes
    -----
    Draws 0 to 9 are the areas, 10 to 19 the ratios, 20 and 21 the position.

    Szegedy et al., "Going deeper with convolutions", CVPR 2015.
    """

    size: int | Sequence[int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair("size", self.size))
        object.__setattr__(self, "scale", range_pair("scale", self.scale))
        object.__setattr__(self, "ratio", range_pair("ratio", self.ratio))
        check_interpolation(self.interpolation, self.antialias)

    @property
    def output_size(self) -> tuple[int, int]:
        return size_pair("size", self.size)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        rows, columns = geometry.height[:, None], geometry.width[:, None]
        (small, large), (narrow, wide) = self.scale, self.ratio

        uniform = draws.uniform(2 * TRIES)
        area = rows * columns * (small + (large - small) * uniform[:, :TRIES])
        low, high = np.log(self.ratio)
        aspect = np.exp(low + (high - low) * uniform[:, TRIES:])
        width = np.rint(np.sqrt(area * aspect)).astype(np.int64)
        height = np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (width > 0) & (width <= columns) & (height > 0) & (height <= rows)

        first = fits.argmax(axis=1)
        every = np.arange(len(geometry))
        width, height, found = width[every, first], height[every, first], fits[every, first]

        # The fallback: as much of the image as `ratio` lets through.
        rows, columns = geometry.height, geometry.width
        aspect = columns / rows
        high_enough = np.where(aspect < narrow, np.rint(columns / narrow), rows)
        wide_enough = np.where(aspect > wide, np.rint(rows * wide), columns)
        height = np.where(found, height, np.maximum(high_enough, 1)).astype(np.int64)
        width = np.where(found, width, np.maximum(wide_enough, 1)).astype(np.int64)

        room = np.stack([rows - height, columns - width], axis=1)
        position = draws.integers(room + 1, 2, first=2 * TRIES)
        top, left = np.where(found[:, None], position, room // 2).T
        cropped = geometry.window(top, left, height, width)
        return cropped.resize(*size_pair("size", self.size), self.interpolation, self.antialias)


@dataclass(frozen=True)
class CenterCrop(GeometricTransform):
    """Crop the centre; an image that is smaller is padded with zeros.

    Parameters
    ----------
    size : int or (int, int)
        Output size: a square side, or (height, width).
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair("size", self.size))

    @property
    def output_size(self) -> tuple[int, int]:
        return size_pair("size", self.size)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = size_pair("size", self.size)
        top = _centre(geometry.height - height)
        left = _centre(geometry.width - width)
        return geometry.window(top, left, height, width)


@dataclass(frozen=True)
class RandomCrop(GeometricTransform):
    """Crop at a random place, of the image padded with zeros.

    Parameters
    ----------
    size : int or (int, int)
        Output size: a square side, or (height, width).
    padding : int, (int, int) or (int, int, int, int)
        Zeros around the image before cropping: on every side; (left and
        right, top and bottom); or (left, top, right, bottom).

    Raises
    ------
    OptionError
        When run, if a padded image is smaller than `size`.

    Notes
    -----
    Draws 0 and 1 are the position.
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair("size", self.size))
        object.__setattr__(self, "padding", _sides(self.padding))

    @property
    def output_size(self) -> tuple[int, int]:
        return size_pair("size", self.size)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = size_pair("size", self.size)
        pad_left, pad_top, pad_right, pad_bottom = _sides(self.padding)
        rows = geometry.height + (pad_top + pad_bottom)
        columns = geometry.width + (pad_left + pad_right)
        small = np.flatnonzero((rows < height) | (columns < width))
        if small.size:
            worst = small[0]
            raise OptionError(
                f"RandomCrop takes {height} x {width} pixels, but sample {draws.indices[worst]} "
                f"has {rows[worst]} x {columns[worst]} with its padding (height x width); "
                "crop less, pad more, or put a Resize before it"
            )
        room = np.stack([rows - height, columns - width], axis=1)
        top, left = draws.integers(room + 1, 2).T
        return geometry.window(top - pad_top, left - pad_left, height, width)


def check_interpolation(interpolation: object, antialias: object) -> None:
    """Raise `OptionError` unless the two name a filter."""
    if interpolation not in get_args(Interpolation):
        accepted = ", ".join(get_args(Interpolation))
        raise OptionError(f"interpolation is one of {accepted}, not {interpolation!r}")
    if antialias not in (None, True, False):
        raise OptionError(f"antialias is True, False or None, not {antialias!r}")


def _centre(room: Ints) -> Ints:
    """Return torchvision's offset of a centred window; negative where it pads.

    Inside an image it rounds halves to even, as Python's `round` does; around
    one it puts the smaller half of the padding first.
    """
    return np.where(room >= 0, np.rint(room / 2.0).astype(np.int64), -(-room // 2))


def _sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom)."""
    sides = tuple(padding) if isinstance(padding, Sequence) else (padding,)
    if any(type(side) is not int or side < 0 for side in sides):
        raise OptionError(f"padding is made of ints from 0 up, not {padding!r}")
    if len(sides) == 1:
        return sides[0], sides[0], sides[0], sides[0]
    if len(sides) == 2:
        return sides[0], sides[1], sides[0], sides[1]
    if len(sides) == 4:
        return sides[0], sides[1], sides[2], sides[3]
    raise OptionError(f"padding is an int, a pair or four ints, not {padding!r}")
