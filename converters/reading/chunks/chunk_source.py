"""A folder of chunks of packed samples and their ``index.json``: MDS, LitData.

``sample_layout.py`` tells what a chunk is.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import Field, Schema

from ...base import FieldSpec, Reject, Sample
from ..class_names import named_classes
from ..compression import open_inflated
from ..locations import printable
from ..scanned import Place, ScannedSource
from ..selection import COLUMNS
from ..spans import MAX_RECORD, check_length, read_at, read_exactly
from .column_choice import Column, choose_columns
from .sample_layout import Inflated, Plan, Stored

__all__ = ["ChunkSource"]

_OFFSETS = 4096
_PEEK = 16


class ChunkSource(ScannedSource):
    """A folder of chunks and their index; a subclass reads that and calls `settle`.

    It sets `index`, `root`, `notes`, and for each chunk `paths`, `counts` and `codecs`.
    """

    index: Path
    root: Path
    paths: list[Path]
    counts: list[int]
    """Samples in each chunk, as the index says."""
    codecs: list[str]
    """How each chunk is compressed as a whole; empty where it is not."""
    plan: Plan

    @abc.abstractmethod
    def column(self, encoding: str, values: Sequence[Any]) -> Field | str:
        """Return the field for a column, from some of its values; or why it cannot be taken.

        Without values it returns the field that they do not matter to, or raises LookupError.
        """

    def settle(
        self,
        names: Sequence[str],
        plan: Plan,
        wanted: tuple[str, ...],
        fields: FieldSpec,
        channels: int,
        classes: str | None,
    ) -> None:
        """Settle `schema` and `plan` from the columns that the index names."""
        self.plan = plan  # with which the first samples are read
        samples: list[list[bytes]] | None = None
        columns = []
        for number, (name, encoding) in enumerate(zip(names, plan.encodings, strict=True)):
            try:
                field = self.column(encoding, ())
            except LookupError:
                samples = self._first_samples() if samples is None else samples
                field = self._field_of(encoding, [sample[number] for sample in samples])
            if isinstance(field, str):
                columns.append(Column(name, None, field))
            else:
                columns.append(Column(name, field))
        settled, picked = choose_columns(columns, wanted, fields, channels, str(self.index))
        self.schema = Schema(named_classes(settled, "label", classes))
        self.plan = plan._replace(schema=self.schema, picked=tuple(picked))
        left = [column.name or str(n) for n, column in enumerate(columns) if n not in picked]
        self.notes += COLUMNS.left_out(left)

    def _field_of(self, encoding: str, columns: list[bytes]) -> Field | str:
        try:
            return self.column(encoding, [self.plan.decode(encoding, data) for data in columns])
        except ValueError as error:
            return f"cannot be read: {error}"

    def _first_samples(self) -> list[list[bytes]]:
        found: list[list[bytes]] = []
        failure = "there are no samples"
        for sample in self:
            try:
                if isinstance(sample, Reject):
                    failure = sample.reason
                    continue
                held = sample.values
                if isinstance(held, Stored):
                    data = read_at(held.path, held.offset, held.length)
                else:
                    assert isinstance(held, Inflated)
                    data = held.data
                found.append(self.plan.split(data))
            except (OSError, SourceError) as error:
                failure = str(error)
            if len(found) == _PEEK:
                break
        if not found:
            raise SourceError(f"{self.index}: no sample can be read: {failure}")
        return found

    # -- the samples of a chunk ----------------------------------------------------------

    def verify(self, file: int) -> None:
        """Raise SourceError where a chunk is not the one that the index is of."""

    def compressed(self, file: int) -> bool:
        return bool(self.codecs[file])

    def scan(self, file: int) -> Iterator[Place | Reject]:
        self.verify(file)
        path = str(self.paths[file])
        with open(path, "rb", buffering=0, opener=open_regular) as raw:
            size = os.fstat(raw.fileno()).st_size
            count = self._count(file, int.from_bytes(read_exactly(raw, 4, path, 0), "little"))
            last = 4 * (count + 2)
            if last > size:
                raise SourceError(
                    f"{path}: ends at byte {size:,}, within its table of {count:,} samples, which "
                    "are all lost"
                )
            for first in range(0, count, _OFFSETS):
                some = min(_OFFSETS, count - first)
                raw.seek(4 * (first + 1))
                table = read_exactly(raw, 4 * (some + 1), path, 4 * (first + 1))
                for begin, end in itertools.pairwise(np.frombuffer(table, "<u4").tolist()):
                    reason = _misplaced(begin, end, last, size)
                    if reason:
                        yield Reject(self.key(file, begin), reason)
                    else:
                        yield Place(file, begin, end - begin)
                        last = end

    def _count(self, file: int, count: int) -> int:
        """Return the number of samples that a chunk says it has, if its index says so too."""
        if count != self.counts[file]:
            raise SourceError(
                f"{self.paths[file]}: has {count:,} samples and {self.index.name} says "
                f"{self.counts[file]:,}: one of them is damaged, or of another dataset"
            )
        return count

    def at(self, place: Place) -> Sample | Reject:
        path = str(self.paths[place.file])
        stored = Stored(path, place.offset, place.length, self.plan)
        return Sample(self.key(place.file, place.offset), stored)

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        self.verify(file)
        with open_inflated(self.paths[file], self.codecs[file]) as stream:
            yield from self._unpacked(file, stream)

    def _unpacked(self, file: int, stream: IO[bytes]) -> Iterator[Sample | Reject]:
        """Yield the samples of a chunk from a stream; in its place, what is lost of it."""
        path = str(self.paths[file])
        done, at = 0, 0
        try:
            count = self._count(file, int.from_bytes(read_exactly(stream, 4, path, 0), "little"))
            check_length(4 * (count + 1), path, 4)
            table = np.frombuffer(read_exactly(stream, 4 * (count + 1), path, 4), "<u4")
            at = 4 * (count + 2)
            for done in range(count):
                begin, end = table[done : done + 2].tolist()
                reason = _misplaced(begin, end, at, MAX_RECORD << 2)
                if reason:
                    yield Reject(self.key(file, begin), reason)
                    continue
                _skip(stream, begin - at, path, at)
                data = read_exactly(stream, end - begin, path, begin)
                at = end
                yield self.inflated(file, begin, data)
        except SourceError as error:
            left = self.counts[file] - done
            yield Reject(self.key(file, at), f"{error}; {left:,} samples of it are lost")

    def inflated(self, file: int, offset: int, data: bytes) -> Sample:
        """Return a sample whose bytes are here."""
        return Sample(self.key(file, offset), Inflated(data, self.plan))

    def key(self, file: int, offset: int) -> str:
        # Chunks of an index that was merged have the same names in different folders.
        return f"{printable(os.path.relpath(self.paths[file], self.root))}@{offset}"

    @property
    def files_read(self) -> list[Path]:
        return [self.index, *self.paths]


def _misplaced(begin: int, end: int, last: int, size: int) -> str:
    if last <= begin <= end <= size:
        return ""
    return (
        f"the table says that the sample is at bytes {begin:,} to {end:,}, after one that ends at "
        f"{last:,}, in a chunk of {size:,}: it is damaged or cut short"
    )


def _skip(stream: IO[bytes], length: int, path: str, offset: int) -> None:
    while length > 0:
        length -= len(read_exactly(stream, min(length, 1 << 20), path, offset))
