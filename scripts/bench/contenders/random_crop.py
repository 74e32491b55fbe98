"""Where torchvision's RandomResizedCrop cuts; standard library only."""

from __future__ import annotations

import math
import random


def random_box(height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a crop of an image of this size."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    w = min(width, round(height * 4 / 3))
    h = min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w
