"""Sources whose images are files in folders: a list of them, with what belongs to each.

A format over this says which files make a sample (`add`), what fields it has (`schema`), and what
its values are (`values`).  Resuming, rejects, keys and the order are the same for all.
"""

from __future__ import annotations

import abc
import os
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..base import Deferred, IndexedSource, Reject, Sample
from .fingerprints import Hashes, hash_samples
from .locations import printable, stat_of
from .string_table import StringTable

__all__ = ["ImageListSource"]


class ImageListSource(IndexedSource):
    """Samples of image files, in the order in which they were added.

    A subclass calls `begin` at the start of its ``__init__``, then `add` for every sample, and
    `end` when there are no more.

    root: the folder that the files' names are relative to.
    beside: files that all samples depend on: a list of classes, a manifest.
    """

    root: Path
    beside: list[Path]

    def begin(self, root: Path, count: int = 0) -> None:
        """Begin an empty list.

        count: how many numbers each sample will have; to be said where the first may be a reject.
        """
        self.root, self.beside, self.notes = root, [], []
        self._files = StringTable()
        self._numbers = array("q")
        self._width = count
        self._rejects: dict[int, str] = {}
        self.num_samples = 0

    def add(self, *files: str, numbers: Iterable[int] = ()) -> None:
        """Add a sample.

        *files: the image first, then what belongs to it; relative to `root`. Kept as one text.
        numbers: its label, its row, whatever `values` wants; the same count for every sample.
        """
        before = len(self._numbers)
        self._numbers.extend(numbers)
        width = len(self._numbers) - before
        if width and not self._width:
            # Those before were rejects, whose numbers nobody could count yet.
            self._numbers = array("q", [0] * (width * self.num_samples)) + self._numbers
        self._width = width
        self._files.append("\0".join(files))
        self.num_samples += 1

    def reject(self, name: str, reason: str) -> None:
        """Add what cannot be packed; it takes the place of a sample."""
        self._rejects[self.num_samples] = reason
        self.add(name, numbers=[0] * self._width)

    @abc.abstractmethod
    def values(self, files: list[str], numbers: list[int]) -> tuple[Any, ...] | Deferred:
        """Return the values of a sample, in the schema's order.

        files: as they were added, below `root`.
        """

    def names_of(self, index: int) -> list[str]:
        """Return the names of a sample's files, as they were added."""
        return self._files[index].split("\0")

    def __getitem__(self, index: int) -> Sample | Reject:
        names = self.names_of(index)
        if index in self._rejects:
            return Reject(printable(names[0]), self._rejects[index])
        files = [os.path.join(self.root, name) for name in names]
        numbers = self._numbers[index * self._width : (index + 1) * self._width].tolist()
        return Sample(printable(names[0]), self.values(files, numbers))

    def key_at(self, index: int) -> str:
        return printable(self.names_of(index)[0])

    def fingerprints(self, limit: int | None = None) -> Hashes:
        shared = [stat_of(path) for path in self.beside]

        def parts(index: int) -> tuple[Any, ...]:
            names = self.names_of(index)
            numbers = self._numbers[index * self._width : (index + 1) * self._width]
            stats = [stat_of(self.root / name) for name in names]
            return *names, *numbers, *(part for stat in stats for part in stat), *shared

        found: np.ndarray[Any, np.dtype[np.uint64]] = hash_samples(self.num_samples, limit, parts)
        return found
