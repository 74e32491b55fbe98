"""MATLAB's ``.mat`` files: arrays of numbers without loading them, and small values of all kinds.

``scipy.io.loadmat`` loads all of a file, 2 GB of SVHN's; here an array is a place, and its rows
are inflated when they are asked for (`mat_columns`).  MATLAB has pictures H x W x C x N, and labels
N x 1.  Text, cells and structs are read by `mat_values` alone, an entry at a time, so that a list
of images takes no memory.  Nothing is executed.

Source: "MAT-File Format", MathWorks, chapter 1, Level 5.  Files since version 7.3 are HDF5 with
all dimensions in the opposite order.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError

from ..forward_reader import ZLIB, InflatedPiece
from ..locations import first_bytes, printable, stat_of
from ..spans import read_at
from .columns import ArrayColumn

__all__ = ["MatColumn", "mat_columns", "mat_kind", "mat_values", "whole_number"]

_HEAD = 128
_MATRIX, _COMPRESSED = 14, 15
_STORED = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8",
    13: "<u8",
}  # fmt: skip
_CLASSES = {
    6: "<f8", 7: "<f4", 8: "i1", 9: "u1", 10: "<i2", 11: "<u2", 12: "<i4", 13: "<u4", 14: "<i8",
    15: "<u8",
}  # fmt: skip
_OTHERS = {1: "a cell array", 2: "a struct", 3: "an object", 4: "text", 5: "a sparse array"}
_COMPLEX = 0x800
_CELL, _STRUCT, _TEXT = 1, 2, 4
_ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}
_MOST_DIMS, _LONGEST_NAME = 32, 4096
_DEPTH = 8
_MOST_BYTES, _MOST_ENTRIES = 16 << 20, 1 << 16
"""Limit of one value, and of a cell or struct array inside another."""

_Rows = Callable[[int, int], np.ndarray[Any, Any]]


class MatColumn(ArrayColumn):
    """The rows of an array whose last index is the sample; of a vector, its numbers.

    `shape` is as MATLAB says it, with the first index running fastest, and `dtype` what MATLAB
    calls it: numbers may be stored in fewer bytes.  `elements` returns the numbers from one place
    to another, as they lie; None where `refused` says why the array is not read.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: np.dtype[Any] | None = None,
        stored: np.dtype[Any] | None = None,
        elements: _Rows | None = None,
        refused: str = "",
    ) -> None:
        self.label, self.shape, self.dtype, self._elements = name, shape, dtype, elements
        if refused or stored is None:
            pass
        elif len(shape) < 2 or math.prod(shape) == 0:
            refused = "it is empty" if len(shape) > 1 else "it has one dimension only"
        elif len(shape) == 2:
            # Whole numbers may be called double and be stored as bytes.
            self.shape, self.dtype = (math.prod(shape),), stored
            refused = "" if min(shape) == 1 else "it is a matrix, neither labels nor pictures"
        elif len(shape) == 4 and shape[3] in (1, 3) and shape[2] not in (1, 3):
            refused = "the sample is not its last index; in MATLAB: permute(X, [2 3 4 1])"
        else:
            self.shape = (shape[-1], *shape[:-1])
        self.refused = refused

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        assert self._elements is not None
        stop = min(stop, self.shape[0])
        row = math.prod(self.shape[1:])
        numbers = self._elements(start * row, stop * row)
        rows = numbers.reshape(stop - start, *self.shape[:0:-1])
        # The first index of a row runs fastest: it is the last one here, and becomes the first.
        turned = rows.transpose(0, *range(rows.ndim - 1, 0, -1))
        result: np.ndarray[Any, Any] = turned.astype(self.dtype, copy=False)
        return result


def mat_kind(path: Path) -> str:
    """Return which file of MATLAB's this is, "5" or "7.3"; empty if none."""
    start = first_bytes(path, 528)
    if start.startswith(b"MATLAB 7.3") and start[512:520] == b"\x89HDF\r\n\x1a\n":
        return "7.3"
    return "5" if start.startswith(b"MATLAB 5.0") and start[126:128] in (b"IM", b"MI") else ""


def mat_columns(path: Path) -> Iterator[MatColumn]:
    """Yield the arrays of a file.

    Raises SourceError if the file is damaged, or of a kind that is not read.
    """
    if mat_kind(path) == "7.3":
        yield from _hdf5_arrays(path)
        return
    for part, at, compressed in _variables(path):
        column = part.column(at)
        column.compressed = compressed
        yield column


def mat_values(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of the variables of a file of level 5.

    Numbers are arrays as MATLAB has them, text is str; of a cell array the value is an iterator of
    its cells, of a struct array one of dicts; nested ones are lists.  Objects and functions are
    None.

    Raises SourceError for another or a damaged file; the iterators raise it too.
    """
    for part, at, _ in _variables(path):
        head = part.head(at)
        yield head.name, part.value(head, 0)


def whole_number(value: Any, what: str) -> int:
    """Return the one whole number that a value has.

    Raises SourceError if it is none; `what` begins the message.
    """
    if not isinstance(value, (np.ndarray, np.number)) or value.size != 1:
        raise SourceError(f"{what}: expected a whole number, found {value!r:.60}")
    number = value.item()
    if not math.isfinite(number) or number != int(number) or abs(number) >= 1 << 31:
        raise SourceError(f"{what}: expected a whole number, found {number}")
    return int(number)


def _variables(path: Path) -> Iterator[tuple[_Part, int, bool]]:
    """Yield what reads each variable of a file of level 5, its place there, whether it inflates."""
    if mat_kind(path) != "5":
        raise SourceError(f"{path}: no .mat file of level 5; in MATLAB: save(FILE, '-v7')")
    if first_bytes(path, _HEAD)[126:128] != b"IM":
        raise SourceError(f"{path}: of a machine that stores the high byte first; save it again")
    at, size = _HEAD, stat_of(path)[0]
    while at < size:
        kind, length = struct.unpack("<II", read_at(path, at, 8))
        if at + 8 + length > size:
            raise SourceError(f"{path}: ends within the array at byte {at:,}: it is cut short")
        if kind == _COMPRESSED:
            yield _Part(path, InflatedPiece(path, at + 8, length, ZLIB).read), 0, True
        elif kind == _MATRIX:
            yield _Part(path, functools.partial(read_at, path)), at, False
        at += 8 + length


class _ArrayHead(NamedTuple):
    """What stands before an array's content, which begins at byte `at`."""

    shape: tuple[int, ...]
    flags: int  # the lowest byte is the array's class
    name: str
    at: int


class _Part(NamedTuple):
    """A file, or its inflated content; `take` returns bytes, by offset and number."""

    path: Path
    take: Callable[[int, int], bytes]

    def element(self, at: int) -> tuple[int, int, int, int]:
        """Return kind and size of an element, where its data begins, and where the next does."""
        first, size = struct.unpack("<II", self.take(at, 8))
        if first >> 16:  # of four bytes or less, which stand in the tag
            return first & 0xFFFF, min(first >> 16, 4), at + 4, at + 8
        return first, size, at + 8, at + 8 + -(-size // 8) * 8

    def head(self, at: int) -> _ArrayHead:
        """Return the header of the array that begins at byte `at`."""
        _, _, start, at = self.element(at + 8)
        (flags,) = struct.unpack("<I", self.take(start, 4))
        _, size, start, at = self.element(at)
        if size > 4 * _MOST_DIMS:
            raise SourceError(f"{self.path}: an array claims {size // 4:,} dimensions")
        shape = struct.unpack(f"<{size // 4}i", self.take(start, size // 4 * 4))
        _, size, start, at = self.element(at)
        if size > _LONGEST_NAME:
            raise SourceError(f"{self.path}: an array's name claims {size:,} bytes")
        return _ArrayHead(shape, flags, self.take(start, size).decode("utf-8", "replace"), at)

    def column(self, at: int) -> MatColumn:
        """Return the array that begins at byte `at`, whose rows are read when they are wanted."""
        kind, total = struct.unpack("<II", self.take(at, 8))
        if kind != _MATRIX:
            raise SourceError(f"{self.path}: where an array should be is an element of kind {kind}")
        shape, flags, name, content = self.head(at)
        name, number = printable(name), flags & 0xFF
        dtype = np.dtype(_CLASSES[number]) if number in _CLASSES else None
        if dtype is None or flags & _COMPLEX:
            what = _OTHERS.get(number, "complex numbers" if dtype is not None else "something else")
            return MatColumn(name, shape, refused=f"{what}, not an array of numbers")
        kind, size, start, _ = self.element(content)
        stored = np.dtype(_STORED[kind]) if kind in _STORED else None
        beyond = start + size > at + 8 + total
        if stored is None or not _fits(shape, stored, size) or beyond:
            raise SourceError(
                f"{self.path}: {name!r} of shape {shape} has {size:,} bytes: it is damaged"
            )
        width = stored.itemsize

        def elements(first: int, stop: int) -> np.ndarray[Any, Any]:
            return np.frombuffer(self.take(start + first * width, (stop - first) * width), stored)

        return MatColumn(name, shape, dtype, stored, elements)

    def value(self, head: _ArrayHead, depth: int) -> Any:
        """Return the content of an array; see `mat_values`."""
        shape, number, at = head.shape, head.flags & 0xFF, head.at
        if min(shape, default=-1) < 0:
            raise SourceError(
                f"{self.path}: an array {head.name!r:.80} of shape {shape[:8]}: it is damaged"
            )
        count = math.prod(shape)
        if depth > _DEPTH or (depth and count > _MOST_ENTRIES):
            raise SourceError(f"{self.path}: arrays in arrays, too deep or too many: it is damaged")
        if number in (_CELL, _STRUCT):
            read = self._cells if number == _CELL else self._structs
            entries = read(at, count, depth)
            return list(entries) if depth else entries
        if number != _TEXT and number not in _CLASSES:
            return None
        kind, size, start, _ = self.element(at)
        content = self._small(start, size)
        if number == _TEXT:
            try:
                return content.decode(_ENCODINGS[kind]) if kind in _ENCODINGS else None
            except UnicodeDecodeError as error:
                raise SourceError(f"{self.path}: text that is none: {error}") from error
        if kind not in _STORED or not _fits(shape, np.dtype(_STORED[kind]), size):
            raise SourceError(
                f"{self.path}: an array of shape {shape} has {size:,} bytes: it is damaged"
            )
        return np.frombuffer(content, _STORED[kind]).reshape(shape[::-1]).T

    def _small(self, at: int, size: int) -> bytes:
        if size > _MOST_BYTES:
            raise SourceError(
                f"{self.path}: a value claims {size:,} bytes, too many for a list of images"
            )
        return self.take(at, size)

    def _cells(self, at: int, count: int, depth: int) -> Iterator[Any]:
        return (value for value, _ in self._entries(at, count, depth))

    def _structs(self, at: int, count: int, depth: int) -> Iterator[dict[str, Any]]:
        _, _, start, at = self.element(at)
        (width,) = struct.unpack("<i", self.take(start, 4))
        _, size, start, at = self.element(at)
        text = self._small(start, size)
        if width < 1 or not text:
            raise SourceError(f"{self.path}: a struct array without fields")
        pieces = (text[k : k + width] for k in range(0, size, width))
        names = [piece.split(b"\0")[0].decode("utf-8", "replace") for piece in pieces]
        for _ in range(count):
            row = {}
            entries = self._entries(at, len(names), depth)
            for name, (value, following) in zip(names, entries, strict=True):
                row[name], at = value, following
            yield row

    def _entries(self, at: int, count: int, depth: int) -> Iterator[tuple[Any, int]]:
        """Yield the values of arrays one behind the other, and where the next one is."""
        for _ in range(count):
            kind, size, _, following = self.element(at)
            if kind != _MATRIX:
                raise SourceError(
                    f"{self.path}: an element of kind {kind} where an array should be"
                )
            yield (self.value(self.head(at), depth + 1) if size else None), following
            at = following


def _fits(shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> bool:
    return min(shape, default=-1) >= 0 and math.prod(shape) * dtype.itemsize == size


def _hdf5_arrays(path: Path) -> Iterator[MatColumn]:
    import h5py  # here, as every source is imported for recognition

    from .hdf5_columns import opened_hdf5

    with opened_hdf5(path) as file:
        for name in file:
            link = file.get(name, getlink=True)
            found = file[name] if isinstance(link, h5py.HardLink) else None
            if isinstance(found, h5py.Dataset) and found.dtype.kind in "biuf":
                yield _hdf5_array(path, name, found)
            elif not name.startswith("#"):
                yield MatColumn(printable(name), (), refused="no array of numbers")


def _hdf5_array(path: Path, name: str, found: Any) -> MatColumn:
    if found.external or found.is_virtual:
        raise SourceError(f"{path}: {printable(name)!r} lies in other files, which are not read")
    shape = tuple(found.shape[::-1])
    claimed, stored = found.size * found.dtype.itemsize, found.id.get_storage_size()
    if claimed > 1100 * (stored + 1):
        raise SourceError(
            f"{path}: {printable(name)!r} claims {claimed:,} bytes and has {stored:,}"
        )
    whole = len(shape) < 3
    row = 1 if whole else math.prod(found.shape[1:])

    @functools.cache
    def dataset() -> Any:
        import h5py

        from .hdf5_columns import keeping_blocks

        return keeping_blocks(h5py.File(path, "r", locking=False), name)

    def elements(start: int, stop: int) -> np.ndarray[Any, Any]:
        if whole:
            return np.asarray(dataset()[()]).reshape(-1)[start:stop]
        return np.asarray(dataset()[start // row : stop // row]).reshape(-1)

    return MatColumn(printable(name), shape, found.dtype, found.dtype, elements)
