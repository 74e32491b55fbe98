"""Lists whose columns are set apart by blanks: ``n01440764/x.JPEG 0``, as Caffe and others have.

Which of a line is the path, as that may have blanks itself, is the same for all lines: up to the
suffix of an image file; else all but a number at the end; else the first word.  What comes behind
is one column (``Global Express``), or several where all words are numbers or image files.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from fastdata.errors import SourceError

from ..image_files import SUFFIXES, is_image_name
from ..text_lines import text_lines

__all__ = ["BlankLines", "is_number"]

_LOOKED_AT = 200
_SUFFIX = "|".join(suffix[1:] for suffix in SUFFIXES)
_IMAGE = re.compile(rf"(.*?\.(?:{_SUFFIX}))(?:\s+(.*))?", re.IGNORECASE)
_NUMBER_LAST = re.compile(r"(.*\S)\s+([+-]?[0-9]+)")
_WORD_FIRST = re.compile(r"(\S+)(?:\s+(.*))?")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    return _NUMBER.fullmatch(cell.strip()) is not None


class BlankLines:
    """The lines of a file as cells."""

    def __init__(self, path: Path, is_file: Callable[[str], bool], header: bool | None) -> None:
        self.path = path
        lines = [line.strip() for _, line in itertools.islice(text_lines(path), _LOOKED_AT)]
        if not lines:
            raise SourceError(f"{path}: the manifest is empty")
        names = self._names(lines, is_file) if header is None else lines[0].split() * header
        below = lines[self._skip :] if header is None else lines[int(header) :]
        self._skip = len(lines) - len(below)
        if not below:
            raise SourceError(f"{path}: the manifest has a header but no rows")
        self._split = next(
            pattern
            for pattern in (_IMAGE, _NUMBER_LAST, _WORD_FIRST)
            if all(map(pattern.fullmatch, below))
        )
        rests = [self._parts(line)[1].split() for line in below]
        counts = {len(rest) for rest in rests}
        words = set(itertools.chain.from_iterable(rests))
        self._several = len(counts) == 1 and all(is_number(w) or is_image_name(w) for w in words)
        width = 1 + (counts.pop() if self._several else any(rests))
        self._width = width
        self.columns = self._named(names, width)

    _skip = 0

    def _names(self, lines: list[str], is_file: Callable[[str], bool]) -> list[str]:
        """Return what a header names; CelebA's has the number of rows in the line above it."""
        if len(lines) > 2 and lines[0].isdecimal() and not any(map(is_file, lines[1].split())):
            self._skip = 2
            return lines[1].split()
        first = lines[0].split()
        cells_below = len(lines[1].split()) if len(lines) > 1 else 0
        if len(first) == cells_below and len(first) > 1 and not any(
            is_file(word) or is_number(word) or "/" in word for word in first
        ) and any(map(is_file, lines[1].split())):  # fmt: skip
            self._skip = 1
            return first
        return []

    def _named(self, names: list[str], width: int) -> list[str]:
        if not names:
            return ["path", "label", *(f"column{k}" for k in range(2, width))][:width]
        if len(names) == width - 1:
            names = ["path", *names]
        if len(names) != width:
            raise SourceError(
                f"{self.path}: its header names {len(names)} columns, and its rows have {width}"
            )
        return names

    def _parts(self, line: str) -> tuple[str, str]:
        found = self._split.fullmatch(line)
        if found is None:
            raise SourceError(f"{self.path}: the line {line[:100]!r} is not like those before it")
        return found[1], found[2] or ""

    def __iter__(self) -> Iterator[list[str]]:
        for _, line in itertools.islice(text_lines(self.path), self._skip, None):
            path, rest = self._parts(line.strip())
            cells = rest.split() if self._several else [rest.strip()] * (self._width > 1)
            yield [path, *cells]
