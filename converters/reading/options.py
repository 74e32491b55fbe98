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
    "BoxesFrom",
    "CheckSize",
    "ClassFile",
    "Option",
    "PaintedMasks",
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
        "auto: where all folders are split folders (train, val, test, ...), a field 'split' says "
        "from which an image is; none: the folders are classes, whatever they are called; else "
        "the one split folder that is taken"
    ),
]
PaintedMasks: TypeAlias = Annotated[
    str | None,
    Option(
        "add a mask of class numbers from 1 on, or of the numbers of objects from 1 on; 0 is what "
        "is in neither",
        ("classes", "instances"),
    ),
]
ClassFile: TypeAlias = Annotated[
    str | None,
    Option("a text file with the names of the classes, one a line; default: what the data says"),
]
CheckSize: TypeAlias = Annotated[
    bool, Option("reject an image of another size than its annotations say")
]
BoxesFrom: TypeAlias = Annotated[
    bool | None,
    Option(
        "whether boxes are as in Pascal VOC, of the pixels within, counted from 1; else their "
        "numbers are taken as they are; default: as in VOC, unless a box begins before 1"
    ),
]
AllowEmpty: TypeAlias = Annotated[
    bool, Option("take an image without an annotation file as one without objects")
]
