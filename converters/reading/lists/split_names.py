"""Names of splits as classes, in the usual order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fastdata.errors import OptionError

from ..selection import listed

__all__ = ["rows_of_split", "split_classes"]

_ORDER = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
_MOST = 20


def split_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Return names in the order train, validation, test, then others sorted; () if too many."""
    if len(names) > _MOST:
        return ()
    return tuple(sorted(names, key=lambda n: (_place(n), n)))


def rows_of_split(
    place: str, rows: Iterable[list[str]], names: Sequence[str], split: str | None
) -> Iterator[list[str]]:
    """Return the rows whose column ``split`` has that text; all where none is asked for."""
    if split is None:
        return iter(rows)
    if "split" not in names:
        raise OptionError(
            f"split={split}: {place} has no column 'split', but {listed(names)}. Say which it is: "
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
        elif len(others) < _MOST:
            others.add(row[column])
    if not found:
        raise OptionError(
            f"split={split}: no row of {place} is of that split; there are {listed(sorted(others))}"
        )


def _place(name: str) -> int:
    lowered = name.lower()
    return _ORDER.index(lowered) if lowered in _ORDER else len(_ORDER)
