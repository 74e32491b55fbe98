"""Options of formats, each declared once: where the constructor of a source takes it.

::

    def __init__(self, location, *, channels=3, fields=None,
                 split: Annotated[str | None, Option("take only this split")] = None) -> None:

Name, type and default are those of the parameter; `Option` adds the line of help that
``fastdata formats`` prints, and the values that are taken.  Options that several formats have are
declared here.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple, TypeAlias

__all__ = [
    "AllowEmpty",
    "ArraysOption",
    "CheckSize",
    "ClassFile",
    "ColumnsOption",
    "ImageFolder",
    "OneBased",
    "Option",
    "PaintedMasks",
    "ScaleOption",
    "SplitFolder",
    "SplitOption",
]


class Option(NamedTuple):
    """What the annotation of an option says beside its type."""

    help: str
    choices: tuple[str, ...] = ()  # values that are taken; any where there are none


SplitOption: TypeAlias = Annotated[str | None, Option("take only this split")]
SplitFolder: TypeAlias = Annotated[
    str,
    Option(
        "auto: split folders (train, val, ...) become a field 'split'; none: they are classes; "
        "else the one that is taken"
    ),
]
PaintedMasks: TypeAlias = Annotated[
    str | None,
    Option(
        "add a mask of the numbers of classes, or of objects, from 1 on; 0 is in neither",
        ("classes", "instances"),
    ),
]
ImageFolder: TypeAlias = Annotated[
    str | None, Option("the folder of the images, if not the usual one")
]
ClassFile: TypeAlias = Annotated[
    str | None, Option("a text file with names of classes 0, 1, ..., one a line")
]
CheckSize: TypeAlias = Annotated[
    bool, Option("reject an image of another size than its annotations say")
]
OneBased: TypeAlias = Annotated[
    bool | None,
    Option(
        "whether boxes are of pixels counted from 1, as in VOC; default: unless one begins at 0"
    ),
]
AllowEmpty: TypeAlias = Annotated[
    bool, Option("take an image without an annotation file as one without objects")
]
ColumnsOption: TypeAlias = Annotated[
    tuple[str, ...],
    Option("FIELD=COLUMN or COLUMN; default: all, the first image and the class number as usual"),
]
ArraysOption: TypeAlias = Annotated[
    tuple[str, ...],
    Option(
        "field=path of an array, classes=path of the names of classes; default: what is called as "
        "usual"
    ),
]
ScaleOption: TypeAlias = Annotated[
    float | None, Option("what pixels that are not uint8 are multiplied by to be 0 to 255")
]
