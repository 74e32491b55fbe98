"""Arrays of several splits in one place: ``train_images`` beside ``test_images``, ``x_train``.

The word for the split is taken out of the names, so that arrays of each split have the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ScalarField

from .array_source import Part
from .columns import Column

__all__ = ["arrays_by_split", "choose_arrays", "split_in", "with_splits"]

SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "extra")


class _ConstantColumn(Column):
    """One number for all rows: which split they are of."""

    dtype = np.dtype("int64")

    def __init__(self, label: str, rows: int, value: int) -> None:
        self.label, self.shape, self._value = label, (rows,), value

    def read(self, start: int, stop: int) -> Any:
        return np.full(stop - start, self._value)


def split_in(name: str) -> tuple[str, str]:
    """Return the split that a name tells, empty if none or several, and the rest of the name."""
    words = re.split(r"[_\-. ]+", name)
    splits = [word.lower() for word in words if word.lower() in SPLITS]
    rest = "_".join(word for word in words if word.lower() not in SPLITS)
    return (splits[0], rest) if len(splits) == 1 else ("", name)


def arrays_by_split(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return for each split its arrays, by their names without the split's.

    ``{"": {...}}`` where some names have no split in them.
    """
    found: dict[str, dict[str, str]] = {}
    every = list(names)
    for name in every:
        split, rest = split_in(name)
        if not split or not rest or rest in found.get(split, {}):
            return {"": {name: name for name in every}}
        found.setdefault(split, {})[rest] = name
    return {split: found[split] for split in SPLITS if split in found}


def choose_arrays(
    place: object, splits: Mapping[str, Mapping[str, str]], split: str
) -> dict[str, dict[str, str]]:
    """Return the splits that are taken.

    Parameters
    ----------
    place : object
        For messages.
    splits : mapping
        As `arrays_by_split` returns them.
    split : str
        ``all``, or one of them.

    Raises
    ------
    OptionError
        If there is no such split.
    SourceError
        If the splits that are taken do not have the same arrays.
    """
    known = [name for name in splits if name]
    if split != "all" and split not in known:
        raise OptionError(
            f"split={split}: {place} has {', '.join(known) or 'no splits in the names of arrays'}"
        )
    taken = {name: dict(arrays) for name, arrays in splits.items() if split in ("all", name)}
    first = next(iter(taken))
    for name, arrays in taken.items():
        if set(arrays) != set(taken[first]):
            raise SourceError(
                f"{place}: {first} has the arrays {', '.join(sorted(taken[first].values()))}, and "
                f"{name} {', '.join(sorted(arrays.values()))}. Take one: --option split={first}"
            )
    return taken


def with_splits(
    settled: dict[str, Field], parts: list[Part], splits: tuple[str, ...]
) -> tuple[dict[str, Field], list[Part]]:
    """Return fields and parts with one field more, the split; each part is of one.

    Raises
    ------
    SourceError
        If there is such a field already.
    """
    if "split" in settled:
        raise SourceError("an array is called split, and arrays are of several splits")

    def added() -> Iterator[Part]:
        for number, part in enumerate(parts):
            column = _ConstantColumn("split", part.rows, number)
            columns, layouts = (*part.columns, column), (*part.layouts, None)
            yield part._replace(columns=columns, layouts=layouts)

    return {**settled, "split": ScalarField(classes=splits)}, list(added())
