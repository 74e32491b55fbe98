"""Pieces of a file that may be compressed, read from its front to its end.

Sources that hold pixels read them in blocks.  In a compressed file what lies between two
pieces is decompressed and thrown away, so pieces are read in ascending order.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from .compression import INFLATE_ERRORS, open_inflated

__all__ = ["BLOCK_BYTES", "ForwardReader"]

BLOCK_BYTES = 1 << 16
"""How much of pixels a source reads at once."""

_SKIP = 1 << 16


class ForwardReader:
    """A context manager; for one thread.

    Parameters
    ----------
    path : Path
    compressed : bool
        Whether pieces are of what gzip or zlib has compressed.
    """

    def __init__(self, path: Path, *, compressed: bool) -> None:
        self.path = path
        self._compressed = compressed
        self._open = contextlib.ExitStack()
        self._stream: Any = None
        self._at = 0

    def __enter__(self) -> ForwardReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._open.close()

    def read(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return what there is of a piece, and why there is not more of it.

        Nothing is allocated for bytes that do not come.
        """
        try:
            if not self._compressed:
                if self._stream is None:
                    # Not by `read_at`, whose descriptors live on.
                    self._stream = self._open.enter_context(self.path.open("rb", buffering=0))
                end = os.fstat(self._stream.fileno()).st_size
                there = max(0, min(length, end - offset))
                data = os.pread(self._stream.fileno(), there, offset)
            else:
                data = self._forward(offset, length)
                end = self._at
        except INFLATE_ERRORS as error:
            return b"", f"{self.path}: {error}"
        if len(data) == length:
            return data, ""
        kind = "what is compressed in it" if self._compressed else "the file"
        return data, f"{self.path}: {kind} ends at byte {end:,}"

    def more_at(self, offset: int) -> str:
        """Say what is wrong if this is not where the file ends."""
        if not self._compressed:
            more = self.path.stat().st_size > offset
        else:
            try:
                more = bool(self._forward(offset, 1))
            except INFLATE_ERRORS as error:
                return f"{self.path}: {error}"
        return f"{self.path}: there is more behind byte {offset:,}, where it should end" * more

    def _forward(self, offset: int, length: int) -> bytes:
        if self._stream is None:
            self._stream = self._open.enter_context(open_inflated(self.path))
        while self._at < offset and self._take(min(_SKIP, offset - self._at)):
            pass
        pieces: list[bytes] = []
        left = length if self._at == offset else 0
        try:
            while left and (piece := self._take(min(_SKIP, left))):
                pieces.append(piece)
                left -= len(piece)
        except INFLATE_ERRORS:
            if not pieces:
                raise
        return b"".join(pieces)

    def _take(self, length: int) -> bytes:
        # Not `read`, which forgets what came before damage.
        piece: bytes = self._stream.read1(length)
        self._at += len(piece)
        return piece
