"""Carry out planned geometry on a whole batch, on the device where it is.

`fastdata.transforms.render` does it image by image while a batch is made.  This is
for images that are decoded already: a dataset that is cached on a GPU, or geometry
behind a `BatchTransform`.  The plan is the same, made by the same code from the same
draws; only its numbers (a few an image) go to the device.

A resize does the same to all rows and the same to all columns.  So each axis of the output gets
*taps*: which source pixels it is made of, and how much of each.  Rows are gathered first, then
columns.  The taps are those of the CPU: half-pixel centres, edges repeated, nearest neighbour for
masks, and a filter as wide as the resize shrinks where the CPU antialiases.

Against the CPU's pixels: windows and flips are equal.  Nearest neighbour is equal, too, unless a
centre falls exactly between two pixels (the second is taken here; there it depends on OpenCV's
version).  Bilinear ones differ by 1 at most: photographs of 256 x 320
and 375 x 500, cropped to 224 x 224, are 75 dB from the CPU's pixels at least, and 55 dB
with ``antialias=True``.  A JPEG that the CPU decodes at a reduced scale is reduced here by
the filter instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.transforms.fill import ZERO
from fastdata.transforms.geometry import (
    Geometry,
    Interpolation,
    Ints,
    Scales,
    Windows,
    antialiases,
    inside_places,
)
from fastdata.transforms.image_tensors import in_order, to_device
from fastdata.transforms.warping import warp_canvas

__all__ = ["render_canvas", "render_on_device"]


def render_on_device(
    geometry: Geometry, images: torch.Tensor, *, mask: bool = False
) -> torch.Tensor:
    """Return what `geometry` makes of a batch of images.

    Parameters
    ----------
    geometry : Geometry
        Planned for n images of the size of these.  All results have one size.
    images : torch.Tensor of uint8 or floating, shape [n, C, H, W]
        On any device; never written to.
    mask : bool
        Resize by nearest neighbour, as pixels that are class numbers need.

    Returns
    -------
    torch.Tensor of the same dtype and device, shape [n, C, H', W']
        In channels-last memory; `images` itself where nothing is to be done.

    Raises
    ------
    OptionError
        If the plan is for other images, or leaves them in different sizes.

    Notes
    -----
    Thread-safe.
    """
    count, _, height, width = images.shape
    if len(geometry) != count or not (
        (geometry.source_height == height).all() and (geometry.source_width == width).all()
    ):
        raise OptionError(
            f"the geometry is planned for {len(geometry)} images, but these are {count} of "
            f"{height} x {width} (height x width); plan it with Geometry.of their sizes"
        )
    if geometry.identity or not count:
        return images
    return render_canvas(geometry, images.permute(0, 2, 3, 1), mask=mask).permute(0, 3, 1, 2)


def render_canvas(geometry: Geometry, pixels: torch.Tensor, *, mask: bool = False) -> torch.Tensor:
    """Return what `geometry` makes of images that lie in the top left corners of `pixels`.

    As `render_on_device`, but images may be smaller than the canvas [n, H, W, C], each of its own
    size.  The rest of the canvas is never read.  The result is [n, H', W', C], contiguous.
    """
    for sizes, name in ((geometry.height, "heights"), (geometry.width, "widths")):
        if (sizes != sizes[0]).any():
            raise OptionError(
                f"images of a batch on a device are of one size, but a geometric transform makes "
                f"{name} of {sizes.min()} to {sizes.max()} pixels; use a transform whose "
                "output size is the same for all, as T.RandomResizedCrop(size)"
            )
    if geometry.parts:
        parts = [
            (places, render_canvas(part, pixels[to_device(places, pixels.device)], mask=mask))
            for places, part in geometry.parts
        ]
        return in_order(parts)
    height, width = geometry.source_height, geometry.source_width
    origin = np.zeros_like(height), np.zeros_like(width)
    start = origin  # of the images in `pixels`
    for step, following in zip_longest(geometry.steps, geometry.steps[1:]):
        if isinstance(step, Windows):
            if isinstance(following, Scales) and not _is_beyond(step, height, width):
                start = step.top, step.left  # saves a copy
            else:
                pixels = _cut(step, pixels, height, width, mask)
        elif isinstance(step, Scales):
            pixels, start = _resize(step, pixels, start, height, width, mask), origin
        else:
            pixels = warp_canvas(step, pixels, height, width, mask=mask)
        height, width = step.height, step.width
    rows, columns = int(geometry.height[0]), int(geometry.width[0])
    if geometry.transpose is not None:
        # Images are in the corners of a canvas that has both orientations.
        turned = to_device(geometry.transpose, pixels.device)[:, None, None, None]
        across = pixels.transpose(1, 2)[:, :rows, :columns]
        if not geometry.transpose.all():
            across = torch.where(turned, across, pixels[:, :rows, :columns])
        pixels = across
    for axis, which in ((1, geometry.flip_rows), (2, geometry.flip)):
        if which is not None and which.any():
            flipped = to_device(which, pixels.device)[:, None, None, None]
            pixels = torch.where(flipped, pixels.flip(axis), pixels)
    return pixels.contiguous()


def _is_beyond(step: Windows, height: Ints, width: Ints) -> bool:
    """Return whether a window reaches beyond its image."""
    beyond = (step.top < 0) | (step.top + step.height > height)
    return bool((beyond | (step.left < 0) | (step.left + step.width > width)).any())


def _cut(
    step: Windows, pixels: torch.Tensor, height: Ints, width: Ints, mask: bool
) -> torch.Tensor:
    """Return windows of images [n, H, W, C], which are of `height` and `width`."""
    device = pixels.device
    places, inside = [], []
    for start, length, size in ((step.top, step.height, height), (step.left, step.width, width)):
        limit = to_device(size, device)[:, None]
        place = torch.arange(int(length.max()), device=device) + to_device(start, device)[:, None]
        if step.mode != "constant":
            place = inside_places(place, limit, step.mode)
        inside.append((place >= 0) & (place < limit))
        places.append(torch.minimum(place.clamp(0), limit - 1))
    made = _gathered(pixels, *places)
    if step.mode == "constant" and _is_beyond(step, height, width):
        values = (step.fill or ZERO).values(pixels.shape[3], mask=mask)
        whole = (inside[0][:, :, None] & inside[1][:, None])[..., None]
        made = torch.where(whole, made, to_device(values, device).to(made.dtype))
    return made


def _resize(
    step: Scales,
    pixels: torch.Tensor,
    start: tuple[Ints, Ints],
    height: Ints,
    width: Ints,
    mask: bool,
) -> torch.Tensor:
    """Return images resized that begin at `start`, top and left, of `pixels` [n, H, W, C]."""
    device = pixels.device
    if mask or step.interpolation == "nearest":
        rows = _nearest(start[0], height, step.height, device)
        return _gathered(pixels, rows, _nearest(start[1], width, step.width, device))
    smooth = np.full(len(pixels), bool(step.antialias))
    if step.antialias is None:
        smooth = antialiases(height, width, step.height, step.width)
    batch = torch.arange(len(pixels), device=device)[:, None]
    at, weights = _taps(start[0], height, step.height, smooth, step.interpolation, device)
    tall = _sum(
        pixels[batch, at[:, tap]] * weights[:, tap, :, None, None] for tap in range(at.shape[1])
    )
    across = torch.arange(tall.shape[1], device=device)[:, None]
    at, weights = _taps(start[1], width, step.width, smooth, step.interpolation, device)
    total = _sum(
        tall[batch[:, :, None], across, at[:, tap, None]] * weights[:, tap, None, :, None]
        for tap in range(at.shape[1])
    )
    if not pixels.is_floating_point():
        total = total.add_(0.5).floor_().clamp_(0, 255)
    return total.to(pixels.dtype)


def _sum(parts: Iterator[torch.Tensor]) -> torch.Tensor:
    total = next(parts)
    for part in parts:
        total.add_(part)
    return total


def _gathered(pixels: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return pixels of some rows and columns, int64 [n, H'] and [n, W']: [n, H', W', C]."""
    batch = torch.arange(len(pixels), device=pixels.device)[:, None, None]
    return pixels[batch, rows[:, :, None], columns[:, None]]


def _places(size: Ints, device: torch.device) -> torch.Tensor:
    """Return the places of an axis, int64 [n, most]; smaller images repeat their last place."""
    place = torch.arange(int(size.max()), device=device)
    return torch.minimum(place, (to_device(size, device)[:, None] - 1).clamp(0))


def _nearest(start: Ints, length: Ints, size: Ints, device: torch.device) -> torch.Tensor:
    """Return the place of each pixel of a resize from `length` to `size`, int64 [n, most]."""
    first, before, after = (to_device(part, device)[:, None] for part in (start, length, size))
    # In whole numbers: the same anywhere.
    offset = (2 * _places(size, device) + 1) * before // (2 * after)
    return torch.minimum(offset.clamp(0), before - 1) + first


def _taps(
    start: Ints,
    length: Ints,
    size: Ints,
    smooth: NDArray[np.bool_],
    interpolation: Interpolation,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices, int64 [n, taps, most], and weights, float32, of a resize of an axis.

    The filters are Pillow's where `smooth` (those of `torch.nn.functional.interpolate` with
    antialias), else OpenCV's.
    """

    def tensor(values: NDArray[Any]) -> torch.Tensor:
        return to_device(values, device)[:, None, None]

    shrink = length / np.maximum(size, 1)
    centre = (_places(size, device)[:, None] + 0.5) * tensor(shrink)
    radius = 1 if interpolation == "bilinear" else 2
    wide = np.where(smooth, np.maximum(shrink, 1), 1.0)
    taps = math.ceil(2 * radius * float(wide.max()))
    first = (centre - radius * tensor(wide) - 0.5).floor() + 1
    offset = first + torch.arange(taps, device=device)[:, None]
    distance = (offset + 0.5 - centre).abs() / tensor(wide)
    if interpolation == "bilinear":
        weights = (1 - distance).clamp_(0)
    else:
        weights = _cubic(distance, torch.where(tensor(smooth), -0.5, -0.75))
    beyond = (offset < 0) | (offset >= tensor(length))
    weights = torch.where(tensor(smooth) & beyond, 0, weights)
    weights = weights / weights.sum(1, keepdim=True)
    position = torch.minimum(offset.clamp(0), tensor(length) - 1)  # edges are repeated
    return position.long() + tensor(start), weights.float()


def _cubic(distance: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return Keys' cubic filter ("Cubic convolution interpolation", IEEE TASSP 29, 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))
