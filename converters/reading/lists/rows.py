"""Rows of lists on their way: those of a split, flags as labels, short lists of two columns."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import OptionError, SourceError

from ..selection import joined
from ..text_lines import text_lines

__all__ = ["FlagTable", "join_flags", "read_mapping", "rows_of_split"]

# -- one split --------------------------------------------------------------------------


def rows_of_split(
    place: str, rows: Iterable[list[str]], names: Sequence[str], split: str | None
) -> Iterator[list[str]]:
    """Return the rows whose column ``split`` has that text; all where none is asked for."""
    if split is None:
        return iter(rows)
    if "split" not in names:
        raise OptionError(
            f"split={split}: {place} has no column 'split', but {joined(names)}. Say which it is: "
            "--option columns=image=COLUMN,split=COLUMN"
        )
    return _of_split(place, rows, names.index("split"), split)


def _of_split(
    place: str, rows: Iterable[list[str]], column: int, split: str
) -> Iterator[list[str]]:
    others: set[str] = set()
    found = False
    for row in rows:
        if row[column] == split:
            found = True
            yield row
        elif len(others) < 20:
            others.add(row[column])
    if not found:
        raise OptionError(
            f"split={split}: no row of {place} is of that split; there are {joined(sorted(others))}"
        )


# -- classes that are columns: 1 where a sample is of the class, else 0 (or -1) ---------


_YES, _NO, _MINUS = ("1", "1.0", "True", "true"), ("0", "0.0", "False", "false"), ("-1", "-1.0")


class FlagTable(NamedTuple):
    """A table in which one last column ``labels`` has the classes of a row, as a JSON list."""

    names: list[str]  # of its columns
    rows: Iterator[list[str]]
    image: int  # the column of the images
    classes: tuple[str, ...]  # the columns that were flags, in their order


def join_flags(
    place: str, names: list[str], titles: list[str], rows: Iterator[list[str]], image: int
) -> FlagTable:
    """Put the columns together in which the first row has a flag.

    names, titles: of the columns, as fields and as in the file.
    """
    first = next(rows, None)
    if first is None:
        raise SourceError(f"{place}: the manifest has a header but no rows")
    flags = [
        k for k, cell in enumerate(first)
        if k != image and cell.strip() in (*_YES, *_NO, *_MINUS)
    ]  # fmt: skip
    if not flags:
        raise SourceError(
            f"{place}: labels=columns wants columns of 1 and 0 (or -1); the first row has "
            f"{first[:8]}"
        )
    others = [k for k in range(len(names)) if k not in flags]

    def merged() -> Iterator[list[str]]:
        seen: set[str] = set()
        for number, row in enumerate(itertools.chain([first], rows), 1):
            chosen = []
            for k in flags:
                cell = row[k].strip()
                if cell in _YES:
                    chosen.append(titles[k])
                elif cell in _MINUS or cell in _NO:
                    seen.add("-1" if cell in _MINUS else "0")
                else:
                    raise SourceError(
                        f"{place}, row {number}: {titles[k]!r} is {cell!r:.40}, neither 1 nor 0. "
                        "Take the columns that are flags: --option columns=image=COLUMN,COLUMN,..."
                    )
            if len(seen) > 1:
                raise SourceError(
                    f"{place}, row {number}: both 0 and -1 stand in columns of classes; what -1 "
                    "means is not known (CheXpert has it for 'uncertain'). Make it one or the other"
                )
            yield [*(row[k] for k in others), json.dumps(chosen)]

    classes = tuple(titles[k] for k in flags)
    return FlagTable(
        [*(names[k] for k in others), "labels"], merged(), others.index(image), classes
    )


# -- short lists of two columns ----------------------------------------------------------


_MOST = 1 << 20


def read_mapping(path: Path) -> dict[str, str]:
    """Return the rest of each line by its first word; a short list, such as one of classes."""
    found: dict[str, str] = {}
    for number, line in text_lines(path):
        key, *rest = line.strip().split(None, 1)
        if not rest:
            raise SourceError(f"{path}, line {number}: expected two columns, found {line[:60]!r}")
        if key in found:
            raise SourceError(f"{path}: {key!r} stands twice")
        found[key] = rest[0]
        if len(found) > _MOST:
            raise SourceError(f"{path}: more than {_MOST:,} lines")
    return found
