"""What columns of a list are for, by their names, and what type all of their cells have."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..class_names import MOST_CLASSES, of_one_number, one_form
from ..image_files import is_image_name

__all__ = [
    "NUMBER",
    "BoxRoles",
    "ColumnGuess",
    "box_roles",
    "image_column",
    "is_label",
    "is_usual",
    "label_column",
    "names_images",
]

# -- usual names ------------------------------------------------------------------------


_PATHS = (
    "path", "image", "file", "filename", "imagepath", "filepath", "imagefile", "imagefilename",
    "imgpath", "imgfile",
)  # fmt: skip
_IDS = ("imagename", "imgname", "imageid", "imgid", "imageindex", "img", "id")
LABELS = (
    "label", "class", "target", "category", "classname", "labelname", "classid", "labelid",
    "categoryid", "diagnosis", "dx", "findinglabels",
)  # fmt: skip
"""Text in a column called so is names of classes."""

_BOXES = {
    "corners": (
        ("x1", "y1", "x2", "y2", "x3", "y3", "x4", "y4"),
        ("x0", "y0", "x1", "y1", "x2", "y2", "x3", "y3"),
        ("xa", "ya", "xb", "yb", "xc", "yc", "xd", "yd"),
    ),
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


def is_label(name: str) -> bool:
    """Tell whether a column of labels is usually called so."""
    return plain_name(name) in LABELS and not name.endswith("_")  # class_ if there is a label


def is_usual(name: str) -> bool:
    """Tell whether a text is a usual name of a column of a list."""
    return names_images(name) or is_label(name)


def image_column(columns: Sequence[str]) -> int:
    """Return the number of the column that names images: the first where none is called so."""
    plain = [plain_name(name) for name in columns]
    for names in (_PATHS, _IDS):
        found = next((k for k, name in enumerate(plain) if name in names), None)
        if found is not None:
            return found
    return 0


def label_column(columns: Sequence[str]) -> int:
    """Return the number of the column of labels; -1 if none or several are called so."""
    if any(plain_name(name) in ("label", "labels") for name in columns):
        return -1  # it keeps its name
    named = [k for k, name in enumerate(columns) if is_label(name)]
    plain = [k for k in named if plain_name(columns[k]) == "class"]
    return [*(named if len(named) == 1 else plain), -1][0]


class BoxRoles(NamedTuple):
    """The columns of rows that are boxes."""

    form: str  # ``corners`` of a quadrilateral, or that of `BoxNumbers`
    boxes: list[int]  # four or eight columns, or one of lists of four numbers
    label: int | None
    size: list[int]  # height and width of the image, or none


def box_roles(columns: Sequence[str], form: str = "") -> BoxRoles | None:
    """Return the columns of boxes; None if there are none.

    form: ``xyxy``, ``xywh`` or ``cxcywh`` if the user says it; else only names that leave no
        doubt are taken.
    """
    plain = [plain_name(name) for name in columns]
    found, boxes = "", list[int]()
    corners = any(set(eight) <= set(plain) for eight in _BOXES["corners"])
    for kind in _BOXES if not form or corners else [form]:
        names = _BOXES.get(kind, ()) + (_BOXES_IF_ASKED.get(kind, ()) if form else ())
        four = next((four for four in names if set(four) <= set(plain)), None)
        if four is not None:
            found, boxes = kind, [plain.index(name) for name in four]
            break
    else:
        found, boxes = form, [k for k, name in enumerate(plain) if name in _LISTS][:1]
        if not (form and boxes):
            return None
    labels = [k for k, name in enumerate(columns) if name in ("label", "labels")]
    labels += [k for k, name in enumerate(columns) if is_label(name)]
    sized = {"width", "height"} <= set(plain)
    size = [plain.index("height"), plain.index("width")] if sized else []
    size = [] if set(size) & set(boxes) else size
    return BoxRoles(found, boxes, labels[0] if labels else None, size)


# -- what type a column of text has -----------------------------------------------------


_INTEGER = re.compile(r"[+-]?[0-9]+")
# Digits match in one way only: a cell with 1 MB of digits must not take hours.
_FINITE = r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(e[+-]?[0-9]+)?"
NUMBER = re.compile(_FINITE, re.IGNORECASE)
_FLOAT = re.compile(rf"{_FINITE}|[+-]?inf|nan", re.IGNORECASE)


class ColumnGuess:
    """The type that fits all cells of a column so far.

    may_be_label: whether to collect the different cells, as `classes`.
    is_int, is_float, is_image: whether all cells have this type, except empty ones; an image is the
        name of a file.
    first: the first cell that is not empty.
    one_number: two different labels with one number, such as 7 and 007; labels are text then.
    """

    one_number: tuple[str, ...] = ()

    def __init__(self, may_be_label: bool) -> None:
        self.is_int = True
        self.is_float = True
        self.is_image = True
        self._may_be_label = may_be_label
        self._values: set[str] = set()
        self.first = ""

    def see(self, cells: Sequence[str]) -> None:
        """Look at some cells, in order; each different one once."""
        if not self.first:
            self.first = next((cell for cell in cells if cell.strip()), "")
        for cell in set(cells):
            self._see(cell)

    def _see(self, cell: str) -> None:
        text = cell.strip()
        if not text or (self._may_be_label and text.lower() == "nan"):
            return  # a missing value
        if self.is_image:
            self.is_image = is_image_name(text)
        if self.is_float:  # as whole numbers are too
            whole = _INTEGER.fullmatch(text) is not None
            # An integer beyond 64 bits is a name: as a float it would lose digits.
            fits = whole and len(text) <= 20 and -(2**63) <= int(text) < 2**63
            self.is_float &= fits or (not whole and _FLOAT.fullmatch(text) is not None)
            if self._may_be_label and self.is_float and not whole:  # labels 0.0 and 1.0
                fits = abs(float(text)) < 2**53 and float(text).is_integer()
            self.is_int &= fits
        if self._may_be_label and len(self._values) <= MOST_CLASSES:
            self._values.add(text)

    def conclude(self, *, is_there: bool, are_numbers: bool = False) -> None:
        """Decide the types: an empty column is text; an image needs its file.

        is_there: whether `first` is the name of a file.
        are_numbers: whether the cells were numbers, not text.
        """
        if self.is_float and not are_numbers and len(self._values) <= MOST_CLASSES:
            self.one_number = of_one_number(sorted(self._values))
            self.is_int &= not self.one_number
            self.is_float &= not self.one_number
        self.is_int &= bool(self.first)
        self.is_float &= bool(self.first)
        self.is_image &= is_there

    @property
    def classes(self) -> tuple[str, ...]:
        """The different cells without blanks around them, sorted, if they may be labels."""
        return one_form(self._values)
