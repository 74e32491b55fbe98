"""MDS from its specification: no code of Streaming's, none that the reader uses."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard
from cases import Case, Picture

__all__ = ["CASES", "raw_image", "write_mds"]

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
SIZES = {"int": 8, "uint8": 1, "uint16": 2, "float32": 4, "float64": 8, "ndarray:int16:2,3": 12}


def shard(columns: Mapping[str, str], samples: Sequence[Mapping[str, bytes]]) -> bytes:
    """Return a shard: count, offsets, what the columns are, samples."""
    config = json.dumps({"column_names": sorted(columns)}).encode()
    bodies = []
    for sample in samples:
        values = [sample[name] for name in sorted(columns)]
        varying = [sample[name] for name in sorted(columns) if columns[name] not in SIZES]
        head = b"".join(struct.pack("<I", len(value)) for value in varying)
        bodies.append(head + b"".join(values))
    at = 4 * (len(samples) + 2) + len(config)
    offsets = [at]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    table = struct.pack(f"<{len(offsets)}I", *offsets)
    return struct.pack("<I", len(samples)) + table + config + b"".join(bodies)


def write_mds(
    folder: Path,
    columns: Mapping[str, str],
    samples: Sequence[Mapping[str, bytes]],
    *,
    per_shard: int = 64,
    compression: str | None = None,
    hashes: Sequence[str] = ("sha1",),
) -> Path:
    """Write a dataset of samples whose values are encoded already."""
    entries = []
    for number, first in enumerate(range(0, len(samples), per_shard)):
        part = samples[first : first + per_shard]
        files: dict[str, Any] = {"zip_data": None}
        data = shard(columns, part)
        name = f"shard.{number:05}.mds"
        files["raw_data"] = entry(name, data, hashes)
        if compression:
            data = COMPRESS[compression.partition(":")[0]](data)
            name = f"{name}.{compression.partition(':')[0]}"
            files["zip_data"] = entry(name, data, hashes)
        (folder / name).write_bytes(data)
        entries.append(
            {
                "column_encodings": [columns[name] for name in sorted(columns)],
                "column_names": sorted(columns),
                "column_sizes": [SIZES.get(columns[name]) for name in sorted(columns)],
                "compression": compression,
                "format": "mds",
                "hashes": list(hashes),
                **files,
                "samples": len(part),
                "size_limit": 1 << 26,
                "version": 2,
            }
        )
    text = json.dumps({"shards": entries, "version": 2}, sort_keys=True)
    (folder / "index.json").write_text(text)
    return folder


def entry(name: str, data: bytes, hashes: Sequence[str]) -> dict[str, Any]:
    found = {kind: hashlib.new(kind, data).hexdigest() for kind in hashes}
    return {"basename": name, "bytes": len(data), "hashes": found}


def raw_image(mode: str, width: int, height: int, pixels: bytes) -> bytes:
    return struct.pack("<3I", width, height, len(mode)) + mode.encode() + pixels


def files(pictures: Sequence[Picture]) -> list[dict[str, bytes]]:
    return [{"image": p.data, "label": struct.pack("<q", p.label)} for p in pictures]


def plain(folder: Path, pictures: Sequence[Picture]) -> Path:
    columns = {"image": "jpeg", "label": "int"}
    return write_mds(
        folder, columns, files(pictures), per_shard=max(5, len(pictures) // 8), hashes=()
    )


def compressed(compression: str) -> Callable[[Path, Sequence[Picture]], Path]:
    def write(folder: Path, pictures: Sequence[Picture]) -> Path:
        columns = {"image": "jpeg", "label": "int"}
        return write_mds(folder, columns, files(pictures), per_shard=90, compression=compression)

    return write


def pixels(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write pixels and class numbers of one byte, under other names, with text beside them."""
    samples = [
        {
            "pic": raw_image("RGB", p.pixels.shape[1], p.pixels.shape[0], p.pixels.tobytes()),
            "class": struct.pack("<B", p.label),
            "caption": p.name.encode(),
        }
        for p in pictures
    ]
    columns = {"pic": "pil", "class": "uint8", "caption": "str"}
    return write_mds(folder, columns, samples, per_shard=50)


CASES = [
    Case("mds", "mds", plain),
    Case("mds-gzip", "mds", compressed("gz"), shuffles=False),
    Case("mds-zstd", "mds", compressed("zstd:7"), shuffles=False),
    Case("mds-pixels", "mds", pixels, holds="pixels"),
]
