"""Packing without change, and what came of it, for tests of single formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import fastdata
from fastdata.schema import ImageField

__all__ = ["fixture_pixels", "pack", "samples"]


def pack(location: Any, path: Path, fields: Any = None, **options: Any) -> Any:
    """Pack image files as they are, with the format's own options."""
    return fastdata.pack(
        location,
        path,
        source_options=options,
        fields=fields,
        progress=False,
        num_workers=0,
        codec="keep",
        resize="none",
        overwrite=True,
    )


def samples(path: Path) -> list[dict[str, Any]]:
    """Return the samples of a shard; images as the files that were packed."""
    dataset = fastdata.open(path)
    (shard,) = dataset.shards
    return [
        {
            name: bytes(shard.blob(name, index))
            if isinstance(field, ImageField)
            else shard.value(name, index)
            for name, field in dataset.schema.items()
        }
        for index in range(len(shard))
    ]


def fixture_pixels(index: int) -> np.ndarray[Any, Any]:
    """Return the picture that the scripts in ``scripts/format_fixtures`` have written."""
    rows, columns = np.indices((12, 16))
    return np.stack([rows * 20, columns * 15, rows + columns + 9 * index], axis=2).astype(np.uint8)
