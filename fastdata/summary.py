"""What is in a dataset, counted: the document behind ``fastdata info --json``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.formats.layout import CODECS, VERSION
from fastdata.formats.reader import ShardReader
from fastdata.schema import Field, ImageField, ScalarField, Schema
from fastdata.shards import open_shards
from fastdata.splits import SPLIT, count_splits, split_names
from fastdata.storage import is_url

__all__ = ["classes_text", "field_texts", "load_code", "size_text", "summarise"]

CROP = 224
_MOST_NAMED = 8


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
        "load_code": load_code(path, shards),
    }


def load_code(
    path: str | os.PathLike[str],
    shards: Sequence[ShardReader] | None = None,
    schema: Schema | None = None,
    split: str | None = None,
) -> str:
    """Return Python code that makes a loader of a dataset, with its imports.

    It loads `split`, or the first of several splits.  It crops images of several sizes to one size,
    and images in a store, whose sizes are not read: `schema` has the fields of such a dataset.
    """
    if shards is None and not is_url(path):
        shards = list(open_shards(path, check=False).readers())
    if shards:
        schema = shards[0].header.schema
    splits = () if schema is None else split_names(schema)
    if splits and shards and schema is not None:
        splits = tuple(count_splits(schema, _joined(shards, SPLIT)))
    side = CROP if shards is None else _crop_needed(shards)
    name = json.dumps(path if is_url(path) else str(Path(path)), ensure_ascii=False)
    lines = ["import fastdata"]
    if split is None and len(splits) > 1:
        split = splits[0]
    options = name + (f", split={json.dumps(split)}" if split is not None else "")
    options += f", batch_size={1 if side < 0 else 256}, shuffle=True"
    if side > 0:
        lines.append("from fastdata import transforms as T")
        options += f", transform=T.RandomResizedCrop({side})"
    return "\n".join([*lines, f"loader = fastdata.loader({options})"])


def _crop_needed(shards: Sequence[ShardReader]) -> int:
    """Return the side of a crop that gives all images one size; 0 if they have one.

    -1 if the images of a sample differ in size: no crop fits all of them.
    """
    fields = [
        np.stack([_joined(shards, f"{name}.{part}") for part in ("height", "width")])
        for name in (shards[0].header.schema.images if shards else ())
    ]
    if not fields or all((sizes == sizes[:, :1]).all() for sizes in fields):
        return 0
    if not all(np.array_equal(sizes, fields[0]) for sizes in fields):
        return -1
    return min(CROP, int(np.median(fields[0].min(axis=0))))


def field_texts(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the sizes of images and the samples of classes, as text by field.

    A dataset in a store has no entries.
    """
    if is_url(path):
        return {}
    shards = list(open_shards(path, check=False).readers())
    texts, least = {}, 0
    match shards[0].header.options:
        case {"resize": "short", "size": [int(side), _], "enlarge": False}:
            least = side
    for name, field in shards[0].header.schema.items():
        counts = _counts(shards, name, field)
        if isinstance(field, ImageField):
            height, width = (_joined(shards, f"{name}.{side}") for side in ("height", "width"))
            small = int((np.minimum(height, width) < least).sum())
            smaller = f"; {small:,} smaller than {least}, not enlarged (--enlarge)" if small else ""
            texts[name] = size_text(counts["height"], counts["width"]) + smaller
        elif isinstance(field, ScalarField) and field.classes:
            texts[name] = classes_text(field.classes, counts["class_counts"])
    return texts


def classes_text(classes: Sequence[str], counts: Sequence[int]) -> str:
    """Return how many samples each class has; the range of many classes."""
    if len(classes) <= _MOST_NAMED:
        return ", ".join(f"{name} {n:,}" for name, n in zip(classes, counts, strict=True))
    none = [name for name, n in zip(classes, counts, strict=True) if not n]
    least, most = min(filter(None, counts), default=0), max(counts)
    text = f"{f'{least:,} to ' * (least < most)}{most:,} samples a class"
    few = ", ".join(none[:_MOST_NAMED]) + ", ..." * (len(none) > _MOST_NAMED)
    return f"{text}; none of {few}" if none else text


def size_text(height: Mapping[str, int], width: Mapping[str, int]) -> str:
    """Return sizes of images for people, of the least, median and largest height and width."""
    sides = height, width
    typical = " x ".join(str(side["median"]) for side in sides)
    ranges = " x ".join(
        str(side["min"]) if side["min"] == side["max"] else f"{side['min']}-{side['max']}"
        for side in sides
    )
    varies = "" if ranges == typical else f" typical ({ranges})"
    return f"{typical}{varies}, height x width"


def _joined(shards: Iterable[ShardReader], column: str) -> np.ndarray[Any, Any]:
    return np.concatenate([shard.column(column) for shard in shards])


def _counts(shards: Iterable[ShardReader], name: str, field: Field) -> dict[str, Any]:
    """Return counts and sizes of one field, from its columns."""
    if isinstance(field, ImageField):
        numbers = np.bincount(_joined(shards, f"{name}.codec"), minlength=len(CODECS))
        return {
            "codecs": {c: int(n) for c, n in zip(CODECS, numbers, strict=False) if n},
            "bytes": int(_joined(shards, f"{name}.length").sum()),
            "height": _spread(_joined(shards, f"{name}.height")),
            "width": _spread(_joined(shards, f"{name}.width")),
        }
    if isinstance(field, ScalarField) and field.classes is not None:
        labels = _joined(shards, name)
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
