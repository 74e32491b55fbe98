"""``Datum``, Caffe's record of an image and a label.

Source: ``caffe.proto`` of Caffe.  Field 1000 is fastdata's own: the key of an exported sample.
"""

from __future__ import annotations

import functools
from typing import Any

from ..protobuf import message_class

__all__ = ["datum_class", "parse_datum"]

_DATUM = {
    "Datum": [
        ("channels", 1, "int32"),
        ("height", 2, "int32"),
        ("width", 3, "int32"),
        ("data", 4, "bytes"),
        ("label", 5, "int32"),
        ("float_data", 6, "float*"),
        ("encoded", 7, "bool"),
        ("key", 1000, "bytes"),
    ]
}


@functools.cache
def datum_class() -> Any:
    """Return the class of the message. Raises MissingExtraError if protobuf is not installed."""
    return message_class("fastdata_caffe", _DATUM, "Datum", "caffe")


def parse_datum(data: bytes) -> Any:
    """Return the Datum that some bytes are. Raises ValueError if they are none."""
    from google.protobuf.message import DecodeError

    datum = datum_class()()
    try:
        datum.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no Datum of Caffe's: {error}") from error
    if not datum.HasField("data") and not datum.float_data:
        raise ValueError("no Datum of Caffe's: neither data nor float_data")
    return datum
