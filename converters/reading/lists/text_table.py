"""Rows of cells from text: CSV, TSV, columns set apart by blanks, JSON Lines, a JSON list, Parquet.

Cells are text, whatever the file: a number of JSON is its text, a list or an object its JSON, and
null is empty.  ``kinds`` says which columns of JSON were text, so that ``"007"`` stays a name.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from ..image_files import SUFFIXES, is_image_name
from ..json_files import json_entries
from ..selection import joined
from ..tables.arrow_fields import arrow, table_errors
from ..text_lines import MOST_IN_CELL, csv_rows, encoding_of, text_lines
from .columns import NUMBER, is_usual

__all__ = ["JSON_SUFFIXES", "TextTable", "cells_of"]

JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")

_AROUND = " \t\ufeff"
_FIRST_SIGN = re.compile(r'(?:"[^"]*"|[^\t,;|"])*([\t,;|])')
_IMAGE = rf"\S.*?[.](?:{'|'.join(suffix[1:] for suffix in SUFFIXES)})"
_BEHIND_PATH = re.compile(rf"{_IMAGE}\s+\S", re.IGNORECASE)
_MOST_COLUMNS = 10_000


class TextTable:
    """A file of rows; each iteration reads it again.

    columns: names of the header; without one ``path``, ``label``, ``column2`` and so on.
    kinds: Python types of each column of JSON or Parquet; None of text.
    """

    kinds: dict[str, set[type]] | None = None

    def __init__(self, path: Path, *, exact: bool = False) -> None:
        """Look at the first rows.

        exact: whether blanks around cells belong to them.
        """
        self.path, self._exact, self._skip = path, exact, 0
        self._lines: _BlankLines | None = None
        if path.suffix.lower() in (*JSON_SUFFIXES, ".parquet"):
            self._look_at_objects()
            return
        self._encoding = encoding_of(path)
        self._separator = self._likely_separator()
        if self._separator == " ":
            self._lines = _BlankLines(path, self._encoding)
            self.columns = self._lines.columns
            return
        first = next(self._cells())
        self._skip = int(is_header(first, path.parent))
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

    # -- JSON and Parquet ----------------------------------------------------------------

    def _objects(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a JSON list or of JSON Lines, or the rows of a Parquet file."""
        suffix = self.path.suffix.lower()
        if suffix == ".parquet":
            try:
                with arrow(".parquet").ParquetFile(self.path) as file:
                    for batch in file.iter_batches(batch_size=1000, use_threads=False):
                        batch.validate(full=True)
                        yield from batch.to_pylist()
            except table_errors() as error:
                raise SourceError(f"{self.path}: {error}") from error
        elif suffix == ".json":
            for member in json_entries(self.path, MOST_IN_CELL):
                yield self._checked(member.value, f"byte {member.start:,}")
        else:
            for number, line in text_lines(self.path, "strict"):
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise SourceError(f"{self.path}, line {number}: not JSON: {error}") from error
                yield self._checked(value, f"line {number}")

    def _checked(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise SourceError(
                f"{self.path}, {place}: expected an object like "
                f'{{"image": "0.jpg", "label": "cat"}}, found {str(value)[:60]!r}'
            )
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
        cells = [_cell_of_value(value.get(name)) for name in self.columns]
        text = "".join(cells)
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
                raise SourceError(
                    f"{self.path}: {text[error.start]!a} is half of a surrogate pair, not "
                    "text. Write the character itself, in UTF-8"
                ) from error
        return cells


def _cell_of_value(value: Any) -> str:
    """Return a value of JSON as a cell."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def cells_of(indices: list[int]) -> Callable[[list[str]], list[str]]:
    """Return a function from a row to some of its cells, which costs nothing if it is all."""
    if indices == list(range(len(indices))):
        return lambda row: row if len(row) == len(indices) else row[: len(indices)]
    return lambda row: [row[k] for k in indices]


def column_names(count: int) -> list[str]:
    """Return what columns without a header are called."""
    return ["path", "label", *(f"column{k}" for k in range(2, count))][:count]


def is_header(cells: list[str], folder: Path) -> bool:
    """Tell whether a row names columns: nothing in it is a file, a path or a number."""
    if _has_file(cells, folder):
        return False
    return any(map(is_usual, cells)) or not any("/" in c or _is_number(c) for c in cells)


def _has_file(cells: list[str], folder: Path) -> bool:
    return any(is_image_name(cell) or os.path.isfile(folder / cell) for cell in cells)


def _is_number(cell: str) -> bool:
    return NUMBER.fullmatch(cell.strip()) is not None


# -- lines whose columns are set apart by blanks: n01440764/x.JPEG 0 --------------------


_LOOKED_AT = 200
_FORMS = (
    re.compile(rf"((?:[0-9]+\s+)*)({_IMAGE})(?:\s+(.*))?", re.IGNORECASE),
    re.compile(r"()(\S+)(?:\s+(.*))?"),
)
"""Numbers, the path and the rest; without the suffix of an image, the path is the first word."""


class _BlankLines:
    """The lines of a text as cells.

    If a header has as many words as each line, words are cells.  Else a line is a path, with
    numbers before it, and numbers or one text behind it.
    """

    def __init__(self, path: Path, encoding: str) -> None:
        self._path, self._encoding, self._skip = path, encoding, 0
        first = list(itertools.islice(self._read(), _LOOKED_AT))
        self.columns = self._header(first)
        lines = first[self._skip :]
        if not lines:
            raise SourceError(f"{path}: the manifest has a header but no rows")
        self._form, self._several = None, True
        if {len(line.split()) for line in lines} == {len(self.columns)}:
            return
        self._form = next(form for form in _FORMS if all(map(form.fullmatch, lines)))
        found = [self._parts(self._form, line) for line in lines]
        rests = [rest.split() for _, _, rest in found]
        words = set(itertools.chain.from_iterable(rests))
        same = len(set(map(len, rests))) == 1
        self._several = same and all(_is_number(w) or is_image_name(w) for w in words)
        behind = len(rests[0]) if self._several else int(any(rests))
        numbers = [f"number{k}" for k in range(len(found[0][0].split()))]
        self.columns = self.columns or numbers + column_names(1 + behind)

    def _read(self) -> Iterator[str]:
        return (line.strip() for _, line in text_lines(self._path, encoding=self._encoding))

    def _header(self, lines: list[str]) -> list[str]:
        """Return the names of a header: in a comment, or behind the number of rows."""
        comments = sum(1 for _ in itertools.takewhile(lambda line: line.startswith("#"), lines))
        words, folder = [line.split() for line in lines[comments : comments + 2]], self._path.parent
        if comments and words:
            self._skip = comments
            names = lines[0].lstrip("# ").split()
            return names if len(names) == len(words[0]) else []
        if len(words) < 2 or _has_file(words[0], folder):
            return []
        if len(lines) > 2 and len(words[0]) == 1 and words[0][0].isdecimal():
            if not _has_file(words[1], folder):
                self._skip = 2
                return words[1]
        elif 1 < len(words[0]) == len(words[1]) and (
            not any(_is_number(word) or "/" in word for word in words[0])
            and (_has_file(words[1], folder) or any(map(is_usual, words[0])))
        ):
            self._skip = 1
            return words[0]
        return []

    def _parts(self, form: re.Pattern[str], line: str) -> tuple[str, str, str]:
        found = form.fullmatch(line)
        return (found[1], found[2], found[3] or "") if found is not None else ("", "", "")

    def __iter__(self) -> Iterator[list[str]]:
        width = len(self.columns)
        for line in itertools.islice(self._read(), self._skip, None):
            if self._form is None:
                cells = line.split()
            else:
                numbers, path, rest = self._parts(self._form, line)
                cells = [*numbers.split(), path, *(rest.split() if self._several else [rest])]
                cells = cells[:width] if not rest else cells
            if len(cells) != width or (self._form is not None and not path):
                raise SourceError(
                    f"{self._path}: the line {line[:100]!r} is not like those before it, with the "
                    f"columns {joined(self.columns)}. Write the list as a CSV with a header"
                )
            yield cells
