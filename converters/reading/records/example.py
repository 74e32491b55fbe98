"""``tf.train.Example``, TensorFlow's record of named values, without TensorFlow.

The message is described here at run time and read by Google's protobuf library.
Source: ``tensorflow/core/example/example.proto`` and ``feature.proto``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from ..protobuf import message_class

__all__ = ["example_of", "parse_example", "values_of"]

_EXAMPLE = {
    "BytesList": [("value", 1, "bytes*")],
    "FloatList": [("value", 1, "float**")],
    "Int64List": [("value", 1, "int64**")],
    "Feature": [
        ("bytes_list", 1, "BytesList|kind"),
        ("float_list", 2, "FloatList|kind"),
        ("int64_list", 3, "Int64List|kind"),
    ],
    "Entry": [("key", 1, "string"), ("value", 2, "Feature")],
    "Features": [("feature", 1, "Entry*")],
    "Example": [("features", 1, "Features")],
}
"""A map is, on the wire, a list of entries; a key that stands twice counts as last."""


@functools.cache
def _example() -> Any:
    return message_class("fastdata_example", _EXAMPLE, "Example", "tfrecord")


def parse_example(data: bytes) -> dict[str, Any]:
    """Return the features of an Example by name, as protobuf has them.

    Raises
    ------
    ValueError
        If the bytes are no Example.
    """
    from google.protobuf.message import DecodeError

    message = _example()()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example: {error}") from error
    return {entry.key: entry.value for entry in message.features.feature}


def example_of(features: Iterable[tuple[str, str, Sequence[Any]]]) -> bytes:
    """Return an Example.

    Parameters
    ----------
    features : iterable of (str, str, sequence)
        Name, kind (``bytes_list``, ``float_list`` or ``int64_list``) and values of each.
    """
    message = _example()()
    add = message.features.feature.add
    for name, kind, values in features:
        held = getattr(add(key=name).value, kind)
        held.SetInParent()  # of an empty list the kind is told too
        held.value.extend(values)
    data: bytes = message.SerializeToString()
    return data


def values_of(feature: Any) -> Sequence[Any]:
    """Return the values of a feature: bytes, floats or integers; none where it is empty."""
    kind = feature.WhichOneof("kind")
    return () if kind is None else getattr(feature, kind).value
