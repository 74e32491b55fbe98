"""A piece of a file that is compressed by zlib: a member of an ``.npz``, an array of a ``.mat``.

Like ``forward_reader.py`` of whole files: what is asked for in ascending order is inflated once,
in bounded memory, and going back begins anew.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from fastdata.errors import SourceError

from .spans import check_length, read_at

__all__ = ["RAW", "ZLIB", "InflatedPiece"]

RAW, ZLIB = -15, 15
"""What a piece begins with: nothing, as in zip archives, or zlib's head."""

_STEP = 1 << 16
_KEPT = 64


class InflatedPiece:
    """What a compressed piece of a file holds; for one thread.

    Parameters
    ----------
    path : Path
    offset, packed : int
        Where the piece is, in bytes.
    bits : int
        `RAW` or `ZLIB`.
    crc : int, optional
        CRC-32 of what it holds, compared when its last byte, by `size`, is read.
    size : int, optional
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        packed: int,
        bits: int,
        crc: int | None = None,
        size: int | None = None,
    ) -> None:
        self.path, self._offset, self._packed, self._bits = path, offset, packed, bits
        self._wanted_crc, self._size = crc, size
        self._damaged_at: int | None = None
        self._begin()

    def _begin(self) -> None:
        self._inflater = zlib.decompressobj(self._bits)
        self._fed = self._crc = self._start = 0
        self._buffer = b""

    def read(self, at: int, length: int) -> bytes:
        """Return a part of what it holds.

        Raises
        ------
        SourceError
            If it ends before, is damaged, or the length is absurd.
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
        """Inflate some more, in the place of what was; a little stays, for who goes back to it."""
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
        whole = self._size is not None and end + len(data) >= self._size
        if whole and self._wanted_crc not in (None, self._crc):
            problem = "the checksum of an array is wrong: rows before may be damaged too"
        if problem:
            self._damaged_at = end
            raise SourceError(f"{self.path}: {problem}")
        self._buffer += data
