"""Make the golden files: datasets of format version 1, and what they must give when read.

    python tests/golden/make.py DIRECTORY

The files beside this script were made by it and are never made again: every later
release must read them as they are.  A new version of the format gets a folder of its own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from samples import SUFFIXES, encode, mask, photo, write_shard, write_shards

import fastdata
from fastdata.formats.layout import CODECS
from fastdata.formats.writer import EncodedImage, Record
from fastdata.schema import (
    ArrayField,
    BytesField,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

LABELLED = Schema({"image": ImageField(), "label": ScalarField(classes=("cat", "dog", "lynx"))})
EVERYTHING = Schema(
    {
        "image": ImageField(),
        "grey": ImageField(channels=1),
        "mask": ImageField(channels=1, mask=True),
        "label": ScalarField("int64", classes=("bee", "épée")),
        "weight": ScalarField("float32"),
        "half": ScalarField("float16"),
        "flag": ScalarField("bool"),
        "caption": StringField(),
        "extra": BytesField(),
        "box": ArrayField("float32", (2, 2)),
        "points": ArrayField("int16", (None, 2)),
    }
)
FILE_SUFFIXES = {"raw": "bin", "jpeg": "jpg", "png": "png", "file": "tiff"}


def labelled(codec: str) -> list[Record]:
    """Three small images: two of one shape, so that raw ones are no single array."""
    sizes = [(24, 37), (24, 37), (17, 50)]
    images = [encode(photo(*size, 3, seed), codec) for seed, size in enumerate(sizes)]
    keys = ["cat/1.jpg", "dog/éclair.jpg", "lynx/🐈.jpg"]
    return [
        Record(key, (image, n)) for n, (key, image) in enumerate(zip(keys, images, strict=True))
    ]


def everything() -> list[Record]:
    """Four samples with every kind of field and every codec."""
    records = []
    for n, codec in enumerate(("jpeg", "png", "raw", "file")):
        size = (12 + n, 20 - n)
        values = (
            encode(photo(*size, 3, n), codec),
            encode(photo(*size, 1, n), codec),
            encode(mask(*size, n), "raw" if codec == "raw" else "png"),
            n % 2,
            [0.0, -1.5, float("inf"), 3e38][n],
            [0.5, 65504.0, -0.0, 6e-8][n],
            n % 2 == 0,
            ["", "one", "a\0b\n", "пять 🦎"][n],
            [b"", b"\0", bytes(range(256)), b"\xff" * 9][n],
            np.arange(4, dtype=np.float32).reshape(2, 2) / 3 + n,
            np.arange(2 * n, dtype=np.int16).reshape(n, 2) - 3,
        )
        records.append(Record(f"{n}", values))
    return records


def content(schema: Schema, records: list[Record], folder: Path) -> list[dict[str, Any]]:
    """Write the stored bytes of images to files, and return all else as JSON."""
    folder.mkdir(parents=True)
    samples = []
    for number, record in enumerate(records):
        sample: dict[str, Any] = {"key": record.key}
        for name, value in zip(schema, record.values, strict=True):
            if isinstance(value, EncodedImage):
                codec = CODECS[value.codec]
                file = folder / f"{number}-{name}.{FILE_SUFFIXES[codec]}"
                file.write_bytes(value.data)
                value = {
                    "file": f"{folder.name}/{file.name}",
                    "codec": codec,
                    "height": value.height,
                    "width": value.width,
                }
            elif isinstance(value, np.ndarray):
                value = {"dtype": str(value.dtype), "shape": value.shape, "values": value.tolist()}
            elif isinstance(value, bytes):
                value = {"hex": value.hex()}
            elif isinstance(value, float):
                value = {"float": value.hex()}
            sample[name] = value
        samples.append(sample)
    return samples


def main(target: Path) -> None:
    """Write all golden files into a new directory."""
    target.mkdir(parents=True)
    sets = {codec: (LABELLED, labelled(codec)) for codec in ("jpeg", "png", "raw")}
    sets["everything"] = (EVERYTHING, everything())
    expected: dict[str, Any] = {}
    for name, (schema, records) in sets.items():
        paths = [write_shard(target / f"{name}{s}", records, schema) for s in SUFFIXES.values()]
        if name == "jpeg":
            paths.append(
                write_shards(target / "shards", [records[:1], records[1:]], schema, "hdf5")
            )
        digests = {fastdata.open(path).digest for path in paths}
        assert len(digests) == 1
        expected[name] = {
            "datasets": [path.name for path in paths],
            "digest": digests.pop(),
            "schema": schema.to_json(),
            "samples": content(schema, records, target / "content" / name),
        }
    text = json.dumps(expected, indent=1, ensure_ascii=False)
    (target / "content.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
