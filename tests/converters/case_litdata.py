"""LitData's chunks from its sources: no code of LitData's, none that the reader uses."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zstandard
from cases import Case, Picture

__all__ = ["CASES", "tree", "write_litdata"]

LEAF = {"type": None, "context": None, "children_spec": []}
zstd = zstandard.ZstdCompressor().compress


def tree(names: Sequence[str] | int) -> str:
    """Return how LitData writes down that a sample is a dict of these names, or a tuple."""
    count = names if isinstance(names, int) else len(names)
    node: dict[str, Any] = {"type": "builtins.tuple", "context": "null"}
    if not isinstance(names, int):
        node = {"type": "builtins.dict", "context": json.dumps(names)}
    return json.dumps([1, {**node, "children_spec": [LEAF] * count}])


def sample(values: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def chunk(samples: Sequence[bytes]) -> bytes:
    """Return a chunk: count, offsets, samples."""
    offsets = [4 * (len(samples) + 2)]
    for body in samples:
        offsets.append(offsets[-1] + len(body))
    head = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets)
    return head + b"".join(samples)


def write_litdata(
    folder: Path,
    formats: Sequence[str],
    spec: str | None,
    rows: Sequence[Sequence[bytes]],
    *,
    per_chunk: int = 64,
    level: str | None = None,
    **config: Any,
) -> Path:
    """Write a dataset of samples whose values are serialised already."""
    chunks = []
    for number, first in enumerate(range(0, len(rows), per_chunk)):
        bodies = [sample(row) for row in rows[first : first + per_chunk]]
        name = f"chunk-0-{number}.bin"
        data = chunk([zstd(body) for body in bodies] if level == "sample" else bodies)
        length = len(data)
        if level == "chunk":
            name, data = f"chunk-0-{number}.zstd.bin", zstd(data)
        (folder / name).write_bytes(data)
        chunks.append(
            {"chunk_bytes": length, "chunk_size": len(bodies), "dim": None, "filename": name}
        )
    given = {
        "compression": "zstd" if level else None,
        "compression_level": level if level != "chunk" else None,
        "chunk_size": per_chunk,
        "data_format": list(formats),
        "data_spec": spec,
        "encryption": None,
        "item_loader": "PyTreeLoader",
        **config,
    }
    text = json.dumps({"chunks": chunks, "config": given, "updated_at": "0"}, sort_keys=True)
    (folder / "index.json").write_text(text)
    return folder


def files(level: str | None) -> Callable[[Path, Sequence[Picture]], Path]:
    def write(folder: Path, pictures: Sequence[Picture]) -> Path:
        rows = [(p.data, struct.pack("<q", p.label)) for p in pictures]
        formats, spec = ("jpeg", "int"), tree(["image", "label"])
        return write_litdata(folder, formats, spec, rows, per_chunk=70, level=level)

    return write


def pixels(folder: Path, pictures: Sequence[Picture]) -> Path:
    """Write tuples of a tensor of pixels, a class number and a name, compressed one by one."""
    rows = [
        (
            struct.pack(">5I", 11, 3, *p.pixels.shape) + p.pixels.tobytes(),
            struct.pack("<q", p.label),
            p.name.encode(),
        )
        for p in pictures
    ]
    return write_litdata(
        folder, ("tensor", "int", "str"), tree(3), rows, per_chunk=50, level="sample"
    )


CASES = [
    Case("litdata", "litdata", files(None)),
    Case("litdata-zstd", "litdata", files("chunk"), shuffles=False),
    Case("litdata-pixels", "litdata", pixels, holds="pixels"),
]
