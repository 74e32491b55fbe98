"""MATLAB's ``.mat`` files of pictures, H x W x C x N: SVHN's ``train_32x32.mat``.

What is in a file is in ``reading/arrays/mat_file.py``.  In SVHN's files of digits, the label 10
is the digit 0 (Netzer and others, "Reading Digits in Natural Images", and its page).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import OptionError, SourceError

from .base import FieldSpec
from .reading.arrays.array_source import ArrayFile, ArrayOptions, ArraySource
from .reading.arrays.columns import Array, ArrayColumn, ConvertedColumn
from .reading.arrays.mat_file import mat_columns, mat_kind
from .reading.arrays.roles import SPLITS, split_in
from .reading.locations import files_at, folder_at, printable
from .reading.options import ArraySplit, ClassFile, Option, ScaleOption
from .reading.refusals import no_files
from .reading.spans import close_files

__all__ = ["MatSource"]

_SUFFIXES = (".mat",)
_SVHN = "_32x32.mat"


class MatSource(ArraySource):
    """Arrays of ``.mat`` files; several files are one dataset, of splits if they are called so."""

    name = "mat"
    summary = "MATLAB's .mat files of pictures, such as SVHN's train_32x32.mat"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files, folder = files_at(location, _SUFFIXES), folder_at(location)
        if not files or not mat_kind(files[0]):
            return False
        try:
            return any(len(array.shape) > 2 for array in mat_columns(files[0]))
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
        split: ArraySplit = "all",
        arrays: Annotated[
            tuple[str, ...], Option("field=array; default: what is called as images and labels are")
        ] = (),
        scale: ScaleOption = None,
        classes: ClassFile = None,
    ) -> None:
        self.notes = []
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
        svhn = all(map(_is_svhn, self.paths))
        options = ArrayOptions(channels, fields or {}, arrays, None, scale, classes)
        several = len(set(splits)) == len(splits) > 1 and all(splits)
        self.read_arrays(
            map(_file, self.paths),
            options,
            tuple(splits) if several else (),
            label_names=tuple("0123456789") if svhn else None,
        )
        if svhn and "label" in self.schema and classes is None:
            self.notes.append("the label 10 of SVHN's files is taken for the digit 0")


def _digits(labels: Any) -> Array:
    """Return SVHN's labels as digits: 10 stands for 0."""
    numbers = np.asarray(labels).astype(np.int64)
    return np.where(numbers == 10, 0, numbers)


def _file(path: Path) -> ArrayFile:
    columns: dict[str, ArrayColumn] = {column.label: column for column in mat_columns(path)}
    usual = (f"image={next(iter(columns))}",) if len(columns) == 1 else ()
    labels = columns.get("y")
    if labels is not None and _is_svhn(path) and len(labels.shape) == 1:
        columns["y"] = ConvertedColumn(labels, _digits)
    return ArrayFile(str(path), printable(path.name), columns, usual)


def _is_svhn(path: Path) -> bool:
    return path.name.endswith(_SVHN)
