"""A record of a TFRecord file as a sample: its features, and the objects in them."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastdata.schema import Schema, StringField

from ...base import Deferred
from ..fields import convert
from ..scanned import Place
from .detection import Objects
from .example import parse_example
from .features import exported_value, value_of_feature
from .framing import read_frame

__all__ = ["Inflated", "Plan", "Record"]


class Plan(NamedTuple):
    """How an Example becomes a sample.

    Attributes
    ----------
    schema : Schema
    features : tuple of str
        Of each field.
    label_offset : int
    check : bool
    exported : bool
        Whether fastdata wrote it, with a key and with shapes of arrays.
    objects : Objects, optional
        How the last two fields, boxes and labels, are read.
    """

    schema: Schema
    features: tuple[str, ...]
    label_offset: int
    check: bool
    exported: bool
    objects: Objects | None = None

    def values(self, data: bytes) -> tuple[tuple[Any, ...], str | None]:
        """Return the values of a sample, and its key where that is among them.

        Raises
        ------
        ValueError
            If a feature is missing or does not fit its field.
        """
        example = parse_example(data)
        values = []
        # There is no feature for the fields of objects, which come last.
        for (name, field), feature in zip(self.schema.items(), self.features, strict=False):
            if feature not in example:
                raise ValueError(f"the feature {feature!r} is missing")
            if self.exported:
                value = exported_value(example, feature, field)
            else:
                value = value_of_feature(example[feature], field, feature)
            if name == "label" and self.label_offset:
                value += self.label_offset
            values.append(convert(value, field, name))
        if self.objects is not None:
            values += self.objects.values(example, values[0])
        key = None
        if self.exported and "key" in example:
            key = value_of_feature(example["key"], StringField(), "key")
        return tuple(values), key


class Record(Deferred):
    """A record that the worker reads from its file."""

    def __init__(self, path: str, place: Place, plan: Plan) -> None:
        self.path, self.place, self.plan = path, place, plan

    def load(self) -> tuple[Any, ...]:
        """Read the record, compare its checksum and take its values."""
        place = self.place
        data = read_frame(self.path, place.offset, place.length, self.plan.check)
        values, self.stored_key = self.plan.values(data)
        return values


class Inflated(Deferred):
    """A record of a compressed file, which only the packing process could read."""

    def __init__(self, data: bytes, plan: Plan) -> None:
        self.data, self.plan = data, plan

    def load(self) -> tuple[Any, ...]:
        """Take the values."""
        values, self.stored_key = self.plan.values(self.data)
        return values
