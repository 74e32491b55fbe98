"""The frames of a TFRecord file: a sequence of records.

Each is

=======  =====================================================
8 bytes  length of the data, little-endian
4 bytes  masked CRC-32C of these 8 bytes
length   the data
4 bytes  masked CRC-32C of the data
=======  =====================================================

and the file may be compressed as a whole by gzip or zlib.  A length with a wrong checksum loses
the rest of the file; data with a wrong checksum lose only that record.

Source: ``tensorflow/core/lib/io/record_writer.h`` and, for the mask,
``tensorflow/core/lib/hash/crc32c.h``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from ...base import Reject, reject_reason
from ...scan import Found, Input, Row, read
from ..compression import compression_of, inflated_start
from ..locations import first_bytes
from ..refusals import require
from ..spans import MAX_RECORD, FileSpan

__all__ = [
    "crc32c",
    "frame_around",
    "frame_rows",
    "has_frames",
    "is_compressed",
    "masked_crc",
    "record_of",
]

_HEAD = 12
_FOOT = 4


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of some bytes."""
    crc: int = crc32c().value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame_around(data: bytes) -> tuple[bytes, bytes]:
    """Return the bytes before and after the data of a record."""
    length = len(data).to_bytes(8, "little")
    head = length + masked_crc(length).to_bytes(4, "little")
    return head, masked_crc(data).to_bytes(_FOOT, "little")


@functools.cache
def crc32c() -> Any:
    """Import the library that computes checksums.

    Raises MissingExtraError if it is not installed.
    """
    return require("google_crc32c", "tfrecord", "TFRecord")


def has_frames(path: Path) -> bool:
    """Tell whether a file, as it is or decompressed, begins with a record.

    Raises MissingExtraError if that cannot be decided without the library for checksums.
    """
    start = first_bytes(path)
    return not (_bad_head(start[:_HEAD]) and _bad_head(inflated_start(start, _HEAD)))


def is_compressed(path: Path) -> bool:
    """Tell whether a file can be read only from its front."""
    start = first_bytes(path, 64)
    # The length of a first record can look like zlib's head; its checksum tells.
    return compression_of(start) != "" and bool(_bad_head(start[:_HEAD]))


def frame_rows(input: Input, start: int, stop: int | None) -> Iterator[Found]:
    """Yield the records of a file, each as one value, which `record_of` reads."""
    at, reason = start, ""
    if stop is not None:
        yield start, stop, Row(input.key(at), (input.piece(at + _HEAD, stop - at - _HEAD),))
        return
    while True:
        try:
            head = input.read(at, _HEAD)
            if not head:
                return
            if not (reason := _bad_head(head)):
                length = int.from_bytes(head[:8], "little") + _FOOT
                piece = input.piece(at + _HEAD, length)
        except (OSError, SourceError) as error:
            reason = reject_reason(input.path, error)
        if reason:
            yield at, at, Reject(input.key(at), f"{reason}; the rest of {input.path} is lost")
            return
        end = at + _HEAD + length
        yield at, end, Row(input.key(at), (piece,))
        at = end


def record_of(piece: FileSpan | bytes) -> bytes:
    """Return the data of a record; raises SourceError if its checksum is wrong."""
    data = read(piece)
    body = data[:-_FOOT]
    if masked_crc(body) != int.from_bytes(data[-_FOOT:], "little"):
        raise SourceError("the checksum of the record's data is wrong")
    return body


def _bad_head(head: bytes) -> str:
    """Return an error of a record's first 12 bytes, or ""."""
    if len(head) < _HEAD:
        return f"the file ends {_HEAD - len(head)} bytes before the record's head does"
    if masked_crc(head[:8]) != int.from_bytes(head[8:], "little"):
        return "the checksum of the record's length is wrong"
    length = int.from_bytes(head[:8], "little")
    if length > MAX_RECORD - _FOOT:
        return f"the record claims {length:,} bytes; at most {MAX_RECORD - _FOOT:,} are believed"
    return ""
