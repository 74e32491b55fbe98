"""MNIST and the datasets in its format: Fashion-MNIST, EMNIST, QMNIST, K-MNIST.

``reading/classic/idx_files.py`` reads the files, which are arrays of pixels and of labels.  Images
are read in blocks.  EMNIST's are turned upright: its files have rows and columns exchanged
("EMNIST: an extension of MNIST to handwritten letters", section II).

Only EMNIST has files with the names of its classes.  MNIST and Fashion-MNIST have the same file
names; the names of their folders tell them apart.  Sources: the README of Fashion-MNIST; Cohen,
Afshar, Tapson and van Schaik, "EMNIST: an extension of MNIST to handwritten letters", table II.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import read_regular
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, IndexedSource, Reject, Sample, reject_reason
from .reading.class_names import named_classes
from .reading.classic.idx_files import (
    IdxPair,
    IdxPart,
    find_pairs,
    is_images,
    read_head,
)
from .reading.fields import resolve_fields
from .reading.fingerprints import FileSource
from .reading.locations import printable
from .reading.options import Option
from .reading.refusals import not_seekable
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


class IdxSource(FileSource, IndexedSource):
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
        self._parts = [IdxPart.of(pair) for pair in pairs]
        self.num_samples = sum(part.num_samples for part in self._parts)
        with_labels = [part.labels is not None for part in self._parts]
        if any(with_labels) and not all(with_labels):
            bare = next(part for part in self._parts if part.labels is None)
            raise SourceError(f"{bare.pair.images}: no labels beside it, and others have some")
        emnist = pairs[0].dataset.startswith("emnist")
        self._transpose = emnist if transpose is None else transpose
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if all(with_labels):
            resolved["label"] = ScalarField()
            resolved = named_classes(resolved, "label", classes, _KNOWN_CLASSES)
            if classes is None:
                names = _names_of_classes(self._parts[0])
                resolved["label"] = ScalarField(classes=names)
                if names is None:
                    self.notes.append(
                        "the classes have no names here: --option classes=mnist, or fashion, ..."
                    )
        else:
            self.notes.append("no file of labels beside the images (--option labels=FILE)")
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
        self.schema = Schema(resolve_fields(resolved, fields, channels, resolved.__getitem__))
        if self._transpose:
            self.notes.append("rows and columns exchanged, as EMNIST needs (--option transpose=)")
        if len(self._parts[0].head.shape) == 3 and channels == 3:
            self.notes.append("the images are grey, and stored as RGB; --channels 1 stores grey")

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

    def indexed(self) -> IndexedSource:
        for part in self._parts:
            for path, head in ((part.pair.images, part.head), (part.pair.labels, part.labels)):
                if head is not None and head.compressed:
                    raise not_seekable(path)
        return self

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        for number in range(len(self._parts)):
            count = self._parts[number].num_samples
            if start < count:
                yield from self._samples(number, start, None)
            start = max(0, start - count)

    def _samples(self, number: int, start: int, stop: int | None) -> Iterator[Sample | Reject]:
        part = self._parts[number]
        try:
            for first, pixels, labels in part.blocks(start, stop):
                upright = pixels.swapaxes(1, 2) if self._transpose else pixels
                for k, image in enumerate(upright):
                    label = None if labels is None else int(labels[k])
                    yield self._sample(number, first + k, image, label)
                start = first + len(pixels)
        except SourceError as error:
            key = part.key(start)
            yield Reject(key, f"{reject_reason(key, error)}; images behind that are lost")

    def _sample(self, number: int, row: int, image: Any, label: int | None) -> Sample | Reject:
        key = self._parts[number].key(row)
        values: tuple[Any, ...] = (image,)
        if label is not None:
            values += (label,)
        return Sample(key, (*values, number) if "split" in self.schema else values)

    def __getitem__(self, index: int) -> Sample | Reject:
        for number, part in enumerate(self._parts):
            if index < part.num_samples:
                return next(self._samples(number, index, index + 1))
            index -= part.num_samples
        raise IndexError(index)

    def key_at(self, index: int) -> str:
        for part in self._parts:
            if index < part.num_samples:
                return part.key(index)
            index -= part.num_samples
        return f"sample {index}"

    @property
    def files_read(self) -> list[Path]:
        pairs = [part.pair for part in self._parts]
        return [path for pair in pairs for path in (pair.images, pair.labels) if path is not None]


def _names_of_classes(part: IdxPart) -> tuple[str, ...] | None:
    """Return the names of the classes; None where they are not known."""
    dataset, path = part.pair.dataset, part.pair.images
    mapping = path.parent / f"{dataset}-mapping.txt"
    if dataset and mapping.is_file():
        return _read_mapping(mapping) or None
    folders = [part.lower().replace("-", "").replace("_", "") for part in path.absolute().parts]
    for names, known in (("fashion", "fashionmnist", "fmnist"), "fashion"), (("mnist",), "mnist"):
        if not dataset and not {*names}.isdisjoint(folders):
            return _KNOWN_CLASSES[known]
    return _KNOWN_CLASSES.get(dataset)


def _read_mapping(path: Path) -> tuple[str, ...]:
    """Read a mapping of EMNIST's: lines of a class and the ASCII codes that are in it.

    Raises SourceError if a line is none, or a class stands twice.
    """
    names: dict[int, str] = {}
    try:
        lines = read_regular(path)[: 1 << 16].split(b"\n")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        try:
            if not line.strip():
                continue
            label, *codes = map(int, line.split())
            if not codes or not 0 <= label < 1000 or label in names:
                raise ValueError
            names[label] = bytes(codes).decode("ascii")
        except ValueError:
            raise SourceError(
                f"{path}, line {number}: {line[:40]!r} is not a class with its ASCII codes. "
                "Mend or remove it: the classes of EMNIST are known without."
            ) from None
    return tuple(names.get(label, "N/A") for label in range(max(names, default=-1) + 1))
