"""CIFAR-10 and CIFAR-100: Python's edition and the binary one, unpacked or as downloaded.

What a batch is, and where batches are, stands in ``reading/classic/cifar_batches.py``.  Pickles are
read by ``pickled.py`` beside it, which executes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from fastdata.codecs.image import contiguous
from fastdata.errors import OptionError, SourceError
from fastdata.schema import Field, ImageField, ScalarField, Schema

from .base import FieldSpec, IndexedSource, Reject, Sample, reject_reason
from .reading.classic.cifar_batches import (
    Batch,
    batch_name,
    cifar_folder,
    is_archive,
    is_batch,
    look_at,
)
from .reading.fields import resolve_fields
from .reading.fingerprints import FileSource
from .reading.forward_reader import ForwardReader
from .reading.locations import printable
from .reading.options import Option
from .reading.refusals import not_seekable
from .reading.selection import left_out

__all__ = ["CifarSource"]

_NAMES = {
    "label": ("fine_label_names", "label_names"),
    "coarse_label": ("coarse_label_names",),
}


class CifarSource(FileSource, IndexedSource):
    """Batches of CIFAR; fields ``image``, ``label`` and, of CIFAR-100, ``coarse_label``."""

    name = "cifar"
    summary = "CIFAR-10 and -100: pickles or binary, a folder or the .tar.gz"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        path = Path(location)
        if path.is_file():
            return is_batch(path) or is_archive(path)
        return cifar_folder(path) is not None

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: Annotated[
            str, Option("which batches; all adds a field 'split'", ("train", "test", "all"))
        ] = "train",
    ) -> None:
        self.notes = []
        self.location = Path(location)
        found = look_at(location)
        self._compressed = found.compressed
        alone = self.location.is_file() and batch_name(self.location.name) is not None
        taken = [b for b in found.batches if alone or split in (b.split, "all")]
        if not taken:
            there = found.batches[0].split
            raise OptionError(f"{location}: has only split={there} (--option split={there})")
        left = [batch.name for batch in found.batches if batch.split != split != "all"]
        if left and not alone:
            self.notes += left_out("batches", left, "--option split=test, or all")
        self._batches = taken
        self._lost = [] if alone else _missing(taken)
        if found.failure:
            self._lost.append(Reject(printable(self.location.name), found.failure))
        self.num_samples = sum(batch.num_samples for batch in taken) + len(self._lost)
        self.schema = Schema(self._resolve(found.names, channels, fields or {}, split))

    def _resolve(
        self, names: dict[str, tuple[str, ...]], channels: int, fields: FieldSpec, split: str
    ) -> dict[str, Field]:
        resolved: dict[str, Field] = {"image": ImageField(channels=channels)}
        whole = [batch for batch in self._batches if batch.num_images]
        if not whole:
            raise SourceError(f"{self.location}: no batch can be read: {self._batches[0].failure}")
        for field in ("label", "coarse_label"):
            if any(field in (*batch.labels, *batch.leading) for batch in whole):
                lists = [names[key] for key in _NAMES[field] if key in names]
                resolved[field] = ScalarField(classes=lists[0] if lists else None)
                if not lists:
                    self.notes.append(f"no file with the names of the classes of {field!r}")
        if split == "all":
            resolved["split"] = ScalarField(classes=("train", "test"))
        if any(batch.labels for batch in whole):
            self.notes += left_out("of batches", ["filenames"])
        return resolve_fields(resolved, fields, channels, resolved.__getitem__)

    def indexed(self) -> IndexedSource:
        if self._compressed:
            raise not_seekable(self.location)
        return self

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        # The batches of an archive are read one behind the other by one reader.
        for file, batches in itertools.groupby(self._batches, lambda batch: batch.file):
            with ForwardReader(file, compressed=self._compressed) as reader:
                for batch in batches:
                    if start < batch.num_samples:
                        yield from self._samples(batch, reader, start, batch.num_images)
                    start = max(0, start - batch.num_samples)
        yield from self._lost[start:]

    def _samples(
        self, batch: Batch, reader: ForwardReader, start: int, stop: int
    ) -> Iterator[Sample | Reject]:
        try:
            for first, pixels, labels in batch.blocks(reader, start, stop):
                for k, image in enumerate(pixels):
                    yield self._sample(
                        batch, first + k, image, {n: int(v[k]) for n, v in labels.items()}
                    )
                start = first + len(pixels)
        except SourceError as error:
            yield Reject(
                f"{batch.name}[{start}]",
                f"{reject_reason(batch.name, error)}; the batch's images behind that are lost",
            )
            return
        if batch.failure and stop == batch.num_images:
            yield Reject(f"{batch.name}[{batch.num_images}]", batch.failure)

    def _sample(
        self, batch: Batch, row: int, image: Any, labels: dict[str, int]
    ) -> Sample | Reject:
        key = f"{batch.name}[{row}]"
        values: list[Any] = [contiguous(image)]
        for name, field in self.schema.items():
            if name not in _NAMES:
                continue
            if name not in labels:
                return Reject(key, f"the batch has no {name!r}, as others have")
            names = field.classes if isinstance(field, ScalarField) else None
            if names is not None and not 0 <= labels[name] < len(names):
                return Reject(key, f"{name!r} is {labels[name]}, none of the {len(names)} classes")
            values.append(labels[name])
        if "split" in self.schema:
            values.append(int(batch.split == "test"))
        return Sample(key, tuple(values))

    def __getitem__(self, index: int) -> Sample | Reject:
        for batch in self._batches:
            if index < batch.num_images:
                with ForwardReader(batch.file, compressed=self._compressed) as reader:
                    return next(self._samples(batch, reader, index, index + 1))
            if index < batch.num_samples:
                return Reject(f"{batch.name}[{index}]", batch.failure)
            index -= batch.num_samples
        return self._lost[index]

    def key_at(self, index: int) -> str:
        for batch in self._batches:
            if index < batch.num_samples:
                return f"{batch.name}[{index}]"
            index -= batch.num_samples
        return self._lost[index].key

    @property
    def files_read(self) -> list[Path]:
        return list(dict.fromkeys(batch.file for batch in self._batches))


def _missing(batches: list[Batch]) -> list[Reject]:
    """Return a reject for each training batch that CIFAR-10 has and that is not there."""
    names = [batch.name for batch in batches if batch.name.startswith("data_batch_")]
    if not names:
        return []
    suffix = ".bin" if names[0].endswith(".bin") else ""
    expected = [f"data_batch_{number}{suffix}" for number in range(1, 6)]
    return [Reject(name, "this batch is not there") for name in expected if name not in names]
