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

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ImageField, StringField

from ...base import FieldSpec, Reject, reject_reason
from ...scan import Found, Input, Row, Scan, read
from ..box_forms import BoxNumbers, parse_boxes
from ..compression import inflate_zstd
from ..fields import convert, resolve_boxes
from ..json_files import read_object
from ..locations import path_inside, path_of
from ..selection import TableColumn
from ..spans import MAX_RECORD
from .column_choice import RefusedColumnError, choose_columns, guessed_field

__all__ = ["ChunkIndex", "ChunkReader", "index_path", "raw_image", "resolve_columns"]

_INDEX_BYTES = 256 << 20
_LARGEST_COUNT = 1 << 30
"""Samples in a chunk: offsets are 32 bits wide, and each takes four of the chunk's bytes."""
_STEP = 4096
_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 3, "HSV": 3, "LAB": 3, "YCbCr": 3}
_PIXEL_BYTES |= {"RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}
_RAW_HEAD = 12


class ChunkReader(NamedTuple):
    """Reads the columns of a sample; the values of a row of a table are there already."""

    encodings: tuple[str, ...]  # of each column
    sizes: tuple[int | None, ...]  # of each column, in bytes; None where each sample says its own
    value_of: Callable[[str, bytes], Any]  # from an encoding and bytes; a function of a module
    inflate: bool = False  # whether each sample is a piece of Zstandard
    schema: Mapping[str, Field] = MappingProxyType({})
    picked: tuple[int, ...] = ()  # the column of each field

    def __call__(self, values: tuple[Any, ...]) -> Sequence[Any]:
        if type(values[0]) is tuple:
            row: tuple[Any, ...] = values[0]
            return row
        columns = self.split(values)
        return [
            convert(self.value_of(self.encodings[number], columns[number]), field, name)
            for (name, field), number in zip(self.schema.items(), self.picked, strict=True)
        ]

    def split(self, values: tuple[Any, ...]) -> list[bytes]:
        """Return the bytes of each column."""
        data = read(values[0])
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


class ChunkIndex:
    """The content of an index, and the chunks that it lists.

    paths, counts, codecs: of each chunk, its file, its number of samples, and how it is compressed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.root = path, path.parent
        self.content: Mapping[str, Any] = read_object(path, _INDEX_BYTES)
        self.paths, self.counts, self.codecs = list[Path](), list[int](), list[str]()

    def path_of(self, name: Any) -> Path:
        """Return the path of a file that the index names; SourceError if it is elsewhere."""
        try:
            return Path(path_inside(self.root, name))
        except SourceError as error:
            raise SourceError(f"{self.path}: {error}") from None

    def list_of(self, entry: Any, name: str, kind: type | tuple[type, ...]) -> Sequence[Any]:
        """Return a list of the index with entries of one kind; else raise SourceError."""
        found = entry.get(name) if isinstance(entry, dict) else None
        if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
            raise SourceError(
                f"{self.path}: {name!r} is {str(found)[:60]!r}, which is no such list"
            )
        return found

    def add(self, path: Path, count: Any, name: str, codec: str) -> None:
        """Add a chunk; SourceError if no chunk can have so many samples."""
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _LARGEST_COUNT:
            raise SourceError(
                f"{self.path}: {name!r} is {str(count)[:60]!r}, not a number of samples"
            )
        self.paths.append(path)
        self.counts.append(count)
        self.codecs.append(codec)

    def check_count(self, number: int, count: int) -> int:
        """Return the number of samples that a chunk says it has, if the index says so too."""
        if count != self.counts[number]:
            raise SourceError(
                f"{self.paths[number]}: has {count:,} samples and {self.path.name} says "
                f"{self.counts[number]:,}: one of them is damaged, or of another dataset"
            )
        return count

    def scan(self, rows: Callable[[Input, int, int | None], Iterator[Found]]) -> Scan:
        # Chunks of an index that was merged have the same names in different folders.
        return Scan(self.paths, rows, self.codecs, self.root)

    def rows(
        self, verify: Callable[[int], None], input: Input, start: int, stop: int | None
    ) -> Iterator[Found]:
        """Yield the samples of a chunk.

        `verify` raises SourceError if a chunk is not the one that the index is of.
        """
        if stop is not None:
            yield start, stop, Row(input.key(start), (input.piece(start, stop - start),))
            return
        verify(input.number)
        done = last = 0
        try:
            count = self.check_count(input.number, int.from_bytes(input.exactly(0, 4), "little"))
            table = np.frombuffer(input.exactly(4, 4 * (count + 1)), "<u4")
            last = 4 * (count + 2)
            steps = (table[k : k + _STEP].tolist() for k in range(0, count + 1, _STEP))
            for begin, end in pairwise(chain.from_iterable(steps)):
                reason = _misplaced(begin, end, last, input.size or MAX_RECORD << 2)
                if reason:
                    yield begin, begin, Reject(input.key(begin), reason)
                else:
                    yield begin, end, Row(input.key(begin), (input.piece(begin, end - begin),))
                    last = end
                done += 1
        except SourceError as error:
            lost = f"; {self.counts[input.number] - done:,} samples of it are lost"
            if input.size is not None:
                raise SourceError(f"{error}{lost}") from error
            yield last, last, Reject(input.key(last), f"{reject_reason(input.path, error)}{lost}")


def resolve_columns(
    index: ChunkIndex,
    scan: Scan,
    reader: ChunkReader,
    names: Sequence[str],
    own: Callable[[str], Field | None],
    wanted: tuple[str, ...],
    fields: FieldSpec | None,
    channels: int,
    boxes: Sequence[str],
) -> tuple[dict[str, Field], ChunkReader, dict[str, BoxNumbers], list[str]]:
    """Return fields, reader, what boxes are, and notes, from the columns that the index names.

    own: takes the encoding of a column, and returns its field, or None if the values determine it;
        raises RefusedColumnError if there is no such field.
    """
    first: list[list[bytes]] = []
    remarks: list[str] = []

    def values(number: int) -> list[Any]:
        first[:] = first or scan.first(reader.split, index.path, "sample can be read")
        try:
            return [reader.value_of(reader.encodings[number], sample[number]) for sample in first]
        except ValueError as error:
            raise RefusedColumnError(f"cannot be read: {error}") from error

    columns = []
    for number, (name, encoding) in enumerate(zip(names, reader.encodings, strict=True)):
        try:
            field = own(encoding)
            if field is None:
                leading = number == 0 and not name
                field = guessed_field(values(number), channels, name, remarks, leading=leading)
            columns.append(TableColumn(name, field))
        except RefusedColumnError as error:
            columns.append(TableColumn(name, None, str(error)))
    resolved, picked, notes = choose_columns(
        columns, wanted, fields or {}, channels, str(index.path)
    )
    if isinstance(resolved.get("label"), StringField) and "label" not in (fields or {}):
        remarks.append(
            "field 'label' is text; --option classes=FILE, with a name on each line, makes class "
            "numbers of it"
        )
    some: dict[str, list[Any]] = {}
    if any(isinstance(field, ArrayField) for field in resolved.values()):
        for (name, field), number in zip(resolved.items(), picked, strict=True):
            if isinstance(field, (ArrayField, ImageField)):
                some[name] = values(number)
    forms = resolve_boxes(resolved, some, parse_boxes(boxes, whole=True), fields or {}, remarks)
    return resolved, reader._replace(picked=tuple(picked)), forms, [*notes, *remarks]


def _misplaced(begin: int, end: int, last: int, size: int) -> str:
    if last <= begin <= end <= size:
        return ""
    return (
        f"the table says that the sample is at bytes {begin:,} to {end:,}, after one that ends at "
        f"{last:,}, in a chunk of {size:,}: it is damaged or cut short"
    )


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
