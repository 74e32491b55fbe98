"""Images directly in a folder or in its split folders, without classes; or at any depth by option.

A list beside them that says what they are is not passed over in silence: `manifest` reads it if
there is exactly one, and several are refused here.  So are other files that may have labels, and
files of the images' own names (``0001.txt``, ``0001.json``), which are their annotations.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Field

from .listing import Listing
from .reading.image_files import (
    BOTH_CASES,
    has_own_images,
    ignored_files,
    is_hidden,
    is_image_name,
    reraise,
    suffix_of,
)
from .reading.lists.list_files import (
    list_of_folder,
    lists_of_folder,
    unknown_files,
)
from .reading.locations import folders_in, printable
from .reading.options import Option, SplitOption
from .reading.picture_pairs import belong_within
from .reading.selection import joined
from .reading.splits import has_folders_of_images, split_folders_in
from .refusal import Way, refused

__all__ = ["FlatSource"]


class FlatSource(Listing):
    """A folder of images; the field is ``image``, and keys are their names."""

    name = "flat"
    summary = "images directly in a folder, without labels"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        folder = Path(location)
        if not has_own_images(folder):
            return bool(_plain_splits(folder))
        return list_of_folder(folder) is None and not has_folders_of_images(folder)

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
        recursive: Annotated[bool, Option("take images in folders below too")] = False,
        alone: Annotated[
            bool, Option("take images without the lists and annotations next to them")
        ] = False,
    ) -> dict[str, Field]:
        if not self.root.is_dir():
            raise SourceError(f"{self.root}: not a folder")
        self._ignored: Counter[str] = Counter()
        splits = [] if recursive or has_own_images(self.root) else _plain_splits(self.root)
        if splits and not alone:
            self._refuse_annotations(self.root, [])
        for part in self.choose_splits(splits or [""], split):
            self._take(part, recursive, alone)
        if not self.num_samples:
            raise SourceError(
                f"{self.root}: no images directly in this folder (--option recursive=true takes "
                "those in folders below, without classes)"
            )
        self.notes += ignored_files(self._ignored)
        self.notes.append("images only: they have no labels here")
        return self.split_field()

    def _take(self, split: str, recursive: bool, alone: bool) -> None:
        """Take the images in a split folder, or in the root."""
        start = self.root / split
        for folder, inner, files in os.walk(start, onerror=reraise, followlinks=True):
            inner[:] = sorted(name for name in inner if not is_hidden(name))
            below = os.path.relpath(folder, self.root)
            files = sorted(name for name in files if not is_hidden(name))
            others = [file for file in files if not is_image_name(file)]
            self._ignored.update(map(suffix_of, others))
            if not alone:
                self._refuse_annotations(Path(folder), others)
            images = list(filter(is_image_name, files))
            both = [] if alone or recursive else belong_within(images)
            if both:
                raise refused(
                    self.root,
                    f"{' and '.join(map(printable, both))} belong together, and here each is an "
                    "image by itself. Write a .csv with the columns path and target, one row for "
                    "each pair",
                    [Way("", "--format flat --option alone=true", "all images, each by itself")],
                )
            for name in images:
                self.add(os.path.normpath(os.path.join(below, name)), **self.split_number(split))
            if not recursive:
                self._note_folders(inner)
                break

    def _note_folders(self, folders: list[str]) -> None:
        if folders:
            self.notes.append(
                f"what is in the folders {joined(map(printable, folders), 5)} is left out "
                "(--option recursive=true takes it, --format folder takes them for classes)"
            )

    def _refuse_annotations(self, folder: Path, others: list[str]) -> None:
        """Refuse to leave out what says more of the images than that they are there."""
        alone = Way("", "--format flat --option alone=true", "the images, without labels")
        below = os.path.relpath(folder, self.root)
        if lists := lists_of_folder(folder):
            place = os.path.normpath(os.path.join(below, lists[0].name))
            raise refused(
                self.root,
                f"{joined(path.name for path in lists)} next to the images may describe them",
                [Way(place, "", "the images that it lists"), alone],
            )
        beside = list(itertools.islice((n for n in others if _has_image(folder, n)), 3))
        if beside:
            raise refused(
                self.root,
                f"{joined(map(printable, beside))} have the names of images, and are not "
                "read here. If a format reads them, name it (--format)",
                [alone],
            )
        if unknown := unknown_files(folder):
            raise refused(
                self.root,
                f"{joined(map(printable, unknown), 3)} next to the images may have their labels, "
                "but cannot be read as a list. Write a .csv with the columns path,label",
                [alone],
            )


def _plain_splits(folder: Path) -> list[str]:
    """Return the split folders, if all folders are such, and have images and no folders."""
    splits = split_folders_in(folder)
    if len(splits) < 2 or len(splits) < len(folders_in(folder)):
        return []
    plain = (has_own_images(folder / s) and not folders_in(folder / s) for s in splits)
    return splits if all(plain) else []


def _has_image(folder: Path, name: str) -> bool:
    """Tell whether an image has the same stem as a file."""
    stem = os.path.join(folder, os.path.splitext(name)[0])
    return any(os.path.exists(stem + suffix) for suffix in BOTH_CASES)
