"""What making a batch takes: data, transforms and decoder, the same in every thread and process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.tasks import PackedData
from fastdata.errors import ShardCorruptError
from fastdata.native.crops import JPEG, RAW
from fastdata.native.library import compiled
from fastdata.random import Draws, operation_id
from fastdata.schema import ArrayField, BytesField, StringField
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.pixel import PixelTable

__all__ = ["BatchContext", "OnCorrupt"]

Indices: TypeAlias = NDArray[np.int64]
OnCorrupt: TypeAlias = Literal["raise", "skip"]

REPLACE = operation_id(0, "replacement of a corrupt sample")
REPLACEMENTS = 100
"""Samples that are tried in place of a corrupt one before it is an error after all."""


@dataclass(frozen=True, eq=False)
class BatchContext:
    """What batches are made of and by; picklable, and safe in any number of threads.

    ``dataclasses.replace(context, dataset=...)`` is the same over other data.

    Attributes
    ----------
    dataset : PackedData
    pipeline : Pipeline
    decoder : JpegDecoder
    seed : int
    on_corrupt : {"raise", "skip"}
    pixels : bool
        False leaves out a direct pipeline's pixel stage: the caller runs it,
        on another device.
    part : ndarray of int64, optional
        The samples that may stand in for corrupt ones; all by default.
    """

    dataset: PackedData
    pipeline: Pipeline
    decoder: JpegDecoder
    _: KW_ONLY
    seed: int = 0
    on_corrupt: OnCorrupt = "raise"
    pixels: bool = True
    part: Indices | None = None

    @cached_property
    def views(self) -> tuple[BatchContext, ...]:
        """One context for each of the pipeline's views; none if it has no views."""
        return tuple(dataclasses.replace(self, pipeline=view) for view in self.pipeline.views)

    @property
    def parts(self) -> tuple[BatchContext, ...]:
        """What is done to images: one context a view, or this alone."""
        return self.views or (self,)

    @cached_property
    def tables(self) -> dict[str, PixelTable]:
        """The pixel stage of each image field that it applies to."""
        stage = self.pipeline.pixels if self.pixels else None
        if stage is None:
            return {}
        images = self.dataset.schema.images
        return {n: stage.table(image.channels) for n, image in images.items() if not image.mask}

    @cached_property
    def _has_lengths(self) -> bool:
        return any(
            isinstance(field, (StringField, BytesField))
            or (isinstance(field, ArrayField) and not field.fixed)
            for field in self.dataset.schema.values()
        )

    @property
    def releases_lock(self) -> bool:
        """Whether nearly all of the work is done without the interpreter's lock.

        That is so where the compiled library makes the images: raw ones and JPEGs, without
        callables.  Judged by the first sample.
        """
        if not (compiled() and self.pipeline.direct and len(self.dataset)):
            return False
        first = np.zeros(1, np.int64)
        names = self.dataset.schema.images
        codecs = [self.dataset.images(n, first, self.decoder).crops()["codec"][0] for n in names]
        return all(
            codec == RAW or (codec == JPEG and self.decoder.name == "native") for codec in codecs
        )

    def replacement_samples(self, epoch: int, index: int) -> Iterator[int]:
        """Yield the samples to take in place of a corrupt one, the first that is sound."""
        draws = Draws(self.seed, epoch, REPLACE, np.array([index]))
        if self.part is None:
            yield from draws.integers(len(self.dataset), REPLACEMENTS)[0].tolist()
        else:
            yield from self.part[draws.integers(len(self.part), REPLACEMENTS)[0]].tolist()

    def unreadable(self, indices: Indices) -> dict[int, ShardCorruptError]:
        """Return, where these are to be skipped, samples with a damaged value that is no image.

        By their place among `indices`; images are looked at when they are read.
        """
        if self.on_corrupt == "raise" or not self._has_lengths:
            return {}
        schema = self.dataset.schema
        found: dict[int, ShardCorruptError] = {}
        for at in np.flatnonzero(self.dataset.unreadable(indices)).tolist():
            try:
                for name in schema:
                    if name not in schema.images:
                        self.dataset.gather(name, indices[at : at + 1])
            except ShardCorruptError as error:
                found[at] = error
        return found

    def replace(
        self, epoch: int, index: int, error: ShardCorruptError, make: Callable[[int], Any]
    ) -> tuple[int, Any]:
        """Return a sound sample in place of a corrupt one, and what `make` made of it."""
        if self.on_corrupt == "raise":
            raise error
        for other in self.replacement_samples(epoch, index):
            try:
                return other, make(other)
            except ShardCorruptError:
                continue
        raise error
