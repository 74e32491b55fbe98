"""An object of a store as a file that is read by ranges, so that pyarrow reads what it needs."""

from __future__ import annotations

import io
import os

from fastdata.regular_files import Mirror

__all__ = ["RangedFile"]


class RangedFile(io.RawIOBase):
    """An object that is read by ranges, for libraries that take a file; for one thread.

    What is read on in large pieces from where an earlier range ended is read ahead, twice as far
    each time: a reader of columns is at several places by turns.
    """

    _LARGE_BYTES, _AHEAD_BYTES = 256 << 10, 8 << 20
    _PLACES = 8

    def __init__(self, mirror: Mirror, path: str) -> None:
        self._mirror, self._path, self._size = mirror, path, os.stat(path).st_size
        self._at = 0
        self._ranges: list[tuple[int, bytes]] = []
        """Where ranges begin, and their bytes; the last that was used is the last."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes; fewer at the end of the file alone."""
        left = max(0, self._size - self._at)
        stop = self._at + (left if size < 0 else min(left, size))
        pieces = []
        while self._at < stop:
            start, data = self._range(stop)
            piece = data[self._at - start : stop - start]
            pieces.append(piece)
            self._at += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _range(self, stop: int) -> tuple[int, bytes]:
        """Return a range that has the next byte: a known one, or one that goes on to `stop`."""
        ahead = 0
        for number, (start, data) in enumerate(self._ranges):
            if start <= self._at < start + len(data):
                self._ranges.append(self._ranges.pop(number))
                return self._ranges[-1]
            if start + len(data) == self._at and stop - self._at >= self._LARGE_BYTES:
                ahead = min(self._AHEAD_BYTES, 2 * len(data))
        until = min(self._size, max(stop, self._at + ahead))
        self._ranges.append((self._at, self._mirror.read(self._path, self._at, until)))
        del self._ranges[: -self._PLACES]
        return self._ranges[-1]
