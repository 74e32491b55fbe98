"""Files that are compressed as a whole, read from their front, and pieces of Zstandard.

gzip (RFC 1952) and zlib (RFC 1950) are recognised by their first bytes; of bzip2 and Zstandard
(RFC 8878) an index names them.  Damage and an early end are a `SourceError`, never less data.
"""

from __future__ import annotations

import bz2
import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

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


_MEMORY = 1 << 27
"""Bytes: what the reference decoder admits; a header that claims more memory is refused."""
_STEP = 1 << 16


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


@contextlib.contextmanager
def open_inflated(path: Path, codec: str | None = None, member: str = "") -> Iterator[Any]:
    """Open a file for reading what it holds; the stream has the method ``read1``.

    `codec` is what an index says; `member` is of a zip archive.  Without them, gzip and zlib are
    recognised, and other files are read as they are.
    """
    kind = compression_of(first_bytes(path, 3)) if codec is None else _CODECS[codec]
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(
            open(path, "rb", buffering=_WINDOW, opener=open_regular)
        )
        damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error, zipfile.BadZipFile)
        stream: Any = file
        if member:
            try:
                stream = stack.enter_context(zipfile.ZipFile(file)).open(member)
            except (zipfile.BadZipFile, LookupError, NotImplementedError, RuntimeError) as error:
                raise SourceError(f"{path}: {member} cannot be read: {error}") from error
        elif kind in _BITS:
            stream = _InflatedFile(file, _BITS[kind])
        elif kind == "bzip2":
            stream = bz2.BZ2File(file)  # buffered already
        elif kind:
            damage += (zstandard().ZstdError,)
            stream = _decompressor().stream_reader(file, read_across_frames=True, closefd=False)
            stream = io.BufferedReader(stream, _WINDOW)
        yield stream if stream is file else _Checked(stream, damage, path)


class _Checked(NamedTuple):
    """What a compressed file holds."""

    stream: Any
    damage: tuple[type[Exception], ...]  # what reading raises where the file is damaged
    path: Path

    def read1(self, count: int) -> bytes:
        """Return some bytes, at most `count`; none at the end. Raises SourceError for damage."""
        try:
            data: bytes = self.stream.read1(count)
            return data
        except self.damage as error:
            raise SourceError(f"{self.path}: cannot be decompressed: {error}") from error


class _InflatedFile:
    """What a file of gzip or zlib holds.

    Unlike ``gzip.GzipFile`` it gives all that is whole before it says that the rest is not.
    """

    def __init__(self, file: IO[bytes], bits: int) -> None:
        self._file, self._bits, self._window = file, bits, _WINDOW
        self._inflater = zlib.decompressobj(bits)
        self._rest = self._ready = b""
        self._at = 0

    def read1(self, count: int) -> bytes:
        """Return some bytes, at most `count`; none at the end."""
        if self._at == len(self._ready):
            self._ready, self._at = self._inflated(), 0
        data = self._ready[self._at : self._at + count]
        self._at += len(data)
        return data

    def _inflated(self) -> bytes:
        data = b""
        while not data:
            given = self._rest or self._file.read(self._window)
            if self._inflater.eof:
                # gzip's file may go on with another, and end with zeros (RFC 1952, 2.2).
                self._rest = given.lstrip(b"\0")
                if not given:
                    break
                if self._rest:
                    if self._bits != _BITS["gzip"] or self._rest[:1] != b"\x1f":
                        raise zlib.error("there is more behind the end of the compressed data")
                    self._inflater = zlib.decompressobj(self._bits)
                continue
            before = self._inflater.copy()
            try:
                data = self._inflater.decompress(given, _STEP)
            except zlib.error:
                if self._window == 1:
                    raise
                # What was inflated before the damage is lost with the error: again, in bytes.
                self._inflater, self._rest = before, b""
                self._file, self._window = io.BytesIO(given), 1
                continue
            self._rest = self._inflater.unused_data or self._inflater.unconsumed_tail
            if not given and not data and not self._inflater.eof:
                raise EOFError("the compressed data ends too early")
        return data


def zstandard() -> Any:
    """Import the library. Raises MissingExtraError if it is not installed."""
    return require("zstandard", "zstd", "reading Zstandard")


def _decompressor() -> Any:
    """Return a _decompressor that admits no absurd window."""
    return zstandard().ZstdDecompressor(max_window_size=_MEMORY)


def inflate_zstd(data: bytes) -> bytes:
    """Return what a piece of Zstandard holds, of at most `MAX_RECORD` bytes.

    Raises SourceError if it is damaged, cut short or longer.
    """
    inflated = bytearray()
    worker = _decompressor().decompressobj()
    try:
        # In steps: what comes out may be a thousand times what goes in.
        for start in range(0, len(data), _STEP):
            inflated += worker.decompress(data[start : start + _STEP])
            if len(inflated) > MAX_RECORD:
                raise SourceError(f"a piece of Zstandard holds more than {MAX_RECORD:,} bytes")
    except zstandard().ZstdError as error:
        raise SourceError(f"a piece of Zstandard is damaged: {error}") from error
    if not worker.eof:
        raise SourceError("a piece of Zstandard is cut short")
    return bytes(inflated)
