"""HDF5 files of others, by h5py: arrays of pictures, or of bytes of image files.

Nothing outside the file is read: external links and soft links that lead through them are not
followed; arrays that are external or virtual are refused, for they name other files.
Source: the HDF5 File Format Specification 3.0; read by the HDF5 library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.regular_files import open_regular

from .base import FieldSpec
from .reading.arrays.array_source import ArrayFile, ArrayOptions, ArraySource
from .reading.box_forms import BoxesOption, parse_boxes
from .reading.locations import files_at, printable
from .reading.options import ArraysOption, ClassFile, LayoutOption, ScaleOption
from .reading.refusals import already_packed, no_files

__all__ = ["Hdf5Source"]

_SUFFIXES = (".h5", ".hdf5", ".hdf", ".he5")
_MAGIC = b"\x89HDF\r\n\x1a\n"
_USER_BLOCKS = (0, 512, 1024, 2048)


class Hdf5Source(ArraySource):
    """Arrays of HDF5 files; several are one dataset, in their order."""

    name = "hdf5"
    summary = "HDF5 files with arrays of pictures or of image files"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        # MATLAB's .mat files have their dimensions in the opposite order.
        return bool(files) and files[0].suffix != ".mat" and _is_hdf5(files[0])

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        arrays: ArraysOption = (),
        layout: LayoutOption = None,
        scale: ScaleOption = None,
        classes: ClassFile = None,
        boxes: BoxesOption = (),
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "HDF5 files")
        form = parse_boxes(boxes, whole=True)
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes, form)
        self.read_arrays(map(_file, self.paths), options)


def _file(path: Path) -> ArrayFile:
    from .reading.arrays.hdf5_columns import hdf5_columns, opened_hdf5  # imports h5py

    with opened_hdf5(path) as file:
        if file.attrs.get("format") == "fastdata" and "columns" in file:
            raise already_packed(path)
        return ArrayFile(str(path), printable(path.name), dict(hdf5_columns(path, file)))


def _is_hdf5(path: Path) -> bool:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return any(file.seek(at) == at and file.read(8) == _MAGIC for at in _USER_BLOCKS)
    except OSError:
        return False
