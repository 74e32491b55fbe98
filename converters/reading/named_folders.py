"""Class folders by the names of what is in them: of an archive, or of a store of objects.

They have the same classes, numbers and order of images as the folder that they are copied to.
"""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fastdata.errors import OptionError, SourceError

from .class_folders import doubts_of_names, doubts_of_places
from .class_names import numbered
from .image_files import ignored_files, suffix_of
from .locations import printable
from .selection import joined
from .small_memory import StringTable
from .splits import SPLIT_NAMES

__all__ = [
    "ClassLayout",
    "Taken",
    "class_layout",
    "common_top",
    "doubt_of_layout",
    "refuse_empty",
    "take_in_order",
]


class ClassLayout(NamedTuple):
    """Which folders are classes."""

    top: int  # parts of a name that all have: the archive's own folder
    depth: int  # parts before the class: these, and the split
    # classes, splits: their numbers, in order; no splits where there are no split folders
    classes: dict[str, int]
    splits: dict[str, int]
    chosen: str = ""  # the one split that is taken; empty for all

    def numbers(self, name: str) -> dict[str, int] | None:
        """Return label (and split) of a file; None if it is in no class folder that is taken."""
        parts = name.split("/")
        if len(parts) < self.depth + 2:
            return None
        if self.chosen and parts[self.depth - 1] != self.chosen:
            return None
        numbers = {"label": self.classes[parts[self.depth]]}
        return numbers | {"split": self.splits[parts[self.depth - 1]]} if self.splits else numbers

    def order(self, name: str, numbers: dict[str, int]) -> str:
        """Return what names are sorted by: split, class, folder, file."""
        folder, _, file = name.rpartition("/")
        split = chr(numbers["split"]) if self.splits else ""
        return "\0".join((split + name.split("/")[self.depth], folder, file))


def common_top(names: StringTable) -> int:
    """Return how many folders all names begin with; a split folder, or a last one, is none."""
    shared: list[str] | None = None
    for name in map(names.__getitem__, range(len(names))):
        folders = name.split("/")[:-1]
        if shared is None:
            shared = folders
        length = min(len(shared), len(folders))
        same = (k for k in range(length) if shared[k] != folders[k])
        shared = shared[: next(same, length)]
    depth = 0
    for part in shared or ():
        if part.lower() in SPLIT_NAMES:
            break
        depth += 1
    return depth


def class_layout(
    place: str, names: StringTable, split: str, remedy: str, top: int | None = None
) -> ClassLayout:
    """Return which folders are classes.

    split: ``auto``, ``none`` or a split folder, as in ``folder.py``.
    remedy: what to do where they are none.
    top: how many folders all names have that are no classes; by default those that all have.
    """
    top = common_top(names) if top is None else top
    first: dict[str, set[str]] = {}
    flat = set()
    for name in map(names.__getitem__, range(len(names))):
        parts = name.split("/")[top:]
        if len(parts) > 1:
            inner = first.setdefault(parts[0], set())
            if len(parts) > 2:
                inner.add(parts[1])
            else:
                flat.add(parts[0])
    are_splits = bool(first) and all(name.lower() in SPLIT_NAMES for name in first)
    if split not in ("auto", "none"):
        if split not in first:
            raise OptionError(
                f"split={split}: no such folder in {place}, which has {_shown(first)}"
            )
        return ClassLayout(top, top + 1, _classes(place, first[split], remedy), {}, split)
    if split == "auto" and are_splits:
        splits = sorted(first, key=lambda name: (SPLIT_NAMES.index(name.lower()), name))
        if not flat:
            classes = _classes(place, set().union(*first.values()), remedy)
            return ClassLayout(top, top + 1, classes, numbered(splits))
        full = [name for name in splits if name not in flat]
        option = f" --option split={full[0]} takes the classes in {full[0]}." if full else ""
        raise SourceError(
            f"{place}: {_shown(sorted(flat))}: images there are in no class folders, though the "
            f"folders are called as splits.{option} {remedy}"
        )
    insisted = split == "none" and len(first) > 1
    classes = numbered(sorted(first)) if insisted else _classes(place, first, remedy)
    return ClassLayout(top, top, classes, {})


def doubt_of_layout(layout: ClassLayout, names: Iterable[str]) -> str:
    """Return why these may be no class folders though they look so; "" if nothing says so."""
    places: dict[str, set[str]] = {}
    for name in names:
        if layout.numbers(name) is not None:
            parts = name.split("/")
            folder = "/".join(parts[: layout.depth + 1])
            places.setdefault(folder, set()).add("/".join(parts[layout.depth + 1 : -1]))
    return doubts_of_places(places)


def _classes(place: str, names: Iterable[str], remedy: str) -> dict[str, int]:
    classes = sorted(names)
    why = f"there are {len(classes)}" if len(classes) < 2 else doubts_of_names(classes)
    if why:
        raise SourceError(
            f"{place}: its images are in no class folders, CLASS/IMAGE for two classes or more: "
            f"{why}. {remedy}"
        )
    return numbered(classes)


def _shown(names: Iterable[str]) -> str:
    return joined(map(printable, names), 6)


class Taken(NamedTuple):
    """What is taken of a list of images: rows in their order, and the notes on the rest."""

    rows: Sequence[int]
    repeated: set[int]
    """Rows whose name another one has too."""
    is_sorted: bool
    """Whether they stand in this order already."""
    notes: list[str]


def take_in_order(layout: ClassLayout, images: StringTable, others: Iterable[str]) -> Taken:
    """Return which images are taken, in the order of a folder.

    others: names of what is no image; those of folders end in a slash.
    """
    keys: list[str] = []
    rows, left = array("q"), []
    for row in range(len(images)):
        name = images[row]
        numbers = layout.numbers(name)
        if numbers is not None:
            rows.append(row)
            keys.append(layout.order(name, numbers))
        elif name.count("/") <= layout.depth:
            left.append(name)
    order = sorted(range(len(rows)), key=keys.__getitem__)
    repeated, is_sorted = set[int](), True
    for first, second in itertools.pairwise(order):
        is_sorted &= first < second
        if keys[first] == keys[second]:
            repeated |= {rows[first], rows[second]}
    shown = joined(map(printable, sorted(left)), 5)
    notes = [f"{len(left):,} images in no class folder left out: {shown}"] * bool(left)
    notes += ignored_files(
        Counter(suffix_of(name.rpartition("/")[2]) for name in others if name[-1:] != "/")
    )
    return Taken(array("q", map(rows.__getitem__, order)), repeated, is_sorted, notes)


def refuse_empty(place: str, layout: ClassLayout, others: Iterable[str], remedy: str) -> None:
    """Refuse class folders without images: classes would have other numbers with them."""
    for name in others:
        parts = name.split("/")
        known = not layout.chosen or parts[: layout.depth][-1:] == [layout.chosen]
        if len(parts) < layout.depth + 2 or not known:
            continue
        if layout.splits and parts[layout.depth - 1] not in layout.splits:
            continue
        if parts[layout.depth] not in layout.classes:
            raise SourceError(
                f"{place}: no image in the folder {printable(parts[layout.depth])}, which "
                f"stands where class folders do. {remedy}"
            )
