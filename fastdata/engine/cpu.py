"""The backend that needs nothing else: workers on the CPU make batches, which then travel.

BatchMaker -> Stream and its workers -> Delivery
"""

from __future__ import annotations

import numpy as np
import torch

from fastdata.engine.backend import Backend, BatchStream, buffers_for
from fastdata.engine.delivery import DEPTH, Delivery
from fastdata.engine.job import Prepare, Workers
from fastdata.engine.stream import Stream
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FastdataError

__all__ = ["SPARE_BUFFERS", "CpuBackend", "samples_to_read_ahead"]

READ_AHEAD_BYTES = 1 << 26
"""Stored bytes asked for from the disk before workers want them.

64 MB keep a solid-state disk busy, which wants many requests at a time, for
0.3 s of decoding on two cores; more would only displace others' pages.
"""

SPARE_BUFFERS = 2
"""Beyond those made ahead: the batch that the training loop has, and the one taken next.  Those on
their way to a device come on top."""


class CpuBackend(Backend):
    """Makes batches by threads or processes, in pinned memory where `pin_memory` says so."""

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device | None = None,
        pin_memory: bool = False,
    ) -> None:
        buffers = buffers_for(
            workers,
            workers.ahead + SPARE_BUFFERS + DEPTH * (device is not None),
            pin_memory=pin_memory,
            device=device,
        )
        super().__init__(work, workers, device=device, buffers=buffers)
        # Threads that are not in the middle of something are as quickly started anew.
        self.slow_to_start = workers.method == "process"

    def stream(self) -> BatchStream:
        """Return a new stream, with its own workers."""
        return self.stream_of(self.maker.prepare, self.workers.start(self.work))

    def stream_of(self, prepare: Prepare, workers: Workers) -> BatchStream:
        """Return a new stream like any other, but with batches planned and made by these.

        The workers are closed with the stream.
        """
        ahead = self.workers.ahead
        read_ahead = samples_to_read_ahead(self.work) if ahead else 0
        stream = Stream(prepare, workers, ahead=ahead, read_ahead=read_ahead)
        return Delivery(stream, self.pipeline, self.seed, self.device)

    def __str__(self) -> str:
        kind = {"thread": "threads", "process": "processes"}[self.workers.method]
        return f"{self.num_workers} worker {kind}"


def samples_to_read_ahead(work: BatchWork) -> int:
    """Return how many samples ahead their bytes are asked for from the disk."""
    dataset = work.dataset
    first = np.arange(min(len(dataset), 256))
    if not len(first):
        return 0
    try:
        nbytes = sum(
            float(dataset.images(name, first, work.decoder).lengths.mean())
            for name in dataset.schema.images
        )
    except FastdataError:  # a shard is damaged: said in its place, when a batch needs it
        return 0
    return min(int(READ_AHEAD_BYTES / nbytes), len(dataset)) if nbytes else 0
