"""Warp images on the CPU, by OpenCV.

Pixels are looked up in bands that are too small for OpenCV to start threads of its own.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.transforms.displacement import field
from fastdata.transforms.warps import Warp

__all__ = ["warp_image"]

BAND_PIXELS = 1 << 16
"""Pixels that OpenCV looks up at a time; with half as many more it takes a second thread."""

CHANNELS_AT_ONCE = 4
"""As many as OpenCV has a border colour for."""

EDGE = 1e-6
"""Less of a pixel beyond an edge changes no value."""

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]


def warp_image(image: Pixels, warp: Warp, out: Pixels | None, *, mask: bool) -> Pixels:
    """Return an image, uint8 [H, W, C], looked up as `warp` says, in `out` where given.

    A `mask` is looked up by nearest neighbour.  Thread-safe.
    """
    channels = image.shape[2]
    if out is None:
        out = np.empty((warp.height, warp.width, channels), np.uint8)
    nearest = mask or warp.interpolation == "nearest"
    fill = warp.fill.values(channels, mask=mask)
    moved = None
    if warp.displacement is not None:
        moved = field(warp.key, warp.height, warp.width, warp.displacement)
    at_once = max(BAND_PIXELS // warp.width, 1)
    for start in range(0, warp.height, at_once):
        stop = min(start + at_once, warp.height)
        x, y = _places(warp, image.shape, start, stop, moved, nearest=nearest)
        band = out[start:stop]
        for first in range(0, channels, CHANNELS_AT_ONCE):
            some = slice(first, first + CHANNELS_AT_ONCE)
            _look_up(image, x, y, band, some, fill, nearest=nearest)
        if not nearest:
            _blend_edges(band, x, y, image.shape, fill)
    return out


def _places(
    warp: Warp,
    shape: tuple[int, ...],
    start: int,
    stop: int,
    moved: tuple[Floats, Floats] | None,
    *,
    nearest: bool,
) -> tuple[Floats, Floats]:
    """Return for each pixel of some rows where it is in the image, from the first pixel's centre.

    float32 [rows, W], across and down.
    """
    across, down, depth = warp.matrix.tolist()
    # From the centre of a pixel there to that of one here.
    across, down = (
        [one - 0.5 * far for one, far in zip(row, depth, strict=True)] for row in (across, down)
    )
    kind = np.float64 if moved is None else np.float32
    x = np.arange(0.5, warp.width, dtype=kind)
    y = np.arange(start + 0.5, stop, dtype=kind)[:, None]
    if moved is not None:
        x, y = x + moved[0][start:stop], y + moved[1][start:stop]
    if depth[:2] == [0, 0]:
        return _sum(x, y, *across), _sum(x, y, *down)
    # A quotient that float32 rounds to a half may be another pixel's.
    kind = np.float64 if nearest else np.float32
    far = _sum(x, y, *depth, kind=kind)
    far[far == 0] = 1e-30
    places = [_sum(x, y, *row, kind=kind) for row in (across, down)]
    for part, length in zip(places, (shape[1], shape[0]), strict=True):
        part /= far
        # What is far beyond is beyond, however OpenCV rounds it.
        np.clip(part, -9, length + 9, out=part)
    return places[0].astype(np.float32, copy=False), places[1].astype(np.float32, copy=False)


def _sum(
    x: Any, y: Any, by_x: float, by_y: float, shift: float, *, kind: Any = np.float32
) -> Floats:
    """Return by_x * x + by_y * y + shift, whose two parts are rounded to `kind` before the sum."""
    if x.ndim == 2 and 0 in (by_x, by_y):
        part: Floats = by_x * x if by_x else by_y * y
        part += shift
        return part
    total: Floats = (by_x * x).astype(kind) + (by_y * y + shift).astype(kind)
    return total


def _look_up(
    image: Pixels,
    x: Floats,
    y: Floats,
    out: Pixels,
    some: slice,
    fill: Pixels,
    *,
    nearest: bool,
) -> None:
    """Look up some channels."""
    part = image[..., some]
    whole = part.shape == image.shape
    made = cv2.remap(
        part if whole else np.ascontiguousarray(part),
        x,
        y,
        cv2.INTER_NEAREST if nearest else cv2.INTER_LINEAR,
        dst=out if whole else None,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=fill[some].tolist(),
    )
    if not whole:
        out[..., some] = made.reshape(*out.shape[:2], -1)


def _blend_edges(out: Pixels, x: Floats, y: Floats, shape: tuple[int, ...], fill: Pixels) -> None:
    """Blend the pixels at the image's edges with `fill` once more, as torchvision does.

    There the image, zero beyond its edges, is weighed once more by the share of a pixel that is
    inside: of v = share * image + (1 - share) * fill it makes share * v + (1 - share)**2 * fill.
    """
    beyond = _beyond(x, shape[1])
    np.maximum(beyond, _beyond(y, shape[0]), out=beyond)
    at = np.flatnonzero((beyond > EDGE) & (beyond < 1 - EDGE))
    if not len(at):
        return
    share = np.ones(len(at), np.float32)
    for part, length in ((x, shape[1]), (y, shape[0])):
        share *= 1 - _beyond(part.ravel()[at], length).clip(min=0)
    share = share[:, None]
    flat = out.reshape(-1, out.shape[2])
    flat[at] = np.rint(share * flat[at] + (1 - share) ** 2 * fill)


def _beyond(at: Floats, length: int) -> Floats:
    """Return how far places are beyond an axis: 0 at its first and last pixel, 1 at the next."""
    middle = (length - 1) / 2
    far: Floats = at - np.float32(middle)
    np.abs(far, out=far)
    far -= np.float32(middle)
    return far
