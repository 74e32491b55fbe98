"""Chunks of packed samples: the common part of MDS and LitData.

==============  ==========================================================
4 bytes         n, the number of samples; like all numbers, little-endian
4 * (n + 1)     the offset of each sample, and the end of the last one
...             data of the format
samples         for each the lengths of its columns (4 bytes, if the
                length varies), then the columns
==============  ==========================================================

A file ``index.json`` in the folder has the columns, the number of samples in each chunk, and the
compression.  A chunk without compression is scanned, and the workers read its samples; a
compressed one is inflated in the packing process, from its front.
"""

from __future__ import annotations

import abc
import functools
import itertools
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import Field, Schema

from ...base import FieldSpec, Reject, Sample, reject_reason
from ..class_names import named_classes
from ..compression import inflate_zstd, open_inflated
from ..deferred import DeferredRecord
from ..fields import convert
from ..json_files import read_object
from ..locations import path_inside, path_of, printable
from ..scanned import Place, ScannedSource
from ..selection import TableColumn
from ..spans import MAX_RECORD, FileSpan, check_length, read_exactly
from .column_choice import RefusedColumnError, choose_columns

__all__ = ["ChunkDecoder", "ChunkSource", "index_path", "raw_image"]

_INDEX_BYTES = 256 << 20
_LARGEST_COUNT = 1 << 30
"""Samples in a chunk: offsets are 32 bits wide, and each takes four of the chunk's bytes."""
_OFFSETS = 4096
"""Entries of the table of samples that are read at once."""
_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 3, "HSV": 3, "LAB": 3, "YCbCr": 3}
_PIXEL_BYTES |= {"RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}
_RAW_HEAD = 12


class ChunkDecoder(NamedTuple):
    """How the bytes of a sample become its values."""

    encodings: tuple[str, ...]  # of each column
    sizes: tuple[int | None, ...]  # of each column, in bytes; None where each sample says its own
    value_of: Callable[[str, bytes], Any]  # from an encoding and bytes; a function of a module
    inflate: bool = False  # whether each sample is a piece of Zstandard
    schema: Mapping[str, Field] = MappingProxyType({})
    picked: tuple[int, ...] = ()  # the column of each field

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], None]:
        """Return the values; raises ValueError if the bytes do not hold them."""
        columns = self.split(data)
        found = []
        for (name, field), number in zip(self.schema.items(), self.picked, strict=True):
            value = self.value_of(self.encodings[number], columns[number])
            found.append(convert(value, field, name))
        return tuple(found), None

    def split(self, data: bytes) -> list[bytes]:
        """Return the bytes of each column."""
        if self.inflate:
            data = inflate_zstd(data)
        varying = self.sizes.count(None)
        at = 4 * varying
        if len(data) < at:
            raise SourceError(f"a sample of {len(data)} bytes, and {at} are for its lengths alone")
        lengths = iter(struct.unpack_from(f"<{varying}I", data))
        found = []
        for size in self.sizes:
            length = next(lengths) if size is None else size
            found.append(data[at : at + length])
            at += length
        if at != len(data):
            raise SourceError(
                f"the columns of a sample have {at:,} bytes, the sample {len(data):,}"
            )
        return found


def index_path(location: Any) -> Path | None:
    """Return the ``index.json`` that a location is, or has in it."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "index.json" if path.is_dir() else path
    return path if path.name == "index.json" and path.is_file() else None


class ChunkSource(ScannedSource):
    """A folder of chunks and their index; a subclass reads that by `open_index`, calls `resolve`.

    It sets `paths`, `counts` and `codecs`, an entry a chunk.
    """

    index: Path
    root: Path
    paths: list[Path]
    counts: list[int]
    """Samples in each chunk, as the index says."""
    codecs: list[str]
    """How each chunk is compressed as a whole; empty where it is not."""
    decoder: ChunkDecoder

    # -- the index -----------------------------------------------------------------------

    def open_index(self, location: Any, owner: str) -> Mapping[str, Any]:
        """Return the content of the index at a location; `owner` ends the error without one."""
        index = index_path(location)
        if index is None:
            raise SourceError(f"{location}: no index.json there, which {owner}")
        self.index, self.root, self.notes = index, index.parent, []
        return read_object(index, _INDEX_BYTES)

    def path_of(self, name: Any) -> Path:
        """Return the path of a file that the index names; SourceError if it is elsewhere."""
        try:
            return Path(path_inside(self.root, name))
        except SourceError as error:
            raise SourceError(f"{self.index}: {error}") from None

    def list_of(self, entry: Any, name: str, kind: type | tuple[type, ...]) -> Sequence[Any]:
        """Return a list of the index with entries of one kind; else raise SourceError."""
        found = entry.get(name) if isinstance(entry, dict) else None
        if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
            raise SourceError(
                f"{self.index}: {name!r} is {str(found)[:60]!r}, which is no such list"
            )
        return found

    def count_of(self, entry: Mapping[str, Any], name: str) -> int:
        """Return a number of samples of the index; SourceError if no chunk can have so many."""
        found = entry.get(name)
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _LARGEST_COUNT:
            raise SourceError(
                f"{self.index}: {name!r} is {str(found)[:60]!r}, not a number of samples"
            )
        return found

    # -- its columns ---------------------------------------------------------------------

    @abc.abstractmethod
    def field_for(self, encoding: str, values: Callable[[], list[Any]]) -> Field:
        """Return the field for a column, by its encoding or else by some `values()`.

        Raises RefusedColumnError if there is no such field.
        """

    def resolve(
        self,
        names: Sequence[str],
        decoder: ChunkDecoder,
        wanted: tuple[str, ...],
        fields: FieldSpec,
        channels: int,
        classes: str | None,
    ) -> None:
        """Determine `schema` and `decoder` from the columns that the index names."""
        self.decoder = decoder  # for reading the first samples
        first: list[list[bytes]] = []

        def values(number: int) -> list[Any]:
            first[:] = first or self.first_records(decoder.split, self.index, "sample can be read")
            try:
                encoding = decoder.encodings[number]
                return [decoder.value_of(encoding, sample[number]) for sample in first]
            except ValueError as error:
                raise RefusedColumnError(f"cannot be read: {error}") from error

        columns = []
        for number, (name, encoding) in enumerate(zip(names, decoder.encodings, strict=True)):
            try:
                field = self.field_for(encoding, functools.partial(values, number))
                columns.append(TableColumn(name, field))
            except RefusedColumnError as error:
                columns.append(TableColumn(name, None, str(error)))
        resolved, picked, notes = choose_columns(columns, wanted, fields, channels, str(self.index))
        self.schema = Schema(named_classes(resolved, "label", classes))
        self.decoder = decoder._replace(schema=self.schema, picked=tuple(picked))
        self.notes += notes

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
        span = FileSpan(path, place.offset, place.length)
        return Sample(self.key(place.file, place.offset), DeferredRecord(span, self.decoder))

    def stream(self, file: int) -> Iterator[Sample | Reject]:
        self.verify(file)
        with open_inflated(self.paths[file], self.codecs[file]) as stream:
            yield from self._unpacked(file, stream)

    def _unpacked(self, file: int, stream: IO[bytes]) -> Iterator[Sample | Reject]:
        """Yield the samples of a chunk from a stream, with a reject for the lost ones."""
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
            key = self.key(file, at)
            reason = reject_reason(key, error)
            yield Reject(key, f"{reason}; {left:,} samples of it are lost")

    def inflated(self, file: int, offset: int, data: bytes) -> Sample:
        """Return a sample whose bytes are here."""
        return Sample(self.key(file, offset), DeferredRecord(data, self.decoder))

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


def raw_image(data: bytes) -> Image.Image:
    """Return a PIL image from the bytes of a column with raw pixels, as in both formats.

    Three numbers of 4 bytes, width, height and the length of the mode's name (``RGB``); the name;
    the pixels.

    Raises SourceError for another number of pixels than in the head, or for an unknown mode.
    """
    if len(data) < _RAW_HEAD:
        raise SourceError(f"an image of {len(data)} bytes has no head")
    width, height, named = struct.unpack_from("<3I", data)
    mode = data[_RAW_HEAD : _RAW_HEAD + named].decode("ascii", "replace")
    pixels = data[_RAW_HEAD + named :]
    if mode == "1":
        expected = (width + 7) // 8 * height
    elif mode in _PIXEL_BYTES:
        expected = width * height * _PIXEL_BYTES[mode]
    else:
        raise SourceError(f"an image of PIL's mode {mode[:20]!r} cannot be read")
    if expected != len(pixels) or not expected:
        raise SourceError(
            f"an image of {width} x {height} {mode} has {expected:,} bytes, not {len(pixels):,}"
        )
    return Image.frombytes(mode, (width, height), pixels)
