"""MXNet's RecordIO: a record is labels and an image file, and lists lie beside a ``.rec`` file.

========  ============================================================
4 bytes   count of labels; 0 for one label that is in the head
4 bytes   that label, float32
8 bytes   number of the image
8 bytes   0
4 a label the labels, float32
the rest  an image file
========  ============================================================

All numbers are little-endian.  For detection, the labels are a head, then some numbers an object::

    2  5  | 0  0.1  0.1  0.5  0.9 | 3  ...
    A  B    class  xmin ymin xmax ymax

A is how many numbers the head has (others may follow the two), B how many an object has; boxes are
parts of the picture's width and height, and an object of class -1 fills up.

The index ``.idx`` and the list of images ``.lst`` are lines of columns with tabs between them: a
key and the byte at which its record begins; a number, one label or more, and the path of an image,
which is a name here and never opened.

Source: ``pack`` and ``unpack`` in ``python/mxnet/recordio.py``, ``tools/im2rec.py`` and
``ImageDetIter`` of MXNet; the detection tutorial of GluonCV.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Schema

from ..annotations.annotated import check_parts, frame_of
from ..fields import convert
from ..small_memory import StringTable
from ..text_lines import text_lines

__all__ = ["ImageList", "ImageRecordDecoder", "read_index", "unpack", "width_of_objects"]

_HEAD = struct.Struct("<IfQQ")


class ImageRecordDecoder(NamedTuple):
    """How a record becomes a sample."""

    schema: Schema  # the image first
    header: bool  # whether labels stand before the image
    named: bool  # whether each label is a field
    objects: bool = False  # whether the labels are boxes and classes of objects
    listed: list[float] | None = None  # the labels that a list has, instead of the record's own

    def decode(self, data: bytes) -> tuple[tuple[Any, ...], None]:
        """Return the values; raises ValueError if there is no image, or labels do not fit."""
        return self._values(data), None

    def _values(self, data: bytes) -> tuple[Any, ...]:
        if not self.header:
            return (data,)
        labels, content, _ = unpack(data)
        labels = labels if self.listed is None else np.array(self.listed, np.float32)
        if not content:
            raise ValueError("the record has no image")
        if self.objects:
            boxes, classes = _placed_objects(labels, content)
            field = self.schema["labels"]
            names = field.classes if isinstance(field, ArrayField) else None
            if names and classes.max(initial=0) >= len(names):
                raise ValueError(f"class {classes.max()} is none of the {len(names)} classes")
            return content, boxes, classes
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


def _objects_of(labels: Any) -> tuple[Any, Any]:
    """Return boxes, N x 4 in parts of the picture, and classes.

    Raises ValueError if these are no labels of objects.
    """
    numbers = np.asarray(labels, np.float64)
    if len(numbers) < 2 or not np.isfinite(numbers).all():
        raise ValueError("the labels have no head of objects")
    head, width = numbers[:2]
    if not (head.is_integer() and width.is_integer() and 2 <= head <= len(numbers) and width >= 5):
        raise ValueError(f"the labels begin with {head:g} and {width:g}, which is no head")
    if (len(numbers) - int(head)) % int(width):
        raise ValueError(f"{len(numbers)} labels are not a head of {head:g} and {width:g} each")
    rows = numbers[int(head) :].reshape(-1, int(width))
    rows = rows[rows[:, 0] != -1]
    classes, boxes = rows[:, 0], rows[:, 1:5]
    if np.any(classes < 0) or np.any(classes != np.rint(classes)):
        raise ValueError("the class of an object is no whole number")
    check_parts(boxes)
    return boxes, classes.astype(np.int64)


def width_of_objects(rows: Sequence[Any]) -> int:
    """Return how many numbers an object has, from the labels of some records; 0 if none has one."""
    found = 0
    try:
        for row in rows:
            found += len(_objects_of(row)[1])
    except ValueError:
        return 0
    return int(rows[0][1]) if found else 0


def _placed_objects(labels: Any, image: bytes) -> tuple[Any, Any]:
    """Return boxes in pixels of the image file, and classes.

    Raises ValueError if these are no labels of objects, or the image cannot be read.
    """
    boxes, classes = _objects_of(labels)
    frame = frame_of(image, None)
    size = (frame.width, frame.height, frame.width, frame.height)
    return (boxes * size).astype(np.float32), classes


def read_index(path: Path) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
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
    return np.sort(np.array(positions, np.int64))


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
