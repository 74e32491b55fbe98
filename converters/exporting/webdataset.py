"""WebDataset tar files: what ``format="webdataset"`` writes.

``docs/converters/exporting.md`` has the members.  A tar file has no time and no user in it: equal
datasets give equal files.
"""

from __future__ import annotations

import functools
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, Schema, StringField

from .base import (
    Exporter,
    PackedSample,
    Sized,
    label_field,
    main_image,
    sized,
    write_pieces,
)
from .names import FileNames, image_suffix, split_key

__all__ = ["WebDatasetExporter"]

_BLOCK = 512


class WebDatasetExporter(Exporter):
    """Shards of WebDataset; a sample is the members with one key."""

    name = "webdataset"
    shard_bytes = 10**9

    def write(self, samples: Iterable[PackedSample]) -> None:
        self._stems, self._main = _stems(self.schema), main_image(self.schema)
        self._names = FileNames()
        self._suffixes: dict[str, set[str]] = {name: set() for name in self.schema}
        end = bytes(2 * _BLOCK)
        write_file = functools.partial(write_pieces, end=end)
        self.write_shards(map(self._sample, samples), "shard-{:06}.tar", write_file)
        self.stored_as = {
            name: ";".join(sorted(self._suffixes[name])) or f"json:{name}" for name in self.schema
        }

    def _sample(self, sample: PackedSample) -> Sized:
        key, called = sample.key, _member_key(sample.key, self._names)
        numbers: dict[str, Any] = {}
        pieces: list[bytes | memoryview] = []
        implied = ""
        for name, suffix, data in self._members(sample, numbers):
            self._suffixes[name].add(suffix)
            if name == self._main:
                implied = f"{called}.{suffix}"
            pieces += _member(f"{called}.{suffix}", data)
        if key != implied:
            numbers["key"] = key
        if numbers:
            pieces += _member(f"{called}.json", json.dumps(numbers).encode())
        return sized(pieces)

    def _members(
        self, sample: PackedSample, numbers: dict[str, Any]
    ) -> Iterator[tuple[str, str, bytes | memoryview]]:
        """Yield field, suffix and content of members; add fields of the JSON to `numbers`."""
        stems = self._stems
        for name, field, value in sample.contents():
            if isinstance(field, ImageField):
                # As for a key without a suffix: all images of a field have one name.
                yield name, stems[name] + image_suffix(value, "")[1:], value
            elif name not in stems:
                numbers[name] = value.item()
            elif isinstance(field, StringField):
                yield name, stems[name], value.encode()
            elif isinstance(field, BytesField):
                yield name, stems[name], value
            elif isinstance(field, ArrayField):
                yield name, stems[name], _npy(value)
            else:
                yield name, stems[name], str(int(value)).encode()


def _stems(schema: Schema) -> dict[str, str]:
    """Return how the members of fields are called: suffixes, of images what is before them.

    Fields that are not there are entries of the JSON member.  WebDataset's suffixes have no
    capitals; where two names differ in these alone, the second gets a number.
    """
    image, label = main_image(schema), label_field(schema)
    text = next((n for n, field in schema.items() if isinstance(field, StringField)), None)
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for name, field in schema.items():
        called, number = name.lower(), 2
        while called in taken:
            called, number = f"{name.lower()}-{number}", number + 1
        if name == image:
            stems[name] = ""
        elif name == label:
            stems[name] = "cls"
        elif name == text:
            stems[name] = "txt"
        elif not isinstance(field, ScalarField):
            taken.add(called)
            kind = {ImageField: "", StringField: "txt", BytesField: "bin", ArrayField: "npy"}
            stems[name] = f"{called}.{kind[type(field)]}"
    return stems


def _member_key(key: str, names: FileNames) -> str:
    """Return what the members of a sample are called before their suffix; no two alike.

    The first dot of a file name ends that, and names like ``__x__`` are not read.
    """
    folders, stem = split_key(key)
    called = "/".join([*folders, stem.replace(".", "_")])
    if called.startswith("__"):
        called = "_" + called.lstrip("_")
    return names.claim("", called, "")


def _member(name: str, data: bytes | memoryview) -> list[bytes | memoryview]:
    """Return a member of a tar file: head, content, and zeros up to a whole block."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    head = info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    return [head, data, bytes(-len(data) % _BLOCK)]


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
