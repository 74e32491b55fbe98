"""Pieces of compressed data, read from the front to the end, in bounded memory.

`ForwardReader` reads whole files, compressed or not; `InflatedPiece` reads a member of an ``.npz``.
Data between two pieces are decompressed and dropped, so pieces are read in ascending order; going
back restarts.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Any, TypeVar

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..base import reject_reason
from .compression import open_inflated
from .locations import stat_of
from .spans import check_length, read_at

__all__ = ["BLOCK_BYTES", "ForwardReader", "InflatedPiece"]

BLOCK_BYTES = 1 << 16
"""How much of pixels a source reads at once."""

_STEP = 1 << 16
_KEPT = 64

T = TypeVar("T")


class ForwardReader:
    """Reads pieces of a file, perhaps compressed; for one thread.

    `size` is the file's in bytes, 0 for a missing file; None if it is `compressed`, as only reading
    to the end would determine it.  `codec` is as `open_inflated` takes it.
    """

    def __init__(self, path: Path, *, compressed: bool, codec: str | None = None) -> None:
        self.path, self.name, self._codec = path, os.fspath(path), codec
        self.size = None if compressed else stat_of(path)[0]
        self._open = contextlib.ExitStack()
        self._stream: Any = None
        self._at = 0

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        self._open.close()

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
        if len(data) == length:
            return data, ""
        if damage:
            return data, damage
        compressed = self.size is None
        end = self._at if compressed else self.size
        kind = "what is compressed in it" if compressed else "the file"
        return data, f"{self.path}: {kind} ends at byte {end:,}"

    def more_at(self, offset: int) -> str:
        """Return an error if the file does not end here."""
        more, damage = self._piece(offset, 1)
        return damage or (
            f"{self.path}: there is more behind byte {offset:,}, where it should end" * bool(more)
        )

    def _piece(self, offset: int, length: int) -> tuple[bytes, str]:
        """Return the intact part of a piece, and the error behind it, if any.

        Nothing is allocated for bytes that do not come.
        """
        check_length(length, self.name, offset)
        if self._stream is None:
            # Not by `read_at`, whose descriptors live on.
            if self.size is None:
                self._stream = self._open.enter_context(open_inflated(self.path, self._codec))
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


class InflatedPiece:
    """The content of a compressed piece of a file; for one thread.

    The piece is `packed` bytes long.  The CRC-32 of its content is compared once the last of the
    `size` bytes is read.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        packed: int,
        crc: int,
        size: int,
    ) -> None:
        self.path, self._offset, self._packed = path, offset, packed
        self._wanted_crc, self._size = crc, size
        self._damaged_at: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._inflater = zlib.decompressobj(-15)  # without a head, as in zip archives
        self._fed = self._crc = self._start = 0
        self._buffer = b""

    def read(self, at: int, length: int) -> bytes:
        """Return a part of the content.

        Raises SourceError if it ends before, is damaged, or the length is absurd.
        """
        check_length(length, str(self.path), at)
        if self._damaged_at is not None and at + length > self._damaged_at:
            raise SourceError(f"{self.path}: damaged before byte {self._damaged_at:,} of the array")
        if at < self._start:
            self._begin()
        pieces = []
        while length:
            piece = self._buffer[at - self._start : at - self._start + length]
            if not piece:
                self._inflate()
                continue
            pieces.append(piece)
            at, length = at + len(piece), length - len(piece)
        return b"".join(pieces)

    def _inflate(self) -> None:
        """Inflate the next block; the end of the previous one stays, for reads that go back."""
        self._start += max(0, len(self._buffer) - _KEPT)
        self._buffer = self._buffer[-_KEPT:]
        end = self._start + len(self._buffer)
        data, problem = b"", ""
        while not data and not problem:
            given = self._inflater.unconsumed_tail
            if not given:
                count = min(_STEP, self._packed - self._fed)
                given = read_at(self.path, self._offset + self._fed, count)
                self._fed += count
            try:
                data = self._inflater.decompress(given, _STEP)
            except zlib.error as error:
                problem = f"cannot be inflated: {error}"
            if not data and (self._inflater.eof or self._fed == self._packed):
                problem = problem or f"an array ends after {end:,} bytes"
        self._crc = zlib.crc32(data, self._crc)
        if end + len(data) >= self._size and self._wanted_crc != self._crc:
            problem = "the checksum of an array is wrong: rows before may be damaged too"
        if problem:
            self._damaged_at = end
            raise SourceError(f"{self.path}: {problem}")
        self._buffer += data
