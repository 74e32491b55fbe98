"""Whole images of a batch, decoded by workers, one after another in one slot of memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from fastdata.engine.buffers import BufferPool, Slot
from fastdata.engine.job import Request
from fastdata.engine.tasks import DecodeTask, Done, image_sizes
from fastdata.engine.work import BatchWork
from fastdata.transforms.geometry import Ints

__all__ = ["FillJob", "Filled"]

SAMPLES_PER_TASK = 16
"""As `fastdata.engine.batches` has it."""


@dataclass(frozen=True, slots=True, eq=False)
class Filled:
    """Decoded images.

    Attributes
    ----------
    indices : ndarray of int64, shape [k]
    memory : dict of str to torch.Tensor
        Of each image field, uint8 [m]: the images in the order of `indices`.
    failed : dict of int to str
        Sample indices that could not be decoded, and why; their pixels mean nothing.
    nbytes : int
        Stored bytes that were read.
    """

    indices: Ints
    memory: dict[str, torch.Tensor]
    failed: dict[int, str]
    nbytes: int


class _Place(NamedTuple):
    """Where the images of a field lie in a slot: each, and all of them."""

    begins: Ints
    ends: Ints
    start: int
    stop: int


class FillJob:
    """A `fastdata.engine.job.Job` that decodes the samples of a request, whole.

    Parameters
    ----------
    work : BatchWork
    buffers : BufferPool
    request : Request
        Of any number of samples, none included.
    """

    def __init__(self, work: BatchWork, buffers: BufferPool, request: Request) -> None:
        self._indices = request.indices
        self._places: dict[str, _Place] = {}
        begin = 0
        for name, field in work.dataset.schema.images.items():
            heights, widths = image_sizes(work.dataset, name, request.indices, work.decoder)
            sizes = heights * widths * field.channels
            end = begin + int(sizes.sum())
            ends = begin + np.cumsum(sizes)
            self._places[name] = _Place(ends - sizes, ends, begin, end)
            begin = end
        self.slot: Slot | None = buffers.take(begin) if begin else None

    def tasks(self) -> Sequence[DecodeTask]:
        """Return one for each few samples."""
        found = []
        for first in range(0, len(self._indices) if self.slot else 0, SAMPLES_PER_TASK):
            some = slice(first, first + SAMPLES_PER_TASK)
            begins = {name: place.begins[some] for name, place in self._places.items()}
            ends = {name: place.ends[some] for name, place in self._places.items()}
            found.append(DecodeTask(self._indices[some], first, begins, ends))
        return found

    def finish(self, results: Sequence[Done]) -> Filled:
        """Return the images, in the slot's memory."""
        empty = torch.empty(0, dtype=torch.uint8)
        tensor = empty if self.slot is None else self.slot.tensor
        memory = {n: tensor[place.start : place.stop] for n, place in self._places.items()}
        failed = {int(self._indices[at]): why for done in results for at, why in done.failed}
        return Filled(self._indices, memory, failed, sum(done.nbytes for done in results))
