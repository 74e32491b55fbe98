"""HDF5 files of others, by h5py: arrays of pictures, or of bytes of image files.

Nothing outside the file is read: external links and soft links that lead through them are not
followed; arrays that are external or virtual are refused, for they name other files.
Source: the HDF5 File Format Specification 3.0; read by the HDF5 library.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from fastdata.errors import FastdataError, SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import Schema

from .base import FieldSpec, reason_of
from .reading.arrays.array_fields import ArrayFile, ArrayOptions, parts_of
from .reading.arrays.array_source import ArraySource
from .reading.arrays.columns import Column, RowSpan
from .reading.arrays.hdf5_blocks import BlockRow, filters_of
from .reading.arrays.hdf5_heap import HeapPlaces
from .reading.arrays.hdf5_listing import arrays_in
from .reading.arrays.mat_file import mat_kind
from .reading.arrays.roles import Known
from .reading.locations import files_at, printable
from .reading.refusals import already_packed, no_files
from .reading.splits import has_folders_of_images

__all__ = ["Hdf5Source"]

_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = (0, 512, 1024, 2048)
_PLACED_BYTES = 256
_MOST_EMPTY = 1000
"""Blocks that may be missing for each that is there."""


class Hdf5Source(ArraySource):
    """Arrays of HDF5 files; several files are one dataset, in their order.

    Parameters
    ----------
    arrays : tuple of str
        What is taken: ``field=path`` of a dataset in the file; ``offsets=path`` tells where
        image files that lie end to end begin, ``classes=path`` the names of classes.
        Default: what is called as images, labels and masks usually are.
    layout : str, optional
        Of pixels: nhw, nhwc or nchw, where the shape fits more than one.
    scale : float, optional
        What pixels that are not uint8 are multiplied by to be 0 to 255.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "hdf5"
    summary = "HDF5 files with arrays of pictures or of image files"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        if (
            not files or not _is_hdf5(files[0]) or mat_kind(files[0])
        ):  # of MATLAB's arrays see mat.py
            return False
        return not has_folders_of_images(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: tuple[str, ...] = (),
        layout: str | None = None,
        scale: float | None = None,
        classes: str | None = None,
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "HDF5 files")
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes)
        settled, parts, left = parts_of(map(self._look_at, self.paths), options)
        self.notes += left
        self._settle(Schema(settled), parts)

    def _look_at(self, path: Path) -> ArrayFile:
        with _opened(path) as file:
            _refuse_ours(path, file)
            known = dict(arrays_in(file))

        def column(name: str) -> Column:
            with _opened(path) as file:
                found = _Hdf5Column(path, file[name], known[name])
            if found.missing:
                self.notes.append(
                    f"{path}: {found.missing:,} blocks of {found.label!r} were never written; "
                    f"HDF5 gives {found.fill} for them"
                )
            return found

        return ArrayFile(str(path), printable(path.name), known, column)


def _is_hdf5(path: Path) -> bool:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return any(file.seek(at) == at and file.read(8) == _MAGIC for at in _USER_BLOCKS)
    except OSError:
        return False


def _open(path: Path) -> Any:
    try:
        # Without locks: the file may be on a read-only file system, or open elsewhere.
        return h5py.File(path, "r", locking=False)
    except OSError:  # but not where this process has it open with them
        return h5py.File(path, "r")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file; what h5py raises, and it raises nearly anything, is a `SourceError`."""
    try:
        with _open(path) as file:
            yield file
    except FastdataError:
        raise
    except Exception as error:
        raise SourceError(f"{path}: cannot be read as HDF5: {reason_of(error)}") from error


def _refuse_ours(path: Path, file: Any) -> None:
    if file.attrs.get("format") == "fastdata" and "columns" in file:
        raise already_packed(path)


class _Hdf5Column(Column):
    """The rows of one HDF5 dataset."""

    def __init__(self, path: Path, dataset: Any, known: Known) -> None:
        self._path, self._kind = path, known.kind
        self._name = dataset.name
        self.label = printable(self._name.strip("/"))
        self.shape, self.dtype = known.shape, known.dtype
        self.missing, self.fill = 0, dataset.fillvalue if known.kind == "numbers" else 0
        if not self.shape:
            raise SourceError(f"{path}: {self.label!r} is one value, not one a sample")
        if dataset.chunks:
            self.block = dataset.chunks[0]
            grid = [-(-n // c) for n, c in zip(dataset.shape, dataset.chunks, strict=True)]
            whole, stored = int(np.prod(grid, dtype=object)), dataset.id.get_num_chunks()
            self.missing = whole - stored
        else:
            offset = dataset.id.get_offset()  # None where it is in the object's header
            whole = 1
            creation = dataset.id.get_create_plist()
            contiguous = creation.get_layout() == h5py.h5d.CONTIGUOUS
            stored = int(not contiguous or offset is not None)
            self.contiguous = contiguous and offset is not None and known.kind == "numbers"
            self._offset = offset
        # Small rows, labels say, are read here many at once.
        large = known.kind == "numbers" and self.row_bytes >= _PLACED_BYTES
        if dataset.size and whole > _MOST_EMPTY * stored:
            raise SourceError(
                f"{path}: {self.label!r} claims the shape {self.shape}, but {stored:,} of its "
                f"{whole:,} blocks were ever written: the file is damaged or not complete"
            )
        self._opened: Any = None
        self._block: tuple[int, BlockRow | None] = (-1, None)
        self._filters = filters_of(dataset) if large else None
        self.placed = large and (self.contiguous or self._filters is not None)
        self._heap: HeapPlaces | None = None
        if known.kind == "bytes" and h5py.check_vlen_dtype(dataset.dtype):
            with contextlib.suppress(LookupError):
                self._heap = HeapPlaces(path, dataset)
                self.placed = True

    def read(self, start: int, stop: int) -> Any:
        try:
            rows = self._dataset()[start:stop]
        except Exception as error:
            raise ValueError(
                f"{self._path}: rows {start:,} to {stop - 1:,} of {self.label!r} cannot be read: "
                f"{reason_of(error)}"
            ) from error
        if self._kind == "bytes":
            return [bytes(row) for row in rows]
        if self._kind == "text":
            return [row.decode("utf-8", "replace") for row in rows]
        return rows

    def _dataset(self) -> Any:
        if self._opened is None:
            self._opened = _open(self._path)[self._name]
        return self._opened

    def place(self, index: int) -> Any:
        if self._heap is not None:
            return self._heap.place(index)
        if self._filters is not None:
            return self._place_in_block(index, self._filters)
        assert self._offset is not None
        assert self.dtype is not None
        offset = self._offset + index * self.row_bytes
        return RowSpan(str(self._path), offset, self.dtype.str, self.shape[1:])

    def _place_in_block(self, index: int, filters: tuple[int, ...]) -> Any:
        first = index - index % self.block
        if self._block[0] != first:
            dataset = self._dataset()
            info = dataset.id.get_chunk_info_by_coord((first, *(0 for _ in self.shape[1:])))
            place = None
            if info.byte_offset is not None:
                kept = (f for n, f in enumerate(filters) if not info.filter_mask >> n & 1)
                place = BlockRow(
                    str(self._path),
                    info.byte_offset,
                    info.size,
                    tuple(kept),
                    dataset.dtype.str,
                    dataset.chunks,
                    0,
                )
            self._block = (first, place)
        place = self._block[1]
        # A block that was never written has no place.
        return (
            self.read(index, index + 1)[0] if place is None else place._replace(row=index - first)
        )
