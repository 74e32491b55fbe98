"""Warps of whole batches, on the device where they are.

`warp` looks up images by matrices, as torchvision does it; `warp_canvas` carries out one step of a
planned geometry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch.nn import functional

from fastdata.transforms.displacement import fields
from fastdata.transforms.image_tensors import to_device, to_float
from fastdata.transforms.warps import Ints, WarpInterpolation, Warps, shifts

__all__ = ["Fill", "warp", "warp_canvas"]

Fill: TypeAlias = float | Sequence[float] | None
"""What is beyond the image: one number, one a channel; None is 0."""


def warp(
    images: torch.Tensor,
    matrix: torch.Tensor,
    interpolation: WarpInterpolation,
    fill: Fill,
    *,
    size: tuple[int, int] | None = None,
    displacement: torch.Tensor | None = None,
    inside: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return images [n, C, H, W] looked up by matrices, float32 [n, 2, 3] or [n, 3, 3].

    As torchvision does it: a matrix about the image's centre says for each pixel of the result
    where it is in the source, in float32 (`torchvision.transforms.v2.functional.affine`).  The
    result has `size`, by default that of the images, and a centre of its own.  With a
    `displacement`, float32 [n, H', W', 2], (x, y) in pixels, that is added to places in the result.
    What is not `inside`, bool [n, 1, H, W], is beyond the images.

    Nearest neighbour where a look-up falls in the middle between two pixels may take
    the other one on another device.
    """
    height, width = images.shape[2:]
    rows_out, columns_out = size or (height, width)
    half = to_device(np.array([width / 2, height / 2], np.float32), images.device)
    x = torch.arange(columns_out, device=images.device) - (columns_out - 1) / 2
    y = torch.arange(rows_out, device=images.device) - (rows_out - 1) / 2
    x, y = x[:, None], y[:, None, None]
    if displacement is not None:
        x, y = x + displacement[..., :1], y + displacement[..., 1:]
    # No matrix product, which a GPU may be allowed to round to ten bits (TF32).
    rows = matrix[:, :2] / half[:, None]
    by_x, by_y, shift = rows[:, None, None].unbind(-1)
    grid = x * by_x + (y * by_y + shift)
    if matrix.shape[1] == 3:
        by_x, by_y, shift = matrix[:, None, None, 2:].unbind(-1)
        grid = grid / (x * by_x + (y * by_y + shift))
    values = to_float(images)
    if inside is not None:
        values = values * inside
    if fill is not None:  # a channel of ones shows how much of a pixel is of the image
        ones = torch.ones_like(values[:, :1]) if inside is None else inside.to(values.dtype)
        values = torch.cat([values, ones], 1)
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


def warp_canvas(
    step: Warps, pixels: torch.Tensor, height: Ints, width: Ints, *, mask: bool
) -> torch.Tensor:
    """Return images [n, H, W, C] after a step, in the top left corners of a canvas.

    They are of `height` and `width`, int64 [n], in the corners of `pixels`.
    """
    rows, columns = pixels.shape[1:3]
    size = int(step.height.max()), int(step.width.max())
    device = pixels.device
    interpolation: WarpInterpolation = "nearest" if mask else step.interpolation
    centre = [np.full(len(pixels), side / 2) for side in (columns, rows, size[1], size[0])]
    matrix = shifts(-centre[0], -centre[1]) @ step.matrix @ shifts(centre[2], centre[3])
    if (matrix[:, 2] == [0, 0, 1]).all():
        matrix = matrix[:, :2]
    displacement = inside = None
    if step.displacement is not None:
        displacement = fields(step.keys, step.height, step.width, size, step.displacement, device)
    if (height < rows).any() or (width < columns).any():
        y, x = (torch.arange(side, device=device) for side in (rows, columns))
        high, wide = (to_device(part, device)[:, None] for part in (height, width))
        inside = ((y < high)[:, :, None] & (x < wide)[:, None])[:, None]
    return warp(
        pixels.permute(0, 3, 1, 2),
        to_device(matrix.astype(np.float32), device),
        interpolation,
        step.fill.values(pixels.shape[3], mask=mask).tolist(),
        size=size,
        displacement=displacement,
        inside=inside,
    ).permute(0, 2, 3, 1)
