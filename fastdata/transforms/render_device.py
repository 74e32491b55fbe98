"""Carry out planned geometry on a whole batch, on the device where it is.

`fastdata.transforms.render` does it image by image while a batch is made.  This is
for images that are decoded already: a dataset that is cached on a GPU, or geometry
behind a `BatchTransform`.  The plan is the same, made by the same code from the same
draws; only its numbers (a few an image) go to the device.

A `Geometry` does the same to all rows and the same to all columns.  So each
axis of the output gets *taps*: which source pixels it is made of, and how much of each.
Rows are gathered first, then columns.  The taps are those of the CPU: half-pixel
centres, edges repeated, nearest neighbour for masks, zero or a fill beyond the image, and a filter
as wide as the resize shrinks where the CPU antialiases.

Against the CPU's pixels: windows and flips are equal, and so is nearest neighbour but
where a centre falls exactly between two pixels (the second is taken here; there it is a
matter of OpenCV's version).  Bilinear ones differ by 1 at most: photographs of 256 x 320
and 375 x 500, cropped to 224 x 224, are 75 dB from the CPU's pixels at least, and 55 dB
with ``antialias=True``.  A JPEG that the CPU decodes at a reduced scale is reduced here by
the filter instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.transforms.fill import Fill
from fastdata.transforms.geometry import (
    Geometry,
    Interpolation,
    Ints,
    PaddingMode,
    Windows,
    antialiases,
    inside_places,
)
from fastdata.transforms.image_tensors import in_order, to_device
from fastdata.transforms.warping import warp_canvas
from fastdata.transforms.warps import Warps

__all__ = ["render_canvas", "render_on_device"]


def render_on_device(
    geometry: Geometry, images: torch.Tensor, *, mask: bool = False
) -> torch.Tensor:
    """Return what `geometry` makes of a batch of images.

    Parameters
    ----------
    geometry : Geometry
        Planned for n images, all of the size of these; in the end they are of one size.
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
    size; pixels beside them are never read.  The result is [n, H', W', C], contiguous.
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
    plan = _passes(geometry)
    no_flips = np.zeros(len(geometry), np.bool_)
    for number, step in enumerate(plan):
        last = number == len(plan) - 1
        flips = geometry.flips_before if last else (no_flips, no_flips)
        if isinstance(step, _Pass):
            pixels = _render(step, pixels, flips, mask)
        else:
            pixels = warp_canvas(step.warps, pixels, step.height, step.width, mask=mask)
    if geometry.transpose is not None:
        # Images are in the corners of a canvas that has both orientations.
        height, width = int(geometry.height[0]), int(geometry.width[0])
        turned = to_device(geometry.transpose, pixels.device)[:, None, None, None]
        across = pixels.transpose(1, 2)[:, :height, :width]
        if not geometry.transpose.all():
            across = torch.where(turned, across, pixels[:, :height, :width])
        pixels = across
    return pixels.contiguous()


@dataclass(frozen=True, slots=True, eq=False)
class _Axis:
    """The window and the resize along rows, or columns, of each image: int64 [n] each.

    `start` and `length` are of the window, `low` and `high` between which there is an image;
    all in source pixels.  `size` is that of the output.
    """

    start: Ints
    length: Ints
    low: Ints
    high: Ints
    size: Ints

    def window(self, start: Ints, length: Ints, mode: PaddingMode) -> _Axis:
        """Take a window of the window; with a mode, of a whole image."""
        start = self.start + start
        if mode != "constant":
            return _Axis(start, length, self.low, self.high, length)
        low, high = np.maximum(self.low, start), np.minimum(self.high, start + length)
        return _Axis(start, length, low, high, length)


class _Pass(NamedTuple):
    """One window of each image, and perhaps a resize of it."""

    axes: tuple[_Axis, _Axis]
    interpolation: Interpolation
    antialias: bool | None
    fill: Fill | None
    mode: PaddingMode


class _WarpPass(NamedTuple):
    """Warps, and the sizes of the images before, int64 [n]."""

    warps: Warps
    height: Ints
    width: Ints


def _passes(geometry: Geometry) -> list[_Pass | _WarpPass]:
    """Return the steps of a geometry, windows joined to the resize that follows them.

    The last one can mirror images, unless none is mirrored.
    """

    def whole(length: Ints) -> _Axis:
        return _Axis(np.zeros_like(length), length, np.zeros_like(length), length, length)

    passes: list[_Pass | _WarpPass] = []
    rows, columns = whole(geometry.source_height), whole(geometry.source_width)
    pending = not geometry.steps
    beyond: tuple[Fill | None, PaddingMode] = None, "constant"
    for step in geometry.steps:
        if isinstance(step, Windows):
            if pending and (beyond != (None, "constant") or not step.zero):
                # What this window finds beyond an image is another thing.
                passes.append(_Pass((rows, columns), "nearest", False, *beyond))
                rows, columns = whole(rows.size), whole(columns.size)
            beyond = step.fill, step.mode
            rows, columns = (
                rows.window(step.top, step.height, step.mode),
                columns.window(step.left, step.width, step.mode),
            )
            pending = True
            continue
        if isinstance(step, Warps):
            if pending:
                passes.append(_Pass((rows, columns), "nearest", False, *beyond))
            beyond = None, "constant"
            passes.append(_WarpPass(step, rows.size, columns.size))
            rows, columns = whole(step.height), whole(step.width)
            pending = step is geometry.steps[-1] and any(map(np.any, geometry.flips_before))
            continue
        axes = replace(rows, size=step.height), replace(columns, size=step.width)
        passes.append(_Pass(axes, step.interpolation, step.antialias, *beyond))
        rows, columns, pending = whole(step.height), whole(step.width), False
        beyond = None, "constant"
    if pending:
        passes.append(_Pass((rows, columns), "nearest", False, *beyond))
    return passes


def _render(
    step: _Pass,
    pixels: torch.Tensor,
    flips: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    mask: bool,
) -> torch.Tensor:
    """Return images [n, H, W, C] after one pass; `flips` are left to right and top to bottom."""
    flip, upside_down = flips
    rows, columns = step.axes
    interpolation = "nearest" if mask else step.interpolation
    if step.antialias is None:
        smooth = antialiases(rows.length, columns.length, rows.size, columns.size)
    else:
        smooth = np.full(len(flip), step.antialias)
    batch = torch.arange(len(pixels), device=pixels.device)[:, None]
    across = torch.arange(int(rows.size.max()), device=pixels.device)[:, None]

    device = pixels.device
    at, down = _taps(rows, upside_down, smooth, interpolation, step.mode, device)
    tall = _sum_of_taps(
        (pixels[batch, at[:, tap]] for tap in range(at.shape[1])),
        down[:, :, :, None, None],
        interpolation,
    )
    at, over = _taps(columns, flip, smooth, interpolation, step.mode, device)
    total = _sum_of_taps(
        (tall[batch[:, :, None], across, at[:, tap, None]] for tap in range(at.shape[1])),
        over[:, :, None, :, None],
        interpolation,
    )
    if step.fill is not None:
        fill = to_device(step.fill.values(pixels.shape[3], mask=mask).copy(), device)
        share = (down.sum(1)[:, :, None] * over.sum(1)[:, None])[..., None]
        if interpolation == "nearest":
            total = torch.where(share > 0, total, fill.to(total.dtype))
        else:
            total = total.add_((1 - share) * fill)
    if interpolation == "nearest" or pixels.is_floating_point():
        return total.to(pixels.dtype)
    return total.add_(0.5).floor_().clamp_(0, 255).to(pixels.dtype)


def _sum_of_taps(
    pixels: Iterable[torch.Tensor], weights: torch.Tensor, interpolation: Interpolation
) -> torch.Tensor:
    """Return the sum of the pixels of each tap times its weights, [n, taps, ...].

    Of nearest neighbours there is one tap, whose pixels stay as they are where they have weight.
    """
    total: torch.Tensor | None = None
    for some, weight in zip(pixels, weights.unbind(1), strict=True):
        nearest = interpolation == "nearest"
        part = torch.where(weight > 0, some, 0) if nearest else some * weight
        total = part if total is None else total.add_(part)
    assert total is not None, "every output pixel has a tap"
    return total


def _taps(
    axis: _Axis,
    flip: NDArray[np.bool_],
    smooth: NDArray[np.bool_],
    interpolation: Interpolation,
    mode: PaddingMode,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return indices, int64 [n, taps, size], and weights, float32, of an axis.

    The filters are Pillow's where `smooth` (those of `torch.nn.functional.interpolate` with
    antialias), else OpenCV's.
    """

    def tensor(values: NDArray[Any]) -> torch.Tensor:
        return to_device(values, device)[:, None, None]

    parts = axis.start, axis.length, axis.low, axis.high, axis.size
    start, length, low, high, size = map(tensor, parts)
    # What is beside a smaller image is its edge, and never read.
    place = torch.arange(int(axis.size.max()), device=device)
    place = torch.minimum(place, (size - 1).clamp(0))
    place = torch.where(tensor(flip), size - 1 - place, place)
    if interpolation == "nearest":
        offset = (2 * place + 1) * length // (2 * size)  # in whole numbers: the same anywhere
        position = torch.minimum(offset.clamp(0), length - 1) + start
        if mode != "constant":
            position = inside_places(position, high, mode)
        inside = (position >= low) & (position < high)
        return _bounded(position, low, high), inside.float()

    shrink = axis.length / np.maximum(axis.size, 1)
    centre = (place + 0.5) * tensor(shrink)
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
    beyond = (offset < 0) | (offset >= length)
    weights = torch.where(tensor(smooth) & beyond, 0, weights)
    weights = weights / weights.sum(1, keepdim=True)
    position = torch.minimum(offset.clamp(0), length - 1).long() + start  # edges are repeated
    if mode != "constant":
        position = inside_places(position, high, mode)
    weights = torch.where((position >= low) & (position < high), weights, 0)
    return _bounded(position, low, high), weights.float()


def _bounded(position: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Return positions that exist; what was beyond has no weight.

    `low` may be `high`, where nothing of an image is seen: its first pixel will do.
    """
    return torch.minimum(torch.maximum(position, low), (high - 1)).clamp_(0)


def _cubic(distance: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """Return Keys' cubic filter ("Cubic convolution interpolation", IEEE TASSP 29, 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))
