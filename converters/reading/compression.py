"""Files that are compressed as a whole, read from their front, and pieces of Zstandard.

gzip (RFC 1952) and zlib (RFC 1950) are recognised by their first bytes; of bzip2 and Zstandard
(RFC 8878) an index names them.  Damage and an early end are a `SourceError`, never less data.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from .locations import first_bytes
from .refusals import require
from .spans import MAX_RECORD

__all__ = [
    "check_codec",
    "compression_of",
    "inflate_zstd",
    "inflated_start",
    "open_inflated",
    "other_compression",
    "zstandard",
]

_WINDOW = 1 << 17
_BITS = {"gzip": 31, "zlib": 15}
_CODECS = {"gz": "gzip", "bz2": "bzip2", "zstd": "zstd"}
"""As indexes name them."""
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


_WINDOW_BYTES = 1 << 27
"""What the reference decoder admits; a header that claims more memory is refused."""
_STEP = 1 << 16
_CAREFUL = 16
"""Bytes of a step by which what comes before damage is inflated."""


def compression_of(start: bytes) -> str:
    """Return how a file with these first bytes is compressed: "gzip", "zlib" or ""."""
    if start[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if len(start) > 1 and start[0] == 0x78 and int.from_bytes(start[:2], "big") % 31 == 0:
        return "zlib"
    return ""


def other_compression(start: bytes) -> str:
    """Return how it is compressed where `open_inflated` does not see that itself; or ""."""
    return next((name for magic, name in _OTHERS.items() if start.startswith(magic)), "")


def check_codec(name: str, place: str) -> str:
    """Return the codec that an index names, ``zstd:7`` say, as `open_inflated` takes it.

    Raises SourceError if it is not known. Raises MissingExtraError if it needs a package that is
    not installed.
    """
    codec = name.partition(":")[0]
    if codec not in _CODECS:
        raise SourceError(
            f"{place}: compressed by {name!r}, of which fastdata knows {', '.join(_CODECS)}. "
            "Decompress the files with the library that wrote them."
        )
    if codec == "zstd":
        zstandard()
    return codec


def inflated_start(start: bytes, count: int) -> bytes:
    """Return the first `count` bytes that a compressed file holds, from its own first bytes.

    Empty where they cannot be had.
    """
    bits = _BITS.get(compression_of(start))
    if bits is None:
        return b""
    try:
        return zlib.decompressobj(bits).decompress(start, count)
    except zlib.error:
        return b""


class _InflatedStream:
    """What a compressed file holds; reading raises SourceError where that is damaged."""

    def __init__(self, stream: Any, damage: tuple[type[Exception], ...], path: Path) -> None:
        self._stream, self._damage, self._path = stream, damage, path

    def read(self, count: int) -> bytes:
        """Return so many bytes; fewer at the end."""
        return self._checked(self._stream.read, count)

    def read1(self, count: int) -> bytes:
        """Return some bytes, at most `count`: all of those that come before damage can be had."""
        return self._checked(self._stream.read1, count)

    def _checked(self, read: Callable[[int], bytes], count: int) -> bytes:
        try:
            return read(count)
        except self._damage as error:
            raise SourceError(f"{self._path}: cannot be decompressed: {error}") from error


@contextlib.contextmanager
def open_inflated(path: Path, codec: str | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading what it holds, by `_InflatedStream` where it is compressed.

    `codec` is what an index says.  Without it, gzip and zlib are recognised, and other files are
    read as they are.
    """
    kind = compression_of(first_bytes(path, 3)) if codec is None else _CODECS[codec]
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(
            open(path, "rb", buffering=_WINDOW, opener=open_regular)
        )
        if not kind:
            yield file
            return
        damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
        stream: Any
        if kind in _BITS:
            stream = io.BufferedReader(_InflatedFile(file, _BITS[kind]))
        elif kind == "bzip2":
            stream = bz2.BZ2File(file)  # buffered already
        else:
            damage += (zstandard().ZstdError,)
            stream = _decompressor().stream_reader(file, read_across_frames=True, closefd=False)
            stream = io.BufferedReader(stream, _WINDOW)
        stack.callback(stream.close)
        yield cast(IO[bytes], _InflatedStream(stream, damage, path))


class _InflatedFile(io.RawIOBase):
    """What a compressed file holds, read from its front.

    Unlike ``gzip.GzipFile`` it gives all that is whole before it says that the rest is not.
    """

    def __init__(self, file: IO[bytes], bits: int) -> None:
        self._file = file
        self._bits = bits
        self._done, self._most = 0, _WINDOW
        self._begin()

    def _begin(self) -> None:
        self._inflater = zlib.decompressobj(self._bits)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._inflated(min(len(buffer), self._most))
        except zlib.error:
            if self._most == _CAREFUL:
                raise
            # What was inflated before the damage is lost with the error: again, in small steps.
            self._file.seek(0)
            self._begin()
            done, self._most = 0, _CAREFUL
            while done < self._done:
                done += len(self._inflated(min(_WINDOW, self._done - done)))
            data = self._inflated(min(len(buffer), self._most))
        self._done += len(data)
        buffer[: len(data)] = data
        return len(data)

    def _inflated(self, most: int) -> bytes:
        """Return some bytes, at most so many; none at the end."""
        data = b""
        while not data and most:
            given = self._rest or self._file.read(_WINDOW)
            if self._inflater.eof and not self._next_member(given):
                break
            data = self._inflater.decompress(given, most)
            self._rest = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._rest = self._inflater.unused_data
            elif not given and not data:
                raise EOFError("the compressed data ends too early")
        return data

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


def zstandard() -> Any:
    """Import the library. Raises MissingExtraError if it is not installed."""
    return require("zstandard", "zstd", "reading Zstandard")


def _decompressor() -> Any:
    """Return a _decompressor that admits no absurd window."""
    return zstandard().ZstdDecompressor(max_window_size=_WINDOW_BYTES)


def inflate_zstd(data: bytes, limit: int = MAX_RECORD) -> bytes:
    """Return what a piece of Zstandard holds, of at most `limit` bytes.

    Raises SourceError if it is damaged, cut short or longer.
    """
    inflated = bytearray()
    worker = _decompressor().decompressobj()
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
