"""Rotations, affine and perspective distortions, and elastic ones.

Parameters and formulas are those of torchvision's v2; each is planned as a warp
(`fastdata.transforms.warps`), or as exact quarter turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.transforms.base import (
    GeometricTransform,
    check_pixels,
    parse,
    probability,
    warp_filter,
)
from fastdata.transforms.displacement import kernel_size
from fastdata.transforms.fill import fill_value
from fastdata.transforms.geometry import Geometry, Ints
from fastdata.transforms.warps import (
    Displacement,
    Matrices,
    WarpInterpolation,
    adjugates,
    shifts,
)

__all__ = ["ElasticTransform", "RandomAffine", "RandomPerspective", "RandomRotation", "Warping"]

Floats = NDArray[np.float64]

GREATEST = 1e9
"""The greatest absolute value of a parameter.  Coordinates stay finite in float32."""


class Warping(GeometricTransform):
    """Looks up pixels of images; the same in all masks, by nearest neighbour."""


@dataclass(frozen=True)
class RandomRotation(Warping):
    """Turn images by a random angle, counter-clockwise.

    Parameters
    ----------
    degrees : float or (float, float)
        Range of the angle; a number d is (-d, d).
    interpolation : {"nearest", "bilinear"}
        Masks always take nearest neighbour.
    expand : bool
        Make images as large as the turned ones are, each in a size of its own.
    center : (float, float), optional
        What stays in its place, (x, y) in pixels from the top left corner; by default the middle.
    fill : float, sequence of float, or dict
        What is beyond the image: a number, one a channel, or ``{"image": 0, "mask": 255}``.

    Raises
    ------
    OptionError
        From a loader, if an image has more than 32,767 pixels on a side, or is made larger than
        178,956,970 pixels.

    Notes
    -----
    Draw 0 is the angle.  Multiples of 90 degrees about the middle are exact.  Only with "bilinear",
    an image that keeps its size is interpolated if its height and width differ by an odd number.
    """

    degrees: float | Sequence[float]
    interpolation: WarpInterpolation = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: Any = 0

    def __post_init__(self) -> None:
        parse(self, degrees=_angles, interpolation=warp_filter, fill=fill_value, center=_point)

    @property
    def keeps_size(self) -> bool:  # type: ignore[override]  # of a class here, of an object there
        return not self.expand

    @property
    def random_size(self) -> bool:  # type: ignore[override]  # as above
        low, high = self.degrees  # type: ignore[misc]  # since __post_init__
        return self.expand and low < high

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        low, high = self.degrees  # type: ignore[misc]  # since __post_init__
        angle = (low + (high - low) * draws.uniform()[:, 0]) % 360
        height, width = geometry.height, geometry.width
        exact = np.zeros(len(geometry), np.bool_)
        if self.center is None:
            # Quarter turns, and a window of the image's own size in the middle.
            fits = (height - width) % 2 == 0
            fits |= self.expand | (self.interpolation == "nearest") | (angle % 180 == 0)
            exact = fits & (angle % 90 == 0)
        if exact.any():
            geometry = geometry.turn(np.where(exact, angle // 90, 0).astype(np.int64))
            if not self.expand:
                top, left = (geometry.height - height) // 2, (geometry.width - width) // 2
                geometry = geometry.window(top, left, height, width, fill=self.fill)
        zeros = np.zeros(len(geometry))
        center = _from_middle(self.center, height, width)
        matrix = inverse_affine_matrices(center, -angle, (zeros, zeros), zeros + 1, (zeros, zeros))
        if self.expand:
            rows, columns = _expanded(matrix, height, width)
            remedy = "Put a T.Resize or a crop before"
            pixels = rows.astype(np.float64) * columns
            check_pixels("RandomRotation", pixels, geometry, draws, remedy)
        else:
            rows, columns = height, width
        matrix = _about_middles(matrix, (height, width), (rows, columns))
        return geometry.warp(
            matrix,
            ~exact & (angle != 0),
            rows,
            columns,
            interpolation=self.interpolation,
            fill=self.fill,
        )


@dataclass(frozen=True)
class RandomAffine(Warping):
    """Turn, shift, scale and shear images, at random.

    Parameters
    ----------
    degrees : float or (float, float)
        Range of the angle, clockwise; a number d is (-d, d).
    translate : (float, float), optional
        Greatest shifts across and down, as shares of width and height.
    scale : (float, float), optional
        Least and greatest factor.
    shear : float or sequence of 2 or 4 floats, optional
        Range of the shear along x in degrees, and with 4 also along y; a number s is (-s, s).
    interpolation, fill, center
        As in `RandomRotation`.

    Raises
    ------
    OptionError
        From a loader, if an image has more than 32,767 pixels on a side.

    Notes
    -----
    Draws 0 to 5 are the angle, the shifts across and down, which are whole pixels, the factor, and
    the shears along x and y.
    """

    keeps_size: ClassVar[bool] = True

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: WarpInterpolation = "nearest"
    fill: Any = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        parse(self, degrees=_angles, interpolation=warp_filter, fill=fill_value, center=_point)
        parse(self, translate=_shares, scale=_factors, shear=_shears)

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        uniform = draws.uniform(6).T
        height, width = geometry.height, geometry.width
        across, down = self.translate or (0.0, 0.0)
        shift = (
            np.rint(across * width * (2 * uniform[1] - 1)),
            np.rint(down * height * (2 * uniform[2] - 1)),
        )
        ranges = (self.degrees, self.scale or (1.0, 1.0), *self.shear)  # type: ignore[misc]
        angle, factor, shear_x, shear_y = (
            low + (high - low) * uniform[draw]
            for draw, (low, high) in zip((0, 3, 4, 5), ranges, strict=True)
        )
        center = _from_middle(self.center, height, width)
        matrix = inverse_affine_matrices(center, angle, shift, factor, (shear_x, shear_y))
        matrix = _about_middles(matrix, (height, width), (height, width))
        which = (matrix != np.eye(3)).any((1, 2))
        return geometry.warp(
            matrix, which, height, width, interpolation=self.interpolation, fill=self.fill
        )


@dataclass(frozen=True)
class RandomPerspective(Warping):
    """Distort images as if they were seen from another side, with probability `p`.

    Parameters
    ----------
    distortion_scale : float
        How far a corner moves at most, as a share of half the image: from 0 to 1.
    p : float
        Probability that an image is distorted.
    interpolation, fill
        As in `RandomRotation`.

    Raises
    ------
    OptionError
        From a loader, if an image has more than 32,767 pixels on a side.

    Notes
    -----
    Draw 0 is compared with `p`.  Draws 1 to 8 are how far corners move inwards, x and y each: top
    left, top right, bottom right, bottom left.  Images one pixel high or wide stay as they are.
    """

    keeps_size: ClassVar[bool] = True

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: WarpInterpolation = "bilinear"
    fill: Any = 0

    def __post_init__(self) -> None:
        parse(
            self, distortion_scale=_share, p=probability, interpolation=warp_filter, fill=fill_value
        )

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = geometry.height, geometry.width
        most = [(self.distortion_scale * (side // 2)).astype(np.int64) for side in (width, height)]
        inwards = draws.integers(np.stack(most * 4, 1) + 1, 8, first=1).astype(np.float64).T
        right, bottom = width - 1.0, height - 1.0
        corners = np.stack(
            [
                [inwards[0], right - inwards[2], right - inwards[4], inwards[6]],
                [inwards[1], inwards[3], bottom - inwards[5], bottom - inwards[7]],
            ]
        )
        which = (draws.uniform()[:, 0] < self.p) & (height > 1) & (width > 1)
        which &= inwards.any(0)
        matrix = inverse_perspective_matrices(corners, right, bottom)
        return geometry.warp(
            matrix, which, height, width, interpolation=self.interpolation, fill=self.fill
        )


@dataclass(frozen=True)
class ElasticTransform(Warping):
    """Move the pixels of images by smooth random fields.

    Parameters
    ----------
    alpha : float or (float, float)
        How much: the field is uniform noise in -1..1, blurred, times half of it, in pixels.  The
        first of two numbers is across, the second down.
    sigma : float or (float, float)
        Deviation of the Gaussian that blurs, in pixels, across and down.
    interpolation, fill
        As in `RandomRotation`.

    Raises
    ------
    OptionError
        From a loader, if an image has more than 32,767 pixels on a side, or if a side is at most 4
        times `sigma`.

    Notes
    -----
    Draw 0 is the key of the noise.  If an image is not square, old releases of torchvision
    multiply the field by the ratio of the sides.

    Simard, Steinkraus and Platt, "Best practices for convolutional neural networks applied to
    visual document analysis", ICDAR 2003.
    """

    keeps_size: ClassVar[bool] = True

    alpha: float | Sequence[float] = 50.0
    sigma: float | Sequence[float] = 5.0
    interpolation: WarpInterpolation = "bilinear"
    fill: Any = 0

    def __post_init__(self) -> None:
        parse(
            self,
            alpha=_number_or_pair,
            sigma=_number_or_pair,
            interpolation=warp_filter,
            fill=fill_value,
        )
        if min(self.sigma) < 0 or (min(self.sigma) == 0 and max(self.sigma) > 0):  # type: ignore[arg-type]
            raise OptionError(f"sigma is above 0, or 0 for no blur at all, not {self.sigma!r}")

    def plan(self, geometry: Geometry, draws: Draws) -> Geometry:
        height, width = geometry.height, geometry.width
        displacement = Displacement(self.alpha, self.sigma)  # type: ignore[arg-type]
        size = kernel_size(max(displacement.sigma))
        small = np.flatnonzero(np.minimum(height, width) <= size // 2)
        if small.size:
            worst = small[0]
            raise OptionError(
                f"ElasticTransform with sigma={max(displacement.sigma):g} blurs over {size} pixels "
                f"and needs images of more than {size // 2} on a side, but sample "
                f"{draws.indices[worst]} has {height[worst]} x {width[worst]} (height x width); "
                "take a smaller sigma, or put a T.Resize before"
            )
        return geometry.warp(
            np.tile(np.eye(3), (len(geometry), 1, 1)),
            np.full(len(geometry), any(displacement.alpha)),
            height,
            width,
            interpolation=self.interpolation,
            fill=self.fill,
            displacement=displacement,
            keys=draws.bits()[:, 0],
        )


def inverse_affine_matrices(
    center: tuple[Floats, Floats],
    angle: Floats,
    shift: tuple[Floats, Floats],
    scale: Floats,
    shear: tuple[Floats, Floats],
) -> Matrices:
    """Return maps from places in results to places in images, from the middle of each.

    torchvision's `_get_inverse_affine_matrix`: clockwise turns and shears in degrees, about
    `center`, and shifts in pixels.
    """
    turn, shear_x, shear_y = (np.radians(part) for part in (angle, *shear))
    a = np.cos(turn - shear_y) / np.cos(shear_y)
    b = -(a * np.tan(shear_x) + np.sin(turn))
    c = np.sin(turn - shear_y) / np.cos(shear_y)
    d = np.cos(turn) - c * np.tan(shear_x)
    matrix = np.tile(np.eye(3), (len(angle), 1, 1))
    matrix[:, 0, 0], matrix[:, 0, 1] = d / scale, -b / scale
    matrix[:, 1, 0], matrix[:, 1, 1] = -c / scale, a / scale
    away = -(center[0] + shift[0]), -(center[1] + shift[1])
    return shifts(*center) @ matrix @ shifts(*away)


def inverse_perspective_matrices(
    corners: NDArray[Any], right: NDArray[Any], bottom: NDArray[Any]
) -> Matrices:
    """Return maps of places such that `corners` lead to those of images.

    `corners`, float64 [2, 4, n], are x and y of top left, top right, bottom right and bottom left;
    in images these are 0 and `right`, 0 and `bottom`.  No division: if three of the four corners
    are in line, the numbers are finite, too.

    Heckbert, "Fundamentals of texture mapping and image warping", 1989, section 2.2.3.
    """
    (x0, x1, x2, x3), (y0, y1, y2, y3) = corners
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    unit = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    g = sum_x * (y3 - y2) - (x3 - x2) * sum_y
    h = (x1 - x2) * sum_y - sum_x * (y1 - y2)
    forwards = np.array(
        [
            [unit * (x1 - x0) + g * x1, unit * (x3 - x0) + h * x3, unit * x0],
            [unit * (y1 - y0) + g * y1, unit * (y3 - y0) + h * y3, unit * y0],
            [g, h, unit],
        ]
    ).transpose(2, 0, 1)
    sides = np.stack([np.maximum(right, 1), np.maximum(bottom, 1), np.ones_like(right)], 1)
    matrix = sides[:, :, None] * adjugates(forwards)
    last = matrix[:, 2:, 2:]
    return matrix / np.where(last, last, 1)


def _from_middle(
    center: Sequence[float] | None, height: Ints, width: Ints
) -> tuple[Floats, Floats]:
    """Return x and y of a centre from the middle of each image."""
    x, y = (width / 2, height / 2) if center is None else center
    return x - width / 2, y - height / 2


def _about_middles(
    matrix: Matrices, source: tuple[Ints, Ints], result: tuple[Ints, Ints]
) -> Matrices:
    """Return maps from corners of maps from the middles of sizes (height, width)."""
    return shifts(source[1] / 2, source[0] / 2) @ matrix @ shifts(-result[1] / 2, -result[0] / 2)


def _expanded(matrix: Matrices, height: Ints, width: Ints) -> tuple[Ints, Ints]:
    """Return height and width of turned images, as torchvision's `_compute_affine_output_size`."""
    x, y = np.array([-1, -1, 1, 1]), np.array([-1, 1, 1, -1])
    places = np.stack(
        [x * width[:, None] / 2, y * height[:, None] / 2, np.ones((len(width), 4))], 1
    )
    corners = (matrix @ places)[:, :2] + np.stack([width, height], 1)[:, :, None] / 2
    # Angles that should give whole numbers give them with a rounding error.
    ends = corners.min(2), corners.max(2)
    low, high = (np.trunc(np.round(part * 1e4, 3)) * 1e-4 for part in ends)
    columns, rows = (np.ceil(high) - np.floor(low)).astype(np.int64).T
    return rows, columns


def _numbers(name: str, value: Any, counts: Sequence[int], what: str) -> tuple[float, ...]:
    """Return numbers, as many as one of `counts` says; `what` they are is for messages."""
    try:
        numbers = tuple(map(float, value))
    except (TypeError, ValueError):
        numbers = ()
    if len(numbers) not in counts or not all(abs(one) <= GREATEST for one in numbers):
        raise OptionError(f"{name} is {what}, not {value!r}")
    return numbers


def _ranges(name: str, value: Any, counts: Sequence[int], what: str) -> tuple[float, ...]:
    """Return ranges of degrees, from one number or the ends of each."""
    if isinstance(value, (int, float)):
        if value < 0:
            raise OptionError(f"{name} is a number from 0 up, or {what}, not {value!r}")
        value = -value, value
    ends = _numbers(name, value, counts, f"a number, or {what}")
    if any(low > high for low, high in zip(ends[::2], ends[1::2], strict=True)):
        raise OptionError(f"{name} has a low end above its high one: {value!r}")
    return ends


def _angles(name: str, value: Any) -> tuple[float, ...]:
    return _ranges(name, value, (2,), "a pair (low, high), in degrees")


def _shears(name: str, value: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ranges of both shears."""
    if value is None:
        return (0.0, 0.0), (0.0, 0.0)
    ends = _ranges(name, value, (2, 4), "2 or 4 ends of ranges, in degrees")
    return ends[:2], ends[2:] or (0.0, 0.0)


def _point(name: str, value: Any) -> tuple[float, ...] | None:
    return None if value is None else _numbers(name, value, (2,), "a pair (x, y), in pixels")


def _shares(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    shares = _numbers(name, value, (2,), "a pair of shares")
    return tuple(_share(name, share) for share in shares)


def _factors(name: str, value: Any) -> tuple[float, ...] | None:
    if value is None:
        return None
    factors = _numbers(name, value, (2,), "a pair of factors")
    if not 1 / GREATEST <= factors[0] <= factors[1]:
        raise OptionError(f"{name} is a pair of factors above 0, low and high, not {value!r}")
    return factors


def _share(name: str, value: Any) -> float:
    """Return a share from 0 to 1."""
    (share,) = _numbers(name, (value,), (1,), "a share from 0 to 1")
    if not 0 <= share <= 1:
        raise OptionError(f"{name} is a share from 0 to 1, not {value!r}")
    return share


def _number_or_pair(name: str, value: Any) -> tuple[float, ...]:
    """Return two numbers, from one or two."""
    values = (value,) if isinstance(value, (int, float)) else value
    numbers = _numbers(name, values, (1, 2), "a number or a pair (across, down)")
    return numbers * (2 // len(numbers))
