"""SVHN's whole pictures (its format 1): house numbers, with a box and a class for each digit.

::

    train/1.png
    train/digitStruct.mat     digitStruct: a struct array of name and bbox (height, left, top, ...)
    test/, extra/             the same

The list is a ``.mat`` file of version 7.3, which is HDF5: ``/digitStruct/name`` and
``/digitStruct/bbox`` refer to the name of each picture, 16-bit characters, and to a group for its
boxes, in which each side is a number or, of several boxes, an array that refers to numbers.  Only
names are read before packing; the boxes of a picture are read by the worker that packs it, since
HDF5 takes some 30 microseconds to open each of these numbers.

Source: ``see_bboxes.m``, which comes with the pictures: pixels of a box are the rows from top + 1
to top + height and the columns from left + 1 to left + width, and MATLAB counts from 1.  Some boxes
begin before the picture.  The class 10 is the digit 0 (``ufldl.stanford.edu/housenumbers``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field

from .base import reason_of
from .reading.arrays.mat_file import mat_kind
from .reading.fields import BOXES
from .reading.image_files import is_image_name
from .reading.image_list import ImageListSource
from .reading.lists.boxed_image import BoxForm
from .reading.locations import folder_at, folders_in, path_inside, path_of, printable
from .reading.options import SplitOption
from .reading.splits import in_usual_order

__all__ = ["SvhnSource"]

_LIST = "digitStruct.mat"
_FORM = BoxForm("xywh", "pixels")


class SvhnSource(ImageListSource):
    """Pictures of house numbers; fields ``image``, ``boxes``, ``labels`` and ``split``."""

    name = "svhn"
    summary = "SVHN's whole pictures with a box for each digit: digitStruct.mat"
    parts = ("**/digitStruct.mat", "**/*.png")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = _root(location)
        return root is not None and bool(_folders(root))

    def list_samples(
        self,
        location: Path,
        *,
        split: SplitOption = None,
    ) -> dict[str, Field]:
        root = _root(location)
        folders = _folders(root) if root is not None else []
        if root is None or not folders:
            raise SourceError(
                f"{location}: expected {_LIST} of MATLAB 7.3, here or in train/, test/"
            )
        self.root = root
        splits = self.choose_splits(folders, split)
        for number, folder in enumerate(splits):
            self._add_all(folder, number)
        if not self.num_samples:
            raise SourceError(f"{root}: {_LIST} names no images")
        self.reader = DigitReader(tuple(map(str, self.beside)))
        self.notes.append("the label 10 of SVHN's files is taken for the digit 0")
        return {
            "boxes": BOXES,
            "labels": ArrayField("int64", (None,), classes=tuple(map(str, range(10)))),
            **self.split_field(),
        }

    def _add_all(self, folder: str, split: int) -> None:
        """Take the images that the list in a folder names."""
        from .reading.lists.digit_struct import names_in  # imports h5py

        path = self.root / folder / _LIST
        self.beside.append(path)
        seen: set[str] = set()
        for row, name in enumerate(names_in(path)):
            if name in seen:
                raise SourceError(f"{path}: names {printable(name)!r} twice")
            seen.add(name)
            try:
                path_inside(self.root / folder, name)
                # The split's number is always there: it is also that of the list.
                self.add(os.path.join(folder, name), split=split, row=row)
            except SourceError as error:
                self.reject(os.path.join(folder, name), str(error))
        with os.scandir(self.root / folder) as entries:
            others = sum(is_image_name(entry.name) and entry.name not in seen for entry in entries)
        if others:
            self.notes.append(f"{others:,} images in {path.parent} are not in {_LIST}; left out")


def _root(location: Any) -> Path | None:
    """Return the folder of a location, which may be the list itself."""
    path = path_of(location)
    return path.parent if path is not None and path.name == _LIST else folder_at(location)


def _folders(root: Path) -> list[str]:
    """Return the folders with a list: this one, as "", or those in it."""
    if mat_kind(root / _LIST) == "7.3":
        return [""]
    names = folders_in(root)
    return in_usual_order(name for name in names if mat_kind(root / name / _LIST) == "7.3")


@dataclass(frozen=True)
class DigitReader:
    """How a worker reads an image, and the row of a list that has its boxes."""

    paths: tuple[str, ...]  # of the lists

    def read(self, files: list[str], known: dict[str, int]) -> dict[str, Any]:
        """Return image, boxes and labels; a list that is damaged is a SourceError."""
        from .reading.lists.digit_struct import digits_at  # imports h5py

        try:
            boxes, labels = digits_at(Path(self.paths[known["split"]]), known["row"])
        except Exception as error:  # what h5py raises on damage
            place = f"{_LIST}, image {known['row'] + 1}"
            raise SourceError(f"{place}: {reason_of(error)}") from error
        return {**_FORM.read(files, {"boxes": boxes}), "labels": labels}
