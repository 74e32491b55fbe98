"""The compiled library's resize in plain Python: slow, and exact."""

from __future__ import annotations

import itertools

import numpy as np


def resize_reference(
    image: np.ndarray,
    size: tuple[int, int],
    *,
    antialias: bool,
    flip: bool = False,
    factor: int = 1,
    window: tuple[int, int, int, int] | None = None,
) -> np.ndarray:
    """Return uint8 [H, W, C] resized to `size` (height, width), perhaps mirrored after that.

    `window` (top, left, height, width) is what is resized of a picture whose pixels are counted
    before it was reduced by `factor`, to those of `image`.
    """
    top, left, height, width = window or (0, 0, factor * image.shape[0], factor * image.shape[1])
    down = reduced_weights(top, height, image.shape[0], size[0], factor, antialias)
    across = reduced_weights(left, width, image.shape[1], size[1], factor, antialias)
    middle = np.einsum("xw,hwc->hxc", across, image.astype(np.int64)) + (1 << 6) >> 7
    pixels = np.einsum("yh,hxc->yxc", down, middle) + (1 << 20) >> 21
    assert pixels.min() >= 0
    assert pixels.max() <= 255
    return (pixels[:, ::-1] if flip else pixels).astype(np.uint8)


def reduced_weights(
    start: int, length: int, pixels: int, after: int, factor: int, antialias: bool
) -> np.ndarray:
    """Return a triangle filter's weights, int64 [after, pixels], of 14 bits.

    Pixels are `factor` units wide; units from `start` on are what is resized, `length` of them.
    """
    rows = []
    # Everything is counted in units times 2 * after, so that centres are whole numbers.
    support = 2 * max(length if antialias else 0, factor * after)
    inside = [sum(start <= u < start + length for u in _units(i, factor)) for i in range(pixels)]
    first = next(i for i in range(pixels) if inside[i])
    last = first + sum(part > 0 for part in inside) - 1
    for x in range(after):
        centre = (2 * x + 1) * length
        exact = [0] * pixels
        for i in range(first, last + 1):
            distance = abs(((2 * i + 1) * factor - 2 * start) * after - centre)
            weight = max(0, support - distance)
            # What a pixel at an edge has outside, its neighbour weighs more.
            neighbour = i if first == last else i + (i == first) - (i == last)
            exact[i] += weight * inside[i]
            exact[neighbour] += weight * (factor - inside[i])
        # Sums from the left are what is rounded, so that all weights sum to 1 << 14.
        sums, total = itertools.accumulate(exact, initial=0), sum(exact)
        rows.append(np.diff([(part * (1 << 14) + total // 2) // total for part in sums]))
    return np.array(rows, np.int64)


def _units(pixel: int, factor: int) -> range:
    return range(pixel * factor, (pixel + 1) * factor)
