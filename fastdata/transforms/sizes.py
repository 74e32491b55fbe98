"""Resizes to random sizes, as detection trains with: each keeps an image's aspect ratio.

An image of one batch may then differ in size from the next.  A batch needs one size: a crop
behind, or lists of images (``image_lists=True`` of the loader).  A loader raises `OptionError` if
an image would have more than 178,956,970 pixels.  Formulas are torchvision's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import (
    GeometricTransform,
    antialias_choice,
    check_pixels,
    parse,
    positive_int,
    range_pair,
    resize_filter,
    size_pair,
)
from fastdata.transforms.geometry import Geometry, Interpolation

__all__ = ["RandomResize", "RandomShortestSize", "ScaleJitter"]


class _RandomScale(GeometricTransform):
    """Resizes each image by a random factor."""

    random_size: ClassVar[bool] = True

    interpolation: Interpolation
    antialias: bool | None

    def __post_init__(self) -> None:
        parse(self, interpolation=resize_filter, antialias=antialias_choice)

    @abstractmethod
    def factor(self, geometry: Geometry, draws: Draws) -> NDArray[np.float64]:
        """Return the factor of each image, float64 [n]."""

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        factor = self.factor(geometry, draws)
        sides = ((side * factor).astype(np.int64) for side in (geometry.height, geometry.width))
        height, width = (np.maximum(side, 1) for side in sides)
        remedy = "Take smaller sizes, or leave this sample out"
        check_pixels(type(self).__name__, 1.0 * height * width, geometry, draws, remedy)
        return geometry.resize(height, width, self.interpolation, self.antialias)


@dataclass(frozen=True)
class ScaleJitter(_RandomScale):
    """Resize each image to fit into a target size, and then by a random factor.

    Parameters
    ----------
    target_size : (int, int)
        Width and height, as torchvision takes them.
    scale_range : (float, float)
        Range of the factor.
    interpolation, antialias
        As in `Resize`.

    Notes
    -----
    Draw 0 is the factor.
    """

    target_size: Sequence[int]
    scale_range: tuple[float, float] = (0.1, 2.0)
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, target_size=size_pair, scale_range=range_pair)

    def factor(self, geometry: Geometry, draws: Draws) -> NDArray[np.float64]:
        width, height = self.target_size
        low, high = self.scale_range
        scale: NDArray[np.float64] = low + draws.uniform()[:, 0] * (high - low)
        return np.minimum(height / geometry.height, width / geometry.width) * scale


@dataclass(frozen=True)
class RandomShortestSize(_RandomScale):
    """Resize the short side of each image to one of several sizes, drawn at random.

    Parameters
    ----------
    min_size : int or sequence of int
        The sizes.
    max_size : int, optional
        Images whose long side would be longer are made smaller.
    interpolation, antialias
        As in `Resize`.

    Notes
    -----
    Draw 0 is the size.
    """

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, min_size=_sizes)
        if self.max_size is not None:
            positive_int("max_size", self.max_size)

    def factor(self, geometry: Geometry, draws: Draws) -> NDArray[np.float64]:
        sizes = np.asarray(self.min_size)
        size = sizes[draws.integers(len(sizes))[:, 0]]
        factor: NDArray[np.float64] = size / np.minimum(geometry.height, geometry.width)
        if self.max_size is not None:
            most = self.max_size / np.maximum(geometry.height, geometry.width)
            factor = np.minimum(factor, most)
        return factor


@dataclass(frozen=True)
class RandomResize(_RandomScale):
    """Resize the short side of each image to a random size.

    Parameters
    ----------
    min_size, max_size : int
        The least size, and the first that is too large.
    interpolation, antialias
        As in `Resize`.

    Notes
    -----
    Draw 0 is the size.
    """

    min_size: int
    max_size: int
    interpolation: Interpolation = "bilinear"
    antialias: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self, min_size=positive_int, max_size=positive_int)
        if self.min_size >= self.max_size:
            raise OptionError(
                f"max_size must be greater than min_size {self.min_size}, not {self.max_size}"
            )

    def factor(self, geometry: Geometry, draws: Draws) -> NDArray[np.float64]:
        size = self.min_size + draws.integers(self.max_size - self.min_size)[:, 0]
        short = np.minimum(geometry.height, geometry.width)
        # Upwards to the next number: the product with a side must not fall short of a whole one.
        factor: NDArray[np.float64] = np.nextafter(size / short, np.inf)
        return factor


def _sizes(name: str, value: Any) -> tuple[int, ...]:
    """Return the sizes that may be drawn."""
    found = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not found:
        raise OptionError(f"{name} is an int or a list of int, not {value!r}")
    return tuple(positive_int(name, one) for one in found)
