"""Rows of cells from text: CSV, TSV, columns set apart by blanks, JSON Lines, a JSON list.

Cells are text, whatever the file: of JSON a number is its text, a list or an object its JSON, and
null is empty.  ``kinds`` tells which columns of JSON were text, so that ``"007"`` stays a name.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError

from ..cells import NUMBER
from ..image_files import SUFFIXES, is_image_name
from ..json_files import json_entries
from ..text_lines import MOST_IN_CELL, MOST_IN_ROW, csv_rows, encoding_of, text_lines, too_long
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
_AROUND = " \t\ufeff"
_FIRST_SIGN = re.compile(r'(?:"[^"]*"|[^\t,;|"])*([\t,;|])')
_BEHIND_PATH = re.compile(rf".*[.](?:{'|'.join(s[1:] for s in SUFFIXES)})\s+\S", re.IGNORECASE)
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
        *,
        exact: bool = False,
    ) -> None:
        """Look at the first rows.

        is_file: returns whether a cell is the name of an image file; such a row is not a header.
        separator: one of `SEPARATORS`.
        header: whether the first row names the columns.
        exact: whether blanks around cells belong to them.
        """
        self.path, self.is_file, self._exact = path, is_file, exact
        self.kinds: dict[str, set[type]] | None = None
        self._skip, self._encoding = 0, encoding_of(path)
        if path.suffix.lower() in JSON_SUFFIXES:
            if self._encoding != "utf-8-sig":
                raise SourceError(f"{path}: JSON in {self._encoding}. Save it as UTF-8")
            self._look_at_objects()
            return
        self._separator = _named_separator(separator) if separator else self._likely_separator()
        self._lines = _BlankLines(self, header) if self._separator == " " else None
        if self._lines is not None:
            self.columns = self._lines.columns
            return
        first = next(self._cells(), None)
        if first is None:
            raise SourceError(f"{path}: the manifest is empty")
        self._skip = int(self._is_header(first) if header is None else header)
        self.columns = [c if exact else c.strip(_AROUND) for c in first]
        self.columns = self.columns if self._skip else column_names(len(first))

    def __iter__(self) -> Iterator[list[str]]:
        """Yield the rows that are not empty."""
        if self.kinds is not None:
            yield from map(self._object_cells, self._objects())
            return
        if self._lines is not None:
            yield from self._lines
            return
        width = len(self.columns)
        for number, row in enumerate(itertools.islice(self._cells(), self._skip, None), 1):
            if len(row) != width:
                raise SourceError(
                    f"{self.path}: row {number} has {len(row)} columns, not {width}: {row[:4]}. "
                    "Quote cells that contain the separator."
                )
            yield row

    # -- cells with a sign between them ---------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield the lines that are not empty."""
        for _, line in text_lines(self.path, encoding=self._encoding):
            yield line.strip()

    def _cells(self) -> Iterator[list[str]]:
        """Return all rows that are not empty, the header included."""
        return csv_rows(self.path, self._separator, self._encoding, exact=self._exact)

    def _likely_separator(self) -> str:
        """Return the first sign between cells in the first line; a blank in a text without one."""
        first = next(text_lines(self.path, encoding=self._encoding, cut=True), None)
        if first is None:
            raise SourceError(f"{self.path}: the manifest is empty")
        found = _FIRST_SIGN.match(first[1])
        blank = self.path.suffix.lower() == ".txt"
        if found is None or (blank and _BEHIND_PATH.match(found[0])):
            return " " if blank else ","
        return found[1]

    def _is_header(self, first: list[str]) -> bool:
        """Tell whether a row names columns: nothing in it is a file, a path or a number."""
        if any(map(self.is_file, first)):
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
        cells = [cell_of_value(value.get(name)) for name in self.columns]
        text = "".join(cells)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
                raise SourceError(
                    f"{self.path}: {text[error.start]!a} is no text, but half of a surrogate "
                    "pair. Write the character itself, in UTF-8"
                ) from error
        return cells


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
_PATH = "[.](?:" + "|".join(suffix[1:] for suffix in SUFFIXES) + ")"
_FORMS = (
    re.compile(rf"((?:[0-9]+\s+)*)(\S.*?{_PATH})(?:\s+(.*))?", re.IGNORECASE),
    re.compile(rf"()(.*?{_PATH})(?:\s+(.*))?", re.IGNORECASE),
    re.compile(r"()(\S+)(?:\s+(.*))?"),
)
"""Numbers, the path and the rest; without the suffix of an image, the path is the first word."""


def _is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    return NUMBER.fullmatch(cell.strip()) is not None


class _BlankLines:
    """The lines of a table as cells.

    If a header has as many words as each line, words are cells.  Else a line is a path, with
    numbers before it, and numbers or one text behind it.
    """

    def __init__(self, table: TextTable, header: bool | None) -> None:
        self._table, self._skip, self._several = table, 0, True
        lines = list(itertools.islice(table.lines(), _LINES_LOOKED_AT))
        names = self._header(lines, header)
        below = lines[self._skip :]
        if not below:
            raise SourceError(f"{table.path}: the manifest has a header but no rows")
        self.columns, self._form = names, None
        if {len(line.split()) for line in below} == {len(names)}:
            return
        self._form = next(form for form in _FORMS if all(map(form.fullmatch, below)))
        found = [self._parts(line) for line in below]
        if any(os.path.isfile(table.path.parent / f"{a}{b}") for a, b, _ in found[:20] if a):
            self._form = _FORMS[1]  # a folder is called 1 dog
            found = [self._parts(line) for line in below]
        before = {len(numbers.split()) for numbers, _, _ in found}
        if len(before) > 1:
            raise SourceError(
                f"{table.path}: not as many numbers before each path as in {below[0]!r:.80}. Write "
                "it as a CSV with a header"
            )
        rests = [rest.split() for _, _, rest in found]
        words = set(itertools.chain.from_iterable(rests))
        same = len(set(map(len, rests))) == 1
        self._several = same and all(_is_number(w) or is_image_name(w) for w in words)
        behind = len(rests[0]) if self._several else int(any(rests))
        self.columns = [f"number{k}" for k in range(max(before))] + column_names(1 + behind)
        if len(names) == len(self.columns) - 1:  # CelebA's does not name the column of the paths
            names = ["path", *names]
        if names and len(names) != len(self.columns):
            raise SourceError(
                f"{table.path}: its header names {len(names)} columns, and its rows have "
                f"{len(self.columns)}"
            )
        self.columns = names or self.columns

    def _header(self, lines: list[str], given: bool | None) -> list[str]:
        """Return the names of a header: in a comment, or behind the number of rows."""
        comments = sum(1 for _ in itertools.takewhile(lambda line: line.startswith("#"), lines))
        first = lines[0].split() if lines else []
        if 0 < comments < len(lines):
            self._skip = comments
            names = lines[0].lstrip("# ").split()
            return names if len(names) == len(lines[comments].split()) else []
        counted = len(lines) > 2 and len(first) == 1 and first[0].isdecimal()
        if given is None and counted and not self._has_file(lines[1]):
            self._skip = 2
            return lines[1].split()
        if given is None:
            plain = not any(_is_number(word) or "/" in word for word in first)
            alike = len(lines) > 1 and 1 < len(first) == len(lines[1].split())
            given = plain and alike and not self._has_file(lines[0])
            given = given and (self._has_file(lines[1]) or any(map(is_usual, first)))
        self._skip = int(given)
        return first if given else []

    def _has_file(self, line: str) -> bool:
        return any(map(self._table.is_file, line.split()))

    def _parts(self, line: str) -> tuple[str, str, str]:
        found = self._form.fullmatch(line) if self._form is not None else None
        return (found[1], found[2], found[3] or "") if found is not None else ("", "", "")

    def __iter__(self) -> Iterator[list[str]]:
        width = len(self.columns)
        for line in itertools.islice(self._table.lines(), self._skip, None):
            if self._form is None:
                cells = line.split()
            else:
                numbers, path, rest = self._parts(line)
                cells = [*numbers.split(), path, *(rest.split() if self._several else [rest])]
                cells = cells[:width] if not rest else cells
            if len(cells) != width or (self._form is not None and not path):
                raise SourceError(
                    f"{self._table.path}: the line {line[:100]!r} is not like those before it"
                )
            yield cells
