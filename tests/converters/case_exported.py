"""What fastdata itself has exported, with the file beside it that says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import xxhash
from cases import CLASSES, Case, Picture
from samples import write_shard

from fastdata.converters.exporting.export import export
from fastdata.formats.layout import CODECS
from fastdata.formats.writer import EncodedImage, Record
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema, StringField

__all__ = ["CASES"]

SCHEMA = Schema(
    {
        "image": ImageField(),
        "label": ScalarField("int16", classes=CLASSES),
        "weight": ScalarField("float64"),
        "corners": ArrayField("float32", (None, 2)),
        "ragged": ArrayField("float64", (None, None)),
        "caption": StringField(),
    }
)


def exported(format: str, folder: Path, pictures: Sequence[Picture]) -> Path:
    records = []
    for n, p in enumerate(pictures):
        hashed = xxhash.xxh3_64_intdigest(p.data)
        image = EncodedImage(p.data, CODECS.index("jpeg"), *p.pixels.shape[:2], hashed)
        corners = np.full((n % 3, 2), n, np.float32)
        # Keys that a member's name in a tar file cannot be.
        values = (image, p.label, n / 7, corners, np.full((n % 2, 3), n / 7), f"picture {n}")
        records.append(Record(f"{p.name}.of.many", values))
    shard = write_shard(folder.parent / f"{folder.name}.{format}.lmdb", records, SCHEMA)
    size = len(pictures) // 2 + 1
    export(shard, folder / "out", format=format, shard_size=size, overwrite=True, progress=False)
    shard.unlink()
    return folder / "out"


CASES = [
    Case(f"exported-{format}", format, partial(exported, format))
    for format in ("webdataset", "tfrecord", "parquet")
]
