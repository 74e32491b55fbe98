"""Splits: the parts train, val and test of a dataset that has a field ``split``.

A class field of this name holds splits if the name of every class is made of words for splits
(``train``, ``val2017``, ``test-dev``).  A user's own column ``split``, of ``left`` and ``right``
say, is a field like any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import FileCorruptError, OptionError, did_you_mean
from fastdata.schema import Schema

if TYPE_CHECKING:
    from fastdata.dataset import Dataset

__all__ = ["ALL", "SPLIT", "check_one_split", "count_splits", "select_split", "split_names"]

SPLIT = "split"
"""Name of the field."""

ALL = "all"
"""What takes all splits."""

_WORDS = re.compile(
    "(mini)?(train|val)|trn|tst|training|trainval|valid|validation|dev|test|testing|eval"
    "|evaluation|holdout"
)
_WORDS_BESIDE = re.compile("extra|other|unlabell?ed|unsupervised|query|gallery")
"""Words for splits only where another split has one of `_WORDS`."""


def split_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the splits, in the order of their numbers; () without splits."""
    names = getattr(schema.get(SPLIT), "classes", None) or ()
    words = [re.findall(r"[^\W_\d]+", name.lower()) for name in names]
    clear = [bool(some) and all(map(_WORDS.fullmatch, some)) for some in words]
    beside = [bool(some) and all(map(_WORDS_BESIDE.fullmatch, some)) for some in words]
    are_all = all(one or other for one, other in zip(clear, beside, strict=True))
    return tuple(names) if any(clear) and are_all else ()


def count_splits(schema: Schema, numbers: NDArray[Any]) -> dict[str, int]:
    """Return how many samples each split has, without those that have none; {} without splits.

    `numbers` are the values of the field.
    """
    names = split_names(schema)
    known = numbers[(numbers >= 0) & (numbers < len(names))].astype(np.int64)
    counts = np.bincount(known, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def select_split(dataset: Dataset, split: str) -> Dataset:
    """Return the samples of one split, without the field; ``"all"``: the dataset as it is.

    `OptionError` if there is no such split.  A sample whose split cannot be read is kept, so that
    whoever reads it gets the error.
    """
    from fastdata.dataset import part_of  # imports torch, which packing does without

    if not isinstance(split, str):
        raise OptionError(f"split is the name of one split, or 'all', not {split!r}")
    if split == ALL:
        return dataset
    names, numbers, unreadable = _read(dataset)
    counts = count_splits(dataset.schema, numbers)
    if split not in counts:
        place = _place(dataset)
        if not counts:
            raise OptionError(
                f"split={split!r}: {place} has no splits, which are a field 'split' with names "
                f"like train and val; its fields are {', '.join(dataset.schema)}. Leave split out"
            )
        near = did_you_mean(str(split), list(counts))
        raise OptionError(f"split={split!r}: {place} has the splits {_listed(counts)}.{near}")
    chosen = np.flatnonzero((numbers == names.index(split)) | unreadable)
    shown = {name: field for name, field in dataset.schema.items() if name != SPLIT}
    return part_of(dataset, chosen, Schema(shown, stored=True))


def check_one_split(dataset: Dataset, remedy: str) -> None:
    """Raise `OptionError` if the dataset has samples of several splits.

    `remedy` is how one is chosen, with ``{split}`` in the place of its name.
    """
    if not split_names(dataset.schema):
        return
    counts = count_splits(dataset.schema, _read(dataset)[1])
    if len(counts) > 1:
        raise OptionError(
            f"{_place(dataset)} has several splits: {_listed(counts)}. Choose one: "
            f"{remedy.format(split=next(iter(counts)))}, or load all: {remedy.format(split=ALL)}"
        )


def _read(dataset: Dataset) -> tuple[tuple[str, ...], NDArray[Any], NDArray[np.bool_]]:
    """Return names of splits, the split of each sample, and which samples cannot be read."""
    names, count = split_names(dataset.schema), len(dataset)
    unreadable = np.zeros(count, np.bool_)
    if not names:
        return (), np.full(count, -1), unreadable
    try:
        return names, dataset._gather(SPLIT, np.arange(count)), unreadable
    except FileCorruptError:
        numbers = np.full(count, -1)
        for place in range(count):
            try:
                numbers[place] = dataset._gather(SPLIT, [place])[0]
            except FileCorruptError:
                unreadable[place] = True
        return names, numbers, unreadable


def _listed(counts: dict[str, int]) -> str:
    """Return splits and their counts as text."""
    return ", ".join(f"{name} ({count:,} samples)" for name, count in counts.items())


def _place(dataset: Dataset) -> str:
    """Return the location of a dataset, for messages."""
    paths = dataset.paths
    return str(paths[0] if len(paths) == 1 else paths[0].parent)
