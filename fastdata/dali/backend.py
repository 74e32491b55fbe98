"""The backend with DALI, which decodes and resizes: its limits, and the flow of batches.

    Stream of FeedJobs (threads that load) --> Runs (a thread that drives DALI) --> batches

The thread in the middle drives DALI, and waits for it, while the training loop computes.

If DALI cannot decode one image, its whole pipeline ends without naming the image.  Then
fastdata's own decoder makes the batch: it names the damaged sample, or replaces it, as
`on_corrupt` says.  Later batches are launched again, on a new pipeline.  If it finds no
damage, the batch is valid; but if that happens repeatedly, DALI itself does not work.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from fastdata.dali.feeding import Feed, FeedJob
from fastdata.dali.graph import FAILURES, NO_WARPS, Graph, Graphs, import_dali
from fastdata.engine.backend import (
    SPARE_BUFFERS,
    Backend,
    buffers_for,
    samples_to_read_ahead,
)
from fastdata.engine.batches import BatchMaker, RenderJob, batch_of
from fastdata.engine.buffers import TensorLayout
from fastdata.engine.contracts import BatchStream, Request
from fastdata.engine.delivery import DEPTH
from fastdata.engine.rendering import put
from fastdata.engine.stream import Stream
from fastdata.engine.work import BatchWork, Done
from fastdata.engine.workers import ThreadWorkers, WorkerOptions
from fastdata.errors import OptionError, WorkerError
from fastdata.prefetch.ahead import Ahead, Background
from fastdata.prefetch.streams import DeviceStreams, streams_of
from fastdata.transforms.base import BatchTransform, GeometricTransform, PixelTransform
from fastdata.transforms.boxes import DropEmptyBoxes
from fastdata.transforms.distortions import Warping

__all__ = ["DaliBackend"]

FEEDS_AHEAD = 2
"""Feeds that are being made, so that DALI need not wait for one."""

RUNS_AT_ONCE = 2
"""Batches that DALI has at a time: one that it makes, and one for when that is made."""

REFUSALS = 3
"""Batches in a row that DALI may fail at with nothing wrong in them."""

log = logging.getLogger("fastdata")


class DaliBackend(Backend):
    """Makes batches by NVIDIA DALI: on a GPU, if `device` is one, else on the CPU.

    The decoder of `work` makes images that DALI does not decode, and batches on which DALI fails.
    The number of `workers` is that of DALI's threads, at least 1; their method is "thread".

    Raises `MissingExtraError` if DALI is not installed, and `OptionError` for options and
    transforms that DALI does not support.  Not for forked processes.  On a GPU it has not been run
    yet.
    """

    slow_to_start = True  # a pipeline takes 0.1 s to build, and some batches to size its memory

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
        keep = workers.prefetch_factor + RUNS_AT_ONCE + SPARE_BUFFERS + DEPTH
        buffers = buffers_for(workers, keep, pin_memory=pin_memory)
        super().__init__(work, workers, device=device, buffers=buffers)
        on_gpu = device is not None and device.type == "cuda"
        self._streams = streams_of(device) if device is not None and on_gpu else None

    def stream(self) -> BatchStream:
        """Return a new stream, with pipelines and threads of its own."""
        stream = DaliStream(
            self.maker,
            num_threads=self.workers.num_workers,
            ahead=self.workers.prefetch_factor,
            read_ahead=samples_to_read_ahead(self.work),
            streams=self._streams,
        )
        return self.deliver(stream)

    def __str__(self) -> str:
        place = f"on {self.device}" if self._streams is not None else "on the CPU"
        return f"DALI {place}, {self.workers.num_workers} threads"


def _check(work: BatchWork, workers: WorkerOptions, device: torch.device | None) -> None:
    """Raise `OptionError` for options that this backend does not support."""
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
    if work.pipeline.views:
        raise OptionError(
            f"transform has Views, but DALI makes one view of an image; leave them out, {remedy}"
        )
    known = GeometricTransform, PixelTransform, BatchTransform, DropEmptyBoxes
    if work.pipeline.geometry is not None and work.pipeline.geometry.has_gates:
        raise OptionError(
            "transform has RandomApply, RandomChoice or RandomOrder of geometric transforms, but "
            f"DALI does the same steps to all images of a batch; leave them out, {remedy}"
        )
    for transform in work.pipeline.members:
        if not isinstance(transform, known):
            name = getattr(transform, "__qualname__", type(transform).__qualname__)
            raise OptionError(
                f"transform has {name}, a callable on one sample, which DALI cannot run; leave it "
                f"out, {remedy}"
            )
    geometry = work.pipeline.geometry
    if geometry and any(isinstance(one[1], Warping) for one in geometry.transforms):
        raise OptionError(NO_WARPS)


# -- streams -----------------------------------------------------------------------------

_open: weakref.WeakSet[DaliStream] = weakref.WeakSet()
_of_parent: list[DaliStream] = []
"""Streams of a parent process: to let one die would wait for threads that are not here."""


@cache
def _close_at_exit() -> None:
    """Have streams that are still open at the end of the program closed.

    Registered after DALI has registered its own end, which is thereby later, and fails
    where a pipeline is being made.
    """
    atexit.register(_close_all, os.getpid())


def _close_all(owner: int) -> None:
    if os.getpid() == owner:
        for stream in list(_open):
            stream.close()


class DaliStream:
    """A `fastdata.engine.contracts.BatchStream`, of batches that are not finished.

    At most `ahead` batches are made and wait to be taken; `read_ahead` samples are asked for from
    the disk before they are loaded.  `streams` are those of the GPU; None: the CPU.

    For one thread at a time.  An error of a batch is raised in its place, as itself; it is
    then the end.  In a forked process a stream of the parent is of no use, and harmless.
    """

    def __init__(
        self,
        maker: BatchMaker,
        *,
        num_threads: int,
        ahead: int,
        read_ahead: int,
        streams: DeviceStreams | None = None,
    ) -> None:
        self._maker = maker
        self._ahead = ahead
        self._streams = streams
        # Made once: torch keeps free memory for each stream by itself.
        self._side = streams.side() if streams else None
        self.request: Request | None = None
        self._feeds = Stream(
            partial(FeedJob, maker),
            ThreadWorkers(maker.work, num_threads),
            ahead=FEEDS_AHEAD,
            read_ahead=read_ahead,
        )
        self._graphs = Graphs(
            num_threads=num_threads, device_id=streams.device.index if streams else None
        )
        self._runs: Runs | None = None
        self._made: Background | None = None
        self._owner = os.getpid()
        _open.add(self)
        _close_at_exit()

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""
        return self._made.waiting if self._made is not None else 0

    def begin(self, requests: Iterable[Request]) -> None:
        """Drop the batches that are being made, and make those of `requests`."""
        self.stop()
        self._feeds.begin(requests)
        self._runs = Runs(self._feeds, self._maker, self._graphs, self._streams, self._side)
        self._made = Background(self._runs.__next__, self._ahead)

    def stop(self) -> None:
        """Drop the batches that are being made; DALI's pipelines stay."""
        if os.getpid() != self._owner:
            _of_parent.append(self)
            return
        made, self._made = self._made, None
        if made is not None:
            made.close()
        self._feeds.stop()
        runs, self._runs = self._runs, None
        if runs is not None:
            runs.close()

    def __next__(self) -> Any:
        if self._made is None:
            raise StopIteration
        batch = next(self._made)
        answer: Answer = self._made.tag
        self.request, done = answer
        self._maker.count(done)
        return batch

    def close(self) -> None:
        """End all threads, fastdata's and DALI's.  Idempotent."""
        self.stop()
        if os.getpid() == self._owner:
            self._feeds.close()
            self._graphs.close()
            _open.discard(self)


# -- batches on their way through DALI ---------------------------------------------------


Answer: TypeAlias = tuple[Request, Sequence[Done]]
"""The request of a batch, and the counts of its bytes and replaced samples."""


@dataclass(slots=True)
class _Run:
    """A batch that DALI makes; it has no graph if it could not be launched, or was taken."""

    feed: Feed
    graph: Graph | None = None
    error: Exception | None = None


class Runs(Ahead):
    """Launches feeds, and makes batches of the results; see `Ahead`.

    On a GPU batches are copied on the stream `side` of its `streams`.
    """

    def __init__(
        self,
        feeds: Iterator[Feed],
        maker: BatchMaker,
        graphs: Graphs,
        streams: DeviceStreams | None,
        side: Any,
    ) -> None:
        super().__init__(RUNS_AT_ONCE - 1)
        self._feeds = feeds
        self._maker = maker
        self._graphs = graphs
        self._streams = streams
        self._side = side
        self._refusals = 0

    def pull(self) -> tuple[_Run, None]:
        """Launch the next feed."""
        run = _Run(next(self._feeds))
        self._launch(run)
        return run, None

    def _launch(self, run: _Run) -> None:
        run.graph = graph = None
        try:
            graph = self._graphs.of(run.feed.graph, len(run.feed.indices))
            graph.launch(run.feed.arguments)
        except FAILURES as error:
            run.error = error
            if graph is not None:
                graph.broken = True
        else:
            run.graph = graph

    def finish(self, run: _Run) -> tuple[Any, Answer]:
        """Wait for a batch, and return it with its request.

        Raises a `WorkerError` if DALI does not work.
        """
        feed, error = run.feed, run.error
        graph, run.graph = run.graph, None
        if graph is not None:
            try:
                with graph.outputs() as images:
                    batch = self._batch(feed, images)
                self._refusals = 0
                return batch, (feed.request, [feed.done])
            except FAILURES as failure:
                error = failure
                self._graphs.discard(graph)
        # Before others are launched: a graph gives back batches in the order of their launch.
        for other in self.items:
            if other is not run and (other.graph is None or other.graph.broken):
                if other.graph is not None:
                    self._graphs.discard(other.graph)
                self._launch(other)
        assert error is not None, "a batch without a graph has the error that it has none for"
        return self._make_without_dali(feed.request, error)

    def _batch(self, feed: Feed, images: Sequence[Any]) -> Any:
        """Return the batch, copied out of DALI's memory, which DALI reuses."""
        if self._streams is not None:
            return self._batch_on_gpu(feed, images, self._streams)
        # Copying 256 images of 224 x 224 takes 6 ms, and 1.5% of the speed (1,980 images/s
        # against 2,010 where DALI's own memory is handed out).  For that, memory comes from a
        # pool that counts it, and a table of pixel values is one pass from there to here.
        work = self._maker.work
        job = RenderJob(self._maker, feed.request)
        assert job.slot is not None, "there are images"
        memory = job.slot.memory
        for place, image in zip(job.layouts, images, strict=True):
            assert isinstance(place, TensorLayout), "DALI makes no lists of images"
            put(np.asarray(image), work.tables.get(place.name), place.array(memory))
        return job.assemble([feed.done])

    def _batch_on_gpu(self, feed: Feed, images: Sequence[Any], streams: DeviceStreams) -> Any:
        """Return the batch with its images in torch's memory on the GPU.

        Not run yet: it needs a GPU.
        """
        # DLPack has this stream wait for DALI's; and this thread waits for the copies, so
        # that DALI may use its memory again, and any stream may read the batch.
        with streams.on(self._side):
            copies = [from_dlpack(image).clone() for image in images]
            streams.synchronize(streams.mark(self._side))
        work = self._maker.work
        names = work.dataset.schema.images
        tensors = {name: copy.permute(0, 3, 1, 2) for name, copy in zip(names, copies, strict=True)}
        return batch_of(work, tensors, feed.request.replaced(feed.indices))

    def _make_without_dali(self, request: Request, error: Exception) -> tuple[Any, Answer]:
        """Return a batch that DALI failed at."""
        job = RenderJob(self._maker, request)
        assert job.slot is not None, "there are images"
        done = [self._maker.work(task, job.slot.memory) for task in job.tasks()]
        if any(part.replaced for part in done):
            self._refusals = 0
        else:
            self._refusals += 1
            if self._refusals >= REFUSALS:
                raise WorkerError(
                    f"DALI failed at {REFUSALS} batches in a row, and nothing is wrong with their "
                    f'images: {_reason(error)}. Use backend="cpu"'
                ) from error
            log.warning(
                "DALI failed at batch %d of epoch %d, whose images are sound; it is made without "
                "DALI: %s",
                request.number,
                request.epoch,
                _reason(error),
            )
        return job.assemble(done), (request, done)

    def at_end(self) -> None:
        """Remove the launched batches from their graphs, which stay for other batches."""
        for run in self.items:
            graph, run.graph = run.graph, None
            if graph is None or graph.broken:
                continue
            try:
                with graph.outputs():
                    pass
            except FAILURES:
                self._graphs.discard(graph)


def _reason(error: Exception) -> str:
    """Return what DALI says of an error, without its traceback of the pipeline."""
    text = str(error)
    _, marker, reason = text.partition("encountered:")
    lines = [line.strip() for line in (reason if marker else text).splitlines()]
    return next(filter(None, lines), type(error).__name__)
