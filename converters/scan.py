"""Samples one behind another in files: TFRecord, tar, RecordIO, MDS, LitData.

A format is a `Scan`, which finds the rows of each file, and a `Reader`, which makes a sample of a
row in a worker.  `ScanSource` makes a `Source` of both: in order it streams the files; for random
access it scans all files first and then keeps 20 bytes a sample.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np

from fastdata.errors import (
    ObjectChangedError,
    ObjectNotFoundError,
    OptionError,
    SourceError,
    StorageError,
)
from fastdata.regular_files import mirror_of
from fastdata.schema import Schema

from .base import Deferred, IndexedSource, Reject, Sample
from .reading.box_forms import BoxNumbers
from .reading.exported import Exported
from .reading.fingerprints import FileSource
from .reading.forward_reader import ForwardReader
from .reading.locations import printable
from .reading.refusals import not_seekable
from .reading.spans import FileSpan, read_at

__all__ = [
    "Found",
    "IncompleteError",
    "Input",
    "Keyed",
    "Reader",
    "Row",
    "RowValues",
    "Scan",
    "ScanSource",
    "read",
]

T = TypeVar("T")
_PEEK = 16
"""Rows that determine the fields."""
_OPEN = 16
"""Files that an index keeps open."""


class Row(NamedTuple):
    """A sample as the packing process has it: places in files, or values."""

    key: str
    values: tuple[Any, ...]


class Keyed(NamedTuple):
    """What a reader returns if the key of the sample is in its record."""

    key: str
    values: Sequence[Any]


class Reader(Protocol):
    """Makes the values of a sample from those of its row.  It runs in the workers; picklable."""

    def __call__(self, values: tuple[Any, ...], /) -> Sequence[Any] | Keyed:
        """Return values in the schema's order; ValueError or SourceError rejects the sample."""
        ...


Found: TypeAlias = tuple[int, int, Row | Reject]
"""Start and end of a row in its file, and the row."""


class RowValues(Deferred):
    """The values of a row and the reader for them."""

    def __init__(self, values: tuple[Any, ...], reader: Reader) -> None:
        self.values, self.reader = values, reader

    def load(self) -> tuple[Any, ...]:
        found = self.reader(self.values)
        if isinstance(found, Keyed):
            self.stored_key, found = found
        return tuple(found)


def read(value: FileSpan | bytes) -> bytes:
    """Return the bytes of a piece; raises SourceError if the file ends before."""
    return value if isinstance(value, bytes) else read_at(*value)


class IncompleteError(SourceError):
    """A file has more or fewer samples than the dataset says.  Nothing is packed then."""


class Input(ForwardReader):
    """A file that is scanned.

    number: of the file in its scan.
    shown: its name in keys.
    """

    def __init__(self, scan: Scan, number: int) -> None:
        path, codec = scan.paths[number], scan.codec(number)
        super().__init__(path, compressed=codec != "", codec=None if codec == "auto" else codec)
        self.number = number
        self.shown = printable(path.name if scan.root is None else os.path.relpath(path, scan.root))

    def key(self, offset: int) -> str:
        """Return the name of a sample that has none of its own: its file and place."""
        return f"{self.shown}@{offset}"

    def exactly(self, offset: int, length: int) -> bytes:
        """Return the bytes of a piece; SourceError if the file ends before."""
        data = self.read(offset, length)
        if len(data) < length:
            raise self._cut(offset, length, offset + len(data))
        return data

    def piece(self, offset: int, length: int) -> FileSpan | bytes:
        """Return the place of a piece in a plain file, or its bytes; SourceError if it is cut."""
        if self.size is None:
            return self.exactly(offset, length)
        if offset + length > self.size:
            raise self._cut(offset, length, self.size)
        return FileSpan(self.name, offset, length)

    def _cut(self, offset: int, length: int, end: int) -> SourceError:
        return SourceError(
            f"{self.path}: the file ends within the record's {length:,} bytes at byte {offset:,}, "
            f"at byte {end:,}: it is damaged or cut short"
        )


@dataclass(frozen=True)
class Scan:
    """Files and the rows in them.

    rows: takes a file and yields its rows, or those of one sample between two places.  It yields a
        `Reject` for a damaged sample, and raises SourceError if the whole file is lost.
    codecs: of each file: empty for a plain one, "auto", or a codec as `open_inflated` takes it.
    root: the folder that names of files in keys are relative to; without it they are names alone.
    """

    paths: Sequence[Path]
    rows: Callable[[Input, int, int | None], Iterator[Found]]
    codecs: Sequence[str] = ()
    root: Path | None = None

    def codec(self, number: int) -> str:
        return self.codecs[number] if self.codecs else ""

    def file(self, number: int) -> Iterator[Found]:
        """Yield the rows of a file; a file that cannot be read is one reject."""
        path = self.paths[number]
        try:
            with Input(self, number) as input:
                yield from self.rows(input, 0, None)
        except IncompleteError:
            raise
        except (OSError, SourceError) as error:
            yield 0, 0, Reject.of(printable(os.fspath(path)), error)

    def first(self, parse: Callable[[tuple[Any, ...]], T], place: object, what: str) -> list[T]:
        """Return what `parse` makes of the first rows that it can read; SourceError if of none.

        `what` names the rows in the error.
        """
        # Not by `ScanSource.read_files`: of a store, a file that is looked at is packed soon.
        failure = "the files have no records"

        def parsed(rows: Iterator[Found]) -> Iterator[T]:
            nonlocal failure
            for *_, row in rows:
                try:
                    if isinstance(row, Reject):
                        raise SourceError(f"{row.key}: {row.reason}")
                    yield parse(row.values)
                except StorageError:
                    raise
                except (OSError, ValueError) as error:
                    failure = str(error)

        every = itertools.chain.from_iterable(map(self.file, range(len(self.paths))))
        found = list(itertools.islice(parsed(every), _PEEK))
        if not found:
            raise SourceError(f"{place}: no {what}: {failure}")
        if mirror_of(self.paths[0]) is None:
            # The files of another split may have other fields.
            numbers: dict[str, int] = {}
            for number, path in enumerate(self.paths):
                numbers.setdefault(re.sub(r"[0-9]+", "", os.fspath(path)), number)
            for number in list(numbers.values())[1:_PEEK]:
                found += itertools.islice(parsed(self.file(number)), 1)
        return found


class ScanSource(FileSource):
    """The source of a scan.  A format is a subclass whose constructor calls this one."""

    def __init__(
        self,
        scan: Scan,
        schema: Schema,
        reader: Reader,
        *,
        notes: Sequence[str] = (),
        beside: Sequence[Path] = (),
        exported: Exported | None = None,
        box_forms: Mapping[str, BoxNumbers] = MappingProxyType({}),
    ) -> None:
        self.scan, self.paths, self.schema, self.reader = scan, scan.paths, schema, reader
        self.notes, self.beside, self.box_forms = list(notes), beside, box_forms
        if exported is not None:
            self.beside, self.packed_with = [*beside, exported.path], exported.packed_with

    def sample(self, row: Row | Reject) -> Sample | Reject:
        """Return the sample of a row."""
        if isinstance(row, Reject):
            return row
        return Sample(row[0], RowValues(row[1], self.reader))

    def __iter__(self) -> Iterator[Sample | Reject]:
        return self.read_files(0, len(self.paths))

    def read_files(self, start: int, stop: int) -> Iterator[Sample | Reject]:
        """Yield the samples of a run of files.

        Those of a store are downloaded one ahead, and removed once their samples are gone.
        """
        mirror = mirror_of(self.paths[start]) if start < stop else None
        for file in range(start, stop):
            if mirror is None:
                yield from (self.sample(row) for _, _, row in self.scan.file(file))
                continue
            path = self.paths[file]
            try:
                held = mirror.hold(path, self.paths[file + 1] if file + 1 < stop else "")
            except (ObjectChangedError, ObjectNotFoundError) as error:
                yield Reject(printable(os.fspath(path)), str(error))
                continue
            # Not by a loop here, whose names would hold the file for longer.
            yield from (_holding(self.sample(row), held) for _, _, row in self.scan.file(file))
            del held

    def count(self) -> int | None:
        # All files of a store would have to be downloaded for that.
        return None if self.mirror is not None else sum(1 for _ in self)

    def indexed(self) -> IndexedSource:
        if self.mirror is not None:
            raise OptionError(
                f"shuffle needs to reach any sample, and to know where those of {self.name} are, "
                "all files of a store would have to be downloaded first. Copy them here, or pack "
                "in order: the loader shuffles too."
            )
        return _Index(self)


def _holding(sample: Sample | Reject, held: object) -> Sample | Reject:
    """Return a sample that keeps the file that it is in."""
    if isinstance(sample, Sample):
        assert isinstance(sample.values, RowValues)
        sample.values.held = held
    return sample


class _Index(IndexedSource):
    """Where every sample of a `ScanSource` is."""

    def __init__(self, source: ScanSource) -> None:
        self._source, scan = source, source.scan
        self._rows, self._sample = scan.rows, source.sample
        self.name = source.name  # type: ignore[misc]
        self.schema, self.notes = source.schema, source.notes
        self.box_forms = source.box_forms
        self._files, self._starts, self._ends = array("i"), array("q"), array("q")
        self._rejects: dict[int, Reject] = {}
        self._inputs: dict[int, Input] = {}
        for number, path in enumerate(scan.paths):
            if scan.codec(number):
                raise not_seekable(path)
            for start, end, found in scan.file(number):
                if isinstance(found, Reject):
                    self._rejects[len(self._files)] = found
                self._files.append(number)
                self._starts.append(start)
                self._ends.append(end)
        self.num_samples = len(self._files)

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self._rejects:
            return self._rejects[index]
        found = next(self._rows(self._input(index), self._starts[index], self._ends[index]))
        return self._sample(found[2])

    def _input(self, index: int) -> Input:
        number = self._files[index]
        if number not in self._inputs:
            if len(self._inputs) == _OPEN:
                self._inputs.pop(next(iter(self._inputs))).close()
            self._inputs[number] = Input(self._source.scan, number)
        return self._inputs[number]

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self._source.fingerprints()

    def key_at(self, index: int) -> str:
        return self._input(index).key(self._starts[index])
