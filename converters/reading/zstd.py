"""Zstandard (RFC 8878): its library, and pieces that it has compressed."""

from __future__ import annotations

from typing import Any

from fastdata.errors import SourceError

from .refusals import require
from .spans import MAX_RECORD

__all__ = ["decompressor", "inflate_zstd", "zstandard"]

_WINDOW_BYTES = 1 << 27
"""What the reference decoder admits; a header that claims more memory is refused."""

_STEP = 1 << 16


def zstandard() -> Any:
    """Import the library.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    return require("zstandard", "zstd", "reading Zstandard")


def decompressor() -> Any:
    """Return a decompressor that admits no absurd window."""
    return zstandard().ZstdDecompressor(max_window_size=_WINDOW_BYTES)


def inflate_zstd(data: bytes, limit: int = MAX_RECORD) -> bytes:
    """Return what a piece of Zstandard holds, of at most `limit` bytes.

    Raises
    ------
    SourceError
        If it is damaged, cut short or longer.
    """
    inflated = bytearray()
    worker = decompressor().decompressobj()
    try:
        # In steps: what comes out may be a thousand times what goes in.
        for start in range(0, len(data), _STEP):
            inflated += worker.decompress(data[start : start + _STEP])
            if len(inflated) > limit:
                raise SourceError(f"a piece of Zstandard holds more than {limit:,} bytes")
    except zstandard().ZstdError as error:
        raise SourceError(f"a piece of Zstandard is damaged: {error}") from error
    if not worker.eof:
        raise SourceError("a piece of Zstandard is cut short")
    return bytes(inflated)
