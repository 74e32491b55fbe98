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
import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import xxhash
from PIL import Image

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import ArrayField, Field, Schema, StringField

from ..base import FieldSpec, Reject, reject_reason
from ..scan import Found, Input, Row, Scan, ScanSource, read
from .box_forms import BoxesOption, parse_boxes
from .class_names import named_classes
from .column_choice import choose_columns, guessed_column
from .compression import inflate_zstd
from .fields import convert, resolve_boxes
from .json_files import read_object
from .locations import path_inside, path_of, stat_of
from .options import ClassFile, ColumnsOption
from .selection import TableColumn
from .spans import MAX_RECORD

__all__ = ["ChunkIndex", "ChunkReader", "ChunkSource", "index_path", "raw_image"]

_INDEX_BYTES = 256 << 20
_LARGEST_COUNT = 1 << 30
"""Samples in a chunk: offsets are 32 bits wide, and each takes four of the chunk's bytes."""
_STEP = 4096
_HASHED_BYTES = 1 << 20
_HASHES = xxhash.algorithms_available | hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}
_PIXEL_BYTES = {"L": 1, "P": 1, "LA": 2, "I;16": 2, "RGB": 3, "HSV": 3, "LAB": 3, "YCbCr": 3}
_PIXEL_BYTES |= {"1": 0, "RGBA": 4, "RGBX": 4, "CMYK": 4, "I": 4, "F": 4}
_RAW_HEAD = 12


class ChunkReader(NamedTuple):
    """Reads the columns of a sample."""

    encodings: tuple[str, ...]  # of each column
    sizes: tuple[int | None, ...]  # of each column, in bytes; None where each sample says its own
    value_of: Callable[[str, bytes], Any]  # from an encoding and bytes; a function of a module
    inflate: bool = False  # whether each sample is a piece of Zstandard
    schema: Mapping[str, Field] = MappingProxyType({})
    picked: tuple[int, ...] = ()  # the column of each field

    def __call__(self, values: tuple[Any, ...]) -> Sequence[Any]:
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

    paths, counts, codecs, hashes: of each chunk, its file, its number of samples, its compression,
        and the hashes of the file by their names.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.root = path, path.parent
        self.content: Mapping[str, Any] = read_object(path, _INDEX_BYTES)
        self.paths, self.counts, self.codecs = list[Path](), list[int](), list[str]()
        self.hashes: list[Mapping[str, Any]] = []
        self._verified: dict[int, tuple[int, int]] = {}

    def path_of(self, name: Any) -> Path:
        """Return the path of a file that the index names; SourceError if it is elsewhere."""
        return Path(path_inside(self.root, name))

    def list_of(self, entry: Any, name: str, kind: type | tuple[type, ...]) -> Sequence[Any]:
        """Return a list of the index with entries of one kind; else raise SourceError."""
        found = entry.get(name) if isinstance(entry, dict) else None
        if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
            raise SourceError(f"{name!r} is {str(found)[:60]!r}, not a list of the index")
        return found

    def add(
        self, path: Path, count: Any, codec: str = "", hashes: Mapping[str, Any] | None = None
    ) -> None:
        """Add a chunk; raise SourceError for an impossible number of samples."""
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < _LARGEST_COUNT:
            raise SourceError(f"{path.name} has {str(count)[:60]!r}, not a number of samples")
        self.paths.append(path)
        self.counts.append(count)
        self.codecs.append(codec)
        self.hashes.append(hashes or {})

    def rows(self, input: Input, start: int, stop: int | None) -> Iterator[Found]:
        """Yield the samples of a chunk."""
        if stop is not None:
            yield start, stop, Row(input.key(start), (input.piece(start, stop - start),))
            return
        self._verify(input.number)
        wanted = self.counts[input.number]
        done = last = 0
        try:
            count = int.from_bytes(input.exactly(0, 4), "little")
            if count != wanted:
                raise SourceError(
                    f"{input.path}: has {count:,} samples and {self.path.name} says {wanted:,}: "
                    "a file is damaged, or belongs to another dataset"
                )
            table = np.frombuffer(input.exactly(4, 4 * (count + 1)), "<u4")
            last = 4 * (count + 2)
            steps = (table[k : k + _STEP].tolist() for k in range(0, count + 1, _STEP))
            for begin, end in pairwise(chain.from_iterable(steps)):
                if last <= begin <= end <= (input.size or MAX_RECORD << 2):
                    yield begin, end, Row(input.key(begin), (input.piece(begin, end - begin),))
                    last = end
                else:
                    reason = (
                        f"the table says that the sample is at bytes {begin:,} to {end:,}, and the "
                        f"sample before ends at {last:,}: it is damaged or cut short"
                    )
                    yield begin, begin, Reject(input.key(begin), reason)
                done += 1
        except SourceError as error:
            lost = f"; {wanted - done:,} of its samples are lost"
            if input.size is not None:
                raise SourceError(f"{error}{lost}") from error
            yield last, last, Reject(input.key(last), f"{reject_reason(input.path, error)}{lost}")

    def _verify(self, number: int) -> None:
        """Compare a hash of a chunk, the first that is known; SourceError if it differs."""
        path, hashes = self.paths[number], self.hashes[number]
        name = next((name for name in hashes if name in _HASHES), "")
        if not name:
            return
        status = stat_of(path)
        if self._verified.get(number) == status:  # a source may be iterated twice
            return
        own = getattr(xxhash, name, None)
        hasher = own() if own else hashlib.new(name, usedforsecurity=False)
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            while piece := file.read(_HASHED_BYTES):
                hasher.update(piece)
        if hasher.hexdigest() != hashes[name]:
            raise SourceError(
                f"{path}: its {name} is {hasher.hexdigest()}, not {str(hashes[name])[:200]} as "
                f"{self.path.name} says: it is damaged; its {self.counts[number]:,} samples are "
                'left out. Copy it again, or remove "hashes" there to read what can be read'
            )
        self._verified[number] = status


class ChunkSource(ScanSource):
    """A folder of chunks.  A format is a subclass, which reads the index."""

    missing: str
    """What to do if there is no index."""

    @abc.abstractmethod
    def read_index(self, index: ChunkIndex) -> tuple[Sequence[str], ChunkReader]:
        """Add the chunks to an index; return the names of the columns, and what reads them."""

    @abc.abstractmethod
    def column_of(self, name: str, encoding: str, channels: int) -> TableColumn | None:
        """Return a column by its encoding, or None if its values determine the field."""

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: ColumnsOption = (),
        classes: ClassFile = None,
        boxes: BoxesOption = (),
    ) -> None:
        path = index_path(location)
        if path is None:
            raise SourceError(f"{location}: no index.json there{self.missing}")
        index, given = ChunkIndex(path), fields or {}
        try:
            names, reader = self.read_index(index)
        except SourceError as error:
            raise SourceError(f"{path}: {error}") from error
        # Chunks of an index that was merged have the same names in different folders.
        scan = Scan(index.paths, index.rows, index.codecs, index.root)
        first: list[list[bytes]] = []
        remarks: list[str] = []
        known = []
        for number, (name, encoding) in enumerate(zip(names, reader.encodings, strict=True)):
            column = self.column_of(name, encoding, channels)
            if column is None:
                first = first or scan.first(reader.split, path, "sample can be read")
                values = (reader.value_of(encoding, sample[number]) for sample in first)
                leading = number == 0 and not name
                column = guessed_column(name, values, channels, remarks, leading=leading)
            known.append(column)
        resolved, picked, notes = choose_columns(known, columns, given, channels, str(path))
        if isinstance(resolved.get("label"), StringField) and "label" not in given:
            remarks.append(
                "field 'label' is text; --option classes=FILE, with a name on each line, numbers "
                "the classes"
            )
        reader = reader._replace(schema=resolved, picked=tuple(picked))
        some: dict[str, Sequence[Any]] = {}
        if any(isinstance(field, ArrayField) for field in resolved.values()):
            rows = scan.first(reader.__call__, path, "sample can be read")
            some = dict(zip(resolved, zip(*rows, strict=True), strict=True))
        forms = resolve_boxes(resolved, some, parse_boxes(boxes, whole=True), given, remarks)
        schema = Schema(named_classes(resolved, "label", classes))
        reader = reader._replace(schema=schema)
        notes = [*notes, *remarks]
        super().__init__(scan, schema, reader, notes=notes, beside=[path], box_forms=forms)


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
    if mode not in _PIXEL_BYTES:
        raise SourceError(f"an image of PIL's mode {mode[:20]!r} cannot be read")
    row = (width + 7) // 8 if mode == "1" else width * _PIXEL_BYTES[mode]
    expected = row * height
    if expected != len(pixels) or not expected:
        raise SourceError(
            f"an image of {width} x {height} {mode} has {expected:,} bytes, not {len(pixels):,}"
        )
    return Image.frombytes(mode, (width, height), pixels)
