"""Sources with sequential samples in files: TFRecord, tar, RecordIO.

The place of a sample depends on the headers of all samples before it.  `ScannedSource` streams
them in order at no extra cost.  For random access, or to count samples, all files are scanned
first, and an entry of the index is four numbers.
"""

from __future__ import annotations

import abc
import itertools
import os
from array import array
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from fastdata.errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    SourceError,
    StorageError,
)
from fastdata.regular_files import mirror_of

from ..base import Deferred, IndexedSource, Reject, Sample
from .deferred import DeferredRecord, DeferredValues
from .fingerprints import FileSource
from .locations import printable
from .refusals import not_seekable

__all__ = ["Place", "ScannedSource"]

T = TypeVar("T")
_PEEK = 16
"""Records to check for determining the fields."""


class Place(NamedTuple):
    """The place of a sample."""

    file: int  # Number of the file in `ScannedSource.paths`
    offset: int  # In bytes, of the file or of its decompressed content
    length: int


class ScannedSource(FileSource):
    """Samples in the order of their files, and of their places in a file.

    A subclass sets `schema`, `notes` and `paths`, and has `scan`, which yields
    the places in a file, and `at`, which returns the sample at a place.
    """

    @abc.abstractmethod
    def scan(self, file: int) -> Iterator[Place | Reject]:
        """Yield the places of the samples in a file, without reading their content.

        A `Reject` stands for a damaged sample, or for the rest of a file
        without recognisable samples.
        """

    @abc.abstractmethod
    def at(self, place: Place) -> Sample | Reject:
        """Return the sample at a place."""

    def compressed(self, file: int) -> bool:
        """Tell whether a file can be read only from its front; then `stream` reads it."""
        return False

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a file that can be read only from its front.

        Asked only of files that are `compressed`; a format without any needs none.
        """
        raise NotImplementedError(f"{self.name} has no compressed files")

    def key(self, file: int, offset: int) -> str:
        """Return the name of a sample that has none of its own: its file and place."""
        return f"{printable(os.fspath(self.paths[file].name))}@{offset}"

    def samples_of(self, file: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a file; one that cannot be read is one reject."""
        try:
            if self.compressed(file):
                yield from self.stream(file)
                return
            for place in self.scan(file):
                yield place if isinstance(place, Reject) else self.at(place)
        except (OSError, SourceError) as error:
            yield Reject.of(printable(os.fspath(self.paths[file])), error)

    def __iter__(self) -> Iterator[Sample | Reject]:
        return self.read_files(0, len(self.paths))

    def read_files(self, start: int, stop: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a run of files.

        Those of a store are downloaded one ahead, and removed once their samples are gone.
        """
        mirror = mirror_of(self.paths[start]) if start < stop else None
        for file in range(start, stop):
            if mirror is None:
                yield from self.samples_of(file)
                continue
            path = self.paths[file]
            try:
                held = mirror.hold(path, self.paths[file + 1] if file + 1 < stop else "")
            except (ObjectChangedError, ObjectNotFoundError) as error:
                yield Reject(printable(os.fspath(path)), str(error))
                continue
            # Not by a loop here, whose names would hold the file for longer.
            yield from (_holding(sample, held) for sample in self.samples_of(file))
            del held

    def records(self) -> Iterator[bytes | Exception]:
        """Yield the content of the records, or errors; before the schema is known.

        For formats whose samples are a `DeferredRecord` each.
        """
        # Not by `read_files`: of a store, a file that is looked at here is packed soon.
        for sample in itertools.chain.from_iterable(map(self.samples_of, range(len(self.paths)))):
            try:
                if isinstance(sample, Reject):
                    raise SourceError(sample.reason)
                assert isinstance(sample.values, DeferredRecord)
                yield sample.values.read()
            except StorageError:
                raise
            except (OSError, SourceError) as error:
                yield error

    def first_records(self, parse: Callable[[bytes], T], place: object, what: str) -> list[T]:
        """Return the first records that can be parsed; raises SourceError if none can.

        `what` names the records in the error.
        """
        found: list[T] = []
        failure = "the files have no records"
        for record in self.records():
            try:
                if isinstance(record, Exception):
                    raise record
                found.append(parse(record))
            except (OSError, ValueError) as error:
                failure = str(error)
            if len(found) == _PEEK:
                break
        if not found:
            raise SourceError(f"{place}: no {what}: {failure}")
        return found

    def count(self) -> int | None:
        # All files of a store would have to be downloaded for that.
        return None if self.downloads_files else sum(1 for _ in self)

    def indexed(self) -> IndexedSource:
        if self.downloads_files:
            raise OptionError(
                f"shuffle needs to reach any sample, and to know where those of {self.name} are, "
                "all files of a store would have to be downloaded first. Copy them here, or pack "
                "in order: the loader shuffles too."
            )
        return _Index(self)


def _holding(sample: Sample | Reject, held: object) -> Sample | Reject:
    """Return a sample that keeps the file that it is in."""
    if isinstance(sample, Reject):
        return sample
    values = sample.values
    if not isinstance(values, Deferred):
        values = DeferredValues(values)
    values.held = held
    return sample._replace(values=values)


class _Index(IndexedSource):
    """Where every sample of a `ScannedSource` is: 20 bytes a sample."""

    name = "index"

    def __init__(self, source: ScannedSource) -> None:
        self._source = source
        self.name = source.name  # type: ignore[misc]
        self.schema, self.notes = source.schema, source.notes
        self._files = array("i")
        self._offsets = array("q")
        self._lengths = array("q")
        self._rejects: dict[int, Reject] = {}
        for file, path in enumerate(source.paths):
            if source.compressed(file):
                raise not_seekable(path)
            self._look_at(file)
        self.num_samples = len(self._files)

    def _look_at(self, file: int) -> None:
        try:
            for place in self._source.scan(file):
                if isinstance(place, Reject):
                    self._add(Place(file, 0, 0), place)
                else:
                    self._add(place)
        except (OSError, SourceError) as error:
            path = printable(os.fspath(self._source.paths[file]))
            self._add(Place(file, 0, 0), Reject.of(path, error))

    def _add(self, place: Place, reject: Reject | None = None) -> None:
        if reject is not None:
            self._rejects[len(self._files)] = reject
        self._files.append(place.file)
        self._offsets.append(place.offset)
        self._lengths.append(place.length)

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self._rejects:
            return self._rejects[index]
        place = Place(self._files[index], self._offsets[index], self._lengths[index])
        return self._source.at(place)

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self._source.fingerprints()

    def fingerprint_key(self, index: int) -> str:
        return self._source.fingerprint_key(index)

    def key_at(self, index: int) -> str:
        return self._source.key(self._files[index], self._offsets[index])
