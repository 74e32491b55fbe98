"""fastdata's own datasets as a source: to merge, cut, convert and resize them.

Images keep the bytes that they have where ``codec="keep"`` is asked for, pixels too;
otherwise they are packed again like any other.  Datasets that are already open are
taken as they are shown: a part of one, or several as one, torch's ``Subset`` and
``ConcatDataset`` included.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fastdata.errors import FastdataError, OptionError, is_of_machine
from fastdata.formats.layout import CODECS, FOOTER_BYTES, MAGIC
from fastdata.formats.manifest import MANIFEST
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import EncodedImage
from fastdata.regular_files import read_piece
from fastdata.schema import ImageField

from .base import FieldSpec, Sample
from .reading.locations import files_at, first_bytes
from .reading.refusals import refuse_fields
from .reading.shared import SharedSource

if TYPE_CHECKING:
    from fastdata.dataset import Dataset

__all__ = ["PackedSource", "files_of", "opened", "refuse_transform"]


class PackedSource(SharedSource):
    """A dataset of fastdata's: a shard, a folder of shards, a pattern, or an open one."""

    name = "fastdata"
    summary = "fastdata's own shards, and folders of them"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        if not isinstance(location, (str, os.PathLike)):
            return opened(location) is not None
        if Path(location).is_dir():
            return b'"fastdata"' in first_bytes(Path(location) / MANIFEST, 64)
        return any(_is_shard(path) for path in files_at(location)[:1])

    def __init__(
        self, location: Any, *, channels: int = 3, fields: FieldSpec | None = None
    ) -> None:
        refuse_fields(fields, self.name)
        from .opening import open_packed

        view = opened(location)
        self.dataset = open_packed(location) if view is None else view
        refuse_transform(self.dataset)
        self.notes = []
        self.schema = self.dataset.schema
        self.num_samples = len(self.dataset)
        first = next(iter(self.dataset.shards), None)
        self.packed_with = None if first is None else first.header.options

    def loader(self) -> Callable[[int], tuple[Any, ...]]:
        return partial(_load, self.dataset)

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self.item(index))

    def key_at(self, index: int) -> str:
        key: str = self.dataset.keys[index]
        return key

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array([int(self.dataset.digest[:16], 16)], np.uint64)


def _load(dataset: Dataset, index: int) -> tuple[Any, ...]:
    """Return the values of a sample; images stay encoded."""
    reader, row = dataset._locate(index)
    return tuple(_values(reader, row, dataset.schema))


def files_of(dataset: Dataset) -> list[Path]:
    """Return the shards of a dataset, and the folders that are datasets of them."""
    folders = {path.parent for path in dataset.paths if (path.parent / MANIFEST).exists()}
    return [*dataset.paths, *folders]


def refuse_transform(dataset: Dataset) -> None:
    """Raise `OptionError` if the dataset has a transform: stored images are copied without it."""
    if dataset.transform is not None:
        raise OptionError(
            "stored images are copied as they are, without the dataset's transform, which is "
            f"{dataset.transform!r}. Set dataset.transform = None first; to pack transformed "
            "samples, pass them as an iterable: fastdata.pack(iter(dataset), ...)"
        )


def _values(reader: ShardReader, row: int, schema: Any) -> Iterator[Any]:
    for name, field in schema.items():
        if isinstance(field, ImageField):
            height, width = reader.size(name, row)
            codec = CODECS.index(reader.codec(name, row))
            checksum = int(reader.column(f"{name}.checksum")[row])
            yield EncodedImage(bytes(reader.blob(name, row)), codec, height, width, checksum)
        else:
            yield reader.value(name, row)


def opened(location: Any) -> Dataset | None:
    """Return an open dataset, or parts of such, as one; without torch there is none."""
    if "torch" not in sys.modules:
        return None
    from fastdata.packed_views import packed_view

    return packed_view(location)


def _is_shard(path: Path) -> bool:
    try:  # by its end alone: of a damaged one, opening says what is wrong
        return read_piece(path, FOOTER_BYTES, at_end=True).startswith(MAGIC)
    except (FastdataError, OSError) as error:
        if is_of_machine(error):
            raise
        return False
