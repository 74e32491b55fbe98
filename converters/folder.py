"""Class folders: ``root/<class>/.../<image>``, as ``torchvision.datasets.ImageFolder``.

Classes, their numbers, the files taken and their order are torchvision's: every folder in `root`
is a class, numbered in sorted order; below it all files with an image suffix are taken, sorted,
links followed.  Unlike torchvision, hidden folders and files are left out.  A link to a folder
above itself is refused.

The folders lie on a disk, in a store, or in an archive (`archive.py`).
`detect.py` tells which folders are classes, which are splits, and what speaks against it; such a
source is taken only if the user names this format.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import Field, ScalarField

from .detect import ClassLayout, class_layout, unread_lists
from .listing import Listing
from .reading.class_names import numbered
from .reading.image_files import SUFFIXES, ignored_files, suffix_of, unopened_files
from .reading.locations import printable
from .reading.options import Option, SplitFolder
from .reading.selection import joined
from .refusal import Doubt, Way, doubted
from .tree import DiskTree, Tree, join

__all__ = ["EmptyClasses", "FolderSource", "Taken"]

EmptyClasses = Annotated[bool, Option("folders without images are classes too")]


class Taken(NamedTuple):
    """The images of a folder of a class.

    place: the prefix of their names.
    rows: their numbers in the archive or the store; empty on a disk.
    """

    place: str
    images: list[str]
    rows: Sequence[int]
    labels: dict[str, int]


class FolderSource(Listing):
    """Images in class folders of a tree; fields ``image``, ``label``, and ``split`` if any."""

    name = "folder"
    summary = "class folders, as torchvision's ImageFolder takes them, also in split folders"
    general = True
    tree: Tree

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return any(entry.is_dir() for entry in Path(location).iterdir())

    def list_samples(
        self, location: Path, *, split: SplitFolder = "auto", empty_classes: EmptyClasses = False
    ) -> dict[str, Field]:
        self.tree = tree = self.open_tree(location)
        layout = class_layout(tree, split)
        self.doubt = layout.doubt
        self._refuse_empty(layout, empty_classes)
        self.add_images(layout, _taken(tree, layout))
        self._note_rest(layout)
        fields: dict[str, Field] = {
            "label": ScalarField(classes=tuple(map(printable, layout.classes)))
        }
        if layout.splits:
            fields["split"] = ScalarField(classes=tuple(map(printable, layout.splits)))
            self.notes.append(
                f"the field 'split' is which of {', '.join(map(printable, layout.splits))} an "
                "image is in (--option split=NAME takes one, split=none takes them for classes)"
            )
        return fields

    def open_tree(self, location: Path) -> Tree:
        """Return the tree that the class folders are in."""
        if not location.is_dir():
            raise SourceError(f"{location}: not a folder")
        return DiskTree(location)

    def add_images(self, layout: ClassLayout, taken: Iterator[Taken]) -> None:
        """Add the images, in their order."""
        tree: DiskTree = self.tree  # type: ignore[assignment]
        self.root = Path(os.path.join(self.root, layout.base))
        for place, images, _, labels in taken:
            for name in images:
                self.add(place + name, **labels)
        if tree.loops:
            loop = tree.loops[0]
            raise SourceError(
                f"{loop} is a link to {os.path.realpath(loop)}, a folder above it. Remove the link"
            )

    def _refuse_empty(self, layout: ClassLayout, allowed: bool) -> None:
        """Refuse class folders without images: other classes would have other numbers."""
        tree, place = self.tree, self.tree.place
        empty = [folder.path for folder in layout.folders if not tree.count(folder.path)]
        begun = next((path for path in empty if path.endswith(".partial")), None)
        if begun is not None:
            raise SourceError(
                f"{place}: {begun} is an unfinished pack, not a class folder; "
                f"choose a destination outside of {place}"
            )
        if not empty or (allowed and len(empty) < len(layout.folders)):
            return
        unopened = unopened_files(_other_files(tree, empty))
        reason = (
            f"no image in {joined(map(printable, empty), 5)}"
            f"{f'; and {layout.doubt.reason}' if layout.doubt else ''}. "
            f"{f'There are {unopened}. ' if unopened else ''}"
            f"Images have one of the suffixes {', '.join(SUFFIXES)}"
        )
        options = f"--format {self.name} --option empty_classes=true"
        way = Way("", options, "these folders are classes without images")
        full = [folder.path for folder in layout.folders if folder.path not in empty]
        if len(full) == 1 and len(tree.folder(full[0]).folders) > 1:
            way = Way(full[0], "", f"the class folders in {full[0]}")
        ways = (*(layout.doubt.ways[:2] if layout.doubt else ()), *((way,) if full else ()))
        raise doubted(place, self.name, tree, Doubt(reason, ways, plausible=False))

    def _note_rest(self, layout: ClassLayout) -> None:
        """Note the layout as understood, and all files that are not used."""
        tree = self.tree
        parents = {folder.path.rpartition("/")[0] for folder in layout.folders}
        beside = [join(path, name) for path in sorted(parents) for name in tree.folder(path).images]
        if beside:
            shown = joined(map(printable, beside), 5)
            self.notes.append(f"{len(beside):,} images ({shown}) in no class folder left out")
        lists = unread_lists(tree, layout)
        if lists:
            shown = joined(map(printable, lists), 5)
            most = shown if len(lists) <= 5 else f"{len(lists):,} files, the first {shown},"
            self.notes.append(f"{most} not read: the folders are the classes")
        self.notes += layout.notes + ignored_files(_other_files(tree, [""]))
        if tree.hidden:
            names = joined(map(printable, tree.hidden), 5)
            self.notes.append(
                f"{tree.hidden.total():,} hidden files and folders left out ({names}); "
                "torchvision's ImageFolder takes hidden folders for classes"
            )


def _other_files(tree: Tree, folders: Iterable[str]) -> Counter[str]:
    """Return how many other files are in some folders and below, by suffix."""
    below = (path for folder in folders for path in tree.below(folder))
    return Counter(suffix_of(name) for path in below for name in tree.folder(path).others)


def _taken(tree: Tree, layout: ClassLayout) -> Iterator[Taken]:
    """Yield the images in the order of splits, classes and folders."""
    numbers = numbered(layout.classes)
    for split, name, top in sorted(layout.folders):
        labels = {"label": numbers[name]} | ({"split": split} if layout.splits else {})
        for path in tree.below(top):
            found = tree.folder(path)
            place = f"{path[len(layout.base) :].lstrip('/')}/"
            yield Taken(place, found.images, found.rows, labels)
