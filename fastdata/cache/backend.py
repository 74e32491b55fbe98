"""The backend of ``cache="device"``: workers until everything is held, and none after."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.cache.device import DeviceCache
from fastdata.cache.filling import Filled, FillJob
from fastdata.engine.buffers import BufferPool
from fastdata.engine.cpu import SPARE_BUFFERS
from fastdata.engine.job import BatchStream, Request, Usage
from fastdata.engine.stream import Stream
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import OptionError
from fastdata.random import SampleKeys

__all__ = ["DeviceCacheBackend"]

log = logging.getLogger("fastdata")


class DeviceCacheBackend:
    """Makes batches of decoded images that stay on a device.

    In the first epoch workers decode what is not there yet, whole; each sample is decoded
    once.  When all are there the workers end.

    Parameters
    ----------
    work : BatchWork
    workers : WorkerOptions
    device : torch.device
    pin_memory : bool
        Whether images are decoded into pinned memory.
    part : ndarray of int64, optional
        The samples to hold, ascending; all by default.

    Raises
    ------
    OptionError
        If they do not fit, or callables are among the transforms, which run on the CPU.
    """

    slow_to_start = False

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device,
        pin_memory: bool = False,
        part: NDArray[np.int64] | None = None,
    ) -> None:
        if not work.pipeline.direct:
            raise OptionError(
                'cache="device" transforms whole batches on the device, but a callable among the '
                "transforms takes one sample after another; use those of fastdata.transforms, or "
                'cache="ram"'
            )
        if work.pipeline.views:
            raise OptionError(
                'cache="device" makes one view of an image, but Views are among the transforms; '
                'leave them out, or use cache="ram"'
            )
        self.dataset = work.dataset
        self.pipeline = work.pipeline
        self.seed = work.seed
        self.num_workers = workers.num_workers
        self.persistent = workers.persistent
        self._work = work
        self._workers = workers
        shared = workers.method == "process" and workers.num_workers > 0
        self._buffers = BufferPool(
            workers.ahead + SPARE_BUFFERS,
            kind="shared" if shared else "pinned" if pin_memory else "private",
        )
        self._cache = DeviceCache(work, device, part)
        log.info("%s", self._cache.summary)

    def stream(self) -> BatchStream:
        """Return a new stream; workers start where there is something to fill."""
        return _CachedStream(self._cache, self._work, self._start_filling)

    def usage(self) -> Usage:
        """Return what has been used and done."""
        cache = self._cache
        return Usage(self._buffers.in_use, cache.skipped, cache.bytes_read, cache.nbytes)

    def close(self) -> None:
        """Free what is held, and unused buffers.  Idempotent."""
        self._buffers.close()
        self._cache.free()

    def __str__(self) -> str:
        return f"cached on {self._cache.device}"

    def _start_filling(self) -> Stream:
        return Stream(
            partial(FillJob, self._work, self._buffers),
            self._workers.start(self._work),
            ahead=self._workers.ahead,
        )


class _CachedStream:
    """A `BatchStream` that fills the cache with what its batches need first.

    Parameters
    ----------
    cache : DeviceCache
    work : BatchWork
    start_filling : callable
        Returns a stream of `Filled`, with workers.
    """

    def __init__(
        self, cache: DeviceCache, work: BatchWork, start_filling: Callable[[], Stream]
    ) -> None:
        self._cache = cache
        self._work = work
        self._start_filling = start_filling
        self._filling: Stream | None = None
        self._requests: Iterator[Request] = iter(())
        self._announced: deque[Request] = deque()
        self.request: Request | None = None

    @property
    def ready(self) -> int:
        """Batches that can be made without waiting: one, if not those of a filling cache."""
        return 1 if self._filling is None else self._filling.ready

    def begin(self, requests: Iterable[Request]) -> None:
        """Make the batches of `requests`."""
        self.stop()
        self._requests = iter(requests)
        if not self._cache.full:
            self._filling = self._filling or self._start_filling()
            self._filling.begin(self._missing())

    def _missing(self) -> Iterator[Request]:
        """Yield a request for each batch, of its samples that are neither there nor on the way."""
        coming = self._cache.held.copy()
        for request in self._requests:
            self._announced.append(request)
            places = self._cache.places(request.indices)
            new = np.unique(places[~coming[places]])
            coming[new] = True
            yield Request(request.number, SampleKeys(request.epoch, self._cache.indices[new]))

    def stop(self) -> None:
        """Drop what is in the making."""
        if self._filling is not None:
            self._filling.stop()
        self._announced.clear()
        self._requests = iter(())

    def __next__(self) -> Any:
        if self._filling is not None:
            self._cache.put(next(self._filling))
            if self._cache.full:
                self._end_filling()
        request = self._announced.popleft() if self._announced else next(self._requests)
        indices, missing = self._cache.stand_ins(request)
        while len(missing):  # what stands in for a corrupt sample, and may be corrupt itself
            self._cache.put(self._decode(missing))
            indices, missing = self._cache.stand_ins(request)
        self.request = request
        return self._cache.batch(request, indices)

    def _decode(self, indices: NDArray[np.int64]) -> Filled:
        """Decode samples here and now."""
        pool = BufferPool(0)
        job = FillJob(self._work, pool, Request(0, SampleKeys(0, indices)))
        memory = None if job.slot is None else job.slot.memory
        return job.finish([self._work(task, memory) for task in job.tasks()])

    def _end_filling(self) -> None:
        if self._filling is not None:
            self._filling.close()
            self._filling = None

    def close(self) -> None:
        """End the workers.  Idempotent."""
        self.stop()
        self._end_filling()
