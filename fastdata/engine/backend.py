"""What makes batches altogether: from requests to what the training loop gets.

A loader knows an order of batches and a `Backend`.  There are five: workers on the CPU
(`fastdata.engine.cpu`), the same with the stored bytes in memory (`fastdata.cache.ram` for packed
data, `fastdata.cache.files` for files), decoded images on the device (`fastdata.cache.device`), and
NVIDIA DALI (`fastdata.backends.dali`).  Each makes batches of a stream of requests in its own way,
and a `Delivery` finishes them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.job import Request
from fastdata.engine.tasks import PackedData
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.transforms.pipeline import Pipeline

__all__ = ["Backend", "BatchStream", "Usage", "buffers_for"]


class BatchStream(Protocol):
    """Batches in the order of their requests, some of them made ahead."""

    @property
    def request(self) -> Request | None:
        """The request of the batch that was taken last."""

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""

    def begin(self, requests: Iterable[Request], /) -> None:
        """Drop what is in the making and make the batches of `requests`."""

    def stop(self) -> None:
        """Drop what is in the making; workers stay."""

    def __next__(self) -> Any:
        """Return the next batch, or raise its error in its place; `StopIteration` after all."""

    def close(self) -> None:
        """End all workers.  Idempotent."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a backend has used and done; attributes as of `LoaderStats`."""

    buffers_in_use: int = 0
    skipped_samples: int = 0
    bytes_read: int = 0
    cache_bytes: int = 0


class Backend(ABC):
    """Makes batches of some `work`: data, transforms and decoder.

    They arrive on `device`, None being the CPU; `buffers` are their memory on the host.  The
    `maker` plans them and puts them together, in the caller's thread, and counts what they took.
    """

    slow_to_start = False
    """Whether a stream is worth keeping also where it stands at no next batch."""

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

    @property
    def dataset(self) -> PackedData:
        """The data, as batches are made of them."""
        return self.work.dataset

    @property
    def pipeline(self) -> Pipeline:
        """The transforms."""
        return self.work.pipeline

    @property
    def seed(self) -> int:
        """Of random transforms."""
        return self.work.seed

    @property
    def num_workers(self) -> int:
        """Threads or processes that make batches."""
        return self.workers.num_workers

    @property
    def persistent(self) -> bool:
        """Whether a stream outlives an epoch, and begins the next one in this."""
        return self.workers.persistent

    @abstractmethod
    def stream(self) -> BatchStream:
        """Return a new stream of finished batches, with whatever workers it needs."""

    def usage(self) -> Usage:
        """Return what has been used and done."""
        maker = self.maker
        return Usage(self.buffers.in_use, maker.skipped, maker.bytes_read, self.cache_bytes)

    def close(self) -> None:
        """Free what streams share, and buffers as they come back; after all streams are closed.

        Idempotent.
        """
        self.buffers.close()


def buffers_for(
    workers: WorkerOptions, keep: int, *, pin_memory: bool, device: torch.device | None = None
) -> BufferPool:
    """Return memory for what these workers make: shared with processes, else perhaps pinned.

    Shared memory is pinned too, where `pin_memory` asks for it and a GPU is given as `device`.
    """
    if workers.method == "process" and workers.num_workers > 0:
        register = pin_memory and device is not None and device.type == "cuda"
        return BufferPool(keep, kind="shared", register=device if register else None)
    return BufferPool(keep, kind="pinned" if pin_memory else "private")
