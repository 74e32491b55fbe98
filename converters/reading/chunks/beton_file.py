"""What is in FFCV's ``.beton``.

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
import os
import re
import struct
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..spans import read_exactly

__all__ = ["BetonField", "BetonLayout", "is_beton", "read_layout", "read_piece"]

FLOAT, INT, RGB, BYTES, ARRAY, JSON, TENSOR, CUSTOM = 0, 1, 2, 3, 4, 5, 6, 255
"""Kinds of fields."""
JPEG, PIXELS = 0, 1
"""Modes of images."""
ENTRY = np.dtype([("sample", "<u8"), ("place", "<u8"), ("length", "<u8")])
"""Of the allocation table."""

_HEAD = struct.Struct("<HHIQQ")
_FIELD_BYTES = 1041
_NAME = slice(1, 17)
_ARGUMENTS = slice(17, None)
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


class BetonField(NamedTuple):
    """A field; dtype and shape are of arrays."""

    name: str
    kind: int
    dtype: str
    shape: tuple[int, ...]


class BetonLayout(NamedTuple):
    """Where things are in a file.

    Attributes
    ----------
    fields : list of BetonField
    num_samples : int
    record : numpy.dtype
        Of the metadata of a sample, in fields f0, f1, ...
    metadata, data, end : int
        Where metadata begins, where pages may, and where the allocation table does.
    """

    fields: list[BetonField]
    num_samples: int
    record: np.dtype[Any]
    metadata: int
    data: int
    end: int


def is_beton(start: bytes, size: int) -> bool:
    """Tell whether a file with these first bytes and of this size is one."""
    if len(start) < _HEAD.size + _FIELD_BYTES:
        return False
    version, fields, page, _, table = _HEAD.unpack_from(start)
    power = page >= 1 << 21 and page & (page - 1) == 0
    return (
        version == 2 and fields > 0 and power and table <= size and start[_HEAD.size] in _METADATA
    )


def read_piece(path: str, offset: int, length: int) -> bytes:
    """Return a piece of the file.  Unlike `read_at` it leaves no descriptor open.

    Raises
    ------
    SourceError
        If the file ends before.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        file.seek(offset)
        return read_exactly(file, length, path, offset)


def read_layout(path: str) -> BetonLayout:
    """Read the header and the fields.

    Raises
    ------
    SourceError
        If this is no .beton of version 2, was never finished, is cut short, or has a field of
        unknown kind.
    """
    size = os.path.getsize(path)
    if size < _HEAD.size:
        raise SourceError(f"{path}: {size} bytes are no .beton")
    version, count, _, num_samples, table = _HEAD.unpack(read_piece(path, 0, _HEAD.size))
    if version != 2:
        raise SourceError(f"{path}: version {version} of .beton; 2 is known")
    if table == 0:
        raise SourceError(f"{path}: was never finished: FFCV writes its table last")
    descriptors = read_piece(path, _HEAD.size, count * _FIELD_BYTES)
    fields = [
        _field_of(descriptors[at : at + _FIELD_BYTES], path)
        for at in range(0, len(descriptors), _FIELD_BYTES)
    ]
    if not fields:
        raise SourceError(f"{path}: has no fields")
    # FFCV's own expression for how they are aligned.
    record = np.dtype([("", _METADATA[field.kind]) for field in fields], align=True)
    metadata = _HEAD.size + len(descriptors)
    data = metadata + num_samples * record.itemsize
    if not data <= table <= size:
        raise SourceError(
            f"{path}: {size:,} bytes, of {num_samples:,} samples whose metadata ends at {data:,} "
            f"and whose allocation table is at {table:,}: it is damaged or cut short"
        )
    return BetonLayout(fields, num_samples, record, metadata, data, table)


def _field_of(descriptor: bytes, path: str) -> BetonField:
    kind = descriptor[0]
    name = descriptor[_NAME].partition(b"\0")[0].decode("ascii", "replace")
    if kind not in _METADATA:
        known = "a field of your own" if kind == CUSTOM else f"of the unknown kind {kind}"
        raise SourceError(
            f"{path}: the field {name!r} is {known}. What it is only its own code tells, and "
            "without that no other field can be found. Write the .beton without it."
        )
    if kind not in (ARRAY, TENSOR):
        return BetonField(name, kind, "", ())
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
    return BetonField(name, kind, dtype, tuple(shape))
