"""The list that lies beside the images of a folder, if there is exactly one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from fastdata.errors import FastdataError

from ..image_files import is_image_name
from ..selection import joined
from ..small_memory import KeySet
from .columns import image_column
from .text_table import JSON_SUFFIXES, TextTable

__all__ = [
    "has_own_images",
    "images_not_listed",
    "list_of_folder",
    "lists_of_folder",
]

_SUFFIXES = (".csv", ".tsv", ".txt", *JSON_SUFFIXES)
_LOOKED_AT = 5
_MOST_LISTS = 20


def has_own_images(folder: Path) -> bool:
    """Tell whether there are image files directly in a folder."""
    with os.scandir(folder) as entries:
        return any(is_image_name(entry.name) and not entry.is_dir() for entry in entries)


def lists_of_folder(folder: Path) -> list[Path]:
    """Return the files in a folder of images that name some of these, in sorted order."""
    if not has_own_images(folder):
        return []
    names = sorted(e.name for e in os.scandir(folder) if e.name.lower().endswith(_SUFFIXES))
    # A text file for each image is no list of them.
    return [folder / name for name in names[:_MOST_LISTS] if _names_images(folder / name)]


def list_of_folder(folder: Path) -> Path | None:
    """Return the one such file; None where there are none or several."""
    found = lists_of_folder(folder)
    return found[0] if len(found) == 1 else None


def images_not_listed(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the note on images of a folder that a list does not name, in a list."""
    known = KeySet()
    for name in names:
        known.add(os.path.normpath(name).encode("utf-8", "surrogateescape"))
    images = (e.name for e in os.scandir(folder) if is_image_name(e.name))
    left = sorted(n for n in images if known.add(n.encode("utf-8", "surrogateescape")))
    if not left:
        return []
    return [f"{len(left):,} image files that it does not name left out: {joined(left, 3)}"]


def _names_images(path: Path) -> bool:
    """Tell whether one of the first rows names an image beside the file."""

    def is_there(cell: str) -> bool:
        return is_image_name(cell) and os.path.isfile(path.parent / cell)

    try:
        table = TextTable(path, is_there)
        image = image_column(table.columns)
        return any(is_there(row[image]) for row in itertools.islice(table, _LOOKED_AT))
    except (FastdataError, OSError, ValueError):
        return False
