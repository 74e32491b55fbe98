"""NumPy's files: ``.npz``, as MedMNIST and Keras have them, and ``.npy``, alone or beside others.

Nothing is unpickled: arrays of objects are refused.  Source: NumPy Enhancement Proposal 1, and
the documentation of ``numpy.savez``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import Schema

from .base import FieldSpec, IndexedSource
from .reading.arrays.array_fields import ArrayFile, ArrayOptions, parts_of
from .reading.arrays.array_source import ArraySource
from .reading.arrays.npy_columns import NpyColumn, npy_columns, npy_kind
from .reading.arrays.split_arrays import arrays_by_split, choose_arrays, with_splits
from .reading.locations import files_at, folder_at, printable
from .reading.refusals import no_files, not_seekable
from .reading.splits import has_images

__all__ = ["NumpySource"]

_SUFFIXES = (".npy", ".npz")
_BESIDE = (*_SUFFIXES, ".txt", ".md", ".json", ".csv", ".yaml", ".pdf", "")


class NumpySource(ArraySource):
    """Arrays of a ``.npz``, of a ``.npy``, or of the ``.npy`` files of a folder.

    Parameters
    ----------
    split : str
        One of the splits that names of arrays have (``train_images``, ``x_test``); ``all``
        takes all, and a field ``split`` tells them apart.
    arrays : tuple of str
        What is taken: ``field=array``; a ``.npy`` file is called without its suffix.
        Default: what is called as images, labels and masks usually are.
    layout : str, optional
        Of pixels: nhw, nhwc or nchw, where the shape fits more than one.
    scale : float, optional
        What pixels that are not uint8 are multiplied by to be 0 to 255.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "numpy"
    summary = "NumPy's .npz (MedMNIST, Keras) and .npy files of pictures"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files, folder = files_at(location, _SUFFIXES), folder_at(location)
        if not files or not npy_kind(files[0]):
            return False
        if folder is None:
            return True
        others = [path for path in files_at(folder) if path.suffix.lower() not in _BESIDE]
        return not others and not has_images(folder)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str = "all",
        arrays: tuple[str, ...] = (),
        layout: str | None = None,
        scale: float | None = None,
        classes: str | None = None,
    ) -> None:
        self.notes = []
        self.paths = [path for path in files_at(location, _SUFFIXES) if npy_kind(path)]
        if not self.paths:
            raise no_files(location, ".npy or .npz files")
        packed = [path for path in self.paths if npy_kind(path) == "npz"]
        if packed and len(self.paths) > 1:
            raise SourceError(
                f"{location}: {printable(packed[0].name)} and other files of arrays, which may be "
                "several datasets. Pack them one by one; fastdata merge joins what was packed"
            )
        columns = {name: column for path in self.paths for name, column in npy_columns(path)}
        if not columns:
            raise SourceError(f"{self.paths[0]}: no arrays in it")
        place = self.paths[0] if len(self.paths) == 1 else Path(location)
        given = arrays_by_split(columns) if not arrays else {"": {name: name for name in columns}}
        if arrays and split != "all":
            raise OptionError(f"split={split}: arrays= says already which arrays are taken")
        splits = choose_arrays(place, given, split)
        _refuse_one_picture(place, columns, layout)
        options = ArrayOptions(channels, fields or {}, arrays, layout, scale, classes)
        files = [_file(place, columns, names) for names in splits.values()]
        settled, parts, left = parts_of(files, options)
        self.notes += left
        if len(splits) > 1:
            settled, parts = with_splits(settled, parts, tuple(splits))
            self.notes.append(
                f"the field 'split' is which of {', '.join(splits)} a picture is in "
                "(--option split=NAME takes one)"
            )
        self._settle(Schema(settled), parts)
        self._compressed = any(
            isinstance(column, NpyColumn) and column.compressed
            for part in parts
            for column in part.columns
        )

    def indexed(self) -> IndexedSource:
        if self._compressed:
            raise not_seekable(self.paths[0])
        return self


def _file(place: Path, columns: dict[str, NpyColumn], names: dict[str, str]) -> ArrayFile:
    known = {name: columns[real].known for name, real in names.items()}
    usual = (f"image={next(iter(names))}",) if len(names) == 1 else ()
    named = {name: columns[real] for name, real in names.items()}
    return ArrayFile(str(place), printable(place.name), known, named.__getitem__, usual)


def _refuse_one_picture(place: Path, columns: dict[str, NpyColumn], layout: str | None) -> None:
    """Refuse an array H x W x 3 that is all there is: it looks like H pictures of W x 3."""
    shapes = [column.known.shape for column in columns.values()]
    if len(shapes) == 1 and layout is None and len(shapes[0]) == 3 and shapes[0][2] in (1, 3, 4):
        raise SourceError(
            f"{place}: an array of shape {shapes[0]} is one picture, not one a row. "
            "--option layout=nhw takes it for grey pictures, N x H x W"
        )
