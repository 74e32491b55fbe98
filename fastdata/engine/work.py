"""What workers do: the part of making a batch that takes time.

`BatchWork` has what it takes (data, transforms, decoder) and is the same in every
thread and process; a task (`fastdata.engine.tasks`) says which samples, and where
in the batch's memory their images go.

    RenderTask    decode -> geometry -> [pixel table] -> the sample's place in the batch
    SampleTask    decode -> stages, one after another -> its place, where it fits
    DecodeTask    decode -> its place in memory that is kept

What becomes of a sample depends on the sample alone, so batches do not depend
on how they are cut into tasks, nor on who does them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.decoding import decode_whole
from fastdata.engine.rendering import render_task
from fastdata.engine.samples import make_samples
from fastdata.engine.tasks import DecodeTask, Done, PackedData, ReadAheadTask, RenderTask
from fastdata.errors import ShardCorruptError
from fastdata.native.crops import JPEG, RAW
from fastdata.native.library import compiled
from fastdata.random import Draws, operation_id
from fastdata.schema import ArrayField, BytesField, StringField
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.pixel import PixelTable

__all__ = ["BatchWork", "OnCorrupt"]

Indices: TypeAlias = NDArray[np.int64]
OnCorrupt: TypeAlias = Literal["raise", "skip"]

REPLACE = operation_id(0, "replacement of a corrupt sample")
REPLACEMENTS = 100
"""Samples that are tried in place of a corrupt one before it is an error after all."""

IN_MEMORY_SECONDS = 1e-4, 3e-6
"""A batch, and an image of it: asking for what is in memory takes less (1.1 us an image), for what
is on a disk more (32 us)."""

MAX_PAUSE = 63
"""Batches at most that are not asked for after one that was in memory altogether."""


class BatchWork:
    """Does tasks; picklable, and safe in any number of threads.

    Parameters
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

    Attributes
    ----------
    views : tuple of BatchWork
        One for each of the pipeline's views.
    """

    def __init__(
        self,
        dataset: PackedData,
        pipeline: Pipeline,
        decoder: JpegDecoder,
        *,
        seed: int = 0,
        on_corrupt: OnCorrupt = "raise",
        pixels: bool = True,
        part: Indices | None = None,
    ) -> None:
        self.dataset = dataset
        self.pipeline = pipeline
        self.decoder = decoder
        self.seed = seed
        self.on_corrupt = on_corrupt
        self.part = part
        self._pause = self._longest_pause = 0
        self._has_lengths = any(
            isinstance(field, (StringField, BytesField))
            or (isinstance(field, ArrayField) and not field.fixed)
            for field in dataset.schema.values()
        )
        self.views = tuple(
            BatchWork(
                dataset,
                view,
                decoder,
                seed=seed,
                on_corrupt=on_corrupt,
                pixels=pixels,
                part=part,
            )
            for view in pipeline.views
        )
        self.tables: dict[str, PixelTable] = {}
        if pixels and pipeline.pixels is not None:
            for name, image in dataset.schema.images.items():
                if not image.mask:
                    self.tables[name] = pipeline.pixels.table(image.channels)

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Done:
        """Do a task, leaving images in `memory`, the slot of their batch.

        Raises
        ------
        OptionError
            If the transforms do not fit the images, or leave them in different
            sizes.
        ShardCorruptError
            If the bytes of an image are damaged and `on_corrupt` is "raise".
        """
        if isinstance(task, ReadAheadTask):
            self._read_ahead(task.indices)
            return Done()
        assert memory is not None, "tasks that make something get memory for it"
        if isinstance(task, RenderTask):
            return render_task(self, task, memory)
        if isinstance(task, DecodeTask):
            return decode_whole(self, task, memory)
        return make_samples(self, task, memory)

    @property
    def parts(self) -> tuple[BatchWork, ...]:
        """What is done to images: one work a view, or this alone."""
        return self.views or (self,)

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

    def _read_ahead(self, indices: Indices) -> None:
        """Ask for bytes, and less often where they turn out to be in memory already."""
        if self._pause > 0:  # threads may count this down unevenly, which does no harm
            self._pause -= 1
            return
        began = time.perf_counter()
        for name in self.dataset.schema.images:
            self.dataset.images(name, indices, self.decoder).read_ahead()
        seconds = time.perf_counter() - began
        in_memory = seconds < IN_MEMORY_SECONDS[0] + IN_MEMORY_SECONDS[1] * len(indices)
        self._longest_pause = min(2 * self._longest_pause + 1, MAX_PAUSE) if in_memory else 0
        self._pause = self._longest_pause

    def stand_ins(self, epoch: int, index: int) -> Iterator[int]:
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
        for other in self.stand_ins(epoch, index):
            try:
                return other, make(other)
            except ShardCorruptError:
                continue
        raise error
