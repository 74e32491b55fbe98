"""Class folders: ``root/<class>/.../<image>``, as ``torchvision.datasets.ImageFolder``.

Classes, their numbers, the files taken and their order are exactly
torchvision's: every folder in `root` is a class, numbered in sorted order;
below it all files with an image suffix are taken, sorted, links followed.  Only a link that
leads back to a folder above itself is left out, where torchvision goes round until a path is too
long.

Split folders, ``root/train/<class>/...`` beside ``root/val/<class>/...``, are recognised
by their names where all folders of `root` are such; what is in them is read as above.

What does not look like that (`reading/class_folders.py`) is taken only where the user
names this format.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field

from .reading.class_folders import (
    annotation_files,
    class_fields,
    doubts_of_names,
    doubts_of_places,
    images_beside,
    is_annotation,
    split_folders,
    walk,
)
from .reading.image_files import SUFFIXES, ignored_files, is_image_name, suffix_of
from .reading.image_list import ImageListSource
from .reading.locations import folders_in, printable
from .reading.options import Option, SplitFolder
from .reading.selection import joined

__all__ = ["FolderSource"]


class FolderSource(ImageListSource):
    """A folder of class folders; fields ``image`` and ``label``."""

    name = "folder"
    summary = "class folders, as torchvision's ImageFolder takes them, or split folders of these"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return any(entry.is_dir() for entry in Path(location).iterdir())

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitFolder = "auto",
        empty_classes: Annotated[bool, Option("folders without images are classes too")] = False,
    ) -> dict[str, Field]:
        self.root = _below_data(location)
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
        with_split = split == "auto" and splits != [""]
        self._places: dict[str, set[str]] = {}
        self._ignored: Counter[str] = Counter()
        self._annotations: list[str] = []
        self._loops: list[str] = []
        for part, name in folders:
            number = {"label": numbers[name]}
            self._take(
                os.path.join(part, name),
                number | ({"split": splits.index(part)} if with_split else {}),
            )
        for part in dict.fromkeys([*([""] if split in ("auto", "none") else []), *splits]):
            found = annotation_files(self.root / part, classes)
            self._annotations += [os.path.join(part, name) for name in found]
        flat = images_beside(self.root, splits)
        reasons = [
            doubts_of_names(classes) if splits == [""] else "",
            f"{flat} beside the folders" if flat else "",
            doubts_of_places(self._places),
            f"{self._shown_annotations} may say what the images are" if self._annotations else "",
        ]
        self.doubt = next(filter(None, reasons), "") if split != "none" else ""
        self._refuse_empty(empty_classes)
        if flat:
            self.notes.append(f"{flat} in no class folder left out")
        if self._annotations:
            self.notes.append(f"{self._shown_annotations} not read: the folders are the classes")
        self.notes += ignored_files(self._ignored)
        if self._loops:
            self.notes.append(
                f"{len(self._loops):,} links to a folder above left out, which would lead round in "
                f"a circle: {joined(map(printable, self._loops), 5)}"
            )
        return class_fields(classes, splits if with_split else [], self.notes)

    def _splits(self, split: str) -> list[str]:
        """Return the folders in which there are class folders: split folders, or the root."""
        if split == "none":
            return [""]
        folders = folders_in(self.root)
        if split == "auto":
            return split_folders(self.root, folders) or [""]
        if split not in folders:
            raise OptionError(
                f"split={split}: no such folder in {self.root}, which has "
                f"{', '.join(map(printable, folders[:12])) or 'none'}"
            )
        return [split]

    def _take(self, folder: str, numbers: dict[str, int]) -> None:
        """Take the images of a class folder."""
        self._places[folder] = places = set()
        for inner, files in sorted(walk(self.root / folder, self._loops)):
            place = os.path.relpath(inner, self.root)
            for file in sorted(files):
                path = os.path.join(place, file)
                if is_image_name(file):
                    self.add(path, **numbers)
                    places.add(place[len(folder) + 1 :])
                else:
                    self._ignored[suffix_of(file)] += 1
                    if is_annotation(file):
                        self._annotations.append(path)

    @property
    def _shown_annotations(self) -> str:
        count, shown = len(self._annotations), joined(map(printable, self._annotations), 5)
        return shown if count <= 5 else f"{count:,} files, the first {shown},"

    def _refuse_empty(self, allowed: bool) -> None:
        empty = [name for name, found in self._places.items() if not found]
        begun = next((name for name in empty if name.endswith(".partial")), None)
        if begun is not None:
            raise SourceError(
                f"{self.root}: {begun} is no class folder but a pack that is being written here; "
                f"choose a destination outside of {self.root}"
            )
        if not empty or (allowed and self.num_samples):
            return
        held = ", ".join(f"{count:,} {suffix}" for suffix, count in self._ignored.most_common(5))
        raise SourceError(
            f"{self.root}: no class folders, as there is no image in "
            f"{joined(map(printable, empty), 5)}{f' (of other files: {held})' if held else ''}"
            f"{f'; and {self.doubt}' if self.doubt else ''}. Images have one of the suffixes "
            f"{', '.join(SUFFIXES)}. If these are classes all the same: --format folder --option "
            "empty_classes=true"
        )


def _below_data(root: Path) -> Path:
    """Return ``root/data`` where that has the split folders, as on Hugging Face's hub."""
    inner = root / "data"
    if root.is_dir() and folders_in(root) == ["data"] and split_folders(inner, folders_in(inner)):
        return inner
    return root
