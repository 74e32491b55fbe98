"""A record of MXNet's RecordIO: labels and an image file.

It is

========  ============================================================
4 bytes   count of labels; 0 for one label that is in the head
4 bytes   that label, float32
8 bytes   number of the image
8 bytes   0
4 a label the labels, float32
the rest  an image file
========  ============================================================

all little-endian.  Source: ``pack`` and ``unpack`` in ``python/mxnet/recordio.py``.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from fastdata.schema import ArrayField, Schema

from ...base import Deferred
from ..fields import convert
from .objectlabels import placed_objects
from .recordio import read_record

__all__ = ["Plan", "Record", "unpack"]

_HEAD = struct.Struct("<IfQQ")


class Plan(NamedTuple):
    """How a record becomes a sample.

    Attributes
    ----------
    schema : Schema
        The image first.
    header : bool
        Whether labels stand before the image.
    named : bool
        Whether each label is a field.
    objects : bool
        Whether the labels are boxes and classes of objects.
    """

    schema: Schema
    header: bool
    named: bool
    objects: bool = False

    def values(self, data: bytes, given: list[float] | None) -> tuple[Any, ...]:
        """Return the values of a sample, with the labels that are given instead of its own.

        Raises
        ------
        ValueError
            If there is no image, or the labels do not fit.
        """
        if not self.header:
            return (data,)
        labels, content, _ = unpack(data)
        labels = np.array(given, np.float32) if given is not None else labels
        if not content:
            raise ValueError("the record has no image")
        if self.objects:
            boxes, classes = placed_objects(labels, content)
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


class Record(Deferred):
    """A record that the worker reads from its file."""

    def __init__(
        self, path: str, offset: int, length: int, labels: list[float] | None, plan: Plan
    ) -> None:
        self.path, self.offset, self.length, self.labels = path, offset, length, labels
        self.plan = plan

    def load(self) -> tuple[Any, ...]:
        """Read the record and take its values."""
        return self.plan.values(read_record(self.path, self.offset, self.length), self.labels)


def unpack(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bytes, int]:
    """Return labels, image file and number of a record.

    Raises
    ------
    ValueError
        If it is too short for its head, or for its labels.
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
