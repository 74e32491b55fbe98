"""Files that an index says are compressed as a whole, by gzip, bzip2 or Zstandard.

They are read from their front.  Damage, an early end and a codec that is not known are
`SourceError`.  Unlike ``inflating``, which looks at the bytes, this goes by what an index says.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from fastdata.errors import SourceError

from .extras import require
from .spans import MAX_RECORD

__all__ = ["check_codec", "inflate_zstd", "open_decompressed"]

_CODECS = ("gz", "bz2", "zstd")
_WINDOW_BYTES = 1 << 27
"""What the reference decoder admits; a header that claims more memory is refused."""


def check_codec(name: str, place: str) -> str:
    """Return the codec that ``zstd:7``, say, names.

    Raises
    ------
    SourceError
        If it is not known.
    MissingExtraError
        If it needs a package that is not installed.
    """
    codec = name.partition(":")[0]
    if codec not in _CODECS:
        raise SourceError(
            f"{place}: compressed by {name!r}, of which fastdata knows {', '.join(_CODECS)}. "
            "Decompress the files with the library that wrote them."
        )
    if codec == "zstd":
        _zstandard()
    return codec


def _zstandard() -> Any:
    return require("zstandard", "zstd", "reading Zstandard")


def _decompressor() -> Any:
    return _zstandard().ZstdDecompressor(max_window_size=_WINDOW_BYTES)


@contextlib.contextmanager
def open_decompressed(path: Path, codec: str) -> Iterator[IO[bytes]]:
    """Open a compressed file for reading what it holds.

    Reading raises SourceError where it is damaged or ends early; what is before that is had.
    """
    damage: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
    with contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(open(path, "rb"))
        stream: Any
        # The first two are buffered already; a second buffer would lose what is before damage.
        if codec == "gz":
            stream = gzip.GzipFile(fileobj=file)
        elif codec == "bz2":
            stream = bz2.BZ2File(file)
        else:
            damage += (_zstandard().ZstdError,)
            stream = _decompressor().stream_reader(file, read_across_frames=True, closefd=False)
            stream = io.BufferedReader(stream, 1 << 17)
        stack.callback(stream.close)
        yield cast(IO[bytes], _Stream(stream, damage, path))


class _Stream:
    """A stream in which damage is a `SourceError`."""

    def __init__(self, stream: IO[bytes], damage: tuple[type[Exception], ...], path: Path) -> None:
        self._stream, self._damage, self._path = stream, damage, path

    def read(self, count: int) -> bytes:
        try:
            return self._stream.read(count)
        except self._damage as error:
            raise SourceError(f"{self._path}: cannot be decompressed: {error}") from error


def inflate_zstd(data: bytes, limit: int = MAX_RECORD) -> bytes:
    """Return what a piece of Zstandard holds, of at most `limit` bytes.

    Raises
    ------
    SourceError
        If it is damaged, cut short or longer.
    """
    inflated = bytearray()
    worker = _decompressor().decompressobj()
    try:
        # In steps: what comes out may be a thousand times what goes in.
        for start in range(0, len(data), 1 << 16):
            inflated += worker.decompress(data[start : start + (1 << 16)])
            if len(inflated) > limit:
                raise SourceError(f"a piece of Zstandard holds more than {limit:,} bytes")
    except _zstandard().ZstdError as error:
        raise SourceError(f"a piece of Zstandard is damaged: {error}") from error
    if not worker.eof:
        raise SourceError("a piece of Zstandard is cut short")
    return bytes(inflated)
