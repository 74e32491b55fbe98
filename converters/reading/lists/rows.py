"""Rows of lists: flags as labels, tables that share their keys."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastdata.errors import SourceError

from ..text_lines import text_lines

__all__ = ["FlagTable", "join_flags", "keyed_lines", "read_mapping", "rows_by_key"]

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


# -- tables that share their keys, read side by side, without holding them -----------


Row = TypeVar("Row")
_MOST = 1 << 20


def keyed_lines(path: Path, separator: str | None = None) -> Iterator[tuple[str, str]]:
    """Yield the first word of each line, and the rest of it."""
    for number, line in text_lines(path):
        key, *rest = line.strip().split(separator, 1)
        if not rest:
            raise SourceError(f"{path}, line {number}: expected two columns, found {line[:60]!r}")
        yield key.strip(), rest[0].strip()


def read_mapping(path: Path, separator: str | None = None) -> dict[str, str]:
    """Return the rest of each line by its first word; a short list, such as one of classes."""
    found: dict[str, str] = {}
    for key, rest in keyed_lines(path, separator):
        if key in found:
            raise SourceError(f"{path}: {key!r} stands twice")
        found[key] = rest
        if len(found) > _MOST:
            raise SourceError(f"{path}: more than {_MOST:,} lines")
    return found


def rows_by_key(
    tables: Mapping[Path, Iterable[tuple[str, Row]]],
) -> Iterator[tuple[str, list[Row]]]:
    """Yield each key with what the tables have of it, in their common order."""
    paths = list(tables)
    rows = itertools.zip_longest(*tables.values())
    for number, row in enumerate(rows, 1):
        keys = [cells[0] if cells is not None else "its end" for cells in row]
        for path, key in zip(paths, keys, strict=True):
            if key != keys[0]:
                raise SourceError(
                    f"{path}, row {number}: {key!r:.60}, where {paths[0].name} has "
                    f"{keys[0]!r:.60}. They must list the same images in the same order; sort both"
                )
        yield keys[0], [cells[1] for cells in row]
