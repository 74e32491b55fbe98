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
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ...base import reject_reason
from ..compression import compression_of, inflated_start, open_inflated
from ..locations import first_bytes
from ..refusals import require
from ..spans import MAX_RECORD, read_at, read_exactly

__all__ = [
    "BadFrameError",
    "FrameSpan",
    "crc32c",
    "frame_around",
    "has_frames",
    "is_compressed",
    "masked_crc",
    "scan_frames",
    "stream_frames",
]

_HEAD = 12
_FOOT = 4


class BadFrameError(SourceError):
    """Behind this nothing can be read in its file any more; `offset` says where it is."""

    def __init__(self, reason: str, path: Path, offset: int) -> None:
        super().__init__(f"{reason}; the rest of {path} is lost")
        self.offset = offset


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


def scan_frames(path: Path) -> Iterator[tuple[int, int]]:
    """Yield offset and data length of the records of a file that is not compressed.

    Raises BadFrameError where the length of a record is damaged, or the file ends within one.
    """
    size = path.stat().st_size
    offset = 0
    with open(path, "rb", buffering=0, opener=open_regular) as raw:
        while offset < size:
            raw.seek(offset)
            head = raw.read(_HEAD)
            reason = _bad_head(head)
            length = int.from_bytes(head[:8], "little")
            if not reason and offset + _HEAD + length + _FOOT > size:
                reason = f"the file ends within the record's {length:,} bytes"
            if reason:
                raise BadFrameError(reason, path, offset)
            yield offset, length
            offset += _HEAD + length + _FOOT


class FrameSpan(NamedTuple):
    """A record whose place is known; `length` is its data's, in bytes."""

    path: str
    offset: int
    length: int
    check: bool

    def read(self) -> bytes:
        """Return the data; raises SourceError if it is not there or does not fit its checksum."""
        return _checked(read_at(self.path, self.offset + _HEAD, self.length + _FOOT), self.check)


def stream_frames(path: Path, check: bool) -> Iterator[tuple[int, bytes | SourceError]]:
    """Yield offset (in the decompressed data) and data of each record of a compressed file.

    An error replaces data that do not match their checksum.

    Raises BadFrameError if the rest of the file is lost.
    """
    offset = 0
    with open_inflated(path) as stream:
        while True:
            try:
                head = stream.read(_HEAD)
                if not head:
                    return
                reason = _bad_head(head)
                length = int.from_bytes(head[:8], "little")
                data = b"" if reason else read_exactly(stream, length + _FOOT, str(path), offset)
            except (OSError, SourceError) as error:
                reason = reject_reason(path, error)
            if reason:
                raise BadFrameError(reason, path, offset)
            try:
                yield offset, _checked(data, check)
            except SourceError as error:
                yield offset, error
            offset += _HEAD + length + _FOOT


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


def _checked(data: bytes, check: bool) -> bytes:
    body = data[:-_FOOT]
    if check and masked_crc(body) != int.from_bytes(data[-_FOOT:], "little"):
        raise SourceError(
            "the checksum of the record's data is wrong (--option check=false takes it as it is)"
        )
    return body
