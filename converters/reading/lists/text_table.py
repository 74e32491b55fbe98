"""Rows of cells from text: CSV, TSV, columns set apart by blanks, JSON Lines, a JSON list.

Cells are text, whatever the file: of JSON a number is its text, a list or an object its JSON, and
null is empty.  ``kinds`` tells which columns of JSON were text, so that ``"007"`` stays a name.
"""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
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
        """Return the sign that stands between cells, by the first lines."""
        first = text_lines(self.path, encoding=self._encoding, cut=True)
        lines = [line for _, line in itertools.islice(first, _LOOKED_AT)]
        if not lines:
            raise SourceError(f"{self.path}: the manifest is empty")
        there = [sign for sign in "\t,;|" if sign in lines[0]]
        behind_path = _FORMS[1].fullmatch(lines[-1].partition(there[0])[0]) if there else None
        if not there or (behind_path is not None and behind_path[3]):
            return " " if self.path.suffix.lower() == ".txt" else ","
        fits = [sign for sign in there if self._fits(lines, sign)] if len(there) > 1 else there
        return fits[0] if len(fits) == 1 else there[0]

    def _fits(self, lines: Sequence[str], sign: str) -> bool:
        """Tell whether the first lines have as many cells each, and files among them."""
        try:
            rows = list(csv.reader(lines, delimiter=sign, skipinitialspace=True))
        except csv.Error:
            return False
        same = len({len(row) for row in rows if row}) == 1
        return same and any(self.is_file(cell) for row in rows for cell in row)

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
_FORMS = (
    re.compile(rf"((?:[0-9]+\s+)+)(\S.*?\.(?:{_SUFFIX}))(?:\s+(.*))?", re.IGNORECASE),
    re.compile(rf"()(.*?\.(?:{_SUFFIX}))(?:\s+(.*))?", re.IGNORECASE),
    re.compile(r"()(\S+)((?:\s+[+-]?[0-9.]+)+)"),
    re.compile(r"()(.*\S)\s+([+-]?[0-9]+)"),
    re.compile(r"()(\S+)(?:\s+(.*))?"),
)
"""Numbers, the path and the rest.  Without a suffix the path is the first word before numbers, or
what stands before one number, or the first word."""


def _is_number(cell: str) -> bool:
    """Tell whether a cell is a number."""
    return NUMBER.fullmatch(cell.strip()) is not None


class _BlankLines:
    """The lines of a table as cells.

    If a header has as many words as each line, words are cells.  Else a line is a path, with
    numbers before it, and numbers or one text behind it.
    """

    def __init__(self, table: TextTable, header: bool | None) -> None:
        self._table, self._skip = table, 0
        lines = list(itertools.islice(table.lines(), _LINES_LOOKED_AT))
        names = self._header(lines, header)
        below = lines[self._skip :]
        if not below:
            raise SourceError(f"{table.path}: the manifest has a header but no rows")
        widths = {len(line.split()) for line in below}
        self._words = len(names) in widths and len(widths) == 1
        self._width = len(names)
        self.columns = names
        if self._words:
            return
        self._form = next(form for form in _FORMS if all(map(form.fullmatch, below)))
        found = [self._parts(line) for line in below]
        if self._form is _FORMS[0] and any(
            os.path.isfile(table.path.parent / f"{a}{b}") for a, b, _ in found[:20]
        ):
            self._form = _FORMS[1]  # a folder is called 1 dog
            found = [self._parts(line) for line in below]
        before = {len(numbers.split()) for numbers, _, _ in found}
        rests = [rest.split() for _, _, rest in found]
        counts = {len(rest) for rest in rests}
        words = set(itertools.chain.from_iterable(rests))
        self._several = len(counts) == 1 and all(_is_number(w) or is_image_name(w) for w in words)
        if len(before) > 1:
            raise SourceError(
                f"{table.path}: as many numbers are not before each path: {below[0]!r:.80}. Write "
                "it as a CSV with a header"
            )
        first = before.pop()
        self._width = 1 + first + (counts.pop() if self._several else any(rests))
        usual = column_names(self._width - first)
        self.columns = [*(f"number{k}" for k in range(first)), *usual]
        if len(names) == self._width - 1:  # CelebA's header does not name the column of the paths
            names = ["path", *names]
        if names and not self._commented:
            if len(names) != self._width:
                raise SourceError(
                    f"{table.path}: its header names {len(names)} columns, and its rows have "
                    f"{self._width}"
                )
            self.columns = names

    def _header(self, lines: list[str], given: bool | None) -> list[str]:
        """Return the names of a header: behind comments, or behind the number of rows."""
        comments = list(itertools.takewhile(lambda line: line.startswith("#"), lines))
        self._commented = bool(comments) and len(comments) < len(lines)
        if self._commented:
            self._skip = len(comments)
            words = comments[0].lstrip("# ").split()
            return words if len(words) == len(lines[self._skip].split()) else []
        first = lines[0].split() if lines else []
        counted = len(lines) > 2 and len(first) == 1 and first[0].isdecimal()
        if given is None and counted and not self._has_file(lines[1]):
            self._skip = 2
            return lines[1].split()
        plain = not any(_is_number(word) or "/" in word for word in first)
        if given is None:
            cells_below = len(lines[1].split()) if len(lines) > 1 else 0
            given = plain and 1 < len(first) == cells_below and not self._has_file(lines[0])
            given = given and (self._has_file(lines[1]) or any(map(is_usual, first)))
        self._skip = int(given)
        return first if given else []

    def _has_file(self, line: str) -> bool:
        return any(map(self._table.is_file, line.split()))

    def _parts(self, line: str) -> tuple[str, str, str]:
        found = self._form.fullmatch(line)
        if found is None:
            raise SourceError(
                f"{self._table.path}: the line {line[:100]!r} is not like those before it"
            )
        return found[1], found[2], found[3] or ""

    def __iter__(self) -> Iterator[list[str]]:
        for line in itertools.islice(self._table.lines(), self._skip, None):
            if self._words:
                cells = line.split()
            else:
                numbers, path, rest = self._parts(line)
                behind = rest.split() if self._several else [rest] * bool(rest)
                cells = [*numbers.split(), path, *behind]
                cells += [""] * (len(cells) == self._width - 1 and not self._several)
            if len(cells) != self._width:
                raise SourceError(
                    f"{self._table.path}: the line {line[:100]!r} is not like those before it"
                )
            yield cells
