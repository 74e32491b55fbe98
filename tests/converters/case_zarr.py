"""zarr as tensorstore writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, Picture

__all__ = ["CASES", "write_array"]


def write_array(folder: Path, driver: str, array: np.ndarray[Any, Any], **metadata: Any) -> Any:
    """Write an array with tensorstore."""
    import tensorstore  # 16 MB, which every process would have that is forked

    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": f"{folder}/"},
        "metadata": metadata,
    }
    store = tensorstore.open(
        spec, create=True, delete_existing=True, dtype=array.dtype.name, shape=array.shape
    ).result()
    store[...] = array
    return store


def arrays(pictures: Sequence[Picture]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.stack([p.pixels for p in pictures]), np.array([p.label for p in pictures])


def zarr2(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = arrays(pictures)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    options = {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 3, "shuffle": 1}}
    write_array(folder / "train/images", "zarr", pixels, chunks=[5, *pixels.shape[1:]], **options)
    write_array(folder / "train/labels", "zarr", labels + 0, chunks=[7], **options)
    return folder


def zarr3(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = arrays(pictures)
    pixels = pixels.transpose(0, 3, 1, 2)
    inner = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1}}]
    sharded = [
        {
            "name": "sharding_indexed",
            "configuration": {"chunk_shape": [2, *pixels.shape[1:]], "codecs": inner},
        }
    ]
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, *pixels.shape[1:]]}}
    write_array(folder / "x", "zarr3", pixels, chunk_grid=grid, codecs=sharded)
    grid = {"name": "regular", "configuration": {"chunk_shape": [5]}}
    little = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    write_array(folder / "y", "zarr3", labels, chunk_grid=grid, codecs=little)
    return folder


def alone(folder: Path, pictures: Sequence[Picture]) -> Path:
    pixels, labels = arrays(pictures)
    write_array(folder / "images", "zarr", pixels, chunks=[5, *pixels.shape[1:]])
    write_array(folder / "labels", "zarr", labels, chunks=[7])
    return folder / "images"


CASES = [
    Case("zarr-v2", "zarr", zarr2, holds="pixels", forks=False),
    Case("zarr-v3", "zarr", zarr3, holds="pixels", forks=False),
    Case("zarr-alone", "zarr", alone, holds="pixels", forks=False),
]
