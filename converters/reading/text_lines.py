"""Lines and rows of text files with lists of keys, labels or places.

Line lengths are limited: a file without line ends, or with a quote that is never closed, is refused
after some MB.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import FastdataError, SourceError
from fastdata.regular_files import open_regular

__all__ = [
    "MOST_IN_CELL",
    "MOST_IN_ROW",
    "csv_rows",
    "decoded",
    "encoding_of",
    "text_lines",
    "too_long",
]

MOST_IN_CELL = 1 << 20
"""Maximum characters of a cell, or of a line without cells."""

MOST_IN_ROW = 1 << 24
"""Maximum characters of a row of cells."""

_CHUNK = 1 << 20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def too_long(path: Path, place: str) -> SourceError:
    """Return the error for a row, at a place of the file, that is too long."""
    return SourceError(
        f"{path}, {place}: a cell of more than {MOST_IN_CELL:,} characters, or a row of more than "
        f"{MOST_IN_ROW:,}: no list of images, or a quote that is never closed. Put large values "
        "in Parquet, or in files that the list names"
    )


def encoding_of(path: Path) -> str:
    """Return the encoding of a text: UTF-8, UTF-16 with a byte-order mark, or cp1252."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            head = file.read(_CHUNK)
            if head.startswith(_UTF16):
                return "utf-16"
            decoder = codecs.getincrementaldecoder("utf-8")()
            while head:
                decoder.decode(head)
                head = file.read(_CHUNK)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return "cp1252"
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    return "utf-8-sig"


def decoded(head: bytes) -> str | None:
    """Return the start of a file as text; None if it is binary."""
    if head.startswith(_UTF16):
        return head[: len(head) // 2 * 2].decode("utf-16", "replace")
    if b"\0" in head:
        return None
    try:
        return codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return head.decode("cp1252", "replace")


def text_lines(
    path: Path,
    errors: str = "surrogateescape",
    refusal: type[FastdataError] = SourceError,
    *,
    cut: bool = False,
    encoding: str = "utf-8",
) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not empty.

    errors: handling of invalid UTF-8, as in `bytes.decode`.
    refusal: the error if the file cannot be read or a line is too long; OptionError if an option
        names the file.
    cut: split longer lines instead, for a first look at any file.
    """
    try:
        number = 0
        with open(
            path, opener=open_regular, encoding=encoding, errors=errors, newline="\n"
        ) as file:
            while line := file.readline(MOST_IN_CELL + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix("\ufeff")  # a byte order mark
                if len(line) > MOST_IN_CELL and not cut:
                    raise refusal(
                        f"{path}, line {number}: more than {MOST_IN_CELL:,} characters: not a list"
                    )
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise refusal(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:  # only where errors="strict"
        raise refusal(f"{path}, line {number + 1}: {error}. Save it as UTF-8") from error


def csv_rows(
    path: Path, separator: str = ",", encoding: str = "utf-8-sig", *, exact: bool = True
) -> Iterator[list[str]]:
    """Yield the rows that are not empty; `SourceError` if one is broken or too long.

    exact: else blanks before a cell are left out, and ``\\"`` is a quote within quotes.
    """
    room = MOST_IN_ROW
    # The quote behind a backslash at the end of a cell ends the cell: "images\".
    escaped = re.compile(rf'\\"(?!\s*({re.escape(separator)}|$))')

    def lines() -> Iterator[str]:
        nonlocal room
        while line := file.readline(room + 1):
            room -= len(line)
            if room < 0:
                raise too_long(path, f"line {reader.line_num + 1}")
            yield line if exact or '\\"' not in line else escaped.sub('""', line)

    # The csv module's limit, for the whole process, is 128 kB; arrays and bytes may be larger.
    csv.field_size_limit(max(csv.field_size_limit(), MOST_IN_CELL))
    with open(path, newline="", opener=open_regular, encoding=encoding) as file:
        # Strict: a quote that is never closed would swallow all rows behind it.
        reader = csv.reader(lines(), delimiter=separator, strict=True, skipinitialspace=not exact)
        try:
            for row in reader:
                if MOST_IN_ROW - room > MOST_IN_CELL and max(map(len, row)) > MOST_IN_CELL:
                    raise too_long(path, f"line {reader.line_num}")
                room = MOST_IN_ROW
                if row:
                    yield row
        except (csv.Error, UnicodeDecodeError) as error:
            place = f"line {reader.line_num + 1}"
            if "field limit" in str(error):
                raise too_long(path, place) from None
            raise SourceError(f"{path}, {place}: {error}") from error
