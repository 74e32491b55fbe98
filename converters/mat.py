"""MATLAB's ``.mat`` files of pictures, H x W x C x N: SVHN's ``train_32x32.mat``.

What is in a file is in ``reading/arrays/mat_file.py``.  In SVHN's files of digits, the label 10
is the digit 0 (Netzer and others, "Reading Digits in Natural Images", and its page).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.errors import OptionError, SourceError
from fastdata.schema import ScalarField, Schema

from .base import FieldSpec, IndexedSource
from .reading.arrays.array_fields import ArrayFile, ArrayOptions, parts_of
from .reading.arrays.array_source import ArraySource
from .reading.arrays.columns import Column
from .reading.arrays.mat_columns import MatColumn, ShiftedColumn
from .reading.arrays.mat_file import mat_arrays, mat_kind
from .reading.arrays.roles import Known
from .reading.arrays.split_arrays import SPLITS, split_in, with_splits
from .reading.locations import files_at, folder_at, printable
from .reading.refusals import no_files, not_seekable
from .reading.spans import close_files
from .reading.splits import has_images

__all__ = ["MatSource"]

_SUFFIXES = (".mat",)
_SVHN = "_32x32.mat"


class MatSource(ArraySource):
    """Arrays of ``.mat`` files; several files are one dataset, of splits if they are called so.

    Parameters
    ----------
    split : str
        One of the splits that the files are called by (``train_32x32.mat``); ``all`` takes
        all, and a field ``split`` tells them apart.
    arrays : tuple of str
        What is taken: ``field=array``.  Default: what is called as images and labels are.
    scale : float, optional
        What pixels that are not uint8 are multiplied by to be 0 to 255.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line.
    """

    name = "mat"
    summary = "MATLAB's .mat files of pictures, such as SVHN's train_32x32.mat"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files, folder = files_at(location, _SUFFIXES), folder_at(location)
        if not files or not mat_kind(files[0]) or (folder is not None and has_images(folder)):
            return False
        try:
            return any(len(array.shape) > 2 for array in mat_arrays(files[0]))
        except SourceError:  # opening it says what is the matter
            return folder is None
        finally:
            close_files()

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: str = "all",
        arrays: tuple[str, ...] = (),
        scale: float | None = None,
        classes: str | None = None,
    ) -> None:
        self.notes = []
        self._compressed: Path | None = None
        files = [path for path in files_at(location, _SUFFIXES) if mat_kind(path)]
        if not files:
            raise no_files(location, ".mat files")
        splits = [split_in(path.stem)[0] for path in files]
        if split != "all" and split not in splits:
            known = ", ".join(filter(None, splits)) or "no splits in their names"
            raise OptionError(f"split={split}: the files of {location} have {known}")
        if len(set(splits)) == len(splits) > 1 and all(splits):
            files.sort(key=lambda path: SPLITS.index(split_in(path.stem)[0]))
            splits.sort(key=SPLITS.index)
        taken = [k for k, name in enumerate(splits) if split in ("all", name)]
        self.paths, splits = [files[k] for k in taken], [splits[k] for k in taken]
        options = ArrayOptions(channels, fields or {}, arrays, None, scale, classes)
        settled, parts, left = parts_of(map(self._look_at, self.paths), options)
        self.notes += left
        if "label" in settled and classes is None and all(map(_is_svhn, self.paths)):
            settled["label"] = ScalarField(classes=tuple("0123456789"))
            self.notes.append("the label 10 of SVHN's files is taken for the digit 0")
        if len(set(splits)) == len(splits) > 1 and all(splits):
            settled, parts = with_splits(settled, parts, tuple(splits))
            self.notes.append(
                f"the field 'split' is which of {', '.join(splits)} a picture is in "
                "(--option split=NAME takes one)"
            )
        self._settle(Schema(settled), parts)

    def _look_at(self, path: Path) -> ArrayFile:
        arrays = list(mat_arrays(path))
        columns = {array.name: MatColumn(array) for array in arrays}
        if any(array.compressed for array in arrays):
            self._compressed = path
        known = {name: column.known for name, column in columns.items()}

        def column(name: str) -> Column:
            found = columns[name]
            shifted = _is_svhn(path) and name == "y" and len(found.shape) == 1
            return ShiftedColumn(found, 10, 0) if shifted else found

        return ArrayFile(str(path), printable(path.name), known, column, _alone(known))

    def indexed(self) -> IndexedSource:
        if self._compressed is not None:
            raise not_seekable(self._compressed)
        return self


def _alone(known: dict[str, Known]) -> tuple[str, ...]:
    return (f"image={next(iter(known))}",) if len(known) == 1 else ()


def _is_svhn(path: Path) -> bool:
    return path.name.endswith(_SVHN)
