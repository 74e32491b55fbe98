"""Parquet files as Hugging Face's ``datasets`` has them: what ``format="parquet"`` writes.

``docs/converters/exporting.md`` has the columns.  Source of the features, by which ``datasets``
knows them: ``datasets/features/features.py`` and ``features/image.py``.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField, Schema

from ..reading.exported import needs_shape
from ..reading.splits import split_of
from ..reading.tables.arrow_fields import arrow
from ..reading.tables.rows import KEY
from .base import Cut, Exporter, PackedSample, Sized
from .names import image_suffix, split_key

__all__ = ["ParquetExporter"]

_GROUP_BYTES = 16 << 20
"""Of a row group: what a reader that wants one row has to read, and a writer has in memory."""

_GROUP_ROWS = 10_000
_ROW_BYTES = 64
"""What a row takes in memory beside its values."""


class ParquetExporter(Exporter):
    """Tables with a row a sample."""

    name = "parquet"
    shard_bytes = 500 * 10**6

    def write(self, samples: Iterable[PackedSample]) -> None:
        self._columns = _arrow_schema(self.schema)
        self.stored_as = {name: name for name in self.schema}
        split = split_of(Path(self.dataset.paths[0].name)) or "train"
        pattern = f"{split}-{{:05}}-of-{{:05}}.parquet"
        self.write_shards(map(self._row, samples), pattern, self._write_file)

    def _row(self, sample: PackedSample) -> Sized:
        """Return the values of a row, and about how many bytes they have."""
        key = sample.key
        row: dict[str, Any] = {KEY: key}
        size = _ROW_BYTES
        for name, field, value in sample.contents():
            row[name] = value
            if isinstance(field, ImageField):
                path = split_key(key)[1] + image_suffix(value, key)
                row[name] = {"bytes": bytes(value), "path": path}
            if isinstance(field, ArrayField):
                size += value.nbytes
            elif not isinstance(field, ScalarField):
                size += len(value)
        return row, size

    def _write_file(self, path: Path, rows: Iterable[Sized]) -> None:
        # Dictionaries and statistics of image files are of no use.
        plain = [n for n, field in self.schema.items() if isinstance(field, ScalarField)]
        with arrow(".parquet").ParquetWriter(
            path,
            self._columns,
            compression="none" if self.schema.images else "snappy",  # files of images stay as large
            use_dictionary=plain,
            write_statistics=[*plain, KEY],
            write_page_checksum=True,
        ) as writer:
            for _, group in itertools.groupby(rows, Cut(_GROUP_ROWS, _GROUP_BYTES)):
                writer.write_table(self._table([row for row, _ in group]))

    def _table(self, rows: Sequence[dict[str, Any]]) -> Any:
        pa = arrow()
        columns: list[Any] = []
        for name, field in self.schema.items():
            type_ = self._columns.field(name).type
            values = [row[name] for row in rows]
            if isinstance(field, ArrayField):
                columns.append(_nested(values, field, type_))
            elif isinstance(field, ScalarField):
                columns.append(pa.array(np.array(values).astype(type_.to_pandas_dtype())))
            else:
                columns.append(pa.array(values, type_))
            if needs_shape(field):
                shapes = [list(value.shape) for value in values]
                columns.append(pa.array(shapes, pa.list_(pa.int64())))
        columns.append(pa.array([row[KEY] for row in rows], pa.string()))
        return pa.Table.from_arrays(columns, schema=self._columns)


def _nested(values: list[np.ndarray[Any, Any]], field: ArrayField, type_: Any) -> Any:
    """Return arrays as lists in lists, made of one piece of numbers and where lists end."""
    pa = arrow()
    leaf = type_
    while pa.types.is_list(leaf):
        leaf = leaf.value_type
    flat = np.concatenate([value.reshape(-1) for value in values]).astype(leaf.to_pandas_dtype())
    nested = pa.array(flat, leaf)
    for level in reversed(range(len(field.shape))):
        counts = [math.prod(value.shape[:level]) for value in values]
        lengths = np.repeat([value.shape[level] for value in values], counts)
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32)
        nested = pa.ListArray.from_arrays(pa.array(ends), nested)
    return nested.cast(type_)


def _arrow_schema(schema: Schema) -> Any:
    pa = arrow()
    columns: list[Any] = []
    features: dict[str, Any] = {}
    for name, field in schema.items():
        type_, features[name] = _column(field)
        columns.append(pa.field(name, type_))
        if needs_shape(field):
            shape = {"feature": _value("int64"), "_type": "Sequence"}
            columns.append(pa.field(f"{name}.shape", pa.list_(pa.int64())))
            features[f"{name}.shape"] = shape
    columns.append(pa.field(KEY, pa.string()))
    features[KEY] = _value("string")
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(columns, metadata=metadata)


def _column(field: Field) -> tuple[Any, dict[str, Any]]:
    """Return the type of a column, and the feature that ``datasets`` makes of it."""
    pa = arrow()
    if isinstance(field, ImageField):
        type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return type_, {"_type": "Image"}
    if isinstance(field, ScalarField):
        names = field.classes
        # ClassLabel cannot have the same name twice.
        if names and len(set(names)) == len(names) and np.dtype(field.dtype).kind in "iu":
            return pa.int64(), {"names": list(names), "_type": "ClassLabel"}
        return _number(field.dtype)
    if isinstance(field, ArrayField):
        type_, feature = _number(field.dtype)
        for _ in field.shape:
            type_, feature = pa.list_(type_), {"feature": feature, "_type": "Sequence"}
        return type_, feature
    if isinstance(field, BytesField):
        return pa.binary(), _value("binary")
    return pa.string(), _value("string")


def _number(dtype: str) -> tuple[Any, dict[str, Any]]:
    name = "float32" if dtype == "float16" else dtype
    return arrow().from_numpy_dtype(np.dtype(name)), _value(name)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}
