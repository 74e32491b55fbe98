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

import dataclasses
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.schema import ImageField, Schema

from .base import (
    Deferred,
    FieldSpec,
    IndexedSource,
    Reject,
    Sample,
    Source,
    hash_fields,
)
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
    file_of,
    first_samples,
    has_files,
    holds_files,
    is_file,
    own_copy,
    schema_of,
    to_values,
    values_of,
)
from .reading.shared import new_token, register, shared, unregister

__all__ = ["DatasetSource", "ImageFolderSource", "IterableSource", "RowsSource"]


class IterableSource(Source):
    """Any iterable; to be resumed it must yield the same samples again."""

    name = "iterable"
    summary = "any Python iterable of samples (Python only)"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        whole = isinstance(location, (str, bytes, bytearray, os.PathLike, Mapping))
        return hasattr(location, "__iter__") and not (whole or _is_map_style(location))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        classes: ClassNames = None,
        boxes: BoxesOption = (),
    ) -> None:
        self._iterator = iter(location)
        self.notes = []
        self._peeked = list(map(own_copy, itertools.islice(self._iterator, PEEK)))
        self.schema, self.box_forms = schema_of(
            self._peeked, channels, fields, location, classes, boxes, self.notes
        )

    def count(self) -> None:
        return None

    def __iter__(self) -> Iterator[Sample | Reject]:
        samples = itertools.chain(self._peeked, self._iterator)
        for index, item in enumerate(samples):
            try:
                yield Sample(f"{index:08}", to_values(own_copy(item), self.schema))
            except Exception as error:  # a lazily opened image may raise nearly anything
                yield Reject.of(f"{index:08}", error)


class DatasetSource(IndexedSource):
    """A map-style Dataset, called in the workers."""

    name = "dataset"
    summary = "a map-style torch Dataset or sequence (Python only)"
    general = True

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _is_map_style(location) and not RowsSource.recognises(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        classes: ClassNames = None,
        boxes: BoxesOption = (),
    ) -> None:
        self._dataset = location
        self.notes = []
        self.num_samples = len(location)
        first = first_samples(location)
        self.schema, self.box_forms = schema_of(
            first, channels, fields, location, classes, boxes, self.notes
        )
        self._token = new_token()
        weakref.finalize(self, unregister, self._token)

    def __getitem__(self, index: int) -> Sample:
        if index >= self.num_samples:
            raise IndexError(index)
        return Sample(f"{index:08}", DatasetItem(self._token, index, self.schema))

    @property
    def worker_setup(self) -> Callable[[], None]:
        return partial(register, self._token, self._dataset)

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array(
            [hash_fields(type(self._dataset).__qualname__, self.num_samples)], np.uint64
        )


class RowsSource(IndexedSource):
    """Rows whose images are files: a list of dicts or tuples, or what `Rows` are made of.

    A key is the path of the row's first image, relative to the folder that all are in.
    """

    name = "imagefolder"
    summary = "a list of rows with paths, or an object like torchvision's ImageFolder (Python only)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return isinstance(location, Rows) or holds_files(location) or has_files(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        classes: ClassNames = None,
        boxes: BoxesOption = (),
    ) -> None:
        self._rows: Sequence[Any] = location
        self.notes = []
        self.num_samples = len(location)
        if classes is None and isinstance(location, Rows) and location.classes is not None:
            classes = tuple(map(printable, location.classes))
        names = list(fields or {})
        first = [location[at] for at in range(min(PEEK, self.num_samples))]
        given = values_of(first[0], names)
        old = "" if any(map(_is_image, given, given.values())) else _path_among(given)
        if old:
            first = [_renamed(values_of(row, names), old) for row in first]
        schema, self.box_forms = schema_of(
            first, channels, fields, self._rows, classes, boxes, self.notes
        )
        self._names = [old if name == "image" and old else name for name in schema]
        self.schema = schema
        self._is_image = [isinstance(field, ImageField) for field in schema.values()]
        self._main = self._names[list(schema).index(image_with_boxes(schema))]
        self._folder = os.getcwd()
        self._root = getattr(location, "root", "")
        if not self._root and isinstance(location, (list, tuple, Rows)):
            self._root = _common_folder(filter(None, map(self._path_of, location)))

    def _path_of(self, row: Any) -> str:
        """Return the path of a row's first image; empty if it is none."""
        value = file_of(values_of(row, self._names).get(self._main))
        return os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""

    def __getitem__(self, index: int) -> Sample:
        if index >= self.num_samples:
            raise IndexError(index)
        values = values_of(self._rows[index], self._names)
        if list(values) != self._names and values.keys() != set(self._names):
            raise ValueError(f"the sample has the fields {list(values)}, not {self._names}")
        both = zip(self._names, self._is_image, strict=True)
        row = tuple(self._value(values[name], image) for name, image in both)
        return Sample(self.key_at(index), row)

    def _value(self, value: Any, image: bool) -> Any:
        """Return a value that can be sent to a worker."""
        value = file_of(value)
        if image and isinstance(value, (str, os.PathLike)):
            return Path(self._folder, value)  # whatever the working directory is when it is read
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def key_at(self, index: int) -> str:
        path = self._path_of(self._rows[index])
        if not path:
            return f"{index:08}"
        return printable(os.path.relpath(os.path.join(self._folder, path), self._root))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        made_of = getattr(self._rows, "_fingerprint", None)  # of Hugging Face's, for all rows
        if made_of is not None:
            return np.array([hash_fields(made_of, self.num_samples)], np.uint64)
        return hash_samples(self.num_samples, limit, self._parts)

    def _parts(self, index: int) -> Iterator[Any]:
        """Yield what a sample is made from."""
        for value in values_of(self._rows[index], self._names).values():
            if isinstance(value, os.PathLike) or is_file(value):
                plain = isinstance(value, (str, os.PathLike))
                yield from (os.fspath(value), *stat_of(value)) if plain else (hash_fields(value),)
            else:
                yield value


def _is_image(name: str, value: Any) -> bool:
    """Tell whether a value is an image by its kind or its name, not only by its file's name."""
    named = is_image_name(name) or is_mask_name(name)
    return is_file(value) and (named or not isinstance(value, str))


def _path_among(row: Mapping[str, Any]) -> str:
    """Return the field whose text is the path of an image, which is called ``image`` then."""
    return next((name for name, value in row.items() if is_file(value) and "image" not in row), "")


def _renamed(row: Mapping[str, Any], old: str) -> dict[str, Any]:
    return {"image" if name == old else name: value for name, value in row.items()}


ImageFolderSource = RowsSource
"""The name that the entry point has."""


def _common_folder(paths: Iterable[str]) -> str:
    """Return the deepest folder that has all of some files."""
    low = high = ""
    for path in paths:  # texts between two texts begin with what these have in common
        low = min(low or path, path)
        high = max(high, path)
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in (low, high)])


@dataclasses.dataclass(frozen=True, slots=True)
class DatasetItem(Deferred):
    """A sample that the worker asks the dataset for."""

    token: str
    index: int
    schema: Schema

    def load(self) -> tuple[Any, ...]:
        """Call the dataset."""
        return to_values(shared(self.token)[self.index], self.schema)


def _is_map_style(location: Any) -> bool:
    if isinstance(location, (str, bytes, bytearray, Mapping)) or is_frame(location):
        return False
    if not (hasattr(location, "__getitem__") and hasattr(location, "__len__")):
        return False
    # torch's IterableDataset has a __getitem__ too, which only raises.
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    return torch is None or not isinstance(location, torch.utils.data.IterableDataset)
