"""What type a column of text has: whole numbers, numbers, names of images, or text."""

from __future__ import annotations

import re

from .image_files import is_image_name

__all__ = ["ColumnGuess"]

_INTEGER = re.compile(r"[+-]?[0-9]+")
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf|nan", re.IGNORECASE)


class ColumnGuess:
    """What type fits all cells of a column so far.

    Attributes
    ----------
    is_int, is_float, is_image : bool
        Whether all cells that are not empty are such; an image is the name of a file.
    first : str
        The first cell that is not empty.
    """

    def __init__(self, may_be_label: bool) -> None:
        self.is_int = True
        self.is_float = True
        self.is_image = True
        self._may_be_label = may_be_label
        self._values: set[str] = set()
        self.first = ""
        self._seen = False

    def see(self, cell: str) -> None:
        text = cell.strip()
        self.is_image &= not text or is_image_name(text)
        if not text:
            return
        self._seen = True
        self.first = self.first or cell
        if self.is_int or self.is_float:
            whole = _INTEGER.fullmatch(text) is not None
            # An integer beyond 64 bits is a name: as a float it would lose digits.
            fits = whole and len(text) <= 20 and -(2**63) <= int(text) < 2**63
            self.is_int &= fits
            self.is_float &= fits or (not whole and _FLOAT.fullmatch(text) is not None)
        if self._may_be_label:
            self._values.add(cell)

    def settle(self, *, is_there: bool) -> None:
        """Call a column without any content text, and images those that are there.

        Parameters
        ----------
        is_there : bool
            Whether `first` is the name of a file.
        """
        self.is_int &= self._seen
        self.is_float &= self._seen
        self.is_image &= is_there

    @property
    def classes(self) -> tuple[str, ...]:
        """The different cells, sorted, where they may be labels."""
        return tuple(sorted(self._values))
