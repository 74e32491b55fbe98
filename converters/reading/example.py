"""``tf.train.Example``, TensorFlow's record of named values, without TensorFlow.

The message is described here at run time and read by Google's protobuf library.
Source: ``tensorflow/core/example/example.proto`` and ``feature.proto``.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .extras import require

__all__ = ["message_class", "parse_example", "values_of"]

_EXAMPLE = {
    "BytesList": [("value", 1, "bytes*")],
    "FloatList": [("value", 1, "float*")],
    "Int64List": [("value", 1, "int64*")],
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


def message_class(
    package: str, messages: dict[str, list[tuple[str, int, str]]], name: str, extra: str
) -> Any:
    """Return the class of a protobuf message that is described by a table.

    Parameters
    ----------
    package : str
        Keeps messages of one name apart.
    messages : dict
        Of each message the fields: name, number, and type, with ``*`` where it is repeated and
        ``|NAME`` where it belongs to a oneof.
    name : str
        Of the message that is wanted.
    extra : str
        Of fastdata's extras, the one that brings protobuf.
    """
    require("google.protobuf", extra, "reading protobuf messages")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto2"
    )
    kinds = descriptor_pb2.FieldDescriptorProto.Type
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for field, number, spelled in fields:
            kind, _, oneof = spelled.partition("|")
            repeated = kind.endswith("*")
            kind = kind.rstrip("*")
            added = described.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if oneof:
                if not described.oneof_decl:
                    described.oneof_decl.add(name=oneof)
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))


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


def values_of(feature: Any) -> Sequence[Any]:
    """Return the values of a feature: bytes, floats or integers; none where it is empty."""
    kind = feature.WhichOneof("kind")
    return () if kind is None else getattr(feature, kind).value
