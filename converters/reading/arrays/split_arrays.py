"""Arrays of several splits in one place: ``train_images`` beside ``test_images``, ``x_train``.

The word for the split is taken out of the names, so that arrays of each split have the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from fastdata.errors import OptionError, SourceError

__all__ = ["arrays_by_split", "choose_arrays"]

_SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing", "extra")


def arrays_by_split(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return for each split its arrays, by their names without the split's.

    ``{"": {...}}`` where some names have no split in them.
    """
    found: dict[str, dict[str, str]] = {}
    every = list(names)
    for name in every:
        words = re.split(r"[_\-. ]+", name)
        splits = [word for word in words if word.lower() in _SPLITS]
        rest = "_".join(word for word in words if word.lower() not in _SPLITS)
        if len(splits) != 1 or not rest or rest in found.get(splits[0].lower(), {}):
            return {"": {name: name for name in every}}
        found.setdefault(splits[0].lower(), {})[rest] = name
    return {split: found[split] for split in _SPLITS if split in found}


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
