"""Splits in the names of files, as Hugging Face's hub and ``datasets`` have them.

``data/train-00000-of-00002.parquet``, ``test/0000.parquet``, ``cifar10-validation.arrow``.
Source: the patterns of ``datasets/data_files.py``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from fastdata.errors import OptionError

from .image_files import files_below, is_hidden, is_image_name
from .locations import files_at, folder_at, folders_in
from .picture_pairs import SPLIT_WORDS, words

__all__ = [
    "SPLIT_NAMES",
    "FolderPair",
    "choose_folder",
    "choose_split",
    "has_folders_of_images",
    "has_images",
    "in_usual_order",
    "mixed_splits",
    "pairs_within",
    "split_folders_in",
    "split_of",
    "splits_next_to",
    "table_files",
]

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")
"""What split folders are called, in the usual order."""

_SHARD = re.compile(r"(.+?)-[0-9]{5}-of-[0-9]{5}")
_DEPTH = 3
_LOOKED_AT = 2_000


def split_of(path: PurePath) -> str:
    """Return the split that a file is of, from its path below the dataset's folder; or ""."""
    shard = _SHARD.match(path.name)
    if shard and path.parent.name == "data":
        return shard[1]
    parts = (path.stem, *reversed(path.parent.parts))
    return next((SPLIT_WORDS[w] for part in parts for w in words(part) if w in SPLIT_WORDS), "")


def split_folders_in(folder: Path) -> list[str]:
    """Return the names of the folders in a folder that are called like splits, in usual order."""
    names = folders_in(folder) if folder.is_dir() else []
    return in_usual_order(name for name in names if name.lower() in SPLIT_NAMES)


def splits_next_to(path: Path) -> list[Path]:
    """Return the other splits next to a folder or a file that is named like a split.

    ``val`` and ``test`` are next to ``train``; files have the same suffix and the same other words:
    ``labels_val.csv`` is next to ``labels_train.csv``.
    """
    own = Path(os.path.abspath(path))
    split, rest = _split_and_rest(own.name)
    if not split:
        return []
    with os.scandir(own.parent) as entries:
        names = sorted(e.name for e in entries if e.is_dir() == own.is_dir())
    found = []
    for name in names:
        other, others_rest = _split_and_rest(name)
        same = own.is_dir() or (others_rest == rest and Path(name).suffix == own.suffix)
        if other and other != split and same and not is_hidden(name):
            found.append(own.parent / name)
    return found


def _split_and_rest(name: str) -> tuple[set[str], list[str]]:
    """Return the words of a name that are about splits, and its other words."""
    parts = words(name)
    return {p for p in parts if p in SPLIT_WORDS}, [p for p in parts if p not in SPLIT_WORDS]


class FolderPair(NamedTuple):
    """A folder of images and that of what belongs to them, relative to the root, and their split.

    Both are one folder where these lie beside the images.
    """

    split: str
    images: str
    others: str


def pairs_within(root: Path, images: str, others: str) -> list[FolderPair]:
    """Return two folders, or the split folders that both have."""
    both = [s for s in split_folders_in(root / images) if (root / others / s).is_dir()]
    found = [FolderPair(s, os.path.join(images, s), os.path.join(others, s)) for s in both]
    return found or [FolderPair("", images, others)]


def in_usual_order(splits: Iterable[str]) -> list[str]:
    """Return names of splits: train, validation, test, then others, sorted."""
    known = {name: number for number, name in enumerate(SPLIT_NAMES)}
    return sorted(splits, key=lambda name: (known.get(name.lower(), len(known)), name))


def choose_folder(splits: Sequence[str], wanted: str | None, notes: list[str]) -> list[str]:
    """Return the one split that is wanted, or all, and say so.

    splits: names of the splits there are; ``[""]`` where there are none.
    wanted: the option ``split=``.
    notes: a note is appended where there is to be a field of the split.
    """
    if wanted:
        if wanted not in splits:
            known = ", ".join(filter(None, splits)) or "no splits"
            raise OptionError(f"split={wanted}: not there; there are {known}")
        return [wanted]
    if list(splits) != [""]:
        notes.append(
            f"the field 'split' is which of {', '.join(splits)} an image is in "
            "(--option split=NAME takes one)"
        )
    return list(splits)


def choose_split(paths: Sequence[Path], splits: Sequence[str], wanted: str | None) -> list[int]:
    """Return the numbers of the files of a split; of all where none is named."""
    if wanted is None:
        return list(range(len(paths)))
    same = (wanted, SPLIT_WORDS.get(wanted))
    chosen = [k for k, split in enumerate(splits) if split in same]
    if not chosen:
        raise OptionError(
            f"split={wanted}: none of the {len(paths)} files, the first {paths[0]}, is of that "
            f"split; there are {', '.join(sorted(filter(None, set(splits)))) or 'no splits'}"
        )
    return chosen


def mixed_splits(paths: Sequence[Path]) -> list[str]:
    """Return the note on files of several splits, in a list; empty if they are of one or none."""
    splits = sorted({split_of(PurePath(path.name)) for path in paths} - {""})
    return [
        f"files of {', '.join(splits)} are packed as one dataset; to pack them one by one, name "
        "their files in a pattern in quotes"
    ] * (len(splits) > 1)


def table_files(location: object, suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of a location; in a folder, also those of folders in it."""
    folder = folder_at(location)
    if folder is None:
        return files_at(location, suffixes)
    return [folder / n for n in files_below(folder, "") if n.lower().endswith(suffixes)]


def has_images(folder: Path) -> bool:
    """Tell whether there are image files among the first files of a folder, or of those in it.

    None are in what cannot be listed, ``lost+found`` say.
    """
    left = _LOOKED_AT
    folders = [(os.fspath(folder), _DEPTH)]
    for path, depth in folders:  # which grows meanwhile
        # Not sorted, so that a folder of a million files is not listed for its first.
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return False
                if is_hidden(entry.name):
                    continue
                if is_image_name(entry.name) and entry.is_file():
                    return True
                if depth > 1 and entry.is_dir():
                    folders.append((entry.path, depth - 1))
    return False


def has_folders_of_images(location: object) -> bool:
    """Tell whether this is a folder with image files in folders of it.

    These are then the dataset, and not a file (weights, features, a backup) beside them.
    """
    folder = folder_at(location)
    if folder is None:
        return False
    return any(has_images(folder / n) for n in folders_in(folder))
