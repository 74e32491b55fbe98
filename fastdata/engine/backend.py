"""Backends, which make batches: from requests to the tensors of the training loop.

A loader knows an order of batches and a `Backend`.  There are five: workers on the CPU, here; the
same with the stored bytes in memory, of packed data and of files (`fastdata.cache.ram`); decoded
images on the device (`fastdata.cache.device`); and NVIDIA DALI (`fastdata.dali`).  Each
makes batches of a stream of requests in its own way, and `deliver` finishes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any

import numpy as np
import torch

from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.contracts import BatchOrder, BatchStream, Indices, Prepare, Request, Workers
from fastdata.engine.delivery import DEPTH, deliver
from fastdata.engine.stream import Stream
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import FastdataError
from fastdata.remote.following import Following
from fastdata.sampling import Batches
from fastdata.shards import Supplied

__all__ = ["SPARE_BUFFERS", "Backend", "CpuBackend", "buffers_for", "samples_to_read_ahead"]

READ_AHEAD_BYTES = 1 << 26
"""Stored bytes asked for from the disk before workers want them.

64 MB keep a solid-state disk busy, which wants many requests at a time, for
0.3 s of decoding on two cores; more would only displace others' pages.
"""

SPARE_BUFFERS = 2
"""Beyond those made ahead: the batch that the training loop has, and the one taken next.  Those on
their way to a device come on top."""


class Backend(ABC):
    """Makes batches of some `work`: data, transforms and decoder.

    They arrive on `device`, None being the CPU; `buffers` are their memory on the host.  The
    `maker` plans and assembles them in the caller's thread, and counts bytes and skipped samples.
    """

    slow_to_start = False
    """Whether a stream is worth keeping for its workers alone, without a next batch."""

    cache_bytes = 0
    """As of `LoaderStats`."""

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device | None,
        buffers: BufferPool,
    ) -> None:
        self.work = work
        self.workers = workers
        self.device = device
        self.buffers = buffers
        self.maker = BatchMaker(work, pieces=max(1, workers.num_workers), buffers=buffers)
        self._followings = [
            Following(one.supply, partial(_samples_of, work.dataset, one))
            for one in getattr(work.dataset, "_supplied", ())
        ]

    @abstractmethod
    def stream(self) -> BatchStream:
        """Return a new stream of finished batches, with whatever workers it needs."""

    def begins(self, batches: BatchOrder, epoch: int, number: int) -> None:
        """Tell where data come from that a stream begins at this batch, and goes on in order."""
        if isinstance(batches, Batches) and batches.joins:
            for following in self._followings:
                following.begin(batches, epoch, number)

    def handed_out(self, request: Request) -> None:
        """Tell where data come from that the loop has a batch."""
        for following in self._followings:
            following.handed_out(request.epoch, request.number)

    def stopped(self) -> None:
        """Tell where data come from that no batch is made any more."""
        for following in self._followings:
            following.end()

    @property
    def download_wait_seconds(self) -> float:
        """As of `LoaderStats`."""
        supplied = getattr(self.work.dataset, "_supplied", ())
        return float(sum(one.supply.waited_seconds for one in supplied))

    def deliver(self, stream: BatchStream) -> BatchStream:
        """Return the batches of a stream, finished and on the device."""
        return deliver(stream, self.work, self.device)

    def close(self) -> None:
        """Free what streams share, and buffers as they come back; after all streams are closed.

        Idempotent.
        """
        self.stopped()
        self.buffers.close()


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
        # Idle threads can be started again as quickly.
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
        return self.deliver(Stream(prepare, workers, ahead=ahead, read_ahead=read_ahead))

    def __str__(self) -> str:
        return str(self.workers)


def _samples_of(dataset: Any, supplied: Supplied, indices: Indices) -> Indices:
    """Return which samples of a supply some of a dataset are."""
    positions: Indices = dataset._positions(indices)
    inside = (positions >= supplied.first) & (positions < supplied.last)
    return positions[inside] - supplied.first


def buffers_for(
    workers: WorkerOptions, keep: int, *, pin_memory: bool, device: torch.device | None = None
) -> BufferPool:
    """Return memory for the batches of these workers: shared for processes, else pinned or not.

    Shared memory is pinned too, where `pin_memory` asks for it and a GPU is given as `device`.
    """
    if workers.method == "process" and workers.num_workers > 0:
        register = pin_memory and device is not None and device.type == "cuda"
        return BufferPool(keep, kind="shared", register=device if register else None)
    return BufferPool(keep, kind="pinned" if pin_memory else "private")


def samples_to_read_ahead(work: BatchWork) -> int:
    """Return how many samples ahead their bytes are asked for from the disk."""
    dataset = work.dataset
    first = np.arange(min(len(dataset), 256))
    if not len(first):
        return 0
    try:
        nbytes = sum(
            float(dataset._images(name, first, work.decoder).lengths.mean())
            for name in dataset.schema.images
        )
    except FastdataError:  # a shard is damaged: said in its place, when a batch needs it
        return 0
    return min(int(READ_AHEAD_BYTES / nbytes), len(dataset)) if nbytes else 0
