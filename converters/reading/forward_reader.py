"""Pieces of a file that may be compressed, read from its front to its end.

In a compressed file what lies between two pieces is decompressed and thrown away, so pieces
are read in ascending order.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..base import reason_of
from .compression import open_inflated
from .locations import stat_of
from .spans import check_length

__all__ = ["BLOCK_BYTES", "ForwardReader"]

BLOCK_BYTES = 1 << 16
"""How much of pixels a source reads at once."""

_STEP = 1 << 16


class ForwardReader:
    """A context manager; for one thread.

    compressed: whether pieces are of what gzip or zlib has compressed.
    size: in bytes, 0 if it is not there; None where only reading to the end would tell.
    """

    def __init__(self, path: Path, *, compressed: bool) -> None:
        self.path, self.name = path, os.fspath(path)
        self.size = None if compressed else stat_of(path)[0]
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

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece; less of it where the file ends."""
        data, damage = self._piece(offset, length)
        if damage:
            raise SourceError(damage)
        return data

    def read_some(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return what there is of a piece, and why there is not more of it."""
        try:
            data, damage = self._piece(offset, length)
        except (OSError, SourceError) as error:
            return b"", reason_of(error)
        if len(data) == length:
            return data, ""
        if damage and not data:
            return b"", damage
        compressed = self.size is None
        end = self._at if compressed else self.size
        kind = "what is compressed in it" if compressed else "the file"
        return data, f"{self.path}: {kind} ends at byte {end:,}"

    def more_at(self, offset: int) -> str:
        """Say what is wrong if this is not where the file ends."""
        more, damage = self._piece(offset, 1)
        return damage or (
            f"{self.path}: there is more behind byte {offset:,}, where it should end" * bool(more)
        )

    def _piece(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return what comes of a piece, and the damage behind that, if it is that.

        Nothing is allocated for bytes that do not come.
        """
        check_length(length, self.name, offset)
        if self._stream is None:
            # Not by `read_at`, whose descriptors live on.
            if self.size is None:
                self._stream = self._open.enter_context(open_inflated(self.path))
            else:
                raw = open(self.path, "rb", buffering=0, opener=open_regular)  # noqa: SIM115
                self._stream = self._open.enter_context(raw)
        if self.size is not None:
            there = max(0, min(length, self.size - offset))
            return os.pread(self._stream.fileno(), there, offset), ""
        pieces: list[bytes] = []
        try:
            while self._at < offset and self._take(min(_STEP, offset - self._at)):
                pass
            left = length if self._at == offset else 0
            while left and (piece := self._take(min(_STEP, left))):
                pieces.append(piece)
                left -= len(piece)
        except SourceError as error:
            return b"".join(pieces), str(error)
        return b"".join(pieces), ""

    def _take(self, length: int) -> bytes:
        # Not `read`, which forgets what came before damage.
        piece: bytes = self._stream.read1(length)
        self._at += len(piece)
        return piece
