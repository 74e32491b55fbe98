"""MXNet's RecordIO: a record is labels and an image file, and lists lie beside a ``.rec`` file.

========  ============================================================
4 bytes   count of labels; 0 for one label that is in the head
4 bytes   that label, float32
8 bytes   number of the image
8 bytes   0
4 a label the labels, float32
the rest  an image file
========  ============================================================

All numbers are little-endian.

The index ``.idx`` and the list of images ``.lst`` are lines of columns with tabs between them: a
key and the byte at which its record begins; a number, one label or more, and the path of an image,
which is a name here and never opened.

Source: ``pack`` and ``unpack`` in ``python/mxnet/recordio.py`` and ``tools/im2rec.py`` of MXNet.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Schema

from ..fields import convert
from ..small_memory import StringTable
from ..text_lines import text_lines
from .recordio import record_of

__all__ = ["ImageList", "ImageRecordReader", "read_index", "unpack"]

_HEAD = struct.Struct("<IfQQ")


class ImageRecordReader(NamedTuple):
    """Reads a record; the labels that a list has are behind it, and count instead of its own."""

    schema: Schema  # the image first
    header: bool  # whether labels stand before the image
    named: bool  # whether each label is a field

    def __call__(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        data = record_of(values[0])
        if not self.header:
            return (data,)
        labels, content, _ = unpack(data)
        if len(values) > 1:
            labels = np.array(values[1], np.float32)
        if not content:
            raise ValueError("the record has no image")
        wanted = list(self.schema.items())[1:]
        if isinstance(wanted[0][1], ArrayField) and not self.named:
            return content, convert(labels, wanted[0][1], "label")
        if len(labels) != len(wanted):
            raise ValueError(f"the record has {len(labels)} labels, not {len(wanted)}")
        pairs = zip(labels, wanted, strict=True)
        return content, *(convert(value, field, name) for value, (name, field) in pairs)


def unpack(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bytes, int]:
    """Return labels, image file and number of a record.

    Raises ValueError if it is too short for its head, or for its labels.
    """
    if len(data) < _HEAD.size:
        raise ValueError(f"a record of {len(data)} bytes is too short for a label and an image")
    count, label, number, _ = _HEAD.unpack_from(data)
    if not count:
        return np.array([label], np.float32), data[_HEAD.size :], number
    end = _HEAD.size + 4 * count
    if end > len(data):
        raise ValueError(f"the record claims {count:,} labels in its {len(data):,} bytes")
    return np.frombuffer(data[_HEAD.size : end], "<f4"), data[end:], number


def read_index(path: Path) -> array[int]:
    """Return where the records begin that an index names, in ascending order.

    Raises SourceError if a line is not a key and a position.
    """
    positions = array("q")
    for number, line in text_lines(path):
        try:
            _, position = line.split("\t")
            positions.append(int(position))
        except (ValueError, OverflowError):
            raise SourceError(
                f"{path}, line {number}: {line[:60]!r} is not a key and a position with a tab "
                "between them. --option index=false reads the records without their index."
            ) from None
    return array("q", np.sort(np.array(positions, np.int64)).tobytes())


class ImageList:
    """Labels and names of images by their number.

    Raises SourceError if a line is no entry, or a number stands twice.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = StringTable()
        ids = array("Q")
        for number, line in text_lines(path):
            try:
                columns = line.split("\t")
                ids.append(int(columns[0]))
                _entry(columns[1:])
            except (ValueError, OverflowError):
                raise SourceError(
                    f"{path}, line {number}: {line[:60]!r} is not a number, one label or more and "
                    "a path, with tabs between them"
                ) from None
            self._rows.append("\t".join(columns[1:]))
        known = np.array(ids, np.uint64)
        self._order = np.argsort(known, kind="stable")
        self._ids = known[self._order]
        twice = self._ids[1:][self._ids[1:] == self._ids[:-1]]
        if len(twice):
            raise SourceError(f"{path}: the number {twice[0]} stands twice")

    def __getitem__(self, number: int) -> tuple[list[float], str]:
        """Return the labels and the path of an image.

        Raises ValueError if the list does not have it.
        """
        at = int(np.searchsorted(self._ids, np.uint64(number)))
        if at == len(self._ids) or int(self._ids[at]) != number:
            raise ValueError(f"{self.path} has no image of the number {number}")
        return _entry(self._rows[int(self._order[at])].split("\t"))


def _entry(columns: list[str]) -> tuple[list[float], str]:
    labels = [float(column) for column in columns[:-1]]
    if not labels:
        raise ValueError("no label")
    return labels, columns[-1]
