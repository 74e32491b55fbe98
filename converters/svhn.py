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

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5r, h5s

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
_SIDES = (b"left", b"top", b"width", b"height")
_LABEL = b"label"
_FORM = BoxForm("xywh", "pixels")
_MOST_IMAGES, _MOST_DIGITS, _LONGEST_NAME = 1 << 24, 1 << 10, 1 << 10
_MOST_INFLATED = 1100
"""Deflate makes at most 1,032 bytes of one."""


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
        path = self.root / folder / _LIST
        self.beside.append(path)
        seen: set[str] = set()
        for row, name in enumerate(_names(path)):
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
        try:
            # Opened for each image, which takes a sixth of the time: nothing is open at a fork.
            with h5py.File(self.paths[known["split"]], "r", locking=False) as file:
                rows = _references(file, b"bbox")
                at = np.unravel_index(known["row"], rows.shape)
                boxes, labels = _digits(h5r.dereference(h5py.Dataset(rows)[at], file.id))
        except Exception as error:  # what h5py raises on damage
            place = f"{_LIST}, image {known['row'] + 1}"
            raise SourceError(f"{place}: {reason_of(error)}") from error
        return {**_FORM.read(files, {"boxes": boxes}), "labels": labels}


# -- what is in the list -----------------------------------------------------------------


def _names(path: Path) -> Iterator[str]:
    """Yield the names of all images, in the order of the rows; a damaged list is a SourceError."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            names, boxes = (_references(file, field) for field in (b"name", b"bbox"))
            if names.shape != boxes.shape:
                raise ValueError(f"{names.shape} names and {boxes.shape} boxes")
            for reference in _array(names, _MOST_IMAGES).ravel():
                text = _array(h5r.dereference(reference, file.id), _LONGEST_NAME)
                if text.dtype != np.dtype("<u2") or not text.size:
                    raise ValueError(f"a name is of {text.dtype}, not of characters of 16 bits")
                yield text.tobytes().decode("utf-16-le")
    except SourceError:
        raise
    except Exception as error:  # what h5py raises on damage
        raise SourceError(f"{path}: cannot be read: {reason_of(error)}") from error


def _references(file: Any, name: bytes) -> Any:
    """Return the array of what a field of the struct array refers to, a reference an image."""
    found = _member(_member(file.id, b"digitStruct"), name)
    _check(found, _MOST_IMAGES)
    if found.dtype.kind != "O":
        raise ValueError(f"expected digitStruct/{name.decode()} to refer to several images")
    return found


def _digits(group: Any) -> tuple[Any, Any]:
    """Return boxes, shape [n, 4], and classes, shape [n], of an image."""
    columns = [_numbers(group, name) for name in (*_SIDES, _LABEL)]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(f"its boxes have {', '.join(str(len(c)) for c in columns)} numbers")
    labels = columns.pop()
    if not np.all((labels >= 1) & (labels <= 10) & (labels == np.rint(labels))):
        raise ValueError(f"its labels are {labels.tolist()[:8]}, not all of 1 to 10")
    return np.stack(columns, 1), labels.astype(np.int64) % 10


def _numbers(group: Any, name: bytes) -> Any:
    """Return a number of each box."""
    found = _array(_member(group, name), _MOST_DIGITS)
    if found.dtype.kind == "O":
        cells = [_array(h5r.dereference(cell, group), 1) for cell in found.ravel()]
        found = np.array([_one(cell) for cell in cells])
    return found.astype(np.float64).ravel()


def _one(cell: Any) -> float:
    if cell.size != 1 or cell.dtype.kind not in "iuf":
        raise ValueError(f"expected a number, found an array {cell.shape} of {cell.dtype}")
    return float(cell.item())


def _member(group: Any, name: bytes) -> Any:
    """Return what is called so in a group; it must lie in the same file."""
    if not isinstance(group, (h5g.GroupID, h5py.h5f.FileID)):
        raise ValueError(f"expected a group with {name.decode()}")
    if not group.links.exists(name):
        raise ValueError(f"there is no {name.decode()}")
    if group.links.get_info(name).type != h5l.TYPE_HARD:
        raise ValueError(f"{name.decode()} is a link, not an array of this file")
    return h5o.open(group, name)


def _array(found: Any, most: int) -> Any:
    """Return an array of at most so many numbers or references."""
    _check(found, most)
    array = np.empty(found.shape, found.dtype)
    found.read(h5s.ALL, h5s.ALL, array)
    return array


def _check(found: Any, most: int) -> None:
    """Refuse what is no array of numbers or references, has more elements, or lies elsewhere."""
    if not isinstance(found, h5d.DatasetID):
        raise ValueError("expected an array, found something else")
    dtype, created = found.dtype, found.get_create_plist()
    layout = created.get_layout()
    if layout == h5d.VIRTUAL or created.get_external_count():
        raise ValueError("an array lies in other files, which are not read")
    if dtype.kind not in "iuf" and h5py.check_ref_dtype(dtype) is not h5py.Reference:
        raise ValueError(f"an array is of {dtype}, neither numbers nor references")
    count, stored = math.prod(found.shape), found.get_storage_size()
    block = math.prod(created.get_chunk()) if layout == h5d.CHUNKED else 0
    if count > most or max(count, block) * dtype.itemsize > _MOST_INFLATED * (stored + 1):
        raise ValueError(f"an array claims {count:,} elements and has {stored:,} bytes")
