"""Class folders: ``root/<class>/.../<image>``, as ``torchvision.datasets.ImageFolder``.

Classes, their numbers, the files taken and their order are exactly
torchvision's: every folder in `root` is a class, numbered in sorted order;
below it all files with an image suffix are taken, sorted, links followed.  Only a link that
leads back to a folder above itself is left out, where torchvision goes round until a path is too
long.

Split folders, ``root/train/<class>/...`` beside ``root/val/<class>/...``, are recognised
by their names where all folders of `root` are such; what is in them is read as above.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec
from .reading.image_files import SUFFIXES, ignored_files, is_image_name, suffix_of
from .reading.image_list import ImageListSource
from .reading.locations import files_at, folder_at, printable
from .reading.refusals import refuse_fields
from .reading.selection import listed

__all__ = ["FolderSource"]

_SPLITS = ("train", "training", "val", "valid", "validation", "dev", "test", "testing")


class FolderSource(ImageListSource):
    """A folder of class folders; fields ``image`` and ``label``.

    Parameters
    ----------
    split : str
        ``auto``: where all folders are split folders (train, val, test, ...), a field
        ``split`` says from which an image is.  ``none``: the folders are classes, whatever they
        are called.  Else the one split folder that is taken.
    """

    name = "folder"
    summary = "class folders, as torchvision's ImageFolder takes them, or split folders of these"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = folder_at(location)
        return folder is not None and any(entry.is_dir() for entry in folder.iterdir())

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str = "auto",
    ) -> None:
        refuse_fields(fields, self.name)
        self.begin(Path(location))
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder")
        splits = self._splits(split)
        folders = [(part, name) for part in splits for name in folders_in(self.root / part)]
        if not folders:
            raise SourceError(
                f"{self.root}: no class folders in it. Expected {self.root}/<class>/<image>; for "
                "images without classes write a manifest: a .csv with the column path."
            )
        classes = sorted({name for _, name in folders})
        numbers = {name: number for number, name in enumerate(classes)}
        self._split = split == "auto" and splits != [""]
        self.notes += images_beside(self.root, splits)
        self.notes += tables_beside(self.root)
        ignored: Counter[str] = Counter()
        loops: list[str] = []
        empty = []
        for part, name in folders:
            label = [numbers[name], *([splits.index(part)] if self._split else [])]
            if not self._add(os.path.join(part, name), label, ignored, loops):
                empty.append(os.path.join(part, name))
        begun = next((name for name in empty if name.endswith(".partial")), None)
        if begun is not None:
            raise SourceError(
                f"{self.root}: {begun} is no class folder but a pack that is being written here; "
                f"choose a destination outside of {self.root}"
            )
        if empty:
            raise SourceError(
                f"{self.root}: no image in the class folder{'s' * (len(empty) > 1)} "
                f"{', '.join(empty[:5])}{' ...' * (len(empty) > 5)}. Images have one of the "
                f"suffixes {', '.join(SUFFIXES)}. Fill or remove these folders."
            )
        self.notes += ignored_files(ignored)
        if loops:
            self.notes.append(
                f"{len(loops):,} link{'s' * (len(loops) > 1)} to a folder above left out, which "
                f"would lead round in a circle: {listed(map(printable, loops), 5)}"
            )
        found: dict[str, Field] = {
            "image": ImageField(channels=channels),
            "label": ScalarField(classes=tuple(map(printable, classes))),
        }
        if self._split:
            found["split"] = ScalarField(classes=tuple(splits))
            self.notes.append(
                f"the field 'split' is which of {', '.join(splits)} an image is in "
                "(--option split=NAME takes one, split=none takes them for classes)"
            )
        self.schema = Schema(found)

    def _splits(self, split: str) -> list[str]:
        """Return the folders in which there are class folders: split folders, or the root."""
        if split == "none":
            return [""]
        folders = folders_in(self.root)
        if split == "auto":
            return split_folders(self.root, folders, self.notes) or [""]
        if split not in folders:
            raise OptionError(
                f"split={split}: no such folder in {self.root}, which has "
                f"{', '.join(map(printable, folders[:12])) or 'none'}"
            )
        return [split]

    def _add(self, folder: str, label: list[int], ignored: Counter[str], loops: list[str]) -> int:
        """Take the images of a class folder; return how many there are."""
        before = self.num_samples
        for inner, files in sorted(walk(self.root / folder, loops)):
            for file in sorted(files):
                if is_image_name(file):
                    path = os.path.relpath(os.path.join(inner, file), self.root)
                    self.add(path, numbers=label)
                else:
                    ignored[suffix_of(file)] += 1
        return self.num_samples - before

    def values(self, files: list[str], numbers: list[int]) -> tuple[Any, ...]:
        return Path(files[0]), *numbers


def walk(folder: Path, loops: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder below one, itself included, with the files in it; links are followed.

    A link that leads to a folder above itself is added to `loops`.  A folder to which several
    links lead is yielded as often.

    Raises
    ------
    OSError
        If a folder cannot be listed: what is in it is not to be left out in silence.
    SourceError
        If this folder is itself such a link: it would be a class of all there is.
    """
    above = frozenset(_place(parent) for parent in folder.absolute().parents)
    if _place(folder) in above:
        raise SourceError(
            f"{folder} is a link to {folder.resolve()}, a folder above it, not to a class folder. "
            "Remove the link."
        )
    above |= {_place(parent) for parent in [folder, *folder.resolve().parents]}
    waiting = [(str(folder), above)]
    while waiting:
        path, above = waiting.pop()
        files = []
        with os.scandir(path) as entries:
            for entry in entries:
                if not _is_folder(entry):
                    files.append(entry.name)
                elif _place(entry.path) in above:
                    loops.append(os.path.relpath(entry.path, folder.parent))
                else:
                    waiting.append((entry.path, above | {_place(entry.path)}))
        yield path, files


def _place(path: str | Path) -> tuple[int, int]:
    """Return what two names of one folder have in common."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def folders_in(path: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return sorted(entry.name for entry in os.scandir(path) if _is_folder(entry))


def images_beside(root: Path, splits: list[str]) -> list[str]:
    """Return the note on images that are in no class folder, in a list; empty if all are."""
    names = [
        os.path.join(part, entry.name)
        for part in splits
        for entry in os.scandir(root / part)
        if is_image_name(entry.name) and entry.is_file()
    ]
    shown = listed(map(printable, sorted(names)), 5)
    return [f"{len(names):,} images in no class folder left out: {shown}"] * bool(names)


def tables_beside(root: Path) -> list[str]:
    """Return the note on what may be a manifest of these images, in a list; empty without one.

    The folders are then often no classes: ``labels.csv`` beside ``images/``.
    """
    names = [printable(path.name) for path in files_at(root, (".csv", ".tsv"))]
    shown = listed(names, 5)
    return [
        f"{shown} not read: the folders are the classes. If a table says what the images are, "
        "pack that file"
    ] * bool(names)


def split_folders(root: Path, folders: list[str], notes: list[str]) -> list[str]:
    """Return the folders if they are split folders, in the usual order; else none.

    Each is called so, has folders in it, and no images beside these.
    """
    if not folders or not all(name.lower() in _SPLITS for name in folders):
        return []
    flat = [name for name in folders if not _has_class_folders(root / name)]
    if not flat:
        return sorted(folders, key=lambda name: (_SPLITS.index(name.lower()), name))
    if len(flat) < len(folders):
        split = next(name for name in folders if name not in flat)
        notes.append(
            f"{', '.join(folders)} are read as classes, since {flat[0]} has no class folders; "
            f"--option split={split} takes the classes in {split}"
        )
    return []


def _has_class_folders(path: Path) -> bool:
    folders = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                folders += 1
            elif is_image_name(entry.name):
                return False
    return folders > 0
