"""MNIST and the datasets in its format: Fashion-MNIST, EMNIST, QMNIST, K-MNIST.

A file of the format, IDX, is one array: two zeros, a byte for the type of its numbers, one for the
number of dimensions, and these as 32-bit integers, most significant byte first; then the numbers.
Images and labels are two files side by side.  EMNIST's images are turned upright: its files have
rows and columns exchanged.

The names of EMNIST's files determine its classes.  MNIST and Fashion-MNIST have the same file
names; the names of their folders distinguish them.  Sources: "The IDX file format" on
http://yann.lecun.com/exdb/mnist/; the README of Fashion-MNIST; Cohen, Afshar, Tapson and van
Schaik, "EMNIST: an extension of MNIST to handwritten letters", section II and table II.
"""

from __future__ import annotations

import os
import re
import string
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject
from .reading.arrays.array_source import ArraySource, Part
from .reading.arrays.columns import StoredColumn
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start
from .reading.fields import resolve_fields
from .reading.forward_reader import ForwardReader
from .reading.locations import first_bytes, printable
from .reading.options import ClassFile, Option
from .reading.selection import left_out

__all__ = ["IdxSource"]

_DIGITS = tuple(string.digits)
_MERGED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
_KNOWN_CLASSES = {
    "mnist": _DIGITS,
    "fashion": ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt",
                "Sneaker", "Bag", "Ankle boot"),
    "emnist-digits": _DIGITS,
    "emnist-mnist": _DIGITS,
    "emnist-letters": ("N/A", *(a + b for a, b in zip(string.ascii_uppercase,
                                                      string.ascii_lowercase, strict=True))),
    "emnist-balanced": _MERGED,
    "emnist-bymerge": _MERGED,
    "emnist-byclass": tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase),
    "qmnist": _DIGITS,
}  # fmt: skip
"""Letters count from 1, so 0 is not a class."""
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_NAME = re.compile(
    r"(?P<dataset>.*?)[-_.]?(?P<split>train|t10k|test)?[-_.]?(?P<what>images|labels)"
    r"[-_.]idx\d[-_.][a-z]+(\.gz)?",
    re.IGNORECASE,
)


class _Pair(NamedTuple):
    """Images and their labels."""

    dataset: str  # e.g. emnist-letters; empty if file names do not say
    split: str
    images: Path
    labels: Path | None


class IdxSource(ArraySource):
    """IDX files of images and labels, gzip-compressed or not."""

    name = "idx"
    summary = "IDX files: MNIST, Fashion-MNIST, EMNIST, ...; .gz or not"
    parts = ("*idx3-ubyte*", "*idx1-ubyte*")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        try:
            return any(_is_images(_column_of(pair.images)[0]) for pair in _find_pairs(path))
        except SourceError:  # opening it raises the error
            return path.is_dir() or "idx" in path.name

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: Annotated[
            str,
            Option("which files of a folder; all adds a field 'split'", ("train", "test", "all")),
        ] = "train",
        classes: ClassFile = None,
    ) -> None:
        self.notes = []
        pairs = self._chosen(Path(location), split)
        bare = [pair.images for pair in pairs if pair.labels is None]
        if bare and len(bare) < len(pairs):
            raise SourceError(f"{bare[0]}: has no file of labels, although others have one")
        transposed = pairs[0].dataset.startswith("emnist")
        parts = [_part_of(pair, transposed) for pair in pairs]
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if bare:
            self.notes.append("there is no file of labels for the images")
        else:
            names = _names_of_classes(pairs[0]) if classes is None else None
            resolved["label"] = ScalarField(classes=names)
            resolved = named_classes(resolved, "label", classes)
            if classes is None and names is None:
                self.notes.append(
                    "the classes have no names: --option classes=FILE, or call the folder MNIST or "
                    "FashionMNIST"
                )
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
            splits = [int(pair.split == "test") for pair in pairs]
            parts = [part.in_split(number) for part, number in zip(parts, splits, strict=True)]
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))
        if transposed:
            self.notes.append("rows and columns exchanged, as EMNIST needs")
        if len(parts[0].columns[0].shape) == 3 and channels == 3:
            self.notes.append("the images are grey, and stored as RGB; --channels 1 stores grey")
        self.paths = [path for pair in pairs for path in (pair.images, pair.labels) if path]
        self.set_parts(parts)

    def _chosen(self, location: Path, split: str) -> list[_Pair]:
        """Return the pairs of files that the options mean."""
        found = _find_pairs(location)
        if not found:
            raise SourceError(
                f"{location}: no images in IDX there. Expected names such as "
                "train-images-idx3-ubyte, with .gz or without."
            )
        if location.is_file():
            return found
        names = sorted({pair.dataset for pair in found})
        if len(names) > 1:
            raise SourceError(
                f"{location}: holds the datasets {', '.join(name or 'mnist' for name in names)}. "
                f"Name the file with the images of one, such as {found[0].images}"
            )
        taken = [pair for pair in found if split in (pair.split, "all")]
        taken.sort(key=lambda pair: pair.split != "train")
        if not taken:
            raise OptionError(f"{location}: has only split={found[0].split} (--option split=...)")
        left = [printable(pair.images.name) for pair in found if pair not in taken]
        self.notes += left_out("files", left, "--option split=test, or all")
        return taken


def _names_of_classes(pair: _Pair) -> tuple[str, ...] | None:
    """Return the names of the classes; None if they are not known."""
    folders = {re.sub("[-_]", "", part.lower()) for part in pair.images.absolute().parts}
    if not pair.dataset and folders & {"fashion", "fashionmnist", "fmnist"}:
        return _KNOWN_CLASSES["fashion"]
    return _KNOWN_CLASSES.get(pair.dataset or ("mnist" if "mnist" in folders else ""))


# -- files ------------------------------------------------------------------------------


def _find_pairs(path: Path) -> list[_Pair]:
    """Return the images at a location, which is a file, a folder, or one with a folder ``raw``.

    A decompressed file is preferred to its compressed copy.
    """
    if path.is_file():
        if not _NAME.fullmatch(path.name):
            return [_Pair("", "train", path, None)]
        beside = _pairs_in(path.parent, path.name.endswith(".gz"))
        return [pair for pair in beside if path in (pair.images, pair.labels)]
    # torchvision has the files in MNIST/raw.
    folders = (folder for folder in (path, path / "raw") if folder.is_dir())
    return next(filter(None, map(_pairs_in, folders)), [])


def _pairs_in(folder: Path, compressed_first: bool = False) -> list[_Pair]:
    found: dict[tuple[str, str], dict[str, Path]] = {}
    names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    for name in names if compressed_first else reversed(names):  # the last one stays
        if match := _NAME.fullmatch(name.lower()):
            key = (match["dataset"], match["split"] or "train")
            found.setdefault(key, {})[match["what"]] = folder / name
    return [
        _Pair(
            dataset, "train" if split == "train" else "test", files["images"], files.get("labels")
        )
        for (dataset, split), files in sorted(found.items())
        if "images" in files
    ]


def _column_of(path: Path) -> tuple[StoredColumn | None, int]:
    """Return the array of a file, None if it is not an IDX file, and how many rows are whole.

    Raises SourceError if the file has more bytes than its head says.
    """
    start = first_bytes(path)
    compressed = compression_of(start) == "gzip"
    if compressed:
        start = inflated_start(start, 64)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _TYPES:
        return None, 0
    offset = 4 + 4 * start[3]
    if not 1 <= start[3] <= 4 or len(start) < offset:
        return None, 0
    shape = tuple(int.from_bytes(start[k : k + 4], "big") for k in range(4, offset, 4))
    front = ForwardReader(path, compressed=True) if compressed else None
    column = StoredColumn(path, offset, shape, _TYPES[start[2]], front=front, ends=True)
    if compressed:
        return column, shape[0]
    claimed, size = offset + shape[0] * column.row_bytes, path.stat().st_size
    if claimed < size:
        raise SourceError(
            f"{path}: has {size:,} bytes, and its head says that it has {claimed:,} "
            f"({' x '.join(map(str, shape))}): it is damaged"
        )
    return column, (size - offset) // max(1, column.row_bytes)


def _is_images(column: StoredColumn | None) -> bool:
    """Tell whether an array has pixels: N x H x W, or N x H x W x C, of uint8."""
    return column is not None and column.dtype == np.uint8 and len(column.shape) in (3, 4)


def _part_of(pair: _Pair, transposed: bool) -> Part:
    """Return the rows of images, and of their labels if they have some.

    Raises SourceError if the files are not images and labels, or not of one number.
    """
    images, whole = _column_of(pair.images)
    if images is None or not _is_images(images):
        shown = f"{images.shape} of {images.dtype}" if images else "no IDX file"
        raise SourceError(
            f"{pair.images}: is {shown}; expected images, N x H x W or N x H x W x C, of uint8"
        )
    count, height, width, *rest = images.shape
    if 0 in images.shape or height * width > MAX_PIXELS or rest not in ([], [1], [3]):
        raise SourceError(
            f"{pair.images}: says that it has {count:,} images of {images.shape[1:]}: it is damaged"
        )
    columns, ends = [images], {pair.images: whole}
    if pair.labels is not None:
        labels, ends[pair.labels] = _column_of(pair.labels)
        if labels is None or "f" in str(labels.dtype) or 0 in labels.shape:
            raise SourceError(f"{pair.labels}: no labels in IDX")
        if labels.shape[0] != count:
            raise SourceError(
                f"{pair.labels} has {labels.shape[0]:,} labels and {pair.images.name} "
                f"{count:,} images: a file is damaged, or belongs to another dataset"
            )
        columns.append(labels)
    name, lost = printable(pair.images.name), ""
    for path, whole in ends.items():
        if whole < count:
            end = path.stat().st_size
            count, lost = whole, f"{path}: the file ends at byte {end:,}; the rest is lost"
    for column in columns:
        # A label of QMNIST is several numbers; the first is the class.
        column.shape = (count, *column.shape[1:]) if column is images else (count,)
    rejects = (Reject(f"{name}[{count}]", lost),) if lost else ()
    upright = partial(np.swapaxes, axis1=0, axis2=1)
    forms = (upright, *[None] * len(columns[1:])) if transposed else ()
    return Part(name, tuple(columns), forms, rejects)
