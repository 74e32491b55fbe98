"""Tables of classes beside masks: names, with the colours or the numbers that pixels have.

===========================  ==================================
``labelmap.txt`` of CVAT     ``road:128,64,128::``
``label_colors.txt``         ``64 128 64<tab>Animal``, of CamVid
``class_dict.csv``           ``Animal,64,128,64``
``_classes.csv``             ``1, Animal``, of Roboflow
``class_names.txt``, ...     ``Animal``, one a line
===========================  ==================================
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError

from ..text_lines import text_lines

__all__ = ["TABLES", "ClassTable", "read_table", "to_numbers"]

TABLES = (
    *("labelmap.txt", "label_colors.txt", "class_dict.csv", "_classes.csv"),
    *("class_names.txt", "codes.txt", "classes.txt"),
)
"""Files that such a table is usually in, those with colours first."""

_COLOUR_NAME = re.compile(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\S.*)")
_NAME_COLOUR = re.compile(r"(.*?\S)\s*[:,\s]\s*(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})\s*(?::.*)?")
_NUMBER_NAME = re.compile(r"(\d{1,3})\s*,\s*(\S.*)")
_MOST = 256


class ClassTable(NamedTuple):
    """Names of classes from 0 on, and the colour of each (256 R + G) 256 + B, if they have any."""

    names: tuple[str, ...]
    colours: tuple[int, ...] = ()


def read_table(path: Path) -> ClassTable:
    """Read a table."""
    lines = [line.strip().lstrip("\ufeff") for _, line in text_lines(path)]
    lines = [line for line in lines if not line.startswith("#")]
    if not 0 < len(lines) <= _MOST + 1:
        raise SourceError(f"{path}: {len(lines)} lines; expected those of 1 to {_MOST} classes")
    for body in (lines, lines[1:]):  # the first may be a header
        for pattern in (_COLOUR_NAME, _NAME_COLOUR):
            found = [pattern.fullmatch(line) for line in body]
            if body and all(found):
                rows = [match.groups() for match in found if match]
                if pattern is _NAME_COLOUR:
                    rows = [(*row[1:], row[0]) for row in rows]
                return _coloured(path, rows)
        numbered = [_NUMBER_NAME.fullmatch(line) for line in body]
        if path.suffix == ".csv" and body and all(numbered):
            names = {int(match[1]): match[2].strip() for match in numbered if match}
            count = max(names) + 1
            return ClassTable(tuple(names.get(k, f"class {k}") for k in range(count)))
    if path.suffix == ".csv":
        raise SourceError(
            f"{path}: expected lines as name,r,g,b or number,name; found {lines[0]!r}"
        )
    return ClassTable(tuple(lines[lines[0] == "__ignore__" :]))  # labelme's name for -1


def _coloured(path: Path, rows: list[tuple[str | None, ...]]) -> ClassTable:
    colours = [tuple(int(text or 0) for text in row[:3]) for row in rows]
    if max(max(colour) for colour in colours) > 255:
        raise SourceError(f"{path}: has a colour with a part beyond 255")
    packed = [(r * 256 + g) * 256 + b for r, g, b in colours]
    if len(set(packed)) < len(packed):
        double = next(colour for colour in colours if colours.count(colour) > 1)
        raise SourceError(f"{path}: two classes have the colour {double}. Give them one line.")
    return ClassTable(tuple(str(row[3]).strip() for row in rows), tuple(packed))


def to_numbers(packed: NDArray[np.uint32], colours: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return class numbers of pixels, by their colours."""
    known = np.array(colours, np.uint32)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], packed), len(known) - 1)
    numbers = order[place]
    unknown = packed[known[numbers] != packed]
    if len(unknown):
        colour = int(unknown[0])
        raise ValueError(
            f"its mask has the colour {colour >> 16}, {colour >> 8 & 255}, {colour & 255} "
            f"({np.count_nonzero(unknown == colour):,} pixels), which is that of no class"
        )
    found: NDArray[np.uint8] = numbers.astype(np.uint8)
    return found
