"""The compiled library's resize in plain Python: slow, and exact."""

from __future__ import annotations

import numpy as np


def resize_reference(
    image: np.ndarray, size: tuple[int, int], *, antialias: bool, flip: bool = False
) -> np.ndarray:
    """Return uint8 [H, W, C] resized to `size` (height, width), perhaps mirrored after that."""
    across = _weights(image.shape[1], size[1], antialias)
    down = _weights(image.shape[0], size[0], antialias)
    middle = np.einsum("xw,hwc->hxc", across, image.astype(np.int64)) + (1 << 6) >> 7
    pixels = np.einsum("yh,hxc->yxc", down, middle) + (1 << 20) >> 21
    assert pixels.min() >= 0
    assert pixels.max() <= 255
    return (pixels[:, ::-1] if flip else pixels).astype(np.uint8)


def _weights(before: int, after: int, antialias: bool) -> np.ndarray:
    """Return a triangle filter's weights, int64 [after, before], of 14 bits."""
    rows = []
    # The half-width of the triangle, in source pixels times 2 * after.
    support = 2 * (max(before, after) if antialias else after)
    for x in range(after):
        centre = (2 * x + 1) * before
        exact = [max(0, support - abs((2 * i + 1) * after - centre)) for i in range(before)]
        total, largest = sum(exact), exact.index(max(exact))
        row = [(weight * (1 << 14) + total // 2) // total for weight in exact]
        row[largest] += (1 << 14) - sum(row)
        rows.append(row)
    return np.array(rows, np.int64)
