"""Files that are compressed as a whole: recognised by their first bytes, read from their front.

gzip (RFC 1952) and zlib (RFC 1950); damage and an early end are errors, never less data.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .locations import first_bytes

__all__ = ["INFLATE_ERRORS", "compression_of", "inflated_start", "open_inflated"]

INFLATE_ERRORS = (OSError, EOFError, zlib.error)
"""What reading a damaged compressed file raises; ``gzip.BadGzipFile`` is an OSError."""

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
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(open(path, "rb", buffering=_WINDOW))
        if kind == "gzip":
            yield stack.enter_context(
                contextlib.closing(io.BufferedReader(gzip.GzipFile(fileobj=file)))
            )
        elif kind == "zlib":
            yield stack.enter_context(contextlib.closing(io.BufferedReader(_ZlibFile(file))))
        else:
            yield file


class _ZlibFile(io.RawIOBase):
    """A file of zlib's, read from its front."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflater = zlib.decompressobj()
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._inflater.eof:
            given = self._rest or self._file.read(_WINDOW)
            data = self._inflater.decompress(given, len(buffer))
            self._rest = self._inflater.unconsumed_tail
            if not given and not data:
                raise EOFError("the compressed data ends too early")
        if not data and len(buffer) and (self._inflater.unused_data or self._file.read(1)):
            raise zlib.error("there is more behind the end of the compressed data")
        buffer[: len(data)] = data
        return len(data)
