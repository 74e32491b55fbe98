"""What columns of a list are for, by the names that they usually have."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["LABELS", "box_columns", "image_column", "is_usual", "names_images", "plain_name"]

_PATHS = (
    "path", "image", "file", "filename", "imagepath", "filepath", "imagefile", "imagefilename",
    "imgpath", "imgfile",
)  # fmt: skip
_IDS = ("imagename", "imgname", "imageid", "imgid", "imageindex", "img", "id")
LABELS = ("label", "class", "target", "category", "class_name", "labelname")
"""Text in a column called so, in upper or lower case, is names of classes."""

_BOXES = {
    "xyxy": (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2")),
    "xywh": (("x1", "y1", "width", "height"), ("bboxx", "bboxy", "bboxwidth", "bboxheight")),
}
"""Names that leave no doubt."""

_BOXES_IF_ASKED = {
    "xyxy": (("left", "top", "right", "bottom"),),
    "xywh": (
        ("x", "y", "w", "h"), ("x", "y", "width", "height"), ("xmin", "ymin", "width", "height"),
        ("left", "top", "width", "height"), ("bboxx", "bboxy", "bboxw", "bboxh"),
    ),
    "cxcywh": (
        ("xcenter", "ycenter", "width", "height"), ("cx", "cy", "w", "h"), ("x", "y", "w", "h"),
    ),
}  # fmt: skip
_LISTS = ("bbox", "box", "boxes", "bboxes", "boundingbox")


def plain_name(name: str) -> str:
    """Return a column's name without case, blanks and signs."""
    return re.sub(r"[\W_]", "", name.lower())


def names_images(name: str) -> bool:
    """Tell whether a column that names images is usually called so."""
    return plain_name(name) in (*_PATHS, *_IDS)


def is_usual(name: str) -> bool:
    """Tell whether this is what a column of a list is called, and no value in it."""
    return names_images(name) or name.strip().lower() in LABELS


def image_column(columns: Sequence[str]) -> int:
    """Return the number of the column that names images: the first where none is called so."""
    plain = [plain_name(name) for name in columns]
    for names in (_PATHS, _IDS):
        found = next((k for k, name in enumerate(plain) if name in names), None)
        if found is not None:
            return found
    return 0


def box_columns(columns: Sequence[str], form: str = "") -> tuple[str, list[int]]:
    """Return the form of boxes, and the numbers of the columns that have them.

    These are four, or one of lists of four numbers.

    form: ``xyxy``, ``xywh`` or ``cxcywh`` where the user says it; else only names that leave no
        doubt are taken.
    ``("", [])`` where there are none.
    """
    plain = [plain_name(name) for name in columns]
    for kind in [form] if form else _BOXES:
        names = _BOXES.get(kind, ()) + (_BOXES_IF_ASKED.get(kind, ()) if form else ())
        for four in names:
            if set(four) <= set(plain):
                return kind, [plain.index(name) for name in four]
    one = [k for k, name in enumerate(plain) if name in _LISTS]
    return (form, one[:1]) if form and one else ("", [])
