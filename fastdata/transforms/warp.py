"""Shears, shifts and rotations of the images of a batch, each by its own matrix.

As torchvision does them: pixels of the result are looked up in the source by a matrix
about the image's centre, in float32 (`torchvision.transforms.v2.functional.affine`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from fastdata.transforms.some import computed, to_device

__all__ = ["MOVES", "Fill", "matrices", "warp"]

Fill = float | Sequence[float] | None
"""What is beyond the image: one number, one a channel; None is 0."""

MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def matrices(
    kind: str, magnitude: NDArray[np.float64], height: int, width: int
) -> NDArray[np.float32]:
    """Return what a move by such magnitudes is, float32 [n, 2, 3].

    Parameters
    ----------
    kind : str
        One of `MOVES`.
    magnitude : ndarray of float64, shape [n]
        Shears: pixels a pixel from the top left corner; shifts: pixels, cut off to whole
        ones; rotations: degrees, counter-clockwise.
    height, width : int

    Returns
    -------
    ndarray of float32, shape [n, 2, 3]
        From (x, y, 1) of the result to (x, y) in the source, from the image's centre.
    """
    found = np.zeros((len(magnitude), 2, 3))
    found[:, 0, 0] = found[:, 1, 1] = 1
    if kind == "ShearX":
        found[:, 0, 1], found[:, 0, 2] = magnitude, magnitude * (height / 2)
    elif kind == "ShearY":
        found[:, 1, 0], found[:, 1, 2] = magnitude, magnitude * (width / 2)
    elif kind == "TranslateX":
        found[:, 0, 2] = -np.trunc(magnitude)
    elif kind == "TranslateY":
        found[:, 1, 2] = -np.trunc(magnitude)
    else:
        angle = np.radians(-magnitude)
        found[:, 0, 0] = found[:, 1, 1] = np.cos(angle)
        found[:, 0, 1], found[:, 1, 0] = np.sin(angle), -np.sin(angle)
    return found.astype(np.float32)


def warp(
    images: torch.Tensor,
    matrix: torch.Tensor,
    interpolation: Literal["nearest", "bilinear"],
    fill: Fill,
) -> torch.Tensor:
    """Return images [n, C, H, W] looked up by matrices, float32 [n, 2, 3].

    Nearest neighbour where a look-up falls in the middle between two pixels may take
    the other one on another device.
    """
    height, width = images.shape[2:]
    half = to_device(np.array([width / 2, height / 2], np.float32), images.device)
    x = torch.arange(width, device=images.device) - (width - 1) / 2
    y = torch.arange(height, device=images.device) - (height - 1) / 2
    # No matrix product, which a GPU may be allowed to round to ten bits (TF32).
    rows = matrix / half[:, None]
    by_x, by_y, shift = rows[:, None, None].unbind(-1)
    grid = x[:, None] * by_x + (y[:, None, None] * by_y + shift)
    values = computed(images)
    if fill is not None:  # a channel of ones shows how much of a pixel is of the image
        values = torch.cat([values, torch.ones_like(values[:, :1])], 1)
    moved = functional.grid_sample(
        values, grid.to(values.dtype), mode=interpolation, padding_mode="zeros", align_corners=False
    )
    if fill is not None:
        numbers = to_device(np.array(fill, np.float32), images.device).to(moved.dtype)
        numbers = numbers.view(1, -1, 1, 1)
        moved, share = moved[:, :-1], moved[:, -1:]
        if interpolation == "nearest":
            moved = torch.where(share < 0.5, numbers, moved)
        else:
            moved = (moved - numbers) * share + numbers
    return (moved if images.is_floating_point() else moved.round_()).to(images.dtype)
