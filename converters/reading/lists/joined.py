"""Tables that share their keys, line by line: ``images.txt``, ``image_class_labels.txt``, ...

They are read side by side, so that nothing of them is kept in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from fastdata.errors import SourceError

from ..text_lines import text_lines

__all__ = ["joined", "keyed_lines", "read_mapping"]

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


def joined(tables: Mapping[Path, Iterable[tuple[str, Row]]]) -> Iterator[tuple[str, list[Row]]]:
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
