"""Caffe's ``Datum`` messages in an LMDB, as ``convert_imageset`` and DIGITS write them.

A Datum has either an image file (``encoded``) or pixels, C x H x W and, where there are three
channels, in the order blue, green, red.  Source: ``caffe.proto``, ``src/caffe/util/io.cpp``
and ``tools/convert_imageset.cpp`` of Caffe.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, Reject, Sample, reason_of
from .reading.class_names import named_classes
from .reading.exported import read_exported
from .reading.fields import resolve_fields
from .reading.image_files import is_image_bytes
from .reading.lmdb_files import LmdbSource, first_values, is_ours, lmdb_at
from .reading.options import ClassFile, Option
from .reading.records.datum import datum_class, parse_datum
from .scan import Keyed, RowValues, read

__all__ = ["CaffeSource"]

_STARTS = (0x08, 0x22)
"""First bytes of a Datum: of its field channels, or data."""


class CaffeSource(LmdbSource):
    """Datums of an LMDB; fields ``image`` and ``label``."""

    name = "caffe"
    summary = "LMDB of Caffe's Datum messages, encoded or raw"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = lmdb_at(location)
        if path is None or is_ours(path):
            return False
        values = first_values(path, 4)
        return bool(values) and all(map(_may_be_datum, values))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        order: Annotated[
            str,
            Option(
                "of the channels of pixels; convert_cifar_data writes rgb, Caffe's other tools bgr",
                ("bgr", "rgb"),
            ),
        ] = "bgr",
        classes: ClassFile = None,
    ) -> None:
        datum_class()
        self._open(location, None)
        exported = read_exported([self.index.path], self.name)
        self.num_samples = len(self.index)
        if exported is not None:
            resolved = exported.resolve_fields(fields, channels)
            self.packed_with = exported.packed_with
            self.beside = [exported.path]
            parts = tuple(exported.stored_as.values())
            if set(parts) - {"data", "label"}:
                raise exported.misfit(f"a Datum has data and label, and it names {parts}")
        else:
            resolved, parts = self._resolve(fields or {}, channels)
        self.schema = Schema(named_classes(resolved, "label", classes), stored=exported is not None)
        self._decoder = DatumDecoder(order == "bgr", parts, exported is not None)

    def _resolve(
        self, fields: FieldSpec, channels: int
    ) -> tuple[dict[str, Field], tuple[str, ...]]:
        """Return the fields that the first values suggest, and where they are."""
        labelled, failure = 0, "the database is empty"
        for value in first_values(self.index.path):
            try:
                labelled += parse_datum(value).HasField("label")
                failure = ""
            except ValueError as error:
                failure = reason_of(error)
        if failure and not labelled:
            raise SourceError(f"{self.index.path}: none of its first values is a Datum: {failure}")
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        if labelled:
            resolved["label"] = ScalarField("int64")
        resolved = resolve_fields(resolved, fields, channels, resolved.__getitem__)
        return resolved, ("data", "label") if labelled else ("data",)

    def __getitem__(self, index: int) -> Sample | Reject:
        if index in self.index.rejects:
            return self.index.rejects[index]
        return Sample(self.key_at(index), RowValues((self.index.span(index),), self._decoder))


class DatumDecoder(NamedTuple):
    """How a Datum becomes a sample."""

    reverse: bool  # whether pixels have blue first
    parts: tuple[str, ...]  # of each field: "data" or "label"
    exported: bool  # whether fastdata wrote it, with a key

    def __call__(self, places: tuple[Any, ...]) -> tuple[Any, ...] | Keyed:
        datum = parse_datum(read(places[0]))
        key = datum.key.decode() if self.exported and datum.HasField("key") else None
        if "label" in self.parts and not datum.HasField("label"):
            raise ValueError("the Datum has no label")

        def value(part: str) -> Any:
            if part == "label":
                return datum.label
            return datum.data if datum.encoded else _pixels(datum, self.reverse)

        values = tuple(map(value, self.parts))
        return values if key is None else Keyed(key, values)


def _may_be_datum(value: bytes) -> bool:
    if not value or value[0] not in _STARTS or is_image_bytes(value):
        return False
    try:
        return parse_datum(value) is not None
    except ValueError:
        return False
    except ImportError:  # opening it says what to install
        return True


def _pixels(datum: Any, reverse: bool) -> np.ndarray[Any, Any]:
    """Return the pixels of a Datum as H x W x C, red first."""
    shape = datum.channels, datum.height, datum.width
    if not datum.HasField("data"):
        raise ValueError("the Datum has float_data, which are no pixels")
    if shape[0] not in (1, 3) or min(shape) < 1:
        raise ValueError(f"the Datum says {shape} channels, rows and columns: no picture")
    if len(datum.data) != shape[0] * shape[1] * shape[2]:
        raise ValueError(f"the Datum of shape {shape} has {len(datum.data):,} bytes")
    planes = np.frombuffer(datum.data, np.uint8).reshape(shape)
    pixels: np.ndarray[Any, Any] = planes.transpose(1, 2, 0)
    return pixels[..., ::-1] if reverse else pixels
