"""Pieces of compressed data, read from the front to the end, in bounded memory.

Data between two pieces are decompressed and dropped; a piece before the last one is read from the
front again.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, TypeVar

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..base import reject_reason
from .compression import open_inflated
from .locations import stat_of
from .spans import check_length

__all__ = ["ForwardReader"]

_STEP = 1 << 16

T = TypeVar("T")


class ForwardReader:
    """Reads pieces of a file, perhaps compressed; for one thread.

    `size` is the file's in bytes, 0 for a missing file; None if it is `compressed`, as only reading
    to the end would determine it.  `codec` and `member` are as `open_inflated` takes them.
    """

    def __init__(
        self, path: Path, *, compressed: bool, codec: str | None = None, member: str = ""
    ) -> None:
        self.path, self.name, self._codec, self._member = path, os.fspath(path), codec, member
        self.size = None if compressed else stat_of(path)[0]
        self._open = contextlib.ExitStack()
        self._stream: Any = None
        self._at = 0

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()

    def close(self) -> None:
        """Close the file until the next read; may be called twice."""
        self._open.close()
        self._stream, self._at = None, 0

    def read(self, offset: int, length: int) -> bytes:
        """Return a piece, which is shorter at the end of the file.

        Raises SourceError if the length is absurd, or compressed data is damaged.
        """
        data, damage = self._piece(offset, length)
        if damage:
            raise SourceError(damage)
        return data

    def read_some(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return the readable part of a piece, and the reason if it is incomplete."""
        try:
            data, damage = self._piece(offset, length)
        except (OSError, SourceError) as error:
            return b"", reject_reason(self.path, error)
        if len(data) < length and not damage:
            end = f"its compressed data end at byte {self._at:,}"
            damage = f"{self.path}: {end if self.size is None else f'ends at byte {self.size:,}'}"
        return data, damage if len(data) < length else ""

    def more_at(self, offset: int) -> str:
        """Return an error if the file does not end here."""
        more, damage = self._piece(offset, 1)
        return damage or (f"{self.path}: it should end at byte {offset:,} and goes on" * bool(more))

    def _piece(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return the intact part of a piece, and the error behind it, if any.

        Nothing is allocated for bytes that do not come.
        """
        check_length(length, self.name, offset)
        if offset < self._at:
            self.close()
        if self._stream is None:
            # Not by `read_at`, whose descriptors live on.
            if self.size is None:
                stream = open_inflated(self.path, self._codec, self._member)
                self._stream = self._open.enter_context(stream)
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
