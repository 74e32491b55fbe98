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
The length of a JPEG is in the allocation table alone.  Source: ``ffcv/types.py``,
``writer.py``, ``reader.py`` and ``fields/`` of ``libffcv/ffcv``, 1.0.
"""

from __future__ import annotations

import json
import math
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import BytesField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec
from .reading.arrays.array_source import ArraySource, Part
from .reading.arrays.columns import ArrayColumn
from .reading.class_names import named_classes
from .reading.column_choice import choose_columns, guessed_column
from .reading.deferred import ValueSpan
from .reading.locations import first_bytes, printable
from .reading.options import ClassFile, ColumnsOption
from .reading.selection import TableColumn
from .reading.spans import FileSpan, read_at

__all__ = ["BetonSource"]

FLOAT, INT, RGB, BYTES, ARRAY, JSON, TENSOR, CUSTOM = 0, 1, 2, 3, 4, 5, 6, 255
"""Kinds of fields."""
JPEG, PIXELS = 0, 1
"""Modes of images."""
_HEAD = struct.Struct("<HHIQQ")
_FIELD_BYTES = 1041
_ENTRY = np.dtype([("sample", "<u8"), ("place", "<u8"), ("length", "<u8")])
"""Of the allocation table."""
_IMAGE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("place", "<u8")])
_BYTES = np.dtype([("place", "<u8"), ("length", "<u8")])
_METADATA = {
    FLOAT: np.dtype("<f8"),
    INT: np.dtype("<i8"),
    RGB: _IMAGE,
    BYTES: _BYTES,
    ARRAY: np.dtype("<u8"),
    JSON: _BYTES,
    TENSOR: np.dtype("<u8"),
}


class BetonSource(ArraySource):
    """A ``.beton`` file; its fields keep their names."""

    name = "beton"
    summary = "FFCV's .beton"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        return path.suffix.lower() == ".beton" or _is_beton(first_bytes(path), path.stat().st_size)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: ColumnsOption = (),
        classes: ClassFile = None,
    ) -> None:
        path = Path(location)
        self.paths = [path]
        layout = _read_layout(path)
        own = [_column(field, channels) for field in layout.fields]
        resolved, picked, self.notes = choose_columns(
            own, columns, fields or {}, channels, str(path)
        )
        self.schema = Schema(named_classes(resolved, "label", classes))
        taken = [(f"f{number}", layout.fields[number]) for number in picked]
        has_images = any(field.kind == RGB for _, field in taken)
        lengths = _lengths_in(path, layout.end) if has_images else None
        columns_of = (_BetonColumn(path, layout, part, field, lengths) for part, field in taken)
        self.set_parts([Part(printable(path.name), tuple(columns_of), before="@", after="")])


def _is_beton(start: bytes, size: int) -> bool:
    """Tell whether a file with these first bytes and of this size is one."""
    if len(start) < _HEAD.size + _FIELD_BYTES:
        return False
    version, fields, page, _, table = _HEAD.unpack_from(start)
    power = page >= 1 << 21 and page & (page - 1) == 0
    return (
        version == 2 and fields > 0 and power and table <= size and start[_HEAD.size] in _METADATA
    )


def _lengths_in(path: Path, start: int) -> np.ndarray[Any, Any]:
    """Return places and lengths, [2, n], of all pieces: those of JPEGs are only in this table."""
    table = np.fromfile(path, _ENTRY, offset=start)
    # If two pieces begin at one place, the first is empty: bytes may be empty, images are not.
    order = np.lexsort((table["length"], table["place"]))
    return np.stack([table["place"][order], table["length"][order]])


class _BetonColumn(ArrayColumn):
    """The values of a field; a damaged value is a ValueError with the reason."""

    block = 128

    def __init__(
        self, path: Path, layout: _BetonLayout, part: str, field: _BetonField, lengths: Any
    ) -> None:
        self.label, self.shape = field.name, (layout.num_samples,)
        self._file, self._layout, self._part = str(path), layout, part
        self._field, self._lengths = field, lengths

    def read(self, start: int, stop: int) -> list[Any]:
        size, field = self._layout.record.itemsize, self._field
        data = read_at(self._file, self._layout.metadata + start * size, (stop - start) * size)
        column = np.frombuffer(data, self._layout.record)[self._part]
        if field.kind in (INT, FLOAT):
            return list(column.tolist())
        if field.kind == RGB:
            places, lengths = self._lengths
            ends = np.searchsorted(places, column["place"], side="right")
            return [
                self._image(row, int(lengths[end - 1]) if end and places[end - 1] == row[3] else 0)
                for row, end in zip(column.tolist(), ends.tolist(), strict=True)
            ]
        if field.kind in (ARRAY, TENSOR):
            length = math.prod(field.shape) * np.dtype(field.dtype).itemsize
            about = ("array", field.dtype, field.shape)
            return [self._piece(place, length, *about) for place in column.tolist()]
        kind = "json" if field.kind == JSON else "bytes"
        return [self._piece(place, length, kind) for place, length in column.tolist()]

    def _image(self, row: tuple[int, int, int, int], length: int) -> Any:
        mode, width, height, place = row
        if mode == PIXELS:
            return self._piece(place, 3 * width * height, "array", "u1", (height, width, 3))
        if mode != JPEG:
            return ValueError(f"{self.label!r} is of the unknown mode {mode}")
        if not length:
            return ValueError(f"{self.label!r} at byte {place:,} is not in the allocation table")
        return self._piece(place, length)

    def _piece(self, place: int, length: int, *about: Any) -> Any:
        """Return the span of a piece, of an image file if nothing is said `about` it."""
        layout = self._layout
        if length and not layout.data <= place <= place + length <= layout.end:
            return ValueError(
                f"{self.label!r} has {length:,} bytes at byte {place:,}, and the data of "
                f"{self._file} is at {layout.data:,} to {layout.end:,}: it is damaged"
            )
        kind = ValueSpan if about else FileSpan
        return kind(self._file, place if length else 0, length, *about)


def _column(field: _BetonField, channels: int) -> TableColumn:
    fields: dict[int, Field] = {
        FLOAT: ScalarField("float64"),
        INT: ScalarField("int64"),
        RGB: ImageField(channels=channels),
        BYTES: BytesField(),
        JSON: StringField(),
    }
    if field.kind in fields:
        return TableColumn(field.name, fields[field.kind])
    # An array of that shape that takes no memory.
    like = (np.broadcast_to(np.zeros((), field.dtype), shape) for shape in [field.shape])
    return guessed_column(field.name, like, channels, [])


class _BetonField(NamedTuple):
    """A field; dtype and shape are of arrays."""

    name: str
    kind: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


class _BetonLayout(NamedTuple):
    """The header of a file, and the places of its parts."""

    fields: list[_BetonField]
    num_samples: int
    record: np.dtype[Any]  # of the metadata of a sample, in fields f0, f1, ...
    metadata: int  # where metadata begins, where pages may, and where the allocation table does
    data: int
    end: int


def _read_layout(path: Path) -> _BetonLayout:
    """Read the header and the fields.

    Raises SourceError if this is no .beton of version 2, was never finished, is cut short, or has a
    field of unknown kind.
    """
    size = path.stat().st_size
    with open(path, "rb", opener=open_regular) as file:
        head = file.read(_HEAD.size).ljust(_HEAD.size, b"\0")
        version, count, _, num_samples, table = _HEAD.unpack(head)
        metadata = _HEAD.size + count * _FIELD_BYTES
        descriptors = file.read(metadata - _HEAD.size)
    if version != 2:
        raise SourceError(f"{path}: version {version} of .beton; 2 is known")
    if table == 0:
        raise SourceError(f"{path}: was never finished: FFCV writes its table last")
    if not count or len(descriptors) < count * _FIELD_BYTES:
        raise SourceError(f"{path}: {size:,} bytes with {count:,} fields: it is damaged")
    fields = [
        _field_of(descriptors[at : at + _FIELD_BYTES], path)
        for at in range(0, len(descriptors), _FIELD_BYTES)
    ]
    # FFCV's own expression for how they are aligned.
    record = np.dtype([("", _METADATA[field.kind]) for field in fields], align=True)
    data = metadata + num_samples * record.itemsize
    if not data <= table <= size:
        raise SourceError(
            f"{path}: {size:,} bytes, of {num_samples:,} samples whose metadata ends at {data:,} "
            f"and whose allocation table is at {table:,}: it is damaged or cut short"
        )
    return _BetonLayout(fields, num_samples, record, metadata, data, table)


def _field_of(descriptor: bytes, path: Path) -> _BetonField:
    kind, arguments = descriptor[0], descriptor[17:]
    name = descriptor[1:17].partition(b"\0")[0].decode("ascii", "replace")
    if kind not in _METADATA:
        known = "a field of your own" if kind == CUSTOM else f"of the unknown kind {kind}"
        raise SourceError(
            f"{path}: the field {name!r} is {known}, and without its code no other field can be "
            "found. Write the .beton without it"
        )
    if kind not in (ARRAY, TENSOR):
        return _BetonField(name, kind)
    *shape, length = struct.unpack_from("<33Q", arguments)
    while shape and shape[-1] == 0:
        shape.pop()
    try:
        [[_, dtype]] = json.loads(arguments[264 : 264 + length].decode("ascii"))
        # Nothing else gets as far as NumPy: no objects, no records.
        if not re.fullmatch(r"[<>|=][biuf](1|2|4|8)", dtype):
            raise ValueError(f"it holds {dtype!r:.40}, not numbers")
    except (ValueError, TypeError, RecursionError) as error:
        raise SourceError(f"{path}: the array {name!r} cannot be read: {error}") from error
    return _BetonField(name, kind, dtype, tuple(shape))
