"""Carry out the geometry of one image, into memory that the caller owns.

The filters, and why there are two (measured on one core, photographs of short
side 256, crops to 224 x 224):

- A mild shrink, or an enlargement, of a bilinear or bicubic resize is done by
  OpenCV without antialiasing: 30-75 us, 47-55 dB from PIL's pixels.
- Beyond `MILD_SHRINK`, skipping source pixels would alias, so PyTorch's
  antialiased uint8 resize does it: 120-155 us, PIL's pixels to 69 dB.

OpenCV and PyTorch release the GIL here, and images of this size are below the
sizes at which either starts threads of its own: their process-wide thread
settings are left alone.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.resize import resize_pixels
from fastdata.transforms.geometry import Program, Scale, Window

__all__ = ["MILD_SHRINK", "render"]

MILD_SHRINK = 1.6
"""Shrink in either direction from which on ``antialias=None`` antialiases."""

_WITHOUT_ANTIALIAS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}

Pixels = NDArray[np.uint8]


def render(program: Program, image: Pixels, out: Pixels, *, mask: bool = False) -> None:
    """Write what `program` makes of `image` to `out`.

    Parameters
    ----------
    program : Program
    image : ndarray of uint8, shape [H, W, C]
        Never written to.
    out : ndarray of uint8, shape [H', W', C]
        C-contiguous, of the size that the program ends with, and no part of
        `image`.
    mask : bool
        Resize by nearest neighbour, as pixels that are class numbers need.

    Notes
    -----
    Thread-safe.  The last operation writes to `out` and a flip happens there,
    while the pixels are in the cache: 6 us for 224 x 224 x 3, where a second
    buffer would cost 38 us.
    """
    last = len(program.operations) - 1
    for number, operation in enumerate(program.operations):
        target = out if number == last else None
        if isinstance(operation, Window):
            image = _cut(image, operation, target)
        else:
            image = _resize(image, operation, target, mask)
    if program.flip:
        cv2.flip(image, 1, dst=out)  # swaps pixels, so image may be out
    elif image is not out:
        np.copyto(out, image)


def _cut(image: Pixels, window: Window, out: Pixels | None) -> Pixels:
    """Return the window: a view where it lies inside the image, else padded."""
    rows, columns, channels = image.shape
    top, left, height, width = window
    bottom, right = top + height, left + width
    if top >= 0 and left >= 0 and bottom <= rows and right <= columns:
        return image[top:bottom, left:right]
    padded = np.empty((height, width, channels), np.uint8) if out is None else out
    padded.fill(0)
    part = image[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)]
    if part.size:
        y, x = max(-top, 0), max(-left, 0)
        padded[y : y + part.shape[0], x : x + part.shape[1]] = part
    return padded


def _resize(image: Pixels, scale: Scale, out: Pixels | None, mask: bool) -> Pixels:
    """Return the image resized, in `out` where given."""
    rows, columns, channels = image.shape
    height, width, interpolation, antialias = scale
    if (rows, columns) == (height, width):
        return image
    if mask or interpolation == "nearest":
        flag = cv2.INTER_NEAREST_EXACT
    elif antialias or (antialias is None and max(rows / height, columns / width) >= MILD_SHRINK):
        # Made contiguous here: PyTorch would do it too, but on several threads,
        # which gets in the way of the other workers.
        source = np.require(image, requirements=("C", "W"))
        return resize_pixels(source, (height, width), interpolation, out=out)
    else:
        flag = _WITHOUT_ANTIALIAS[interpolation]
    if out is None:
        out = np.empty((height, width, channels), np.uint8)
    cv2.resize(image, (width, height), dst=out, interpolation=flag)
    return out
