"""Where one shard of an export ends and the next begins, and files that are cut so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO

__all__ = ["Cut", "ShardFiles", "number_of_all"]

_BUFFER = 1 << 18


class Cut:
    """Says of each sample whether it begins a new shard.

    Parameters
    ----------
    samples, num_bytes : int, optional
        That a shard has at most; a sample that is larger has one to itself.
    """

    def __init__(self, samples: int | None = None, num_bytes: int | None = None) -> None:
        self._most = samples, num_bytes
        self._samples = self._bytes = 0

    def begins_shard(self, num_bytes: int) -> bool:
        """Count a sample of so many bytes; tell whether it does not fit behind those before."""
        samples, most = self._most
        full = self._samples > 0 and (
            self._samples == samples or (most is not None and self._bytes + num_bytes > most)
        )
        if full:
            self._samples = self._bytes = 0
        self._samples += 1
        self._bytes += num_bytes
        return full


class ShardFiles:
    """Files that samples are written to, one after the other.

    Parameters
    ----------
    root : Path
    pattern : str
        Of names, with a place for the number of a file.
    cut : Cut
    end : bytes
        What stands at the end of each file.

    Attributes
    ----------
    paths : list of Path
        There is one, be it empty.

    Notes
    -----
    A context manager; leaving it by an exception leaves the last file as it is.
    """

    def __init__(self, root: Path, pattern: str, cut: Cut, end: bytes = b"") -> None:
        self.paths: list[Path] = []
        self._root, self._pattern, self._cut, self._end = root, pattern, cut, end
        self._file: IO[bytes]
        self._open()

    def _open(self) -> None:
        path = self._root / self._pattern.format(len(self.paths))
        self._file = open(path, "xb", buffering=_BUFFER)  # noqa: SIM115 (closed by _finish)
        self.paths.append(path)

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Write a sample."""
        if self._cut.begins_shard(sum(map(len, pieces))):
            self._finish()
            self._open()
        for piece in pieces:
            self._file.write(piece)

    def _finish(self) -> None:
        with self._file as file:
            file.write(self._end)

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
            return
        # Not through the buffer, which a full disk would not take either.
        try:
            self._file.close()
        except OSError:
            self._file.raw.close()  # type: ignore[attr-defined]


def number_of_all(paths: Sequence[Path], pattern: str) -> list[Path]:
    """Rename files so that each tells how many there are; return the new paths."""
    return [
        path.rename(path.with_name(pattern.format(number, len(paths))))
        for number, path in enumerate(paths)
    ]
