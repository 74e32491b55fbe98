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
        self._fed = self._at = self._crc = 0

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
        if at < self._at:
            self._begin()
        while self._at < at:
            self._take(min(_STEP, at - self._at))
        pieces = []
        while length:
            pieces.append(self._take(min(_STEP, length)))
            length -= len(pieces[-1])
        if self._at == self._size and self._wanted_crc not in (None, self._crc):
            raise SourceError(
                f"{self.path}: the checksum of an array is wrong: rows before may be damaged too"
            )
        return b"".join(pieces)

    def _take(self, most: int) -> bytes:
        """Return some bytes, at least one."""
        data = b""
        while not data:
            given = self._inflater.unconsumed_tail
            if not given:
                count = min(_STEP, self._packed - self._fed)
                given = read_at(self.path, self._offset + self._fed, count)
                self._fed += count
            try:
                data = self._inflater.decompress(given, most)
            except zlib.error as error:
                self._damaged_at = self._at
                raise SourceError(f"{self.path}: cannot be inflated: {error}") from error
            if not data and (self._inflater.eof or self._fed == self._packed):
                self._damaged_at = self._at
                raise SourceError(f"{self.path}: an array ends after {self._at:,} bytes")
        self._at += len(data)
        self._crc = zlib.crc32(data, self._crc)
        return data
