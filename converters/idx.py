"""MNIST and the datasets in its format: Fashion-MNIST, EMNIST, QMNIST, K-MNIST.

``reading/classic/idx_files.py`` finds the files, which are arrays of pixels and of labels.
EMNIST's are turned upright: its files have rows and columns exchanged ("EMNIST: an extension of
MNIST to handwritten letters", section II).

The names of EMNIST's files tell its classes.  MNIST and Fashion-MNIST have the same file names;
the names of their folders tell them apart.  Sources: the README of Fashion-MNIST; Cohen,
Afshar, Tapson and van Schaik, "EMNIST: an extension of MNIST to handwritten letters", table II.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec
from .reading.arrays.array_source import ArraySource
from .reading.class_names import named_classes
from .reading.classic.idx_files import IdxPair, find_pairs, is_images, part_of, read_head
from .reading.fields import resolve_fields
from .reading.locations import printable
from .reading.options import Option
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


class IdxSource(ArraySource):
    """IDX files of images and labels, gzip-compressed or not."""

    name = "idx"
    summary = "IDX files: MNIST, Fashion-MNIST, EMNIST, ...; .gz or not"
    parts = ("*idx3-ubyte*", "*idx1-ubyte*")

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        try:
            return any(is_images(read_head(pair.images)) for pair in find_pairs(path))
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
        dataset: Annotated[
            str, Option("which dataset, where a folder has several: emnist-letters")
        ] = "",
        labels: Annotated[
            str | None, Option("the file of the labels, where its name does not tell")
        ] = None,
        classes: Annotated[
            str | None,
            Option(
                "fashion, mnist, emnist-letters, ..., or a file with names of classes, one a line"
            ),
        ] = None,
        transpose: Annotated[
            bool | None, Option("exchange rows and columns; default: of EMNIST")
        ] = None,
    ) -> None:
        self.notes = []
        pairs = self._chosen(location, split, dataset)
        if labels is not None:
            if len(pairs) > 1:
                raise OptionError(f"labels={labels}: these would be of {len(pairs)} files")
            pairs = [pairs[0]._replace(labels=Path(labels))]
        bare = [pair.images for pair in pairs if pair.labels is None]
        if bare and len(bare) < len(pairs):
            raise SourceError(f"{bare[0]}: no labels beside it, and others have some")
        if transpose is None:
            transpose = pairs[0].dataset.startswith("emnist")
        parts = [part_of(pair, _upright if transpose else None) for pair in pairs]
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if bare:
            self.notes.append("no file of labels beside the images (--option labels=FILE)")
        else:
            names = _names_of_classes(pairs[0]) if classes is None else None
            resolved["label"] = ScalarField(classes=names)
            resolved = named_classes(resolved, "label", classes, _KNOWN_CLASSES)
            if classes is None and names is None:
                self.notes.append(
                    "the classes have no names here: --option classes=mnist, or fashion, ..."
                )
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
            parts = [part.in_split(number) for number, part in enumerate(parts)]
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))
        if transpose:
            self.notes.append("rows and columns exchanged, as EMNIST needs (--option transpose=)")
        if len(parts[0].columns[0].shape) == 3 and channels == 3:
            self.notes.append("the images are grey, and stored as RGB; --channels 1 stores grey")
        self.paths = [path for pair in pairs for path in (pair.images, pair.labels) if path]
        self.set_parts(parts)

    def _chosen(self, location: Any, split: str, dataset: str) -> list[IdxPair]:
        """Return the pairs of files that the options mean."""
        found = find_pairs(location)
        if not found:
            raise SourceError(
                f"{location}: no images in IDX there. Expected names such as "
                "train-images-idx3-ubyte, with .gz or without."
            )
        if Path(location).is_file():
            return found
        names = sorted({pair.dataset for pair in found})
        if dataset not in names and (dataset or len(names) > 1):
            raise OptionError(
                f"{location}: holds the datasets {', '.join(filter(None, names)) or 'mnist'}; "
                "choose one with --option dataset=NAME"
            )
        found = [pair for pair in found if not dataset or pair.dataset == dataset]
        taken = [pair for pair in found if split in (pair.split, "all")]
        taken.sort(key=lambda pair: pair.split != "train")
        if not taken:
            raise OptionError(f"{location}: has only split={found[0].split} (--option split=...)")
        left = [printable(pair.images.name) for pair in found if pair not in taken]
        self.notes += left_out("files", left, "--option split=test, or all")
        return taken


def _upright(pixels: Any) -> Any:
    return np.swapaxes(pixels, 0, 1)


def _names_of_classes(pair: IdxPair) -> tuple[str, ...] | None:
    """Return the names of the classes; None where they are not known."""
    dataset, path = pair.dataset, pair.images
    folders = [part.lower().replace("-", "").replace("_", "") for part in path.absolute().parts]
    for names, known in (("fashion", "fashionmnist", "fmnist"), "fashion"), (("mnist",), "mnist"):
        if not dataset and not {*names}.isdisjoint(folders):
            return _KNOWN_CLASSES[known]
    return _KNOWN_CLASSES.get(dataset)
