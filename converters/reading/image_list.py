"""Sources whose images are files in folders: a list of them, with what belongs to each.

A format over this says which files make a sample (`add`), what fields it has (`schema`), and, where
these are not just the image and its numbers, how a worker reads it (`reader`) or what its values
are (`values`).  Resuming, rejects, keys, splits and the order are the same for all.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fastdata.errors import SourceError
from fastdata.schema import Field, ScalarField

from ..base import Deferred, IndexedSource, Reject, Sample
from .fingerprints import Hashes, hash_samples
from .locations import path_inside, printable, stat_of
from .small_memory import StringTable
from .splits import choose_folder

__all__ = ["DeferredSample", "ImageListSource", "SampleReader"]


class ImageListSource(IndexedSource):
    """Samples of image files, in the order in which they were added.

    A subclass calls `begin` or `begin_splits` at the start of its ``__init__``, then `add` for
    every sample.

    root: the folder that the files' names are relative to.
    beside: files that all samples depend on: a list of classes, a manifest.
    reader: how a worker reads a sample, of its files and numbers.  Without one a sample is its
        image and as many of its numbers as there are further fields.
    """

    root: Path
    beside: list[Path]
    reader: SampleReader | None = None

    def begin(self, root: Path, count: int = 0) -> None:
        """Begin an empty list.

        count: how many numbers each sample will have, where the first may be a reject.
        """
        self.root, self.beside, self.notes = root, [], []
        self._files = StringTable()
        self._numbers = array("q")
        self._width = count
        self._rejects: dict[int, str] = {}
        self.num_samples = 0

    def begin_splits(
        self, root: Path, names: Sequence[str], wanted: str | None, count: int | None = None
    ) -> list[str]:
        """Begin an empty list of samples in splits; return the splits that are taken.

        names: of the splits there are; ``[""]`` where there are none.
        wanted: the option ``split=``; without it there is a field of the split.
        count: how many numbers each sample has, if not just that of its split where it is a field.
        """
        self.with_split = not wanted and list(names) != [""]
        self.begin(root, int(self.with_split) if count is None else count)
        self.splits = choose_folder(names, wanted, self.notes)
        return self.splits

    def split_field(self) -> dict[str, Field]:
        """Return the field of the split; none where there is none."""
        names = tuple(map(printable, self.splits))
        return {"split": ScalarField(classes=names)} if self.with_split else {}

    def split_number(self, split: str) -> list[int]:
        """Return the number of a split, in a list; none where there is no field of it."""
        return [self.splits.index(split)] * self.with_split

    def add(self, *files: str, numbers: Iterable[int] = ()) -> None:
        """Add a sample.

        files: the image first, then what belongs to it; relative to `root`.  Kept as one text.
        numbers: its label, its row, whatever is wanted; the same count for every sample.
        """
        before = len(self._numbers)
        self._numbers.extend(numbers)
        width = len(self._numbers) - before
        if width and not self._width:
            # Those before were rejects, added when the count was not known yet.
            self._numbers = array("q", [0] * (width * self.num_samples)) + self._numbers
        self._width = width
        self._files.append("\0".join(files))
        self.num_samples += 1

    def add_inside(
        self, folder: Path | str, name: str, *files: str, numbers: Iterable[int] = ()
    ) -> None:
        """Add a sample whose image data names; it is a reject where that leads out of a folder."""
        try:
            path_inside(folder, name)
        except SourceError as error:
            self.reject(name, str(error))
        else:
            self.add(name, *files, numbers=numbers)

    def reject(self, name: str, reason: str) -> None:
        """Add what cannot be packed; it takes the place of a sample."""
        self._rejects[self.num_samples] = reason
        self.add(name.replace("\0", " "), numbers=[0] * self._width)

    def names_of(self, index: int) -> list[str]:
        """Return the names of a sample's files, as they were added."""
        return self._files[index].split("\0")

    def numbers_of(self, index: int) -> list[int]:
        """Return the numbers of a sample."""
        return self._numbers[index * self._width : (index + 1) * self._width].tolist()

    def files_of(self, names: list[str], numbers: list[int]) -> list[str]:
        """Return all files that a sample is made from, relative to `root`."""
        return names

    def key_of(self, names: list[str], numbers: list[int]) -> str:
        """Return the key of a sample, by its names and numbers as they were added."""
        return printable(names[0])

    def values(self, files: list[str], numbers: list[int]) -> tuple[Any, ...] | Deferred:
        """Return the values of a sample, in the schema's order.

        files: their paths.
        """
        if self.reader is not None:
            return DeferredSample(self.reader, files, numbers)
        return Path(files[0]), *numbers[: len(self.schema) - 1]

    def __getitem__(self, index: int) -> Sample | Reject:
        names, numbers = self.names_of(index), self.numbers_of(index)
        if index in self._rejects:
            return Reject(self.key_of(names, numbers), self._rejects[index])
        files = [os.path.join(self.root, name) for name in self.files_of(names, numbers)]
        return Sample(self.key_of(names, numbers), self.values(files, numbers))

    def key_at(self, index: int) -> str:
        return self.key_of(self.names_of(index), self.numbers_of(index))

    def fingerprints(self, limit: int | None = None) -> Hashes:
        shared = [stat_of(path) for path in self.beside]

        def parts(index: int) -> tuple[Any, ...]:
            names, numbers = self.names_of(index), self.numbers_of(index)
            stats = [stat_of(self.root / name) for name in self.files_of(names, numbers)]
            return *names, *numbers, *(part for stat in stats for part in stat), *shared

        return hash_samples(self.num_samples, limit, parts)


class SampleReader(Protocol):
    """What all samples of a source share, and how a worker reads one; it can be pickled."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the schema's order."""

    @property
    def read(self) -> Callable[..., Mapping[str, Any]]:
        """Return the values of a sample by the names of fields; others may be among them."""


class DeferredSample(Deferred):
    """The parts of one sample, as its reader takes them: names of files, numbers, rows."""

    def __init__(self, reader: SampleReader, *parts: Any) -> None:
        self.reader, self.parts = reader, parts

    def load(self) -> tuple[Any, ...]:
        """Read the sample."""
        values = self.reader.read(*self.parts)
        return tuple(values[name] for name in self.reader.fields)
