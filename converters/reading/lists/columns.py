"""What columns of a list are for: by their usual names, or by the options of a list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import OptionError
from fastdata.schema import Field, ImageField

from ..cells import read_schema
from ..field_names import safe_name
from ..selection import COLUMNS, joined
from .boxed_image import box_form

__all__ = [
    "BoxRoles",
    "ChosenColumns",
    "box_columns",
    "box_roles",
    "choose_columns",
    "image_column",
    "is_label",
    "is_usual",
    "known_fields",
    "names_images",
    "plain_name",
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
    return plain_name(name) in LABELS and not name.endswith("_")  # class_ stands beside label


def is_usual(name: str) -> bool:
    """Tell whether this is what a column of a list is called, and no value in it."""
    return names_images(name) or is_label(name)


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

    These are four, or eight of a quadrilateral, or one of lists of four numbers.

    form: ``xyxy``, ``xywh`` or ``cxcywh`` where the user says it; else only names that leave no
        doubt are taken, ``corners`` of quadrilaterals among them.
    ``("", [])`` where there are none.
    """
    plain = [plain_name(name) for name in columns]
    corners = any(set(eight) <= set(plain) for eight in _BOXES["corners"])
    every = _BOXES if not form or corners else [form]
    for kind in every:
        names = _BOXES.get(kind, ()) + (_BOXES_IF_ASKED.get(kind, ()) if form else ())
        for four in names:
            if set(four) <= set(plain):
                return kind, [plain.index(name) for name in four]
    one = [k for k, name in enumerate(plain) if name in _LISTS]
    return (form, one[:1]) if form and one else ("", [])


# -- boxes ------------------------------------------------------------------------------


class BoxRoles(NamedTuple):
    """Which columns say what of boxes; see `BoxSamples`."""

    form: str
    boxes: list[int]
    label: int | None
    size: list[int]

    @property
    def used(self) -> set[int]:
        return {*self.boxes, *self.size, *([] if self.label is None else [self.label])}


def box_roles(names: Sequence[str], boxes: Sequence[str]) -> BoxRoles | None:
    """Return the columns of boxes, where rows are such; None where they are not.

    boxes: the option ``boxes=``.
    """
    if "none" in boxes:
        return None
    form, found = box_columns(names, box_form(boxes).form)
    if not found:
        if boxes:
            raise OptionError(
                f"boxes={','.join(boxes)}: no columns of boxes among {joined(names)}; name them: "
                "--option columns=image=COLUMN,xmin=COLUMN,ymin=COLUMN,xmax=COLUMN,ymax=COLUMN"
            )
        return None
    labels = [k for k, name in enumerate(names) if name in ("label", "labels")]
    labels += [k for k, name in enumerate(names) if is_label(name)]
    plain = [plain_name(name) for name in names]
    sized = {"width", "height"} <= set(plain)
    size = [plain.index("height"), plain.index("width")] if sized else []
    size = [] if set(size) & set(found) else size
    return BoxRoles(form, found, labels[0] if labels else None, size)


# -- options ----------------------------------------------------------------------------


class ChosenColumns(NamedTuple):
    """Columns that are taken."""

    names: list[str]  # of their fields
    titles: list[str]  # what the list calls them
    indices: list[int]  # their numbers in the list


def choose_columns(
    place: Path,
    titles: list[str],
    columns: Sequence[str],
    notes: list[str],
    index: Sequence[int] = (),
    label: int = -1,
) -> ChosenColumns:
    """Return what the option ``columns=`` takes; without it all columns except some.

    index: columns that are left out without the option.
    label: the column of labels, whatever it is called; else the only one that is called so.
    """
    if not columns:
        named = [k for k, title in enumerate(titles) if is_label(title)] if label < 0 else [label]
        plain = [k for k in named if plain_name(titles[k]) == "class"]
        label = [*(named if len(named) == 1 else plain), -1][0]
        if any(plain_name(title) in ("label", "labels") for title in titles):
            label = -1
        taken = [(k, title) for k, title in enumerate(titles) if k not in index]
        names = ["label" if k == label else safe_name(title) for k, title in taken]
        return ChosenColumns(names, [title for _, title in taken], [k for k, _ in taken])
    chosen = COLUMNS.parse(columns)
    for field, title in chosen.items():
        if title not in titles:
            raise COLUMNS.missing(place, field, title, titles)
    notes += COLUMNS.left_out(title for title in titles if title not in chosen.values())
    wanted = list(chosen.values())
    return ChosenColumns(list(chosen), wanted, [titles.index(title) for title in wanted])


def known_fields(place: Path, names: list[str], channels: int) -> dict[str, Field]:
    """Return the fields of the columns that are in a schema beside the list."""
    schema = read_schema(place)
    known = schema.items() if schema is not None else ()
    fields = {name: field for name, field in known if name in names}
    if channels == 1:
        grey, colour = ImageField(channels=1), ImageField(channels=3)
        fields = {name: grey if field == colour else field for name, field in fields.items()}
    return fields
