"""FFCV's ``.beton``, without FFCV.

``reading/chunks/beton_file.py`` tells what is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.schema import BytesField, Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec, IndexedSource, Reject, Sample
from .reading.chunks.beton_file import (
    ARRAY,
    BYTES,
    ENTRY,
    FLOAT,
    INT,
    JPEG,
    JSON,
    PIXELS,
    RGB,
    TENSOR,
    BetonField,
    is_beton,
    read_layout,
    read_piece,
)
from .reading.chunks.column_choice import Column, choose_columns, guessed
from .reading.chunks.raw_values import Piece, Pieces
from .reading.class_names import named_classes
from .reading.fingerprints import FileSource
from .reading.locations import first_bytes, path_of, printable
from .reading.selection import COLUMNS
from .reading.spans import FileSpan

__all__ = ["BetonSource"]

_BLOCK = 128
_TABLE_BLOCK = 4096
_IMAGE_PARTS = ("mode", "width", "height", "place")


class BetonSource(FileSource, IndexedSource):
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
        path = path_of(location)
        if path is None or not path.is_file():
            return False
        return path.suffix.lower() == ".beton" or is_beton(first_bytes(path), path.stat().st_size)

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
        self.paths = [self.path]
        self.notes = []
        self._file = str(self.path)
        layout = read_layout(self._file)
        self._layout, self.num_samples = layout, layout.num_samples
        own = [_column(field, channels) for field in layout.fields]
        settled, picked = choose_columns(own, columns, fields or {}, channels, self._file)
        left = [column.name for number, column in enumerate(own) if number not in picked]
        self.notes += COLUMNS.left_out(left)
        self.schema = Schema(named_classes(settled, "label", classes))
        self._picked = [(f"f{number}", layout.fields[number]) for number in picked]
        self._read_table(self._has_jpegs())

    def _records(self, first: int, count: int) -> np.ndarray[Any, Any]:
        at = self._layout.metadata + first * self._layout.record.itemsize
        data = read_piece(self._file, at, count * self._layout.record.itemsize)
        return np.frombuffer(data, self._layout.record)

    def _has_jpegs(self) -> bool:
        """Tell whether the lengths of images must be looked up: not those of pixels."""
        parts = [part for part, field in self._picked if field.kind == RGB]
        for first in range(0, self.num_samples if parts else 0, _TABLE_BLOCK):
            records = self._records(first, min(_TABLE_BLOCK, self.num_samples - first))
            if any((records[part]["mode"] == JPEG).any() for part in parts):
                return True
        return False

    def _read_table(self, wanted: bool) -> None:
        """Read how long pieces are: 16 bytes each, in the order of their places."""
        count = (self.path.stat().st_size - self._layout.end) // ENTRY.itemsize if wanted else 0
        places, lengths = np.empty(count, np.uint64), np.empty(count, np.uint64)
        for first in range(0, count, _TABLE_BLOCK):
            some = min(_TABLE_BLOCK, count - first)
            at = self._layout.end + first * ENTRY.itemsize
            block = np.frombuffer(read_piece(self._file, at, some * ENTRY.itemsize), ENTRY)
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

    def _values(self, column: np.ndarray[Any, Any], field: BetonField) -> list[Any]:
        """Return the values of a field, or in the place of one a text that says what is wrong."""
        if field.kind in (INT, FLOAT):
            return list(column.tolist())
        if field.kind == RGB:
            lengths = self._lengths_at(column["place"])
            rows = zip(*(column[part].tolist() for part in _IMAGE_PARTS), lengths, strict=True)
            return [self._image(field, *row) for row in rows]
        if field.kind in (ARRAY, TENSOR):
            length = math.prod(field.shape) * np.dtype(field.dtype).itemsize
            return [
                self._placed(field, place, length)
                or Piece(self._span(place, length), "array", field.dtype, field.shape)
                for place in column.tolist()
            ]
        kind: Any = "json" if field.kind == JSON else "bytes"
        return [
            self._placed(field, place, length) or Piece(self._span(place, length), kind)
            for place, length in zip(
                column["place"].tolist(), column["length"].tolist(), strict=True
            )
        ]

    def _lengths_at(self, places: np.ndarray[Any, Any]) -> list[int]:
        """Return how long the pieces at some places are; 0 where none is."""
        found = np.searchsorted(self._places, places, side="right") - 1
        known = (found >= 0) & (self._places[found] == places) if len(self._places) else found > 0
        lengths = self._lengths[found] if len(self._lengths) else np.zeros(len(found), np.uint64)
        return [int(length) for length in np.where(known, lengths, 0)]

    def _image(
        self, field: BetonField, mode: int, width: int, height: int, place: int, length: int
    ) -> Any:
        if mode == PIXELS:
            wrong = self._placed(field, place, 3 * width * height)
            shape = (height, width, 3)
            return wrong or Piece(self._span(place, 3 * width * height), "array", "u1", shape)
        if mode != JPEG:
            return f"{field.name!r} is of the unknown mode {mode}"
        if not length:
            return f"{field.name!r} at byte {place:,} is not in the allocation table"
        return self._placed(field, place, length) or self._span(place, length)

    def _placed(self, field: BetonField, place: int, length: int) -> str:
        """Say what is wrong with where a piece is, if anything is."""
        if length == 0 or self._layout.data <= place <= place + length <= self._layout.end:
            return ""
        return (
            f"{field.name!r} has {length:,} bytes at byte {place:,}, and the data of "
            f"{self._file} is at {self._layout.data:,} to {self._layout.end:,}: it is damaged"
        )

    def _span(self, place: int, length: int) -> FileSpan:
        return FileSpan(self._file, place if length else 0, length)

    def key_at(self, index: int) -> str:
        return f"{printable(self.path.name)}@{index}"


def _column(field: BetonField, channels: int) -> Column:
    fields: dict[int, Field] = {
        FLOAT: ScalarField("float64"),
        INT: ScalarField("int64"),
        RGB: ImageField(channels=channels),
        BYTES: BytesField(),
        JSON: StringField(),
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
