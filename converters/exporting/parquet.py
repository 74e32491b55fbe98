"""Parquet files as Hugging Face's ``datasets`` has them: what ``format="parquet"`` writes.

::

    OUT/train-00000-of-00003.parquet ...    train, or the split that is in the dataset's name
    OUT/fastdata.json                       what the columns are

Columns are called like the fields:

==============  ===============================================================
image, mask     struct<bytes: binary, path: string>, the feature ``Image``
classes         int64, the feature ``ClassLabel`` with the names
other numbers   as they are; float16 as float32, which all readers have
text, bytes     string, binary
arrays          lists in lists; a shape that does not follow from these is in ``NAME.shape``
``key``         what the source called the sample
==============  ===============================================================

Source of the features: ``datasets/features/features.py`` and ``features/image.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.dataset import Dataset
from fastdata.schema import ArrayField, BytesField, Field, ImageField, ScalarField, Schema

from ..reading.exported import needs_shape
from ..reading.splits import split_of
from ..reading.tables.arrow_types import arrow
from ..reading.tables.rows import KEY
from .base import Exporter, PackedSample, number_of_all
from .names import image_suffix, split_key

__all__ = ["ParquetExporter"]

_GROUP_BYTES = 16 << 20
"""Of a row group: what a reader that wants one row has to read, and a writer has in memory."""

_GROUP_ROWS = 10_000
_ROW_BYTES = 64
"""What a row takes in memory beside its values."""


class ParquetExporter(Exporter):
    """Tables with a row a sample."""

    name = reads_as = "parquet"
    shard_bytes = 500 * 10**6

    def __init__(self, root: Path, dataset: Dataset, shard_size: Mapping[str, int]) -> None:
        super().__init__(root, dataset, shard_size)
        arrow(".parquet")

    def write(self, samples: Iterable[PackedSample]) -> None:
        self.stored_as = {name: name for name in self.schema}
        paths = self.dataset.paths
        split = split_of(Path(paths[0].name)) if paths else ""
        table = _Table(self.root, self.schema)
        try:
            for sample in samples:
                row, size = self._row(sample)
                if self.cut.begins_shard(size):
                    table.next_file()
                table.add(row, size)
            table.flush()
        finally:
            table.close()
        pattern = f"{split or 'train'}-{{:05}}-of-{{:05}}.parquet"
        self.count(number_of_all(table.paths, pattern))

    def _row(self, sample: PackedSample) -> tuple[dict[str, Any], int]:
        """Return the values of a row, and about how many bytes they have."""
        key = sample.key
        row: dict[str, Any] = {KEY: key}
        size = _ROW_BYTES
        for name, field in self.schema.items():
            if isinstance(field, ImageField):
                data = bytes(sample.image_file(name))
                row[name] = {"bytes": data, "path": split_key(key)[1] + image_suffix(data, key)}
                size += len(data)
                continue
            value = row[name] = sample.value(name)
            if isinstance(field, ArrayField):
                size += value.nbytes
            elif not isinstance(field, ScalarField):
                size += len(value)
        return row, size


class _Table:
    """Parquet files that rows are written to, a row group at a time."""

    def __init__(self, root: Path, schema: Schema) -> None:
        self.paths: list[Path] = []
        self._root, self._schema = root, schema
        self._arrow_schema = _arrow_schema(schema)
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self._writer: Any = None
        self._open()

    def _open(self) -> None:
        path = self._root / f"{len(self.paths):05}.part"
        plain = [n for n, field in self._schema.items() if isinstance(field, ScalarField)]
        self._writer = arrow(".parquet").ParquetWriter(
            path,
            self._arrow_schema,
            # Image files do not become smaller, and statistics of them are of no use.
            compression={leaf: "snappy" for leaf in _leaves(self._schema)},
            use_dictionary=plain,
            write_statistics=[*plain, KEY],
            write_page_checksum=True,
        )
        self.paths.append(path)

    def next_file(self) -> None:
        """Finish a file and begin the next."""
        self.flush()
        self.close()
        self._open()

    def add(self, row: dict[str, Any], size: int) -> None:
        """Add a row of about so many bytes."""
        if self._bytes + size > _GROUP_BYTES or len(self._rows) == _GROUP_ROWS:
            self.flush()
        self._rows.append(row)
        self._bytes += size

    def flush(self) -> None:
        """Write the rows that wait as a row group."""
        if not self._rows:
            return
        pa = arrow()
        columns: list[Any] = []
        for name, field in self._schema.items():
            type_ = self._arrow_schema.field(name).type
            values = [row[name] for row in self._rows]
            if isinstance(field, ArrayField):
                columns.append(_nested(values, field, type_))
            elif isinstance(field, ScalarField):
                columns.append(pa.array(np.array(values).astype(_numpy_name(type_))))
            else:
                columns.append(pa.array(values, type_))
            if needs_shape(field):
                shapes = [list(value.shape) for value in values]
                columns.append(pa.array(shapes, pa.list_(pa.int64())))
        columns.append(pa.array([row[KEY] for row in self._rows], pa.string()))
        batch = pa.Table.from_arrays(columns, schema=self._arrow_schema)
        self._writer.write_table(batch, row_group_size=len(self._rows))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def _nested(values: list[np.ndarray[Any, Any]], field: ArrayField, type_: Any) -> Any:
    """Return arrays as lists in lists, made of one piece of numbers and where lists end."""
    pa = arrow()
    leaf = type_
    while pa.types.is_list(leaf):
        leaf = leaf.value_type
    flat = np.concatenate([value.reshape(-1) for value in values]).astype(_numpy_name(leaf))
    nested = pa.array(flat, leaf)
    for level in reversed(range(len(field.shape))):
        counts = [math.prod(value.shape[:level]) for value in values]
        lengths = np.repeat([value.shape[level] for value in values], counts)
        ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32)
        nested = pa.ListArray.from_arrays(pa.array(ends), nested)
    return nested.cast(type_)


def _numpy_name(type_: Any) -> str:
    return {"float": "float32", "double": "float64"}.get(str(type_), str(type_))


def _leaves(schema: Schema) -> list[str]:
    """Return the columns that are compressed, by the names that Parquet has for them."""
    leaves = [KEY]
    for name, field in schema.items():
        if isinstance(field, ImageField):
            leaves.append(f"{name}.path")
        elif isinstance(field, ArrayField):
            leaves.append(name + ".list.element" * len(field.shape))
            if needs_shape(field):
                leaves.append(f"{name}.shape.list.element")
        else:
            leaves.append(name)
    return leaves


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
