"""What the tests of export share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples import make_records, write_shard

import fastdata
from fastdata.schema import ImageField, ScalarField, Schema

__all__ = [
    "FORMATS",
    "NAMES",
    "PLAIN",
    "every_format",
    "keys_of",
    "made",
    "pack",
]


FORMATS = ("webdataset", "tfrecord", "parquet")
PLAIN = Schema({"image": ImageField(), "label": ScalarField("int16", classes=("cat", "dög"))})

NAMES = {
    "webdataset": "shard-{0:06}.tar",
    "tfrecord": "shard-{0:05}-of-{1:05}.tfrecord",
    "parquet": "train-{0:05}-of-{1:05}.parquet",
}

every_format = pytest.mark.parametrize("format", FORMATS)


def pack(source: Any, destination: Path, **options: Any) -> fastdata.Dataset:
    report = fastdata.pack(source, destination, num_workers=0, progress=False, **options)
    assert report.rejects == []
    return fastdata.open(destination)


def keys_of(dataset: fastdata.Dataset) -> list[str]:
    return list(dataset.keys)


def made(path: Path, schema: Schema = PLAIN, count: int = 6, **options: Any) -> fastdata.Dataset:
    return fastdata.open(write_shard(path, make_records(schema, count, **options), schema))
