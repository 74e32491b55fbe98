"""The backend that needs nothing else: workers on the CPU make batches, which then travel.

BatchMaker -> Stream and its workers -> Delivery
"""

from __future__ import annotations

import numpy as np
import torch

from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.delivery import DEPTH, deliver
from fastdata.engine.job import BatchStream, Prepare, Usage, Workers
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
"""Beyond those made ahead: the batch in the loop's hands, and the one taken next.  Those on
their way to a device come on top."""


class CpuBackend:
    """Makes batches by threads or processes.

    Parameters
    ----------
    work : BatchWork
        Data, transforms and decoder.
    workers : WorkerOptions
    device : torch.device, optional
        Where batches arrive.
    pin_memory : bool
        Whether batches are made in pinned memory.
    """

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device | None = None,
        pin_memory: bool = False,
    ) -> None:
        self.dataset = work.dataset
        self.pipeline = work.pipeline
        self.seed = work.seed
        self.num_workers = workers.num_workers
        self.persistent = workers.persistent
        # Threads that are not in the middle of something are as quickly started anew.
        self.slow_to_start = workers.method == "process"
        self._work = work
        self._workers = workers
        self._device = device
        shared = workers.method == "process" and workers.num_workers > 0
        self._buffers = BufferPool(
            workers.ahead + SPARE_BUFFERS + DEPTH * (device is not None),
            kind="shared" if shared else "pinned" if pin_memory else "private",
            register=device if shared and pin_memory and _is_cuda(device) else None,
        )
        self._maker = BatchMaker(work, pieces=max(1, workers.num_workers), buffers=self._buffers)

    @property
    def work(self) -> BatchWork:
        """What workers do."""
        return self._work

    @property
    def workers(self) -> WorkerOptions:
        """Which workers there are."""
        return self._workers

    @property
    def maker(self) -> BatchMaker:
        """What plans batches and puts them together, in the caller's thread."""
        return self._maker

    @property
    def device(self) -> torch.device | None:
        """Where batches arrive."""
        return self._device

    def stream(self) -> BatchStream:
        """Return a new stream, with its own workers."""
        return self.stream_of(self._maker.prepare, self._workers.start(self._work))

    def stream_of(self, prepare: Prepare, workers: Workers) -> BatchStream:
        """Return a new stream like any other, but with batches planned and made by these.

        Parameters
        ----------
        prepare : Prepare
        workers : Workers
            Closed with the stream.
        """
        stream = Stream(
            prepare,
            workers,
            ahead=self._workers.ahead,
            read_ahead=samples_to_read_ahead(self._work) if self._workers.ahead else 0,
        )
        return deliver(stream, self.pipeline, self.seed, self._device)

    def usage(self) -> Usage:
        """Return what has been used and done."""
        return Usage(self._buffers.in_use, self._maker.skipped, self._maker.bytes_read)

    def close(self) -> None:
        """Free unused buffers now, others as soon as they come back.  Idempotent."""
        self._buffers.close()

    def __str__(self) -> str:
        kind = {"thread": "threads", "process": "processes"}[self._workers.method]
        return f"{self.num_workers} worker {kind}"


def _is_cuda(device: torch.device | None) -> bool:
    return device is not None and device.type == "cuda"


def samples_to_read_ahead(work: BatchWork) -> int:
    """Return how many samples ahead their bytes are asked for from the disk."""
    dataset = work.dataset
    some = np.arange(min(len(dataset), 256))
    if not len(some):
        return 0
    try:
        nbytes = sum(
            float(dataset.images(name, some, work.decoder).lengths.mean())
            for name in dataset.schema.images
        )
    except FastdataError:  # a shard is damaged: said in its place, when a batch needs it
        return 0
    return min(int(READ_AHEAD_BYTES / nbytes), len(dataset)) if nbytes else 0
