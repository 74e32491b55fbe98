"""Messages of Google's protobuf that are described at run time: no generated code.

Source: ``descriptor.proto`` of protobuf, whose library reads them.
"""

from __future__ import annotations

from typing import Any

from .refusals import require

__all__ = ["message_class"]


def message_class(
    package: str, messages: dict[str, list[tuple[str, int, str]]], name: str, extra: str
) -> Any:
    """Return the class of a protobuf message that is described by a table.

    `messages` has the fields of each message: name, number, and type, with ``*`` where it is
    repeated, ``**`` where its numbers are then written as one piece (packed; read is either), and
    ``|NAME`` where it belongs to a oneof.  `package` keeps messages of one name apart; `extra` is
    the one of fastdata's extras that brings protobuf.
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
            repeated, packed = kind.endswith("*"), kind.endswith("**")
            kind = kind.rstrip("*")
            added = described.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if packed:
                added.options.packed = True
            if oneof:
                if not described.oneof_decl:
                    described.oneof_decl.add(name=oneof)
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
