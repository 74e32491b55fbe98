"""NumPy's files: ``.npz``, as MedMNIST and Keras have them, and ``.npy``, alone or beside others.

Nothing is unpickled: arrays of objects are refused.  Source: NumPy Enhancement Proposal 1, and
the documentation of ``numpy.savez``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError
from fastdata.regular_files import open_regular

from .base import FieldSpec, reason_of
from .reading.arrays.array_source import ArrayFile, ArrayOptions, ArraySource
from .reading.arrays.columns import ArrayColumn
from .reading.arrays.roles import arrays_by_split, choose_arrays
from .reading.box_forms import BoxesOption, parse_boxes
from .reading.forward_reader import InflatedPiece
from .reading.locations import files_at, first_bytes, folder_at, printable, stat_of
from .reading.npy import NpyHead, read_npy_head
from .reading.options import ArraySplit, ClassFile, LayoutOption, Option, ScaleOption
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
        files, folder = files_at(location, _SUFFIXES), folder_at(location)
        if not files or not _kind(files[0]):
            return False
        if folder is None:
            return True
        return all(path.suffix.lower() in _BESIDE for path in files_at(folder))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: ArraySplit = "all",
        arrays: Annotated[
            tuple[str, ...],
            Option(
                "field=array; a .npy is called without its suffix; default: what is called as usual"
            ),
        ] = (),
        layout: LayoutOption = None,
        scale: ScaleOption = None,
        classes: ClassFile = None,
        boxes: BoxesOption = (),
    ) -> None:
        self.notes = []
        self.paths = [path for path in files_at(location, _SUFFIXES) if _kind(path)]
        if not self.paths:
            raise no_files(location, ".npy or .npz files")
        packed = [path for path in self.paths if _kind(path) == "npz"]
        if packed and len(self.paths) > 1:
            raise SourceError(
                f"{location}: {printable(packed[0].name)} and other files of arrays, which may be "
                "several datasets. Pack them one by one; fastdata merge joins what was packed"
            )
        columns = {name: column for path in self.paths for name, column in _columns_of(path)}
        if not columns:
            raise SourceError(f"{self.paths[0]}: no arrays in it")
        place = self.paths[0] if len(self.paths) == 1 else Path(location)
        given = arrays_by_split(columns) if not arrays else {"": {name: name for name in columns}}
        if arrays and split != "all":
            raise OptionError(f"split={split}: arrays= says already which arrays are taken")
        splits = choose_arrays(place, given, split)
        _refuse_one_picture(place, columns, layout)
        form = parse_boxes(boxes, whole=True)
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes, form)
        files = [_file(place, columns, names) for names in splits.values()]
        self.read_arrays(files, options, tuple(splits) if len(splits) > 1 else ())


def _file(place: Path, columns: dict[str, _NpyColumn], names: dict[str, str]) -> ArrayFile:
    usual = (f"image={next(iter(names))}",) if len(names) == 1 else ()
    named = {name: columns[stored_as] for name, stored_as in names.items()}
    return ArrayFile(str(place), printable(place.name), named, usual)


def _refuse_one_picture(place: Path, columns: dict[str, _NpyColumn], layout: str | None) -> None:
    """Refuse an array H x W x 3 that is all there is: it looks like H pictures of W x 3."""
    shapes = [column.shape for column in columns.values()]
    if len(shapes) == 1 and layout is None and len(shapes[0]) == 3 and shapes[0][2] in (1, 3, 4):
        raise SourceError(
            f"{place}: an array of shape {shapes[0]} is one picture, not one a row. "
            "--option layout=nhw takes it for grey pictures, N x H x W"
        )


def _kind(path: Path) -> str:
    """Return which file of NumPy's this is, "npy" or "npz"; empty if none."""
    start = first_bytes(path, 512)
    if start.startswith(_MAGIC):
        return "npy"
    name = start[30 : 30 + int.from_bytes(start[26:28], "little")]
    return "npz" if is_zip(start) and name.endswith(b".npy") else ""


def _columns_of(path: Path) -> Iterator[tuple[str, _NpyColumn]]:
    """Yield the arrays of a file by their names; a ``.npy`` is called like its file.

    Raises SourceError if the file is damaged.
    """
    if _kind(path) != "npz":
        yield printable(path.stem), _NpyColumn(path, printable(path.stem), 0, stat_of(path)[0])
        return
    for name, member in zip_members(path):
        if problem := member.problem():
            raise SourceError(f"{path}: {printable(name)}: {problem}")
        if not name.endswith(".npy"):
            continue
        start, label = member.start(path), printable(name.removesuffix(".npy"))
        piece = None
        if member.method:
            piece = InflatedPiece(path, start, member.packed, member.crc, member.size)
        yield label, _NpyColumn(path, label, start, member.size, piece)


class _NpyColumn(ArrayColumn):
    """The rows of a ``.npy`` of `size` bytes that is in a file, or that `piece` inflates."""

    def __init__(
        self, path: Path, label: str, start: int, size: int, piece: InflatedPiece | None = None
    ) -> None:
        self._path, self._start, self._piece = path, start, piece
        self.label, self.compressed = label, piece is not None
        try:
            head = read_npy_head(io.BytesIO(self._bytes(0, min(size, _HEAD))))
            self._body, self.shape, self.dtype = head.start, head.shape, head.dtype
            self.refused = _refused(head, size)
        except (OSError, ValueError) as error:  # SourceError is a ValueError
            self.kind, self.refused = "unknown", reason_of(error)
        if piece is None and not self.refused:
            self.lies_at(path, start + self._body)

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


def _refused(head: NpyHead, size: int) -> str:
    if not head.shape:
        return "one number only"
    if head.start + head.size != size:
        return f"it claims {head.size:,} bytes and has {size - head.start:,}: it is damaged"
    if head.fortran and len(head.shape) > 1:
        return "its rows do not lie together: save numpy.ascontiguousarray of it"
    return ""
