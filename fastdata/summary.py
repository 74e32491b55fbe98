"""What is in a dataset, counted: the document behind ``fastdata info --json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.formats.layout import CODECS, VERSION
from fastdata.formats.reader import ShardReader
from fastdata.schema import Field, ImageField, ScalarField
from fastdata.shards import open_shards
from fastdata.storage import is_url

__all__ = ["load_line", "summarise"]


def summarise(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a JSON object that describes a dataset; ``docs/cli.md`` has its shape.

    Reads columns, a few bytes a sample, and no image.
    """
    dataset = open_shards(path, check=True)
    shards = list(dataset.readers())
    sizes = [shard.path.stat().st_size for shard in shards]
    fields = []
    for entry, (name, field) in zip(dataset.schema.to_json(), dataset.schema.items(), strict=True):
        fields.append({**entry, **_counts(shards, name, field)})
    return {
        "path": os.fspath(path),
        "format_version": VERSION,
        "num_samples": len(dataset),
        "num_shards": len(shards),
        "containers": sorted({shard.header.container for shard in shards}),
        "file_bytes": sum(sizes),
        "digest": dataset.digest,
        "fields": fields,
        "options": dict(shards[0].header.options),
        "shards": [
            {
                "path": str(shard.path),
                "container": shard.header.container,
                "num_samples": len(shard),
                "file_bytes": size,
                "digest": shard.header.digest,
            }
            for shard, size in zip(shards, sizes, strict=True)
        ],
        "load_line": load_line(path),
    }


def load_line(path: str | os.PathLike[str]) -> str:
    """Return a line of Python that loads a dataset."""
    name = json.dumps(path if is_url(path) else str(Path(path)), ensure_ascii=False)
    return f"loader = fastdata.loader({name}, batch_size=256, shuffle=True)"


def _counts(shards: Iterable[ShardReader], name: str, field: Field) -> dict[str, Any]:
    """Return what the columns of one field say."""
    if isinstance(field, ImageField):

        def column(part: str) -> np.ndarray[Any, Any]:
            return np.concatenate([shard.column(f"{name}.{part}") for shard in shards])

        numbers = np.bincount(column("codec"), minlength=len(CODECS))
        return {
            "codecs": {c: int(n) for c, n in zip(CODECS, numbers, strict=False) if n},
            "bytes": int(column("length").sum()),
            "height": _spread(column("height")),
            "width": _spread(column("width")),
        }
    if isinstance(field, ScalarField) and field.classes is not None:
        labels = np.concatenate([shard.column(name) for shard in shards])
        known = labels[(labels >= 0) & (labels < len(field.classes))].astype(np.int64)
        counts = np.bincount(known, minlength=len(field.classes))
        return {"class_counts": counts.tolist(), "num_without_class": len(labels) - len(known)}
    return {}


def _spread(values: np.ndarray[Any, Any]) -> dict[str, int]:
    if len(values) == 0:
        return {"min": 0, "median": 0, "max": 0}
    # The lower of two middles: a size that occurs.
    middle = np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2]
    return {"min": int(values.min()), "median": int(middle), "max": int(values.max())}
