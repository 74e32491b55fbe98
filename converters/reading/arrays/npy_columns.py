"""Arrays of ``.npy`` and ``.npz`` files, as columns."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ...base import reason_of
from ..inflated_piece import RAW, InflatedPiece
from ..locations import first_bytes, printable, stat_of
from ..npy import NpyHead, read_npy_head
from ..zip_archive import is_zip, zip_members
from .columns import Column, RowSpan
from .roles import Known

__all__ = ["NpyColumn", "npy_columns", "npy_kind"]

_MAGIC = b"\x93NUMPY"
_HEAD = 16 << 10
_PLACED_BYTES = 256


def npy_kind(path: Path) -> str:
    """Return which file of NumPy's this is, "npy" or "npz"; empty if none."""
    start = first_bytes(path, 512)
    if start.startswith(_MAGIC):
        return "npy"
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    return "npz" if is_zip(start) and name.endswith(b".npy") else ""


def npy_columns(path: Path) -> Iterator[tuple[str, NpyColumn]]:
    """Yield the arrays of a file by their names; a ``.npy`` is called like its file.

    Raises
    ------
    SourceError
        If the file is damaged.
    """
    if npy_kind(path) != "npz":
        yield printable(path.stem), NpyColumn(path, printable(path.stem), 0, stat_of(path)[0])
        return
    for name, member in zip_members(path):
        if problem := member.problem():
            raise SourceError(f"{path}: {printable(name)}: {problem}")
        if not name.endswith(".npy"):
            continue
        start, label = member.start(path), printable(name.removesuffix(".npy"))
        piece = None
        if member.method:
            piece = InflatedPiece(path, start, member.packed, RAW, member.crc, member.size)
        yield label, NpyColumn(path, label, start, member.size, piece)


class NpyColumn(Column):
    """The rows of an array that lies in a file as it is, or deflated.

    Parameters
    ----------
    path : Path
    label : str
    start, size : int
        Where the ``.npy`` is in the file, and how long.
    piece : InflatedPiece, optional
        What inflates it.
    """

    def __init__(
        self, path: Path, label: str, start: int, size: int, piece: InflatedPiece | None = None
    ) -> None:
        self._path, self._start, self._piece = path, start, piece
        self.label, self.shape, self.dtype = label, (), None
        self.known = self._look_at(size)
        self.contiguous = piece is None and not self.known.refused
        self.placed = self.contiguous and self.row_bytes >= _PLACED_BYTES

    @property
    def compressed(self) -> bool:
        """Whether rows can be read only one behind the other."""
        return self._piece is not None

    def _look_at(self, size: int) -> Known:
        length = min(size, _HEAD)
        try:
            data = self._bytes(0, length)
            head = read_npy_head(io.BytesIO(data))
            self._body, self.shape, self.dtype = head.start, head.shape, head.dtype
            refused = _refused(head, size)
        except (OSError, ValueError) as error:  # SourceError is a ValueError
            return Known((), None, "unknown", reason_of(error))
        return Known(head.shape, head.dtype, refused=refused)

    def _bytes(self, at: int, length: int) -> bytes:
        if self._piece is not None:
            return self._piece.read(at, length)
        with open(self._path, "rb", opener=open_regular) as file:
            file.seek(self._start + at)
            return file.read(length)

    def read(self, start: int, stop: int) -> Any:
        stop = min(stop, self.shape[0])
        length = (stop - start) * self.row_bytes
        data = self._bytes(self._body + start * self.row_bytes, length)
        if len(data) < length:
            raise SourceError(f"{self._path}: {self.label!r} ends before row {stop:,}")
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def place(self, index: int) -> RowSpan:
        assert self.dtype is not None
        offset = self._start + self._body + index * self.row_bytes
        return RowSpan(str(self._path), offset, self.dtype.str, self.shape[1:])


def _refused(head: NpyHead, size: int) -> str:
    if not head.shape:
        return "one number only"
    if head.start + head.size != size:
        return f"it claims {head.size:,} bytes and has {size - head.start:,}: it is damaged"
    if head.fortran and len(head.shape) > 1:
        return "its rows do not lie together: save numpy.ascontiguousarray of it"
    return ""
