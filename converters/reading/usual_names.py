"""What images, labels and masks are usually called, whatever the format calls its columns.

A format whose convention names them otherwise (``image/encoded`` of TensorFlow's datasets,
``cls`` of WebDataset) asks for that first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = ["IMAGES", "LABELS", "MASKS", "first_called", "is_mask_name"]

IMAGES = (
    "image", "images", "img", "imgs", "image_raw", "jpg", "jpeg", "jpegs", "png", "picture",
    "pictures", "pic", "pil", "rgb", "pixels", "encoded",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "class_id", "class_index", "cls", "target", "targets",
    "category", "y",
)  # fmt: skip
"""Of classes; the likeliest first."""
MASKS = ("mask", "masks", "seg", "segmentation")


def first_called(names: Iterable[str], usual: Sequence[str]) -> str | None:
    """Return the name that is most usual, in upper or lower case; None if none is usual."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return next((found[word] for word in usual if word in found), None)


def is_mask_name(name: str) -> bool:
    """Tell whether an image of this name is a mask."""
    lowered = name.lower()
    return (
        "mask" in lowered
        or "segment" in lowered
        or not set(re.split(r"[^a-z]+", lowered)).isdisjoint(MASKS)
    )
