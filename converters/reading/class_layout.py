"""Class folders and split folders, told from the names of files alone: of an archive.

The rules are those of ``folder.py``, with which an extracted archive is read: classes, their
numbers and the order of images are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fastdata.errors import OptionError, SourceError

from .class_folder_doubts import doubts_of_names, doubts_of_places
from .locations import printable
from .selection import listed
from .splits import SPLIT_NAMES
from .string_table import StringTable

__all__ = ["ClassLayout", "class_layout", "common_top", "doubt_of"]


class ClassLayout(NamedTuple):
    """Which folders are classes."""

    top: int  # parts of a name that all have: the archive's own folder
    depth: int  # parts before the class: these, and the split
    # classes, splits: their numbers, in order; no splits where there are no split folders
    classes: dict[str, int]
    splits: dict[str, int]
    chosen: str = ""  # the one split that is taken; empty for all

    def numbers(self, name: str) -> list[int] | None:
        """Return label (and split) of a file; None if it is in no class folder that is taken."""
        parts = name.split("/")
        if len(parts) < self.depth + 2:
            return None
        if self.chosen and parts[self.depth - 1] != self.chosen:
            return None
        label = [self.classes[parts[self.depth]]]
        return [*label, self.splits[parts[self.depth - 1]]] if self.splits else label

    def order(self, name: str, numbers: list[int]) -> str:
        """Return what names are sorted by: split, class, folder, file."""
        folder, _, file = name.rpartition("/")
        split = chr(numbers[1]) if self.splits else ""
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


def class_layout(place: str, names: StringTable, split: str) -> ClassLayout:
    """Return which folders are classes.

    split: ``auto``, ``none`` or a split folder, as in ``folder.py``.
    """
    top = common_top(names)
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
            raise OptionError(f"split={split}: no such folder in {place}, which has {_told(first)}")
        return ClassLayout(top, top + 1, _classes(place, first[split]), {}, split)
    if split == "auto" and are_splits:
        splits = sorted(first, key=lambda name: (SPLIT_NAMES.index(name.lower()), name))
        if not flat:
            classes = _classes(place, set().union(*first.values()))
            return ClassLayout(top, top + 1, classes, _numbered(splits))
        full = [name for name in splits if name not in flat]
        option = f" --option split={full[0]} takes the classes in {full[0]}." if full else ""
        raise SourceError(
            f"{place}: {_told(sorted(flat))}: images there are in no class folders, though the "
            f"folders are called as splits.{option} {extract(place)}"
        )
    insisted = split == "none" and len(first) > 1
    classes = _numbered(sorted(first)) if insisted else _classes(place, first)
    return ClassLayout(top, top, classes, {})


def doubt_of(layout: ClassLayout, names: Iterable[str]) -> str:
    """Return why these may be no class folders though they look so; "" if nothing says so."""
    places: dict[str, set[str]] = {}
    for name in names:
        if layout.numbers(name) is not None:
            parts = name.split("/")
            folder = "/".join(parts[: layout.depth + 1])
            places.setdefault(folder, set()).add("/".join(parts[layout.depth + 1 : -1]))
    return doubts_of_places(places)


def _classes(place: str, names: Iterable[str]) -> dict[str, int]:
    classes = sorted(names)
    why = f"there are {len(classes)}" if len(classes) < 2 else doubts_of_names(classes)
    if why:
        raise SourceError(
            f"{place}: its images are in no class folders, CLASS/IMAGE for two classes or more: "
            f"{why}. {extract(place)}"
        )
    return _numbered(classes)


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def extract(place: str) -> str:
    """Return what to do with an archive of another layout."""
    return (
        "Extract it, then pack the folder, or a manifest that says what the images are: a .csv "
        f"with the column path (tar -xf or unzip {place})"
    )


def _told(names: Iterable[str]) -> str:
    return listed(map(printable, names), 6)
