"""Warps: each pixel of the result is looked up somewhere in the image.

A warp is a matrix from places in the result to places in the image, and perhaps a field of
displacements that is added before.  Places are continuous, as those of boxes: (x, y) from the top
left corner, with the centre of the first pixel at (0.5, 0.5).  `Warps` holds the warps of a whole
batch, `Warp` that of one image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.transforms.fill import Fill

__all__ = [
    "Displacement",
    "Matrices",
    "Warp",
    "WarpInterpolation",
    "Warps",
    "adjugates",
    "shifts",
    "upright",
]

Ints: TypeAlias = NDArray[np.int64]

Matrices: TypeAlias = NDArray[np.float64]
"""Projective maps of places (x, y, 1), float64 [n, 3, 3]."""

WarpInterpolation: TypeAlias = Literal["nearest", "bilinear"]


class Displacement(NamedTuple):
    """A field in pixels: uniform noise in -1..1, blurred and multiplied.

    `alpha` is the factor and `sigma` the deviation of the blur, both (across, down).
    """

    alpha: tuple[float, float]
    sigma: tuple[float, float]


class Warp(NamedTuple):
    """Look up height x width pixels of one image by `matrix`, float64 [3, 3].

    With a `displacement`, its noise is that of `key`.
    """

    matrix: NDArray[np.float64]
    height: int
    width: int
    interpolation: WarpInterpolation
    fill: Fill
    displacement: Displacement | None
    key: int


@dataclass(frozen=True, slots=True, eq=False)
class Warps:
    """One warp an image.

    `matrix` leads from places in the result to places in the image.  `height` and `width`,
    int64 [n], are those of the results.  `keys`, uint64 [n], are of the noise of `displacement`.
    """

    matrix: Matrices
    height: Ints
    width: Ints
    interpolation: WarpInterpolation
    fill: Fill
    displacement: Displacement | None
    keys: NDArray[np.uint64]

    def rows(self) -> list[Warp]:
        others = self.interpolation, self.fill, self.displacement
        columns = (part.tolist() for part in (self.height, self.width, self.keys))
        return [
            Warp(matrix, height, width, *others, key)
            for matrix, height, width, key in zip(self.matrix, *columns, strict=True)
        ]


def shifts(x: NDArray[np.float64], y: NDArray[np.float64]) -> Matrices:
    """Return the matrices that add `x` and `y`, float64 [n] each."""
    matrix = np.tile(np.eye(3), (len(x), 1, 1))
    matrix[:, 0, 2], matrix[:, 1, 2] = x, y
    return matrix


def upright(
    height: Ints,
    width: Ints,
    flip: NDArray[np.bool_],
    flip_rows: NDArray[np.bool_] | None = None,
    transpose: NDArray[np.bool_] | None = None,
) -> Matrices:
    """Return the matrices from places in turned images to places in them as they were.

    Images were transposed, then mirrored left to right (`flip`) and top to bottom.  They are of
    `height` and `width` now.
    """
    matrix = np.tile(np.eye(3), (len(flip), 1, 1))
    for axis, (which, length) in enumerate(((flip, width), (flip_rows, height))):
        if which is not None:
            matrix[which, axis, axis], matrix[which, axis, 2] = -1, length[which]
    if transpose is not None:
        matrix[transpose] = matrix[transpose][:, [1, 0, 2]]
    return matrix


def adjugates(matrix: Matrices) -> Matrices:
    """Return the inverse maps of `matrix`; of maps that have none, some finite matrix."""
    first, second, third = matrix.transpose(1, 0, 2)
    crosses = np.cross(second, third), np.cross(third, first), np.cross(first, second)
    return np.stack(crosses, -1)
