"""The arrays of numbers in a ``.mat`` file of MATLAB's, without loading them.

``scipy.io.loadmat`` loads all of a file, 2 GB of SVHN's; here an array is a place, and its rows
are inflated when they are asked for.  Structs, cells and text are named and not read.  MATLAB has
pictures H x W x C x N, and labels N x 1.  Source: "MAT-File Format", MathWorks, chapter 1, Level 5.
Files since version 7.3 are HDF5 with all dimensions in the opposite order.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fastdata.errors import SourceError

from ...base import reason_of
from ..forward_reader import ZLIB, InflatedPiece
from ..locations import first_bytes, printable, stat_of
from ..spans import read_at
from .columns import ArrayColumn

__all__ = ["CLASSES", "STORED", "MatColumn", "element_at", "mat_columns", "mat_kind", "mat_places"]

_HEAD = 128
_MATRIX, _COMPRESSED = 14, 15
STORED = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8",
    13: "<u8",
}  # fmt: skip
CLASSES = {
    6: "<f8", 7: "<f4", 8: "i1", 9: "u1", 10: "<i2", 11: "<u2", 12: "<i4", 13: "<u4", 14: "<i8",
    15: "<u8",
}  # fmt: skip
_OTHERS = {1: "a cell array", 2: "a struct", 3: "an object", 4: "text", 5: "a sparse array"}
_COMPLEX = 0x800
_MOST_DIMS = 32

Take = Callable[[int, int], bytes]
"""Returns a part of a file, or of what is inflated: from where, and how many bytes."""
Rows = Callable[[int, int], np.ndarray[Any, Any]]


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
        elements: Rows | None = None,
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
    for take, at, compressed in mat_places(path):
        column = _matrix(path, take, at)
        column.compressed = compressed
        yield column


def mat_places(path: Path) -> Iterator[tuple[Take, int, bool]]:
    """Yield the variables of a file of level 5: what reads them, where, and whether it inflates.

    Raises SourceError if the file is damaged, or of a kind that is not read.
    """
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
            yield InflatedPiece(path, at + 8, length, ZLIB).read, 0, True
        elif kind == _MATRIX:
            yield functools.partial(read_at, path), at, False
        at += 8 + length


def _matrix(path: Path, take: Take, at: int) -> MatColumn:
    """Return the array at a place of a file, or of what is inflated."""
    kind, total = struct.unpack("<II", take(at, 8))
    if kind != _MATRIX:
        raise SourceError(f"{path}: where an array should be is an element of kind {kind}")
    end = at + 8 + total
    _, _, flags_at, at = element_at(take, at + 8)
    (flags,) = struct.unpack("<I", take(flags_at, 4))
    _, dims_size, dims_at, at = element_at(take, at)
    if dims_size > 4 * _MOST_DIMS:
        raise SourceError(f"{path}: an array claims {dims_size // 4:,} dimensions")
    shape = struct.unpack(f"<{dims_size // 4}i", take(dims_at, dims_size // 4 * 4))
    _, name_size, name_at, at = element_at(take, at)
    if name_size > 4096:
        raise SourceError(f"{path}: an array's name claims {name_size:,} bytes")
    name = printable(take(name_at, name_size).decode("utf-8", "replace"))
    number = flags & 0xFF
    dtype = np.dtype(CLASSES[number]) if number in CLASSES else None
    if dtype is None or flags & _COMPLEX:
        what = _OTHERS.get(number, "complex numbers" if dtype is not None else "something else")
        return MatColumn(name, shape, refused=f"{what}, not an array of numbers")
    kind, size, data_at, _ = element_at(take, at)
    stored = np.dtype(STORED[kind]) if kind in STORED else None
    count = 1
    for length in shape:
        count *= length
    if stored is None or min(shape) < 0 or count * stored.itemsize != size or data_at + size > end:
        raise SourceError(f"{path}: {name!r} of shape {shape} has {size:,} bytes: it is damaged")
    width = stored.itemsize

    def elements(start: int, stop: int) -> np.ndarray[Any, Any]:
        return np.frombuffer(take(data_at + start * width, (stop - start) * width), stored)

    return MatColumn(name, shape, dtype, stored, elements)


def element_at(take: Take, at: int) -> tuple[int, int, int, int]:
    """Return kind and size of an element, where its data begins, and where the next does."""
    first, size = struct.unpack("<II", take(at, 8))
    if first >> 16:  # of four bytes or less, which stand in the tag
        return first & 0xFFFF, min(first >> 16, 4), at + 4, at + 8
    return first, size, at + 8, at + 8 + -(-size // 8) * 8


def _hdf5_arrays(path: Path) -> Iterator[MatColumn]:
    try:
        with h5py.File(path, "r", locking=False) as file:
            for name in file:
                link = file.get(name, getlink=True)
                found = file[name] if isinstance(link, h5py.HardLink) else None
                if isinstance(found, h5py.Dataset) and found.dtype.kind in "biuf":
                    yield _hdf5_array(path, name, found)
                elif not name.startswith("#"):
                    yield MatColumn(printable(name), (), refused="no array of numbers")
    except SourceError:
        raise
    except Exception as error:  # what h5py raises on damage
        raise SourceError(f"{path}: cannot be read as HDF5: {reason_of(error)}") from error


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
    row = 1 if whole else int(np.prod(found.shape[1:], dtype=object))

    def elements(start: int, stop: int) -> np.ndarray[Any, Any]:
        with h5py.File(path, "r", locking=False) as file:
            if whole:
                return np.asarray(file[name][()]).reshape(-1)[start:stop]
            return np.asarray(file[name][start // row : stop // row]).reshape(-1)

    return MatColumn(printable(name), shape, found.dtype, found.dtype, elements)
