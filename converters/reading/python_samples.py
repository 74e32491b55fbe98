"""What Python's iterables and Datasets yield, as samples: names, fields and values."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from fastdata.errors import SourceError
from fastdata.schema import ArrayField, Field, ScalarField, Schema

from ..base import FieldSpec, reason_of
from .fields import convert, field_of, image_field, resolve_fields
from .image_files import is_image_name

__all__ = ["PEEK", "first_samples", "own_copy", "schema_of", "to_values", "with_features"]

PEEK = 16
"""Samples from which fields are told."""


def first_samples(dataset: Any) -> list[Any]:
    """Return some samples of a map-style dataset, leaving out those that fail.

    They are asked of a shallow copy of a torch Dataset: one that opens a file at
    its first sample must do that in the workers, since HDF5 and LMDB handles
    do not survive fork.
    """
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    if torch is not None and isinstance(dataset, torch.utils.data.Dataset):
        dataset = copy.copy(dataset)
    samples = []
    failure: Exception | None = None
    for index in range(min(PEEK, len(dataset))):
        try:
            samples.append(dataset[index])
        except Exception as error:  # a user's Dataset may raise anything
            failure = error
    if failure is not None and not samples:
        raise SourceError(
            f"none of the dataset's first {PEEK} samples can be read, the last of them since: "
            f"{reason_of(failure)}"
        ) from failure
    return samples


def to_values(item: Any, schema: Schema) -> tuple[Any, ...]:
    """Bring what a dataset yields into the schema's form. Raises ValueError if it does not fit."""
    values = _values(item, list(schema))
    if values.keys() != schema.keys():
        raise ValueError(f"the sample has the fields {list(values)}, not {list(schema)}")
    return tuple(convert(values[name], field, name) for name, field in schema.items())


def own_copy(item: Any) -> Any:
    """Return a sample with pixels and numbers of its own.

    Many a generator fills one buffer for all its samples, and several are held at once here.
    """
    named = _named(item)
    if named is not None:
        return {name: _own(value) for name, value in named.items()}
    return tuple(map(_own, item)) if isinstance(item, (tuple, list)) else _own(item)


def _own(value: Any) -> Any:
    if isinstance(value, np.ndarray) or type(value) is Image.Image:  # others are of files
        return value.copy()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    return value.detach().clone() if _is_tensor(value) else value


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "clone")


def schema_of(samples: Sequence[Any], channels: int, fields: FieldSpec) -> Schema:
    """Return the fields of some samples. Raises SourceError if there are none."""
    if not samples:
        raise SourceError("the iterable is empty: there is nothing to pack")
    rows = [_values(sample, list(fields)) for sample in samples]

    def own(name: str) -> Field:
        values = [row[name] for row in rows if name in row]
        if name == "image" and all(map(_is_image_path, values)):
            return image_field(name, channels)
        return field_of(values, channels, name)

    return Schema(resolve_fields(rows[0], fields, channels, own))


def with_features(schema: Schema, dataset: Any) -> Schema:
    """Return a schema with the class names that Hugging Face's ``datasets`` tells, in `features`.

    They are those of a ``ClassLabel``, or of a list of such.  Only fields of integers without
    class names get them.
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        return schema
    fields = dict(schema)
    for name, field in schema.items():
        feature = features.get(name)
        names = getattr(getattr(feature, "feature", feature), "names", None)
        if not isinstance(field, (ScalarField, ArrayField)) or "int" not in field.dtype:
            continue
        if field.classes is None and isinstance(names, (list, tuple)):
            fields[name] = dataclasses.replace(field, classes=tuple(names))
    return Schema(fields)


def _is_image_path(value: Any) -> bool:
    """Tell whether this is text that is the path of an image: only the user's own code says so."""
    return isinstance(value, str) and is_image_name(value)


def _values(item: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a sample's values by field name."""
    named = _named(item)
    if named is not None:
        return named
    if not isinstance(item, (tuple, list)):
        item = (item,)
    if len(names) != len(item):
        names = ["image", "label", *(f"field{k}" for k in range(2, len(item)))][: len(item)]
    return dict(zip(names, item, strict=True))


def _named(item: Any) -> dict[str, Any] | None:
    """Return a sample that tells the names of its values as a dict; None of any other."""
    if isinstance(item, Mapping):
        return dict(item)
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    return dict(item._asdict()) if hasattr(item, "_asdict") else None
