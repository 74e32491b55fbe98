"""COCO's panoptic annotations: an image of ids, and which class each id is of.

Source: https://cocodataset.org/#format-data, 4.  A pixel's id is R + 256 G + 65536 B; 0 is of
nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fastdata.codecs.image import MAX_PIXELS
from fastdata.regular_files import open_regular

from ..safe_paths import path_inside
from .annotated import Frame
from .shapes import numbers

__all__ = ["panoptic_values"]

_MOST = 254


def panoptic_values(
    entry: dict[str, Any],
    folder: str,
    categories: tuple[int, ...],
    frame: Frame,
    instances: bool,
) -> dict[str, Any]:
    """Return boxes, labels, crowd, areas and mask of an image's annotation.

    instances: whether pixels become numbers of segments, not of classes; both from 1 on.
    """
    segments = entry.get("segments_info")
    if not isinstance(segments, list) or not all(isinstance(part, dict) for part in segments):
        raise ValueError("its segments_info is no list of objects")
    classes = {number: k for k, number in enumerate(categories)}
    labels = [classes.get(part.get("category_id"), -1) for part in segments]
    if -1 in labels:
        wrong = segments[labels.index(-1)].get("category_id")
        raise ValueError(f"the category_id {wrong!r:.40} of a segment is none of the categories")
    if instances and len(segments) > _MOST:
        raise ValueError(f"a mask holds {_MOST} instances; here are {len(segments)}")
    ids = [part.get("id") for part in segments]
    if not all(type(number) is int and 0 < number < 1 << 24 for number in ids):
        raise ValueError("the id of a segment is no whole number of 24 bits")
    boxes = np.zeros((len(segments), 4), np.float64)
    for k, part in enumerate(segments):
        box = part.get("bbox")
        given = numbers(box if isinstance(box, list) else [])
        if len(given) != 4:
            raise ValueError(f"the bbox of a segment is {box!r:.80}, not four numbers")
        boxes[k] = [given[0], given[1], given[0] + given[2], given[1] + given[3]]
    values = 1 + (np.arange(len(ids)) if instances else np.array(labels, np.int64))
    mask = _numbered(_ids_of(path_inside(folder, entry.get("file_name")), frame), ids, values)
    areas = [part.get("area", 0) for part in segments]
    return {
        "boxes": frame.boxes(boxes).astype(np.float32),
        "labels": np.array(labels, np.int64),
        "crowd": np.array([part.get("iscrowd") == 1 for part in segments], bool),
        "areas": numbers(areas).astype(np.float32),
        "mask": frame.mask(mask),
    }


def _ids_of(path: str, frame: Frame) -> NDArray[np.uint32]:
    name = Path(path).name
    try:
        with open(path, "rb", opener=open_regular) as file, Image.open(file) as image:
            size = image.size
            if size == (frame.width, frame.height) and size[0] * size[1] <= MAX_PIXELS:
                pixels = np.asarray(image.convert("RGB"), np.uint32)
                return np.asarray(pixels @ np.array([1, 256, 65536], np.uint32), np.uint32)
    except OSError as error:
        raise ValueError(f"its mask {name} cannot be read: {error}") from None
    except Exception as error:  # PIL's plugins raise nearly anything on damaged files
        raise ValueError(f"its mask {name} cannot be read: {type(error).__name__}") from None
    raise ValueError(f"its mask {name} has {size[0]} x {size[1]} pixels, the image others")


def _numbered(
    found: NDArray[np.uint32], ids: list[Any], values: NDArray[np.int64]
) -> NDArray[np.uint8]:
    known = np.array([0, *ids], np.uint32)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], found), len(known) - 1)
    which = order[place]
    strange = found[known[which] != found]
    if len(strange):
        raise ValueError(f"its mask has the id {strange[0]}, which is of no segment")
    return np.array([0, *values], np.int64)[which].astype(np.uint8)
