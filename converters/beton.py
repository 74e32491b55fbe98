"""FFCV's ``.beton``, without FFCV.

====================  ==================================================================
header, 24 bytes      version (2), fields (2), page size (4), samples (8), place of the
                      allocation table (8); all numbers little-endian
fields, 1,041 bytes   kind (1), name (16, ASCII, null-padded), arguments (1,024)
each
metadata              one record a sample: the fields' one behind the other, those of
                      numbers and arrays aligned to 8 bytes
pages                 images, bytes and arrays, which the metadata has the places of
allocation table      sample (8), place (8), length (8) of each piece in the pages
====================  ==================================================================

A piece of metadata is, of a number, 8 bytes; of an image, mode (1: 0 is JPEG, 1 is pixels),
width (2), height (2), place (8); of bytes and JSON, place (8), length (8); of an array, its place.
The length of a JPEG is in the allocation table alone.  Source: ``ffcv/types.py``, ``writer.py``,
``reader.py`` and ``fields/`` of ``libffcv/ffcv``, 1.0.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import BytesField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .reading.columns import Column, choose_columns, guessed
from .reading.labels import named_classes
from .reading.locations import first_bytes, hash_files, printable
from .reading.pieces import Piece, Pieces
from .reading.spans import FileSpan, read_at

__all__ = ["BetonSource"]

_HEAD = struct.Struct("<HHIQQ")
_FIELD_BYTES = 1041
_NAME = slice(1, 17)
_ARGUMENTS = slice(17, None)
_ENTRY = np.dtype([("sample", "<u8"), ("place", "<u8"), ("length", "<u8")])
_IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
_BYTES = np.dtype([("place", "<u8"), ("length", "<u8")])
_FLOAT, _INT, _RGB, _RAW_BYTES, _ARRAY, _JSON, _TENSOR, _CUSTOM = 0, 1, 2, 3, 4, 5, 6, 255
_METADATA = {
    _FLOAT: np.dtype("<f8"),
    _INT: np.dtype("<i8"),
    _RGB: _IMAGE,
    _RAW_BYTES: _BYTES,
    _ARRAY: np.dtype("<u8"),
    _JSON: _BYTES,
    _TENSOR: np.dtype("<u8"),
}
_JPEG, _PIXELS = 0, 1
_BLOCK = 128
_TABLE_BLOCK = 4096


class _FieldOf(NamedTuple):
    """A field as the file describes it."""

    name: str
    kind: int
    dtype: str
    shape: tuple[int, ...]


class BetonSource(IndexedSource):
    """A ``.beton`` file; its fields keep their names.

    Parameters
    ----------
    columns : tuple of str
        What is taken: ``field=column``, or a column that is called like its field.
        Default: all; the first image becomes ``image``, the class number ``label``.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "beton"
    summary = "FFCV's .beton"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        if not isinstance(location, (str, os.PathLike)) or not Path(location).is_file():
            return False
        if Path(location).suffix.lower() == ".beton":
            return True
        start = first_bytes(Path(location), _HEAD.size + _FIELD_BYTES)
        if len(start) < _HEAD.size + _FIELD_BYTES:
            return False
        version, fields, page, _, table = _HEAD.unpack_from(start)
        kinds = start[_HEAD.size]
        power = page >= 1 << 21 and page & (page - 1) == 0
        large = table <= Path(location).stat().st_size
        return version == 2 and fields > 0 and power and large and kinds in _METADATA

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: tuple[str, ...] = (),
        classes: str | None = None,
    ) -> None:
        self.path = Path(location)
        self.notes = []
        self._file = str(self.path)
        found = self._read_head()
        own = [_column(field, channels) for field in found]
        settled, picked = choose_columns(own, columns, fields or {}, channels, self._file)
        left = [column.name for number, column in enumerate(own) if number not in picked]
        if left:
            self.notes.append(f"columns left out: {', '.join(left)}")
        self.schema = Schema(named_classes(settled, "label", classes))
        self._picked = [(f"f{number}", found[number]) for number in picked]
        self._read_table(self._has_jpegs())

    def _read_head(self) -> list[_FieldOf]:
        size = self.path.stat().st_size
        if size < _HEAD.size:
            raise SourceError(f"{self.path}: {size} bytes are no .beton")
        version, count, _, self.num_samples, table = _HEAD.unpack(read_at(self.path, 0, _HEAD.size))
        if version != 2:
            raise SourceError(f"{self.path}: version {version} of .beton; 2 is known")
        if table == 0:
            raise SourceError(f"{self.path}: was never finished: FFCV writes its table last")
        descriptors = read_at(self.path, _HEAD.size, count * _FIELD_BYTES)
        found = []
        for at in range(0, len(descriptors), _FIELD_BYTES):
            found.append(_field_of(descriptors[at : at + _FIELD_BYTES], self._file))
        if not found:
            raise SourceError(f"{self.path}: has no fields")
        # FFCV's own expression for how they are aligned.
        self._record = np.dtype([("", _METADATA[field.kind]) for field in found], align=True)
        self._metadata = _HEAD.size + len(descriptors)
        self._data = self._metadata + self.num_samples * self._record.itemsize
        self._end = table
        if not self._data <= table <= size:
            raise SourceError(
                f"{self.path}: {size:,} bytes, of {self.num_samples:,} samples whose metadata ends "
                f"at {self._data:,} and whose allocation table is at {table:,}: it is damaged or "
                "cut short"
            )
        return found

    def _records(self, first: int, count: int) -> np.ndarray[Any, Any]:
        at = self._metadata + first * self._record.itemsize
        data = read_at(self.path, at, count * self._record.itemsize)
        return np.frombuffer(data, self._record)

    def _has_jpegs(self) -> bool:
        """Tell whether the lengths of images must be looked up: not those of pixels."""
        parts = [part for part, field in self._picked if field.kind == _RGB]
        for first in range(0, self.num_samples if parts else 0, _TABLE_BLOCK):
            records = self._records(first, min(_TABLE_BLOCK, self.num_samples - first))
            if any((records[part]["mode"] == _JPEG).any() for part in parts):
                return True
        return False

    def _read_table(self, wanted: bool) -> None:
        """Read how long pieces are: 16 bytes each, in the order of their places."""
        count = (self.path.stat().st_size - self._end) // _ENTRY.itemsize if wanted else 0
        places, lengths = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for first in range(0, count, _TABLE_BLOCK):
            some = min(_TABLE_BLOCK, count - first)
            at = self._end + first * _ENTRY.itemsize
            block = np.frombuffer(read_at(self.path, at, some * _ENTRY.itemsize), _ENTRY)
            places[first : first + some] = block["place"]
            lengths[first : first + some] = block["length"]
        # Of two pieces at one place the first is empty, as bytes may be and images are not.
        order = np.lexsort((lengths, places))
        self._places, self._lengths = places[order], lengths[order]

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        for first in range(start, self.num_samples, _BLOCK):
            yield from self._samples(first, min(_BLOCK, self.num_samples - first))

    def __getitem__(self, index: int) -> Sample | Reject:
        return self._samples(index, 1)[0]

    def _samples(self, first: int, count: int) -> list[Sample | Reject]:
        records = self._records(first, count)
        columns = [self._values(records[part], field) for part, field in self._picked]
        samples: list[Sample | Reject] = []
        for index, values in enumerate(zip(*columns, strict=True), first):
            reason = next((v for v in values if isinstance(v, str)), None)
            if reason is not None:
                samples.append(Reject(self.key_at(index), reason))
            elif any(isinstance(v, Piece) for v in values):
                samples.append(Sample(self.key_at(index), Pieces(values)))
            else:
                samples.append(Sample(self.key_at(index), values))
        return samples

    def _values(self, column: np.ndarray[Any, Any], field: _FieldOf) -> list[Any]:
        """Return the values of a field, or in the place of one a text that says what is wrong."""
        if field.kind in (_INT, _FLOAT):
            return column.tolist()
        if field.kind == _RGB:
            lengths = self._lengths_at(column["place"])
            rows = zip(*(column[name].tolist() for name in _IMAGE.names), lengths, strict=True)
            return [self._image(field, *row) for row in rows]
        if field.kind in (_ARRAY, _TENSOR):
            length = math.prod(field.shape) * np.dtype(field.dtype).itemsize
            return [
                self._placed(field, place, length)
                or Piece(self._span(place, length), "array", field.dtype, field.shape)
                for place in column.tolist()
            ]
        kind: Any = "json" if field.kind == _JSON else "bytes"
        return [
            self._placed(field, place, length) or Piece(self._span(place, length), kind)
            for place, length in zip(*(column[n].tolist() for n in _BYTES.names), strict=True)
        ]

    def _lengths_at(self, places: np.ndarray[Any, Any]) -> list[int]:
        """Return how long the pieces at some places are; 0 where none is."""
        found = np.searchsorted(self._places, places, side="right") - 1
        known = (found >= 0) & (self._places[found] == places) if len(self._places) else found > 0
        return np.where(known, self._lengths[found] if len(self._lengths) else 0, 0).tolist()

    def _image(
        self, field: _FieldOf, mode: int, width: int, height: int, place: int, length: int
    ) -> Any:
        if mode == _PIXELS:
            wrong = self._placed(field, place, 3 * width * height)
            shape = (height, width, 3)
            return wrong or Piece(self._span(place, 3 * width * height), "array", "u1", shape)
        if mode != _JPEG:
            return f"{field.name!r} is of the unknown mode {mode}"
        if not length:
            return f"{field.name!r} at byte {place:,} is not in the allocation table"
        return self._placed(field, place, length) or self._span(place, length)

    def _placed(self, field: _FieldOf, place: int, length: int) -> str:
        """Say what is wrong with where a piece is, if anything is."""
        if length == 0 or self._data <= place <= place + length <= self._end:
            return ""
        return (
            f"{field.name!r} has {length:,} bytes at byte {place:,}, and the data of "
            f"{self._file} is at {self._data:,} to {self._end:,}: it is damaged"
        )

    def _span(self, place: int, length: int) -> FileSpan:
        return FileSpan(self._file, place if length else 0, length)

    def key_at(self, index: int) -> str:
        return f"{printable(self.path.name)}@{index}"

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_files([self.path])

    def fingerprint_key(self, index: int) -> str:
        return printable(self._file)


def _field_of(descriptor: bytes, path: str) -> _FieldOf:
    kind = descriptor[0]
    name = descriptor[_NAME].partition(b"\0")[0].decode("ascii", "replace")
    if kind not in _METADATA:
        known = "a field of your own" if kind == _CUSTOM else f"of the unknown kind {kind}"
        raise SourceError(
            f"{path}: the field {name!r} is {known}. What it is only its own code tells, and "
            "without that no other field can be found. Write the .beton without it."
        )
    if kind not in (_ARRAY, _TENSOR):
        return _FieldOf(name, kind, "", ())
    arguments = descriptor[_ARGUMENTS]
    *shape, length = struct.unpack_from("<33Q", arguments)
    while shape and shape[-1] == 0:
        shape.pop()
    try:
        described = json.loads(arguments[264 : 264 + length].decode("ascii"))
        [[_, dtype]] = described
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"{path}: the field {name!r} has a dtype of no known form") from error
    # Nothing else gets as far as NumPy: no objects, no records.
    if not isinstance(dtype, str) or not re.fullmatch(r"[<>|=][biuf](1|2|4|8)", dtype):
        raise SourceError(f"{path}: the field {name!r} holds {str(dtype)[:40]!r}, not numbers")
    return _FieldOf(name, kind, dtype, tuple(shape))


def _column(field: _FieldOf, channels: int) -> Column:
    fields: dict[int, Field] = {
        _FLOAT: ScalarField("float64"),
        _INT: ScalarField("int64"),
        _RGB: ImageField(channels=channels),
        _RAW_BYTES: BytesField(),
        _JSON: StringField(),
    }
    if field.kind in fields:
        return Column(field.name, fields[field.kind])
    try:
        # An array of that shape that takes no memory.
        like = np.broadcast_to(np.zeros((), field.dtype), field.shape)
    except ValueError as error:
        return Column(field.name, None, f"has the shape {field.shape}: {error}")
    found = guessed([like], channels)
    if isinstance(found, str):
        return Column(field.name, None, found)
    return Column(field.name, found)
