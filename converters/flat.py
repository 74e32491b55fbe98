"""Images directly in a folder or in its split folders, without classes; or at any depth by option.

Files that may describe the images are never ignored in silence.  If there is exactly one list of
the images, `manifest` reads it.  Several lists, other files with labels, and annotations with the
names of images (``0001.txt``, ``0001.json``) are refused here.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Field

from .listing import Listing
from .reading.image_files import has_own_images, ignored_files, suffix_of, unopened_files
from .reading.lists.list_files import list_of_folder, lists_of_folder, unknown_files
from .reading.locations import folders_in, printable
from .reading.options import Option, SplitOption
from .reading.picture_pairs import belong_within
from .reading.selection import joined
from .reading.splits import has_folders_of_images, split_folders_in
from .refusal import Way, refused
from .tree import DiskTree, join

__all__ = ["FlatSource"]

_ALONE = Way("", "--format flat --option alone=true", "the images, each by itself, without labels")


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
        if not location.is_dir():
            raise SourceError(f"{location}: not a folder")
        tree = DiskTree(location)
        splits = [] if recursive or tree.folder("").count else _plain_splits(location)
        taken = [
            (part, path)
            for part in self.choose_splits(splits or [""], split)
            for path in (sorted(tree.below(part), key=_parts) if recursive else [part])
        ]
        for path in () if alone else dict.fromkeys(("", *(path for _, path in taken))):
            self._refuse_annotations(tree, path, pairs=not recursive)
        for part, path in taken:
            for name in tree.folder(path).images:
                self.add(join(path, name), **self.split_number(part))
        others = Counter(suffix_of(name) for _, path in taken for name in tree.folder(path).others)
        if not self.num_samples:
            unopened = unopened_files(others)
            raise SourceError(
                f"{location}: no images directly in this folder (--option recursive=true takes "
                "those in folders below, without classes)"
                + (f". There are {unopened}" if unopened else "")
            )
        self.notes += ignored_files(others)
        left = [join(path, name) for _, path in taken for name in tree.folder(path).folders]
        if left and not recursive:
            self.notes.append(
                f"the folders {joined(map(printable, left), 5)} are left out "
                "(--option recursive=true takes them, --format folder takes them as classes)"
            )
        self.notes.append("images only: they have no labels here")
        return self.split_field()

    def _refuse_annotations(self, tree: DiskTree, path: str, *, pairs: bool) -> None:
        """Refuse a folder with files that may describe its images.

        pairs: whether images that belong together are refused too.
        """
        folder, found = self.root / path, tree.folder(path)
        stems = {os.path.splitext(image)[0] for image in found.images} if found.others else set()
        beside = [name for name in found.others if os.path.splitext(name)[0] in stems]
        lists = [list_path.name for list_path in lists_of_folder(folder)]
        unread = beside[:3] or unknown_files(folder)
        if lists or unread:
            what = "may describe them" if lists else "may describe them, but are not read here"
            raise refused(
                self.root,
                f"{joined(map(printable, lists or unread), 3)} next to the images {what}. Write a "
                ".csv with the columns path,label, or name the format that reads them (--format)",
                [Way(join(path, n), "", "the images that it lists") for n in lists[:1]] + [_ALONE],
            )
        both = belong_within(found.images) if pairs else []
        if both:
            raise refused(
                self.root,
                f"{' and '.join(map(printable, both))} belong together, and here each is an "
                "image by itself. Write a .csv with the columns path and target, one row for "
                "each pair",
                [_ALONE],
            )


def _plain_splits(folder: Path) -> list[str]:
    """Return the split folders, if all folders are such, and have images and no folders."""
    splits = split_folders_in(folder)
    if len(splits) < 2 or len(splits) < len(folders_in(folder)):
        return []
    plain = (has_own_images(folder / s) and not folders_in(folder / s) for s in splits)
    return splits if all(plain) else []


def _parts(path: str) -> list[str]:
    """Return a sort key: a folder, the folders in it, then the folders next to it."""
    return path.split("/")
