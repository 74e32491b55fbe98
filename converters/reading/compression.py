"""Files that are compressed as a whole: recognised by their first bytes, read from their front.

gzip (RFC 1952) and zlib (RFC 1950); damage and an early end are errors, never less data.
"""

from __future__ import annotations

import contextlib
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .locations import first_bytes

__all__ = ["INFLATE_ERRORS", "compression_of", "inflated_start", "open_inflated"]

INFLATE_ERRORS = (OSError, EOFError, zlib.error)
"""What reading a damaged compressed file raises."""

_WINDOW = 1 << 17


def compression_of(start: bytes) -> str:
    """Return how a file with these first bytes is compressed: "gzip", "zlib" or ""."""
    if start[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
        return "zlib"
    return ""


def inflated_start(start: bytes, count: int) -> bytes:
    """Return the first `count` bytes that a compressed file holds, from its own first bytes.

    Empty where they cannot be had.
    """
    bits = {"gzip": 31, "zlib": 15, "": 0}[compression_of(start)]
    if not bits:
        return b""
    try:
        return zlib.decompressobj(bits).decompress(start, count)
    except zlib.error:
        return b""


@contextlib.contextmanager
def open_inflated(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading what it holds, compressed or not.

    Reading raises one of `INFLATE_ERRORS` where the compressed data is damaged or ends early.
    """
    kind = compression_of(first_bytes(path, 3))
    with open(path, "rb", buffering=_WINDOW) as file:
        if not kind:
            yield file
            return
        inflated = io.BufferedReader(_InflatedFile(file, {"gzip": 31, "zlib": 15}[kind]))
        with contextlib.closing(inflated):
            yield inflated


class _InflatedFile(io.RawIOBase):
    """What a compressed file holds, read from its front.

    Unlike ``gzip.GzipFile`` it gives all that is whole before it says that the rest is not.
    """

    def __init__(self, file: IO[bytes], bits: int) -> None:
        self._file = file
        self._bits = bits
        self._inflater = zlib.decompressobj(bits)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and len(buffer):
            given = self._rest or self._file.read(_WINDOW)
            if self._inflater.eof and not self._next_member(given):
                return 0
            data = self._inflater.decompress(given, len(buffer))
            self._rest = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._rest = self._inflater.unused_data
            elif not given and not data:
                raise EOFError("the compressed data ends too early")
        buffer[: len(data)] = data
        return len(data)

    def _next_member(self, given: bytes) -> bool:
        """Tell whether the file goes on; gzip's may, and may end with zeros (RFC 1952, 2.2)."""
        while given and not given.strip(b"\0"):
            given = self._file.read(_WINDOW)
        if not given:
            return False
        if self._bits != 31 or given[:1] != b"\x1f":
            raise zlib.error("there is more behind the end of the compressed data")
        self._inflater = zlib.decompressobj(self._bits)
        return True
