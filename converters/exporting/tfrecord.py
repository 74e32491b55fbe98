"""TFRecord files of ``tf.train.Example``: what ``format="tfrecord"`` writes.

``docs/converters/exporting.md`` has the features.  Examples have no float64: these are bytes of
little-endian numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fastdata.schema import BytesField, ImageField, ScalarField, Schema, StringField

from ..reading.exported import needs_shape
from ..reading.records.examples import example_of
from ..reading.records.framing import frame_around
from .base import (
    Exporter,
    PackedSample,
    Sized,
    label_field,
    main_image,
    sized,
    write_pieces,
)

__all__ = ["TFRecordExporter", "feature_names"]

KEY = "key"


class TFRecordExporter(Exporter):
    """Shards of TFRecord; each sample is an Example."""

    name = "tfrecord"
    shard_bytes = 10**9

    def write(self, samples: Iterable[PackedSample]) -> None:
        self.stored_as = feature_names(self.schema)
        records = map(self._record, samples)
        self.write_shards(records, "shard-{:05}-of-{:05}.tfrecord", write_pieces)

    def _record(self, sample: PackedSample) -> Sized:
        data = example_of(self._features(sample))
        head, foot = frame_around(data)
        return sized([head, data, foot])

    def _features(self, sample: PackedSample) -> Iterator[tuple[str, str, Sequence[Any]]]:
        for name, field, value in sample.contents():
            feature = self.stored_as[name]
            if isinstance(field, (ImageField, BytesField)):
                yield feature, "bytes_list", [bytes(value)]
            elif isinstance(field, StringField):
                yield feature, "bytes_list", [value.encode()]
            else:
                yield (feature, *_numbers(np.asarray(value)))
                if needs_shape(field):
                    yield f"{feature}/shape", "int64_list", value.shape
        yield KEY, "bytes_list", [sample.key.encode()]


def _numbers(values: np.ndarray[Any, Any]) -> tuple[str, Sequence[Any]]:
    if values.dtype == np.float64:
        return "bytes_list", [values.astype("<f8").tobytes()]
    if values.dtype.kind == "f":
        return "float_list", values.reshape(-1).tolist()
    return "int64_list", values.reshape(-1).astype(np.int64).tolist()


def feature_names(schema: Schema) -> dict[str, str]:
    """Return the feature of each field."""
    image, label = main_image(schema), label_field(schema)
    names: dict[str, str] = {}
    for name, field in schema.items():
        if isinstance(field, ImageField):
            # Only one is called image/encoded: another named image would be the main one.
            names[name] = "image/encoded" if name == image else f"{name}/encoded"
        elif isinstance(field, ScalarField) and name == label:
            names[name] = "image/class/label"
        else:
            names[name] = name
    return names
