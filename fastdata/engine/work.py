"""What workers do: the part of making a batch that takes time.

`BatchWork` is the same in every thread and process; a task (`fastdata.engine.tasks`) says which
samples, and where in the batch's memory their images go.

    RenderTask    decode -> geometry -> [pixel table] -> the sample's place in the batch
    SampleTask    decode -> stages, one after another -> its place, where it fits
    DecodeTask    decode -> its place in memory that is kept

What becomes of a sample depends on the sample alone, so batches do not depend
on how they are cut into tasks, nor on which worker does them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.engine.context import BatchContext, OnCorrupt
from fastdata.engine.rendering import render_task
from fastdata.engine.samples import decode_whole, make_samples
from fastdata.engine.tasks import DecodeTask, Done, ReadAheadTask, RenderTask

__all__ = ["BatchWork", "OnCorrupt"]

Indices: TypeAlias = NDArray[np.int64]

IN_MEMORY_SECONDS = 1e-4, 3e-6
"""A batch, and an image of it: asking for what is in memory takes less (1.1 us an image), for what
is on a disk more (32 us)."""

MAX_PAUSE = 63
"""Batches at most that are not asked for after one that was in memory altogether."""


@dataclass
class ReadAhead:
    """Asks for stored bytes, and less often where they turn out to be in memory already.

    Threads may count `pause` down unevenly, which does no harm.
    """

    pause: int = 0
    longest_pause: int = 0

    def ask(self, context: BatchContext, indices: Indices) -> None:
        """Have the bytes of some samples read, into the page cache."""
        if self.pause > 0:
            self.pause -= 1
            return
        began = time.perf_counter()
        for name in context.dataset.schema.images:
            context.dataset.images(name, indices, context.decoder).read_ahead()
        seconds = time.perf_counter() - began
        in_memory = seconds < IN_MEMORY_SECONDS[0] + IN_MEMORY_SECONDS[1] * len(indices)
        self.longest_pause = min(2 * self.longest_pause + 1, MAX_PAUSE) if in_memory else 0
        self.pause = self.longest_pause


@dataclass(frozen=True, eq=False)
class BatchWork(BatchContext):
    """Does tasks; picklable, and safe in any number of threads."""

    read_ahead: ReadAhead = field(default_factory=ReadAhead, init=False, repr=False)

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
            self.read_ahead.ask(self, task.indices)
            return Done()
        assert memory is not None, "tasks that make something get memory for it"
        if isinstance(task, RenderTask):
            return render_task(self, task, memory)
        if isinstance(task, DecodeTask):
            return decode_whole(self, task, memory)
        return make_samples(self, task, memory)
