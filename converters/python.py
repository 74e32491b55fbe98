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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.schema import ImageField, ScalarField, Schema

from .base import (
    Deferred,
    FieldSpec,
    IndexedSource,
    Reject,
    Sample,
    Source,
    hash_fields,
)
from .reading.image_files import is_image_name
from .reading.locations import printable, stat_of
from .reading.python_samples import (
    PEEK,
    first_samples,
    own_copy,
    schema_of,
    to_values,
    with_features,
)
from .reading.refusals import refuse_fields
from .reading.shared import new_token, register, shared, unregister

__all__ = ["DatasetSource", "ImageFolderSource", "IterableSource"]

_TRANSFORMS = ("transform", "target_transform", "transforms")


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
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        self._iterator = iter(location)
        self.notes = []
        self._peeked = list(map(own_copy, itertools.islice(self._iterator, PEEK)))
        self.schema = with_features(schema_of(self._peeked, channels, fields or {}), location)

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
        return _is_map_style(location) and not _is_image_folder(location)

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        self._dataset = location
        self.notes = []
        self.num_samples = len(location)
        self.schema = schema_of(first_samples(location), channels, fields or {})
        classes = getattr(location, "classes", None)
        label = self.schema.get("label")
        if isinstance(label, ScalarField) and label.dtype == "int64" and _are_names(classes):
            named = {"label": ScalarField(classes=tuple(classes or ()))}
            self.schema = Schema({**self.schema, **named})
        self.schema = with_features(self.schema, location)
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


class ImageFolderSource(IndexedSource):
    """``torchvision.datasets.ImageFolder`` and its like: (path, class) pairs."""

    name = "imagefolder"
    summary = "an object like torchvision's ImageFolder, by its files (Python only)"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return _is_image_folder(location)

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        refuse_fields(fields, self.name)
        self._samples: Sequence[tuple[str, int]] = location.samples
        self._root = getattr(location, "root", "")
        self.notes = []
        self.num_samples = len(self._samples)
        classes = tuple(map(printable, location.classes))
        self.schema = Schema(
            {"image": ImageField(channels=channels), "label": ScalarField(classes=classes)}
        )

    def __getitem__(self, index: int) -> Sample:
        path, label = self._samples[index]
        return Sample(self.key_at(index), (Path(path), int(label)))

    def key_at(self, index: int) -> str:
        path = self._samples[index][0]
        return printable(os.path.relpath(path, self._root) if self._root else str(path))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        hashes = [
            hash_fields(path, label, *stat_of(Path(path)))
            for path, label in itertools.islice(self._samples, limit)
        ]
        return np.array(hashes, np.uint64)


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
    if isinstance(location, (str, bytes, bytearray, Mapping)):
        return False
    if not (hasattr(location, "__getitem__") and hasattr(location, "__len__")):
        return False
    # torch's IterableDataset has a __getitem__ too, which only raises.
    torch = sys.modules.get("torch")  # takes a second to import; without it, none of its objects
    return torch is None or not isinstance(location, torch.utils.data.IterableDataset)


def _is_image_folder(location: Any) -> bool:
    samples = getattr(location, "samples", None)
    return (
        isinstance(samples, list)
        and len(samples) > 0
        and isinstance(samples[0], tuple)
        and len(samples[0]) == 2
        and isinstance(samples[0][0], (str, os.PathLike))
        and is_image_name(os.fspath(samples[0][0]))
        and _are_names(getattr(location, "classes", None))
        and all(getattr(location, name, None) is None for name in _TRANSFORMS)
    )


def _are_names(classes: Any) -> bool:
    return (
        isinstance(classes, (list, tuple))
        and len(classes) > 0
        and all(isinstance(name, str) for name in classes)
    )
