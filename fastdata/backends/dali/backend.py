"""The backend that has DALI decode and resize: what of it can be chosen, and what cannot."""

from __future__ import annotations

import torch

from fastdata.backends.dali.flights import IN_FLIGHT
from fastdata.backends.dali.graph import import_dali
from fastdata.backends.dali.stream import DaliStream
from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.cpu import SPARE_BUFFERS, samples_to_read_ahead
from fastdata.engine.delivery import DEPTH, deliver
from fastdata.engine.job import BatchStream, Usage
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import OptionError
from fastdata.prefetch.streams import streams_of
from fastdata.transforms.base import BatchTransform, GeometricTransform, PixelTransform
from fastdata.transforms.boxes import DropEmptyBoxes

__all__ = ["DaliBackend"]


class DaliBackend:
    """Makes batches by NVIDIA DALI; a `fastdata.engine.job.Backend`.

    Parameters
    ----------
    work : BatchWork
        Data and transforms.  Its decoder is used for what DALI does not decode, and where
        DALI fails.
    workers : WorkerOptions
        `num_workers` is the number of DALI's threads, 1 at least; `method` "thread".
    device : torch.device, optional
        A GPU has DALI decode, resize and mirror there.  None: the CPU.
    pin_memory : bool
        Whether batches of the CPU are made in pinned memory.

    Raises
    ------
    MissingExtraError
        If DALI is not installed.
    OptionError
        If an option, or a transform, is none for DALI.

    Notes
    -----
    Not for forked processes.  On a GPU it has not been run yet.
    """

    slow_to_start = True
    """A pipeline takes 0.1 s to build, and some batches until its memory is large enough."""

    def __init__(
        self,
        work: BatchWork,
        workers: WorkerOptions,
        *,
        device: torch.device | None = None,
        pin_memory: bool = False,
    ) -> None:
        _check(work, workers, device)
        import_dali()
        self.dataset = work.dataset
        self.pipeline = work.pipeline
        self.seed = work.seed
        self.num_workers = workers.num_workers
        self.persistent = workers.persistent
        self._work = work
        self._ahead = workers.prefetch_factor
        self._device = device
        self._streams = None
        if device is not None and device.type == "cuda":
            self._streams = streams_of(device)
        self._buffers = BufferPool(
            workers.prefetch_factor + IN_FLIGHT + SPARE_BUFFERS + DEPTH,
            kind="pinned" if pin_memory else "private",
        )
        self._maker = BatchMaker(work, pieces=workers.num_workers, buffers=self._buffers)

    def stream(self) -> BatchStream:
        """Return a new stream, with pipelines and threads of its own."""
        stream = DaliStream(
            self._maker,
            num_threads=self.num_workers,
            ahead=self._ahead,
            read_ahead=samples_to_read_ahead(self._work),
            streams=self._streams,
        )
        return deliver(stream, self.pipeline, self.seed, self._device)

    def usage(self) -> Usage:
        """Return what has been used and done; buffers are those of the host."""
        return Usage(self._buffers.in_use, self._maker.skipped, self._maker.bytes_read)

    def close(self) -> None:
        """Free unused buffers now, others as soon as they come back.  Idempotent."""
        self._buffers.close()

    def __str__(self) -> str:
        where = f"on {self._device}" if self._streams is not None else "on the CPU"
        return f"DALI {where}, {self.num_workers} threads"


def _check(work: BatchWork, workers: WorkerOptions, device: torch.device | None) -> None:
    """Raise `OptionError` for what DALI, or this use of it, cannot do."""
    remedy = 'or use backend="cpu"'
    if workers.num_workers < 1:
        raise OptionError(
            f"num_workers is {workers.num_workers}, but DALI works in threads of its own, which "
            f"are never the calling one; give it 1 or more, {remedy}"
        )
    if workers.method != "thread":
        raise OptionError(
            f"worker_method is {workers.method!r}, but DALI works in threads of this process; "
            f"leave it out, {remedy}"
        )
    if device is not None and device.type not in ("cpu", "cuda"):
        raise OptionError(f"device is {str(device)!r}, but DALI knows the CPU and CUDA; {remedy}")
    if not work.dataset.schema.images:
        raise OptionError(
            'the dataset has no images, so there is nothing for DALI to do; use backend="cpu"'
        )
    known = GeometricTransform, PixelTransform, BatchTransform, DropEmptyBoxes
    if work.pipeline.views:
        raise OptionError(
            f"transform has Views, but DALI makes one view of an image; leave them out, {remedy}"
        )
    for transform in work.pipeline.transforms:
        if not isinstance(transform, known):
            name = getattr(transform, "__qualname__", type(transform).__qualname__)
            raise OptionError(
                f"transform has {name}, a callable on one sample, which DALI cannot run; leave it "
                f"out, {remedy}"
            )
