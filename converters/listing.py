"""Sources whose images are files in folders: a list of them, with what belongs to each.

A format over this says which files make a sample (`add`), what fields it has beside the image, and,
where these are not just the numbers that it is added with, how a worker reads it (`reader`) or what
its values are (`values`).  Resuming, rejects, keys, splits and the order are the same for all.
"""

from __future__ import annotations

import abc
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import Deferred, FieldSpec, IndexedSource, Reject, Sample
from .reading.fingerprints import Hashes, hash_samples
from .reading.locations import printable, stat_of
from .reading.refusals import refuse_fields
from .reading.small_memory import StringTable
from .reading.splits import choose_folder

__all__ = ["DeferredSample", "Listing", "SampleReader"]


class Listing(IndexedSource):
    """Samples of image files, in the order in which they were added.

    A subclass has a method `list_samples`, whose keyword arguments are the format's own options.

    root: the folder that the files' names are relative to; the location, if the subclass does not
        set another before it adds samples.
    beside: files that all samples depend on: a list of classes, a manifest.
    reader: how a worker reads a sample, of its files and numbers.  Without one a sample is its
        image, and those of its numbers that are fields.
    splits, with_split: the splits that are taken, and whether there is a field of the split.
    """

    root: Path
    beside: list[Path]
    reader: SampleReader | None = None
    splits: list[str]
    with_split: bool = False

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        **options: Any,
    ) -> None:
        refuse_fields(fields, self.name)
        self.root, self.beside, self.notes = Path(location), [], []
        self._files, self._rejects = StringTable(), dict[int, str]()
        self._numbers, self._number_names = array("q"), tuple[str, ...]()
        self.num_samples = 0
        found = self.list_samples(self.root, **options)
        self.schema = Schema({"image": ImageField(channels=channels), **found})
        self._fields, self._folder = tuple(self.schema), os.fspath(self.root)

    @abc.abstractmethod
    def list_samples(self, location: Path, *args: Any, **options: Any) -> Mapping[str, Field]:
        """Add all samples; return their fields, but for the image, which comes first."""

    def choose_splits(self, names: Sequence[str], wanted: str | None) -> list[str]:
        """Return the splits that are taken.

        names: of the splits there are; ``[""]`` where there are none.
        wanted: the option ``split=``; without it there is a field of the split.
        """
        self.with_split = not wanted and list(names) != [""]
        self.splits = choose_folder(names, wanted, self.notes)
        return self.splits

    def split_field(self) -> dict[str, Field]:
        """Return the field of the split; none where there is none."""
        names = tuple(map(printable, self.splits))
        return {"split": ScalarField(classes=names)} if self.with_split else {}

    def split_number(self, split: str) -> dict[str, int]:
        """Return the number of a split as `add` takes it; none where there is no field of it."""
        return {"split": self.splits.index(split)} if self.with_split else {}

    def add(self, *files: str, **numbers: int) -> None:
        """Add a sample.

        files: the image first, then what belongs to it; relative to `root`.  Kept as one text.
        numbers: its label, its row, whatever is wanted; the same, in one order, for every sample.
        """
        if numbers and not self._number_names:
            self._number_names = tuple(numbers)
            # Those before were rejects, added when the names were not known yet.
            self._numbers.extend([0] * (len(numbers) * self.num_samples))
        self._numbers.extend(numbers.values())
        self._files.append("\0".join(files))
        self.num_samples += 1

    def reject(self, name: str, reason: str) -> None:
        """Add what cannot be packed; it takes the place of a sample."""
        self._rejects[self.num_samples] = reason
        self.add(name.replace("\0", " "), **dict.fromkeys(self._number_names, 0))

    def names_of(self, index: int) -> list[str]:
        """Return the names of a sample's files, as they were added."""
        return self._files[index].split("\0")

    def numbers_of(self, index: int) -> dict[str, int]:
        """Return the numbers of a sample by their names."""
        names = self._number_names
        start = index * len(names)
        # Without strict=, which takes twice as long.
        return dict(zip(names, self._numbers[start : start + len(names)]))  # noqa: B905

    def key_of(self, names: list[str], numbers: Mapping[str, int]) -> str:
        """Return the key of a sample, by its names and numbers as they were added."""
        return printable(names[0])

    def values(self, files: list[str], numbers: dict[str, int]) -> tuple[Any, ...] | Deferred:
        """Return the values of a sample, in the schema's order.

        files: their paths.
        """
        if self.reader is not None:
            return DeferredSample(self.reader, self._fields, files, numbers)
        return Path(files[0]), *map(numbers.__getitem__, self._fields[1:])

    def __getitem__(self, index: int) -> Sample | Reject:
        names, numbers = self.names_of(index), self.numbers_of(index)
        if index in self._rejects:
            return Reject(self.key_of(names, numbers), self._rejects[index])
        files = [os.path.join(self._folder, name) for name in names]
        return Sample(self.key_of(names, numbers), self.values(files, numbers))

    def key_at(self, index: int) -> str:
        return self.key_of(self.names_of(index), self.numbers_of(index))

    def fingerprints(self, limit: int | None = None) -> Hashes:
        shared = [stat_of(path) for path in self.beside]

        def parts(index: int) -> tuple[Any, ...]:
            names, numbers = self.names_of(index), self.numbers_of(index)
            stats = [stat_of(os.path.join(self._folder, name)) for name in names]
            return *names, *numbers.values(), *(part for stat in stats for part in stat), *shared

        return hash_samples(self.num_samples, limit, parts)


class SampleReader(Protocol):
    """How a worker reads a sample; one for all samples of a source, and it can be pickled."""

    def read(self, files: list[str], known: dict[str, Any], /) -> Mapping[str, Any]:
        """Return values of a sample by the names of fields; others may be among them.

        files: their paths.
        known: its numbers, or whatever else the source has of it; these are values too.
        """


@dataclass(eq=False)
class DeferredSample(Deferred):
    """One sample, as its reader takes it, and the fields that it has."""

    reader: SampleReader
    fields: tuple[str, ...]
    files: list[str]
    known: dict[str, Any]

    def load(self) -> tuple[Any, ...]:
        """Read the sample."""
        values = {**self.known, **self.reader.read(self.files, self.known)}
        return tuple(values[name] for name in self.fields)
