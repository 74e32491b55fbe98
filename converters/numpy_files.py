"""NumPy's files: ``.npz``, as MedMNIST and Keras have them, and ``.npy``, alone or beside others.

Nothing is unpickled: arrays of objects are refused.  Source: NumPy Enhancement Proposal 1, and
the documentation of ``numpy.savez``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from .base import reason_of
from .reading.arrays.array_source import ArrayFile, ArraySource
from .reading.arrays.columns import ArrayColumn, ListColumn, StoredColumn
from .reading.arrays.roles import arrays_by_split
from .reading.forward_reader import ForwardReader
from .reading.locations import files_at, first_bytes, folder_at, printable, stat_of
from .reading.npy import read_npy_head
from .reading.refusals import no_files
from .reading.zip_archive import is_zip, zip_members

__all__ = ["NumpySource"]

_SUFFIXES = (".npy", ".npz")
_BESIDE = (*_SUFFIXES, ".txt", ".md", ".json", ".csv", ".yaml", ".pdf", "")
_MAGIC = b"\x93NUMPY"
_HEAD = 16 << 10


class NumpySource(ArraySource):
    """Arrays of a ``.npz``, of a ``.npy``, or of the ``.npy`` files of a folder."""

    name = "numpy"
    summary = "NumPy's .npz (MedMNIST, Keras) and .npy files of pictures"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files, beside = files_at(location, _SUFFIXES), []
        if folder_at(location) is not None:
            beside = [path.suffix.lower() for path in files_at(location)]
        return bool(files) and bool(_kind(files[0])) and {*beside} <= {*_BESIDE}

    def files(self, location: Any) -> Iterator[ArrayFile]:
        self.paths = [path for path in files_at(location, _SUFFIXES) if _kind(path)]
        if not self.paths:
            raise no_files(location, ".npy or .npz files")
        if len(self.paths) > 1 and "npz" in map(_kind, self.paths):
            raise SourceError(
                f"{location}: several files, each of which may be a dataset. Pack them one by one; "
                "fastdata merge joins the results"
            )
        columns = {name: column for path in self.paths for name, column in _columns_of(path)}
        if not columns:
            raise SourceError(f"{self.paths[0]}: no arrays in it")
        shape = next(iter(columns.values())).shape
        if len(columns) == 1 and len(shape) == 3 and shape[2] in (1, 3, 4):
            raise SourceError(
                f"{self.paths[0]}: shape {shape} is one picture. Save several as N x H x W x C"
            )
        place = self.paths[0] if len(self.paths) == 1 else Path(location)
        splits = {} if self._arrays else arrays_by_split(place, columns)
        for split, names in (splits or {"": dict(zip(columns, columns, strict=True))}).items():
            usual = (f"image={next(iter(names))}",) if len(names) == 1 else ()
            named = {name: columns[stored_as] for name, stored_as in names.items()}
            of = split if len(splits) > 1 else ""
            yield ArrayFile(str(place), printable(place.name), named, usual, of)


def _kind(path: Path) -> str:
    """Return which file of NumPy's this is, "npy" or "npz"; empty if none."""
    start = first_bytes(path, 512)
    if start.startswith(_MAGIC):
        return "npy"
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    return "npz" if is_zip(start) and name.endswith(b".npy") else ""


def _columns_of(path: Path) -> Iterator[tuple[str, ArrayColumn]]:
    """Yield the arrays of a file by their names; the name of a ``.npy`` is its file's.

    Raises SourceError if the file is damaged.
    """
    if _kind(path) != "npz":
        name = printable(path.stem)
        yield name, _column(path, name, 0, "", stat_of(path)[0])
        return
    for name, member in zip_members(path):
        if problem := member.problem():
            raise SourceError(f"{path}: {printable(name)}: {problem}")
        if name.endswith(".npy"):
            label, start = printable(name.removesuffix(".npy")), member.start(path)
            place = (0, name) if member.method else (start, "")
            yield label, _column(path, label, *place, member.size)


def _column(path: Path, label: str, start: int, member: str, size: int) -> ArrayColumn:
    """Return the rows of a ``.npy`` of `size` bytes in a file, or in its compressed `member`."""
    file = ForwardReader(path, compressed=bool(member), member=member)
    try:
        with file:
            head = read_npy_head(io.BytesIO(file.read(start, min(size, _HEAD))))
        if head.start + head.size != size:
            there = size - head.start
            raise ValueError(f"it claims {head.size:,} bytes and has {there:,}: it is damaged")
        if head.fortran and len(head.shape) > 1:
            raise ValueError("its rows do not lie together: save numpy.ascontiguousarray of it")
        front, at = file if member else None, start + head.start
        return StoredColumn(path, at, head.shape, head.dtype, label=label, front=front, ends=True)
    except (OSError, ValueError) as error:  # SourceError is a ValueError
        column = ListColumn(label, ())
        column.kind, column.shape, column.refused = "unknown", (), reason_of(error)
        return column
