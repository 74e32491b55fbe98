"""The work of making a batch, the same in every thread and process, and its tasks.

A `Task` is picklable.  It runs with a `BatchWork`, which has data, transforms and decoder, and with
the memory of its batch:

    RenderTask   (rendering.py)   decode -> geometry -> [pixel table] -> the sample's place
    SampleTask   (samples.py)     decode -> stages, one after another -> its place, if it fits
    ReadAheadTask                 stored bytes -> the page cache

The result for a sample depends on the sample alone, so batches do not depend on the tasks or on the
workers.
"""

from __future__ import annotations

import dataclasses
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.codecs.decoders import JpegDecoder
from fastdata.engine.contracts import Indices, PackedData
from fastdata.errors import ShardCorruptError
from fastdata.native.library import JPEG, RAW, compiled
from fastdata.random import Draws, operation_id
from fastdata.schema import ArrayField, BytesField, StringField
from fastdata.transforms.pipeline import Pipeline
from fastdata.transforms.pixel import PixelTable

__all__ = ["BatchWork", "Done", "OnCorrupt", "ReadAheadTask", "Task"]

OnCorrupt: TypeAlias = Literal["raise", "skip"]

REPLACE = operation_id(0, "replacement of a corrupt sample")
REPLACEMENTS = 100
"""Samples that are tried in place of a corrupt one before it is an error after all."""

IN_MEMORY_SECONDS = 1e-4, 3e-6, 6e-11
"""For a batch, an image and a byte.  Requests for data in memory take less processor time (2, 2.5
and 5 us for images of 3, 30 and 150 kB), for data on a disk more (8, 20 and 50)."""

MAX_PAUSE = 63
"""Batches at most that are not asked for after one that was in memory altogether."""


class Task(Protocol):
    """A part of a batch; picklable."""

    @abstractmethod
    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Any:
        """Write images to `memory`, the slot of their batch, and return small values."""


@dataclass(slots=True)
class Done:
    """The result of a task that makes images.

    `nbytes` are the stored bytes of the images read.  `replaced` are corrupt samples: place in the
    batch, index of the substitute, reason.  `columns`, of a `SampleTask`, are the values that are
    not in memory, by field and view.  `substitutes`, of lists of images, are images [C, H, W] that
    take the place of corrupt ones, by place in the batch, and by field and view.
    """

    nbytes: int = 0
    replaced: list[tuple[int, int, str]] = field(default_factory=list)
    columns: dict[tuple[str, int], list[Any]] | None = None
    substitutes: dict[int, dict[tuple[str, int], torch.Tensor]] = field(default_factory=dict)


@dataclass
class ReadAhead:
    """Asks for stored bytes, and less often where they turn out to be in memory already.

    Threads may count `pause` down unevenly, which does no harm.
    """

    pause: int = 0
    longest_pause: int = 0

    def ask(self, work: BatchWork, indices: Indices) -> None:
        """Have the bytes of some samples read, into the page cache."""
        if self.pause > 0:
            self.pause -= 1
            return
        names = work.dataset.schema.images
        images = [work.dataset._images(name, indices, work.decoder) for name in names]
        # Not the clock's: where processors are busy, most of that would be waiting for one.
        began = time.thread_time()
        for stored in images:
            stored.read_ahead()
        seconds = time.thread_time() - began
        a_batch, an_image, a_byte = IN_MEMORY_SECONDS
        nbytes = sum(int(stored.lengths.sum()) for stored in images)
        fetched = getattr(work.dataset, "_supplied", ())  # asking takes no time at all
        in_memory = (
            not fetched
            and seconds < a_batch + an_image * len(indices) * len(images) + a_byte * nbytes
        )
        self.longest_pause = min(2 * self.longest_pause + 1, MAX_PAUSE) if in_memory else 0
        self.pause = self.longest_pause


@dataclass(frozen=True, slots=True, eq=False)
class ReadAheadTask:
    """Have the stored bytes of some samples read, into the page cache."""

    indices: Indices

    def run(self, work: BatchWork, memory: NDArray[np.uint8] | None) -> Done:
        work.read_ahead.ask(work, self.indices)
        return Done()


@dataclass(frozen=True, eq=False)
class BatchWork:
    """What batches are made of and by; picklable, and safe in any number of threads.

    ``dataclasses.replace(work, dataset=...)`` is the same over other data.  Without `pixels` a
    direct pipeline's pixel stage is left out: the caller runs it, on another device.  `part`, int64
    [n], are the samples that may take the place of corrupt ones; all by default.

    `memory_format` is that of delivered batches.  If `planar`, images are made as contiguous
    planes, [N, C, H, W]; else channels last, which `fastdata.engine.delivery` may change.  With
    `image_lists` they are lists of images [C, H, W] of any sizes.
    """

    dataset: PackedData
    pipeline: Pipeline
    decoder: JpegDecoder
    _: KW_ONLY
    seed: int = 0
    on_corrupt: OnCorrupt = "raise"
    pixels: bool = True
    part: Indices | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    planar: bool = False
    image_lists: bool = False
    read_ahead: ReadAhead = field(default_factory=ReadAhead, init=False, repr=False)

    def __call__(self, task: Task, memory: NDArray[np.uint8] | None) -> Any:
        """Carry out a task; see `Task.run`.

        Raises an `OptionError` if the transforms do not fit the images, or leave them in different
        sizes; a `ShardCorruptError` if an image is damaged and `on_corrupt` is "raise".
        """
        run = partial(task.run, self, memory)
        for supplied in getattr(self.dataset, "_supplied", ()):
            run = partial(supplied.supply.run, run)
        return run()

    @cached_property
    def views(self) -> tuple[BatchWork, ...]:
        """One for each of the pipeline's views; none if it has no views."""
        return tuple(dataclasses.replace(self, pipeline=view) for view in self.pipeline.views)

    @property
    def parts(self) -> tuple[BatchWork, ...]:
        """What is done to images: one for each view, or this alone."""
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
        codecs = [self.dataset._images(n, first, self.decoder).crops()["codec"][0] for n in names]
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
        """Return the samples to skip for a damaged value, by their place among `indices`.

        Images are checked when they are read.
        """
        if self.on_corrupt == "raise" or not self._has_lengths:
            return {}
        schema = self.dataset.schema
        found: dict[int, ShardCorruptError] = {}
        for at in np.flatnonzero(self.dataset._unreadable(indices)).tolist():
            try:
                for name in schema:
                    if name not in schema.images:
                        self.dataset._gather(name, indices[at : at + 1])
            except ShardCorruptError as error:
                found[at] = error
        return found

    def replace(
        self, epoch: int, index: int, error: ShardCorruptError, make: Callable[[int], Any]
    ) -> tuple[int, Any]:
        """Return a sound substitute of a corrupt sample, and the result of `make` for it."""
        if self.on_corrupt == "raise":
            raise error
        for other in self.replacement_samples(epoch, index):
            try:
                return other, make(other)
            except ShardCorruptError:
                continue
        raise error
