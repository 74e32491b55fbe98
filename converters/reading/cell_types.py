"""What type a column of text has: whole numbers, numbers, names of images, or text."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from .class_names import MOST_CLASSES
from .image_files import is_image_name

__all__ = ["ColumnGuess", "labels_of"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE)


class ColumnGuess:
    """What type fits all cells of a column so far.

    may_be_label: whether the different cells are kept, as `classes`.
    separator: where a cell may have several labels, what stands between them; see `labels_of`.
    is_int, is_float, is_image: whether all cells that are not empty are such; an image is the name
        of a file.
    first: the first cell that is not empty.
    """

    def __init__(self, may_be_label: bool, separator: str = "") -> None:
        self.is_int = True
        self.is_float = True
        self.is_image = True
        self._may_be_label = may_be_label
        self._separator = separator
        self._values: set[str] = set()
        self.first = ""

    def see(self, cells: Sequence[str]) -> None:
        """Look at some cells, in order; each different one once."""
        if self._separator:
            cells = [label for cell in cells for label in labels_of(cell, self._separator)]
        if not self.first:
            self.first = next((cell for cell in cells if cell.strip()), "")
        for cell in set(cells):
            self._see(cell)

    def _see(self, cell: str) -> None:
        text = cell.strip()
        if not text:
            return
        if self.is_image:
            self.is_image = is_image_name(text)
        if self.is_float:  # as whole numbers are too
            whole = _INTEGER.fullmatch(text) is not None
            # An integer beyond 64 bits is a name: as a float it would lose digits.
            fits = whole and len(text) <= 20 and -(2**63) <= int(text) < 2**63
            self.is_int &= fits
            self.is_float &= fits or (not whole and _FLOAT.fullmatch(text) is not None)
        if self._may_be_label and len(self._values) <= MOST_CLASSES:
            self._values.add(cell)

    def settle(self, *, is_there: bool) -> None:
        """Call a column without any content text, and images those that are there.

        is_there: whether `first` is the name of a file.
        """
        self.is_int &= bool(self.first)
        self.is_float &= bool(self.first)
        self.is_image &= is_there

    @property
    def classes(self) -> tuple[str, ...]:
        """The different cells, sorted, where they may be labels."""
        return tuple(sorted(self._values))


def labels_of(cell: str, separator: str) -> list[str]:
    """Return the labels that a cell lists.

    separator: a sign; a blank stands for any white space, and ``json`` for a JSON list.
    """
    if separator == "json":
        value = json.loads(cell or "[]")
        parts = [str(part) for part in (value if isinstance(value, list) else [value])]
    else:
        parts = cell.split() if separator == " " else cell.split(separator)
    return [part.strip() for part in parts if part.strip()]
