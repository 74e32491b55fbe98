"""Rows of cells from text: CSV, TSV, columns set apart by blanks, JSON Lines, a JSON list.

Cells are text, whatever the file: of JSON a number is its text, a list or an object its JSON, and
null is empty.  ``kinds`` tells which columns of JSON were text, so that ``"007"`` stays a name.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular

from ..cells import NUMBER
from ..image_files import SUFFIXES, is_image_name
from ..json_files import json_entries
from ..text_lines import MOST_IN_CELL, MOST_IN_ROW, csv_rows, text_lines, too_long
from .columns import is_usual

__all__ = [
    "JSON_SUFFIXES",
    "SEPARATORS",
    "TextTable",
    "cell_of_value",
    "cells_of",
]

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|", "blank": " "}
"""What the option ``separator=`` takes; the signs themselves too."""

_LOOKED_AT = 20
_MOST_COLUMNS = 10_000


class TextTable:
    """A file of rows; each iteration reads it again.

    columns: names of the header; without one ``path``, ``label``, ``column2`` and so on.
    kinds: Python types of each column of a JSON file.
    """

    def __init__(
        self,
        path: Path,
        is_file: Callable[[str], bool],
        separator: str | None = None,
        header: bool | None = None,
    ) -> None:
        """Look at the first rows.

        is_file: returns whether a cell is the name of an image file; such a row is not a header.
        separator: one of `SEPARATORS`.
        header: whether the first row names the columns.
        """
        self.path, self._is_file = path, is_file
        self.kinds: dict[str, set[type]] | None = None
        self._skip, self._separator = 0, ""
        if path.suffix.lower() in JSON_SUFFIXES:
            self._look_at_objects()
            return
        self._separator = _named_separator(separator) if separator else self._likely_separator()
        self._blanks: _BlankLines | None = None
        if self._separator == " ":
            self._blanks = _BlankLines(path, is_file, header)
            self.columns = self._blanks.columns
            return
        first = next(self._cells(), None)
        if first is None:
            raise SourceError(f"{path}: the manifest is empty")
        self._skip = int(self._is_header(first) if header is None else header)
        self.columns = first if self._skip else column_names(len(first))

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the rows that are not empty."""
        if self.kinds is not None:
            yield from map(self._object_cells, self._objects())
            return
        width = len(self.columns)
        rows = self._blanks if self._blanks is not None else self._cells()
        for number, row in enumerate(itertools.islice(rows, self._skip, None), 1):
            if len(row) != width:
                raise SourceError(
                    f"{self.path}: row {number} has {len(row)} columns, not {width}: {row[:4]}. "
                    "Quote cells that contain the separator."
                )
            yield row

    # -- cells with a sign between them ---------------------------------------------------

    def _cells(self) -> Iterator[list[str]]:
        """Return all rows that are not empty, the header included."""
        return csv_rows(self.path, self._separator)

    def _likely_separator(self) -> str:
        """Return the sign that stands between cells, by the first lines."""
        try:
            with open(
                self.path, newline="", opener=open_regular, encoding="utf-8-sig", errors="replace"
            ) as file:
                first = (file.readline(MOST_IN_CELL) for _ in range(_LOOKED_AT))
                lines = [line for line in first if line.strip()]
        except OSError as error:
            raise SourceError(f"{self.path}: {error.strerror}") from error
        if not lines:
            raise SourceError(f"{self.path}: the manifest is empty")
        there = [sign for sign in "\t,;|" if sign in lines[0]]
        if not there:
            return " " if self.path.suffix.lower() == ".txt" else ","
        if len(there) > 1:
            fits = [sign for sign in there if self._names_files(lines, sign)]
            there = fits if len(fits) == 1 else there
        return there[0]

    def _names_files(self, lines: Sequence[str], sign: str) -> bool:
        """Tell whether the first lines have as many cells each, and files among them."""
        try:
            rows = list(csv.reader(lines, delimiter=sign))
        except csv.Error:
            return False
        same = len({len(row) for row in rows if row}) == 1
        return same and any(self._is_file(cell) for cell in rows[-1])

    def _is_header(self, first: list[str]) -> bool:
        """Tell whether a row names columns: nothing in it is a file, a path or a number."""
        if any(map(self._is_file, first)):
            return False
        return any(map(is_usual, first)) or not any("/" in c or _is_number(c) for c in first)

    # -- JSON ----------------------------------------------------------------------------

    def _objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a JSON list, or of JSON Lines."""
        if self.path.suffix.lower() == ".json":
            for member in json_entries(self.path, MOST_IN_ROW):
                place = f"byte {member.start:,}"
                yield self._checked(member.value, place, member.end - member.start)
            return
        for number, line in text_lines(self.path, "strict", longest=MOST_IN_ROW):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise SourceError(f"{self.path}, line {number}: not JSON: {error}") from error
            yield self._checked(value, f"line {number}", len(line))

    def _checked(self, value: Any, place: str, length: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise SourceError(
                f"{self.path}, {place}: expected an object like "
                f'{{"image": "0.jpg", "label": "cat"}}, found {str(value)[:60]!r}'
            )
        if length > MOST_IN_CELL and any(
            len(cell_of_value(entry)) > MOST_IN_CELL for entry in value.values()
        ):
            raise too_long(self.path, place)
        return value

    def _look_at_objects(self) -> None:
        self.kinds = {}
        for value in self._objects():
            for name, entry in value.items():
                self.kinds.setdefault(name, set()).add(type(entry))
            if len(self.kinds) > _MOST_COLUMNS:
                raise SourceError(f"{self.path}: its objects have more than {_MOST_COLUMNS:,} keys")
        if not self.kinds:
            raise SourceError(f"{self.path}: the manifest is empty")
        self.columns = list(self.kinds)

    def _object_cells(self, value: dict[str, Any]) -> list[str]:
        return [cell_of_value(value.get(name)) for name in self.columns]


def cell_of_value(value: Any) -> str:
    """Return a value of JSON as a cell."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def cells_of(indices: list[int]) -> Callable[[list[str]], list[str]]:
    """Return a function from a row to some of its cells, which costs nothing if it is all."""
    if indices == list(range(len(indices))):
        return lambda row: row if len(row) == len(indices) else row[: len(indices)]
    return lambda row: [row[k] for k in indices]


def column_names(count: int) -> list[str]:
    """Return what columns without a header are called."""
    return ["path", "label", *(f"column{k}" for k in range(2, count))][:count]


def _named_separator(separator: str) -> str:
    sign = SEPARATORS.get(separator.strip(), separator)
    if sign not in SEPARATORS.values():
        raise OptionError(f"separator={separator}: expected {', '.join(SEPARATORS)} or such a sign")
    return sign


# -- lines whose columns are set apart by blanks: n01440764/x.JPEG 0 --------------------


_LINES_LOOKED_AT = 200
_SUFFIX = "|".join(suffix[1:] for suffix in SUFFIXES)
_IMAGE = re.compile(rf"(.*?\.(?:{_SUFFIX}))(?:\s+(.*))?", re.IGNORECASE)
_NUMBER_LAST = re.compile(r"(.*\S)\s+([+-]?[0-9]+)")
_WORD_FIRST = re.compile(r"(\S+)(?:\s+(.*))?")


def _is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    return NUMBER.fullmatch(cell.strip()) is not None


class _BlankLines:
    """The lines of a file as cells."""

    def __init__(self, path: Path, is_file: Callable[[str], bool], header: bool | None) -> None:
        self.path = path
        lines = [line.strip() for _, line in itertools.islice(text_lines(path), _LINES_LOOKED_AT)]
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
        self._several = len(counts) == 1 and all(_is_number(w) or is_image_name(w) for w in words)
        width = 1 + (counts.pop() if self._several else any(rests))
        self._width = width
        self.columns = self._named(names, width)

    _skip = 0

    def _names(self, lines: list[str], is_file: Callable[[str], bool]) -> list[str]:
        """Return the names of a header; CelebA's follows a line with the number of rows."""
        if len(lines) > 2 and lines[0].isdecimal() and not any(map(is_file, lines[1].split())):
            self._skip = 2
            return lines[1].split()
        first = lines[0].split()
        cells_below = len(lines[1].split()) if len(lines) > 1 else 0
        if len(first) == cells_below and len(first) > 1 and not any(
            is_file(word) or _is_number(word) or "/" in word for word in first
        ) and any(map(is_file, lines[1].split())):  # fmt: skip
            self._skip = 1
            return first
        return []

    def _named(self, names: list[str], width: int) -> list[str]:
        if not names:
            return column_names(width)
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
