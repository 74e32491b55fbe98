"""Samples whose boxes can be seen: what tests of boxes share.

Box number k of a sample is a filled rectangle in channel k of its image, on black.  So where
a box should be, whatever was done to the image, is found in its pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from samples import encode, write_shard

from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, Field, ImageField, ScalarField, Schema

FIELDS: dict[str, Field] = {
    "number": ScalarField("int64"),
    "boxes": ArrayField("float64", (None, 4), boxes=True),
    "whole": ArrayField("int16", (None, 4), boxes=True),
    "first": ArrayField("float32", (4,), boxes=True),
    "pair": ArrayField("float32", (2, 4), boxes=True),
    "classes": ArrayField("int64", (None,)),
    "points": ArrayField("float32", (None, 2)),
    "image": ImageField(),
    "mask": ImageField(channels=1, mask=True),
}
BOXED = Schema(FIELDS)


def boxes_of(index: int, height: int, width: int) -> np.ndarray[Any, Any]:
    """Return up to three boxes of a sample: int64 [k, 4], within its image."""
    random = np.random.default_rng((index, height, width))
    count = index % 4
    top, left = random.integers(0, (height - 8, width - 8), (count, 2)).T
    bottom = top + random.integers(6, 41, count).clip(max=height - top)
    right = left + random.integers(6, 41, count).clip(max=width - left)
    return np.stack([left, top, right, bottom], 1)


def draw(boxes: np.ndarray[Any, Any], height: int, width: int) -> np.ndarray[Any, Any]:
    """Return an image of boxes: uint8 [H, W, 3]."""
    image = np.zeros((height, width, 3), np.uint8)
    for channel, (left, top, right, bottom) in enumerate(boxes.tolist()):
        image[top:bottom, left:right, channel] = 255
    return image


def size_of(index: int) -> tuple[int, int]:
    return 60 + 13 * (index % 5), 110 - 11 * (index % 6)


def record(index: int, size: tuple[int, int], codec: str = "raw") -> Record:
    boxes = boxes_of(index, *size)
    image = draw(boxes, *size)
    first = boxes[0] if len(boxes) else np.array([1, 2, 30, 40])
    values = {
        "number": index,
        "boxes": boxes.astype(np.float64),
        "whole": boxes.astype(np.int16),
        "first": first.astype(np.float32),
        "pair": np.stack([first, [3, 4, 5, 6]]).astype(np.float32),
        "classes": np.arange(len(boxes)) + 10 * index,
        "points": np.full((len(boxes), 2), index, np.float32),
        "image": encode(image, codec),
        "mask": encode(image.max(2, keepdims=True), "raw"),
    }
    return Record(f"boxed/{index}", tuple(values[name] for name in BOXED))


def boxed_shard(path: Path, count: int = 40, size: tuple[int, int] | None = None) -> Path:
    """Write a shard of such samples, of many sizes unless of one."""
    return write_shard(path, [record(i, size or size_of(i)) for i in range(count)], BOXED)


def visible(channel: np.ndarray[Any, Any], threshold: int = 127) -> list[int] | None:
    """Return left, top, right and bottom of what is to be seen in pixels [H, W]."""
    rows, columns = (np.flatnonzero((channel > threshold).any(axis)) for axis in (1, 0))
    if not len(rows):
        return None
    return [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]


def check_seen(images: Any, boxes: Any, atol: float = 1.0) -> int:
    """Compare boxes with the pixels of their images [n, C, H, W]; return how many are seen."""
    count = 0
    for image, own in zip(torch.as_tensor(images), boxes, strict=True):
        for channel, box in enumerate(own.tolist()):
            found = visible(image[channel].numpy())
            if found is None:
                assert min(box[2] - box[0], box[3] - box[1]) <= atol, (box, image.shape)
                continue
            np.testing.assert_allclose(box, found, atol=atol)
            count += 1
    return count
