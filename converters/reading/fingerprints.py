"""What samples are made from, in hashes, for `Source.fingerprints`: resuming compares them.

Where samples are pieces of a few files, a hash a file; where each has files of its own, a
hash a sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..base import Source, hash_fields
from .locations import printable, stat_of

__all__ = ["FileSource", "hash_files", "hash_samples"]

Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def hash_files(paths: Iterable[Path]) -> Hashes:
    """Return a hash a file, of name, size and time."""
    hashes = [hash_fields(printable(os.fspath(path.name)), *stat_of(path)) for path in paths]
    return np.array(hashes, np.uint64)


def hash_samples(count: int, limit: int | None, parts_of: Callable[[int], Iterable[Any]]) -> Hashes:
    """Return a hash a sample.

    parts_of: takes a sample's number; returns what it is made from.
    """
    count = count if limit is None else min(limit, count)
    hashes = (hash_fields(*parts_of(index)) for index in range(count))
    return np.fromiter(hashes, np.uint64, count)


class FileSource(Source):
    """A source whose samples are pieces of files, which `files_read` lists."""

    reads_by_network = False
    paths: Sequence[Path]
    beside: Sequence[Path] = ()
    """Further files that samples depend on."""

    @property
    def files_read(self) -> Sequence[Path]:
        """All files that samples depend on."""
        return [*self.paths, *self.beside]

    def fingerprints(self, limit: int | None = None) -> Hashes:
        return hash_files(self.files_read)
