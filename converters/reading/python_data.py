"""Rows of images from Python's libraries, as sequences of samples.

pandas and Polars frames, Hugging Face's ``Dataset`` and torchvision's datasets of files are
recognised by their attributes; these packages are not imported.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from fastdata.errors import SourceError

from .field_names import INDEX_COLUMNS, safe_name, unique_name
from .locations import printable
from .python_samples import PEEK, Rows, are_names, holds_files, is_file, values_of
from .selection import joined, left_out

__all__ = ["is_frame", "is_known", "opened"]

_TRANSFORMS = ("transform", "target_transform", "transforms")


def opened(location: Any) -> tuple[Any, list[str]]:
    """Return the rows of a library's object, and notes; return anything else unchanged.

    Raises SourceError for a `DataLoader`, or a frame without paths.
    """
    notes: list[str] = []
    if _is_data_loader(location):
        raise SourceError(
            "a DataLoader yields batches, and samples are packed. Pack its dataset: "
            "fastdata.pack(loader.dataset, ...)"
        )
    if is_frame(location):
        return _rows_of_frame(location, notes), notes
    if _has_features(location):
        return _undecoded(location), notes
    return _rows_of_files(location) or location, notes


def is_known(location: Any) -> bool:
    """Tell whether this is a sequence of samples, not of locations."""
    return (
        is_frame(location)
        or holds_files(location)
        or _has_features(location)
        or _is_data_loader(location)
        or _rows_of_files(location) is not None
    )


def is_frame(location: Any) -> bool:
    """Tell whether this is a frame of pandas or Polars."""
    return hasattr(location, "columns") and (
        hasattr(location, "iloc") or hasattr(location, "get_column")
    )


def _rows_of_frame(frame: Any, notes: list[str]) -> Rows:
    columns: dict[str, Sequence[Any]] = {}
    left = [str(name) for name in frame.columns if str(name) in INDEX_COLUMNS]
    notes += left_out("columns of row numbers", left)
    for name in frame.columns:
        if str(name) not in INDEX_COLUMNS:
            columns[unique_name(safe_name(str(name)), columns)] = frame[name].to_list()
    rows = Rows(columns) if columns else None
    if (
        rows is None
        or not len(rows)
        or not all(any(map(is_file, row.values())) for row in islice(rows, PEEK))
    ):
        raise SourceError(
            f"the frame of {len(frame):,} rows has no column of paths of image files; its columns "
            f"are {joined(map(str, frame.columns))}. Add one: frame['image'] = folder + names"
        )
    return rows


def _has_features(location: Any) -> bool:
    return isinstance(getattr(location, "features", None), Mapping) and hasattr(
        location, "cast_column"
    )


def _undecoded(dataset: Any) -> Any:
    """Return a dataset of Hugging Face's whose images are bytes of files, unless it transforms."""
    if (getattr(dataset, "format", None) or {}).get("type") == "custom":
        return dataset
    images = [n for n, f in dataset.features.items() if type(f).__name__ == "Image"]
    if images and hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)
    for name in images:
        feature = copy.copy(dataset.features[name])
        feature.decode = False
        dataset = dataset.cast_column(name, feature)
    return dataset


def _rows_of_files(dataset: Any) -> Rows | None:
    """Return the files and labels of a dataset like torchvision's, if its samples are just these.

    None if it has a transform, or its samples are something else.
    """
    listed = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if not isinstance(listed, (list, tuple)) or not listed:
        return None
    if any(getattr(dataset, name, None) is not None for name in _TRANSFORMS):
        return None
    if not isinstance(listed[0], tuple) or len(listed[0]) != 2:
        return None
    files, labels = [row[0] for row in listed], [row[1] for row in listed]
    plain = isinstance(files[0], (str, os.PathLike)) and is_file(os.fspath(files[0]))
    if not plain or not _yields(dataset, labels[0]):
        return None
    names = getattr(dataset, "classes", None)
    root = os.fspath(getattr(dataset, "root", "") or "")
    columns: dict[str, Sequence[Any]] = {"image": files, "label": labels}
    return Rows(columns, root, list(map(printable, names)) if are_names(names) else None)


def _yields(dataset: Any, label: Any) -> bool:
    """Tell whether a dataset's first sample is an image and its label, and nothing else."""
    if not hasattr(dataset, "__getitem__"):
        return True
    try:
        sample = dataset[0]
    except Exception:  # a user's Dataset may raise anything; its files are read by others
        return True
    values = list(values_of(sample, ()).values())
    return len(values) == 2 and type(values[1]) is type(label) and values[1] == label


def _is_data_loader(location: Any) -> bool:
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    return torch is not None and isinstance(location, torch.utils.data.DataLoader)
