"""The resize of packing: bilinear, antialiased, the same bytes on every machine.

What is resized is stored for good and has a digest, so it must not depend on the processor, on the
release of a library, or on whether fastdata's own was compiled.  The filter is PIL's triangle in
integers, as ``fastdata/native/resize.c`` computes it.  Without the compiled library NumPy computes
the same bytes in ten times the time (3 ms for a photograph of 400 x 466 pixels to 256 x 298).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs import Pixels
from fastdata.native.library import loaded_library, resize

__all__ = ["resize_bilinear", "resize_bilinear_window"]

_Integers: TypeAlias = NDArray[Any]

_WEIGHT_BITS, _MIDDLE_BITS = 14, 7
"""Fractional bits of weights, and of numbers between the two directions, as in resize.c."""


def resize_bilinear(
    pixels: Pixels, size: tuple[int, int], whole: tuple[int, int], factor: int = 1
) -> Pixels:
    """Resize an image, uint8 [H, W, C], to a height and width.

    `whole` is the height and width of the picture.  `pixels` has ``1 / factor`` of each, rounded
    up: the picture may cover its last row and column in part.  The result is `pixels` itself if
    nothing changes.  Thread-safe.
    """
    if factor == 1 and size == whole:
        return pixels
    out = np.empty((*size, pixels.shape[2]), np.uint8)
    made = loaded_library() is not None and resize(
        pixels, out, antialias=True, factor=factor, size=whole
    )
    return out if made else resize_bilinear_window(pixels, size, (0, 0, *size), whole, factor)


def resize_bilinear_window(
    pixels: Pixels,
    size: tuple[int, int],
    window: tuple[int, int, int, int],
    whole: tuple[int, int],
    factor: int = 1,
) -> Pixels:
    """Return a window (top, left, height, width) of the result of `resize_bilinear`, bit for bit.

    Reads only the pixels that the window needs.
    """
    top, left, height, width = window
    rows = _filter(whole[0], size[0], factor, top, height)
    columns = _filter(whole[1], size[1], factor, left, width)
    above, before = int(rows[0][0]), int(columns[0][0])
    below, behind = (int(first[-1]) + weights.shape[1] for first, weights in (rows, columns))
    # NumPy gathers whole rows fast, so columns become rows for a while.
    turned = np.ascontiguousarray(pixels[above:below, before:behind].swapaxes(0, 1))
    middle = _apply(turned, (columns[0] - before, columns[1]), _WEIGHT_BITS - _MIDDLE_BITS)
    cut = np.ascontiguousarray(middle.swapaxes(0, 1))
    return _apply(cut, (rows[0] - above, rows[1]), _WEIGHT_BITS + _MIDDLE_BITS).astype(np.uint8)


def _apply(lines: _Integers, filter: tuple[_Integers, _Integers], shift: int) -> _Integers:
    """Make a line for each start of the filter, and round sums to `shift` bits less."""
    first, weights = filter
    total = np.full((len(first), *lines.shape[1:]), 1 << (shift - 1), np.int32)
    for tap in range(weights.shape[1]):
        at = np.minimum(first + tap, len(lines) - 1)  # beyond, weights are zero
        total += lines[at] * weights[:, tap, None, None]
    total >>= shift
    return total


def _filter(
    length: int, target: int, factor: int, begin: int, size: int
) -> tuple[_Integers, _Integers]:
    """Return where the filter of each pixel begins, and its weights [size, taps].

    The pixels are the `size` from `begin` on of `target` ones.  The source is `length` units long,
    and a pixel is `factor` units.  Lengths are multiplied by 2 * target, so that centres are whole
    numbers.
    """
    count = -(-length // factor)
    last_part = length - (count - 1) * factor
    step = 2 * target * factor
    support = 2 * max(length, target * factor)
    centres = (2 * np.arange(begin, begin + size, dtype=np.int64) + 1) * length
    taps = min(-(-2 * support // step), count)
    # The first pixel whose centre, (pixel + 1/2) * step, is less than `support` away.
    first = np.maximum((centres - support - step // 2) // step + 1, 0)
    first = np.minimum(first, count - taps)

    def heights(at: _Integers) -> _Integers:
        inside = (at >= 0) & (at < count)
        distance = np.abs(at * step + step // 2 - centres[:, None])
        return np.where(inside, np.maximum(support - distance, 0), 0)

    at = first[:, None] + np.arange(taps)
    exact = heights(at) * factor
    if last_part < factor and count > 1:
        # What the last pixel has outside, its neighbour weighs more.
        beyond = factor - last_part
        exact -= np.where(at == count - 1, heights(at), 0) * beyond
        exact += np.where(at == count - 2, heights(at + 1), 0) * beyond
    # Round the sums from the left, so that all weights sum to 1 << _WEIGHT_BITS.
    sums = exact.cumsum(axis=1)
    whole = sums[:, -1:]
    rounded = ((sums << _WEIGHT_BITS) + whole // 2) // whole
    return first, np.diff(rounded, axis=1, prepend=0).astype(np.int32)
