"""The list of the images of a folder, or one in each of its split folders."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastdata.errors import FastdataError

from ..image_files import BOTH_CASES, files_below, has_own_images, is_hidden, is_image_name
from ..list_signs import describe_list, is_submission
from ..locations import files_at, printable
from ..picture_pairs import SPLIT_WORDS, words
from ..selection import joined
from ..small_memory import KeySet
from ..splits import split_folders_in
from .columns import image_column
from .image_finder import ImageFinder
from .text_table import JSON_SUFFIXES, TextTable

__all__ = [
    "list_of_folder",
    "lists_of_folder",
    "lists_of_splits",
    "not_used",
    "split_siblings",
    "unknown_files",
]

_SUFFIXES = (".csv", ".tsv", ".txt", *JSON_SUFFIXES)
_ANNOTATIONS = (
    *_SUFFIXES, ".geojson", ".xml", ".yaml", ".yml", ".mat", ".npy", ".npz", ".pkl", ".parquet",
)  # fmt: skip
_LOOKED_AT = 1000
_MOST_LISTS = 20


def split_siblings(path: Path) -> list[Path]:
    """Return the lists of the other splits in a list's folder: names that differ by that word."""

    def rest(name: str) -> tuple[str, ...]:
        return tuple(word for word in words(name) if word not in SPLIT_WORDS)

    own = set(words(path.name)) & SPLIT_WORDS.keys()
    return [
        other
        for other in (files_at(path.parent, (path.suffix,)) if own else ())
        if rest(other.name) == rest(path.name)
        and set(words(other.name)) & SPLIT_WORDS.keys() not in (own, set())
    ]


def lists_of_folder(folder: Path) -> list[Path]:
    """Return the files in a folder that name some of the images in it or below, sorted.

    A list of images in folders must have more columns than that of the names, and fit the folders:
    at least half of its images are there, and a quarter of the images there are in it.
    """
    with os.scandir(folder) as entries:
        names = sorted(
            name
            for name in (entry.name for entry in entries if entry.name.lower().endswith(_SUFFIXES))
            if not (is_submission(name) or is_hidden(name) or name.lower().startswith("readme"))
        )
    beside = bool(names) and has_own_images(folder)
    return [folder / name for name in names[:_MOST_LISTS] if _names_images(folder / name, beside)]


def list_of_folder(folder: Path) -> Path | None:
    """Return the one such file; None if there are none or several, or others may have labels."""
    found = lists_of_folder(folder)
    alone = len(found) == 1 and (has_own_images(folder) or not unknown_files(folder, lists=False))
    return found[0] if alone else None


def unknown_files(folder: Path, lists: bool = True) -> list[str]:
    """Return the files directly in a folder that may have labels.

    lists: whether lists of images are among them that the format ``manifest`` may read.
    """
    with os.scandir(folder) as entries:
        others = (e for e in entries if not is_image_name(e.name) and not is_hidden(e.name))
        names = sorted(entry.name for entry in others if entry.is_file())
    found = []
    for name in names[:_MOST_LISTS]:
        kind, lowered = describe_list(folder / name, images_below(folder)), name.lower()
        is_list = kind == "list" and (lists or not lowered.endswith(_SUFFIXES))
        if is_list or (kind == "unknown" and lowered.endswith(_ANNOTATIONS)):
            found.append(name)
    return found


def lists_of_splits(folder: Path) -> dict[str, Path]:
    """Return the list in each split folder; empty if a split folder has no list, or several."""
    splits = split_folders_in(folder)
    found = {split: list_of_folder(folder / split) for split in splits}
    lists = {split: path for split, path in found.items() if path is not None}
    return lists if len(lists) == len(splits) and not has_own_images(folder) else {}


def images_below(folder: Path) -> Iterator[str]:
    """Yield the images in a folder and in folders below, relative to it."""
    return filter(is_image_name, files_below(folder, ""))


def not_used(folder: Path, paths: Iterable[str], lists: Iterable[Path]) -> list[str]:
    """Return notes on the files of a folder that its lists do not name.

    paths: of the images.
    """
    known = KeySet()
    for path in paths:
        known.add(os.path.normpath(path).encode("utf-8", "surrogateescape"))
    start = len(os.path.join(folder, ""))
    left = sorted(
        name
        for name in images_below(folder)
        if known.add(os.path.join(folder, name).encode("utf-8", "surrogateescape"))
    )
    used = {os.fspath(path) for path in lists}
    others = sorted(
        entry.path[start:]
        for parent in {folder, *(path.parent for path in lists)}
        for entry in os.scandir(parent)
        if entry.is_file() and not is_image_name(entry.name) and entry.path not in used
    )
    notes = [f"files not used: {joined(map(printable, others), 5)}"] * bool(others)
    if left:
        places = sorted({os.path.dirname(name) or "." for name in left})
        notes.append(
            f"{len(left):,} image files that it does not name left out, in "
            f"{joined(map(printable, places), 5)}: {joined(map(printable, left), 3)}"
        )
    return notes


def _names_images(path: Path, beside: bool) -> bool:
    """Tell whether one of the first rows names an image.

    beside: whether the images are in the folder of the list.
    """

    if any(os.path.exists(path.with_suffix(suffix)) for suffix in BOTH_CASES):
        return False  # the annotation of one image
    finder = ImageFinder(path.parent)
    try:
        table = TextTable(path)
        image = image_column(table.columns)
        cells = [row[image] for row in itertools.islice(table, _LOOKED_AT)]
        if beside and any(is_image_name(cell) and finder.is_there(cell) for cell in cells):
            return True
        finder.locate(cells.__getitem__, len(cells))
        there = [finder.path(cell) for cell in cells if finder.is_there(cell)]
    except (FastdataError, OSError, ValueError):
        return False
    folders = {file.parent for file in there}
    count = sum(is_image_name(name) for folder in folders for name in os.listdir(folder))
    enough = 2 * len(there) >= len(cells) and 4 * len(there) >= min(count, _LOOKED_AT)
    return bool(there) and enough and len(table.columns) > 1
