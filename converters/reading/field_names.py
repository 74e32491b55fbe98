"""Names of fields: made of a format's own names, or recognised by the names that are usual.

A format whose convention names images and labels otherwise (``image/encoded`` of TensorFlow's
datasets, ``cls`` of WebDataset) asks for that first.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Container, Iterable, Sequence

from fastdata.schema import RESERVED_NAMES

__all__ = [
    "BOXES",
    "IMAGES",
    "INDEX_COLUMNS",
    "LABELS",
    "MASKS",
    "first_called",
    "is_image_name",
    "is_mask_name",
    "safe_name",
    "unique_name",
]

_LONGEST = 90
"""A name may have a hundred characters; the rest is for `unique_name`."""


def safe_name(name: str, otherwise: str = "column") -> str:
    """Return a name as near to the given one as a field's can be.

    otherwise: the name in place of an empty one.
    """
    text = re.sub(r"\W", "_", name.strip(), flags=re.ASCII).lstrip("_0123456789")
    text = text[:_LONGEST] or otherwise
    return text + "_" if keyword.iskeyword(text) or text in RESERVED_NAMES else text


def unique_name(name: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the given one, or with underscores behind it."""
    while name in taken:
        name += "_"
    return name


IMAGES = (
    "image", "images", "img", "imgs", "image_raw", "jpg", "jpeg", "jpegs", "png", "picture",
    "pictures", "pic", "pil", "rgb", "pixels", "encoded",
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "class_id", "class_index", "cls", "target", "targets",
    "category", "y",
)  # fmt: skip
"""Names of labels; the likeliest first."""
BOXES = ("boxes", "bbox", "bboxes", "box", "bounding_box", "bounding_boxes")
"""Only ``boxes`` has a fixed meaning: left, top, right and bottom, in pixels."""
MASKS = ("mask", "masks", "seg", "segmentation")


INDEX_COLUMNS = ("__index_level_0__", "Unnamed: 0", "")
"""Columns in which pandas keeps the numbers of rows."""


def first_called(names: Iterable[str], usual: Sequence[str]) -> str | None:
    """Return the name that is most usual, in upper or lower case; None if none is usual."""
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.lower(), name)
    return next((found[word] for word in usual if word in found), None)


def is_image_name(name: str) -> bool:
    """Tell whether an array of this name is an image: ``image``, ``img_2``, ``left_image``."""
    words = re.split(r"[^a-z]+", name.lower().rstrip("0123456789_- "))
    return words[-1] in IMAGES and not is_mask_name(name)


def is_mask_name(name: str) -> bool:
    """Tell whether an image of this name is a mask."""
    lowered = name.lower()
    return (
        "mask" in lowered
        or "segment" in lowered
        or not set(re.split(r"[^a-z]+", lowered)).isdisjoint(MASKS)
    )
