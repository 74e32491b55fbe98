"""Lines of text files that lie beside a dataset: lists of keys, labels, places."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import FastdataError, SourceError
from fastdata.regular_files import open_regular

__all__ = ["text_lines"]

_LONGEST = 1 << 16


def text_lines(
    path: Path,
    errors: str = "surrogateescape",
    refusal: type[FastdataError] = SourceError,
    longest: int = _LONGEST,
) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines that are not empty.

    A longer line is taken for several, so that no more than that is in memory.

    errors: what becomes of bytes that are no UTF-8, as `bytes.decode` takes it.
    refusal: what is raised if the file cannot be read: OptionError where an option names it.
    """
    try:
        with open(path, opener=open_regular, encoding="utf-8", errors=errors, newline="\n") as file:
            number = 0
            while line := file.readline(longest):
                number += 1
                if number == 1:
                    line = line.removeprefix("\ufeff")  # a byte order mark
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except OSError as error:
        raise refusal(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:  # only where errors="strict"
        raise refusal(f"{path}, line {number + 1}: {error}") from error
