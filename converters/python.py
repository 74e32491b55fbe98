"""Samples from Python: any iterable, or any torch Dataset.

A sample is an image, a tuple, a dict, a named tuple or a dataclass; images
are ``PIL.Image.Image``, uint8 arrays or tensors, a path, or the bytes of
an image file.  Fields take their names from dict keys, tuple names, ``fields=``
or else ``image``, ``label``, ``field2``, ...; their kinds from the first samples.
Class names are those of `classes`, or of the ``ClassLabel`` features of Hugging Face's
``datasets``.

A Dataset with ``__len__`` and ``__getitem__`` is called in the worker processes;
one like ``torchvision.datasets.ImageFolder`` without transforms is not called at
all: its files are packed as they are.  Where workers cannot be given the Dataset
(it cannot be pickled, and the start method is not fork), it is called here.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from fastdata.schema import ImageField

from .base import FieldSpec, IndexedSource, Reject, Sample, Source, hash_fields
from .packing.boxes import image_with_boxes
from .reading.box_forms import BoxesOption
from .reading.field_names import is_image_name, is_mask_name
from .reading.fingerprints import hash_samples
from .reading.locations import printable, stat_of
from .reading.python_data import is_frame
from .reading.python_samples import (
    PEEK,
    ClassNames,
    Rows,
    first_samples,
    holds_files,
    is_file,
    own_copy,
    schema_of,
    to_values,
    values_of,
)
from .reading.shared import SharedSource

__all__ = ["DatasetSource", "ImageFolderSource", "IterableSource", "RowsSource"]


class _PythonSource(Source):
    _old = ""
    """The field of paths that is called ``image`` instead."""

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        classes: ClassNames = None,
        boxes: BoxesOption = (),
    ) -> None:
        self._data, self.notes = location, []
        first = self._first(list(fields or {}))
        self.schema, self.box_forms = schema_of(
            first, channels, fields, location, classes, boxes, self.notes
        )
        self._names = [self._old or n if n == "image" else n for n in self.schema]
        self._are_images = [isinstance(field, ImageField) for field in self.schema.values()]

    def _first(self, names: list[str]) -> list[Any]:
        """Return the first samples; `names` are the fields that the user names."""
        raise NotImplementedError


class IterableSource(_PythonSource):
    """Any iterable; to be resumed it must yield the same samples again."""

    name = "iterable"
    summary = "any Python iterable of samples (Python only)"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        whole = isinstance(location, (str, bytes, bytearray, os.PathLike, Mapping))
        return hasattr(location, "__iter__") and not (whole or _is_map_style(location))

    def _first(self, names: list[str]) -> list[Any]:
        self._iterator = iter(self._data)
        self._peeked = list(map(own_copy, itertools.islice(self._iterator, PEEK)))
        return self._peeked

    def count(self) -> None:
        return None

    def __iter__(self) -> Iterator[Sample | Reject]:
        samples = itertools.chain(self._peeked, self._iterator)
        for index, item in enumerate(samples):
            try:
                values = to_values(self._names, self._are_images, own_copy(item))
                yield Sample(f"{index:08}", values)
            except Exception as error:  # a lazily opened image may raise nearly anything
                yield Reject.of(f"{index:08}", error)


class DatasetSource(_PythonSource, SharedSource):
    """A map-style Dataset, called in the workers."""

    name = "dataset"
    summary = "a map-style torch Dataset or sequence (Python only)"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _is_map_style(location) and not RowsSource.recognises(location)

    def _first(self, names: list[str]) -> list[Any]:
        self.num_samples = len(self._data)
        return first_samples(self._data)

    def __getitem__(self, index: int) -> Sample:
        return Sample(f"{index:08}", self.item(index))

    def loader(self) -> Callable[[int], tuple[Any, ...]]:
        return partial(_load, self._data, self._names, self._are_images)

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array([hash_fields(type(self._data).__qualname__, self.num_samples)], np.uint64)


def _load(dataset: Any, names: list[str], are_images: list[bool], index: int) -> tuple[Any, ...]:
    return to_values(names, are_images, dataset[index])


class RowsSource(_PythonSource, IndexedSource):
    """Rows whose images are files: a list of dicts or tuples, or what `Rows` are made of.

    A key is the path of the row's first image, relative to the folder that all are in.
    """

    name = "imagefolder"
    summary = "a list of rows with paths, or an object like torchvision's ImageFolder (Python only)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return isinstance(location, Rows) or holds_files(location)

    def _first(self, names: list[str]) -> list[Any]:
        rows, self.num_samples, self._folder = self._data, len(self._data), os.getcwd()
        first = [values_of(rows[at], names) for at in range(min(PEEK, self.num_samples))]
        row = first[0] if first else {}
        if not any(map(_is_image, row, row.values())):
            # The path of an image as text is the image of a row without another.
            paths = [name for name, value in row.items() if is_file(value) and "image" not in row]
            self._old = next(iter(paths), "")
        return [{"image" if n == self._old else n: v for n, v in row.items()} for row in first]

    @cached_property
    def _main(self) -> str:
        return self._names[list(self.schema).index(image_with_boxes(self.schema))]

    @cached_property
    def _root(self) -> str:
        root: str = getattr(self._data, "root", "")
        if not root and isinstance(self._data, (list, tuple, Rows)):
            root = _common_folder(filter(None, map(self._path_of, self._data)))
        return root

    def _path_of(self, row: Any) -> str:
        """Return the path of a row's first image; empty if it is none."""
        value = values_of(row, self._names).get(self._main)
        return os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""

    def __getitem__(self, index: int) -> Sample:
        # Paths are of this working directory, whichever a worker has.
        row = to_values(self._names, self._are_images, self._data[index], self._folder)
        return Sample(self.key_at(index), row)

    def key_at(self, index: int) -> str:
        path = self._path_of(self._data[index])
        if not path:
            return f"{index:08}"
        return printable(os.path.relpath(os.path.join(self._folder, path), self._root))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        made_of = getattr(self._data, "_fingerprint", None)  # of Hugging Face's, for all rows
        if made_of is not None:
            return np.array([hash_fields(made_of, self.num_samples)], np.uint64)
        return hash_samples(self.num_samples, limit, self._parts)

    def _parts(self, index: int) -> Iterator[Any]:
        """Yield the values of a sample, with size and time of its files."""
        for value in values_of(self._data[index], self._names).values():
            yield value
            if isinstance(value, (str, os.PathLike)) and is_file(value):
                yield from stat_of(os.fspath(value))


def _is_image(name: str, value: Any) -> bool:
    """Tell whether a value is an image by its kind or its name, not only by its file's name."""
    named = is_image_name(name) or is_mask_name(name)
    return is_file(value) and (named or not isinstance(value, str))


ImageFolderSource = RowsSource
"""The name that the entry point has."""


def _common_folder(paths: Iterable[str]) -> str:
    """Return the deepest folder that has all of some files."""
    low = high = ""
    for path in paths:  # all texts between two texts begin with their common start
        low = min(low or path, path)
        high = max(high, path)
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in (low, high)])


def _is_map_style(location: Any) -> bool:
    if isinstance(location, (str, bytes, bytearray, Mapping)) or is_frame(location):
        return False
    if not (hasattr(location, "__getitem__") and hasattr(location, "__len__")):
        return False
    # torch's IterableDataset has a __getitem__ too, which only raises.
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    return torch is None or not isinstance(location, torch.utils.data.IterableDataset)
