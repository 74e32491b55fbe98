"""Classes that are columns: 1 where a sample is of the class, else 0 (or -1, as CelebA has it)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

from fastdata.errors import SourceError

__all__ = ["Joined", "join_flags"]

_YES, _NO, _MINUS = ("1", "1.0", "True", "true"), ("0", "0.0", "False", "false"), ("-1", "-1.0")


class Joined(NamedTuple):
    """A table in which one last column ``labels`` has the classes of a row, as a JSON list."""

    names: list[str]  # of its columns
    rows: Iterator[list[str]]
    image: int  # the column of the images
    classes: tuple[str, ...]  # the columns that were flags, in their order


def join_flags(
    place: str, names: list[str], titles: list[str], rows: Iterator[list[str]], image: int
) -> Joined:
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

    def joined() -> Iterator[list[str]]:
        seen: set[str] = set()
        for number, row in enumerate(_with(first, rows), 1):
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
    return Joined([*(names[k] for k in others), "labels"], joined(), others.index(image), classes)


def _with(first: list[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rows
