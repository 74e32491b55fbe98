"""Batches on their way through DALI, in order, and what becomes of them where it fails.

DALI ends a whole pipeline over one image that it cannot decode, and does not say which it
was.  Then the batch is made by fastdata's own decoder: it names the damaged sample, or
finds another in its place, as `on_corrupt` says.  Batches behind it are launched again, on
a new pipeline.  Where nothing is found that is wrong, the batch is as good as any other;
but not again and again, for then it is DALI that does not work.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch.utils.dlpack import from_dlpack

from fastdata.backends.dali.feeding import Feed
from fastdata.backends.dali.graph import FAILURES, Graph, Graphs
from fastdata.engine.batches import BatchMaker, RenderJob, batch_of
from fastdata.engine.job import Request
from fastdata.engine.tasks import Done
from fastdata.errors import WorkerError
from fastdata.prefetch.ahead import Pulled
from fastdata.prefetch.streams import DeviceStreams

__all__ = ["Flights", "Landed"]

IN_FLIGHT = 2
"""Batches that DALI has at a time: one that it makes, and one for when that is made."""

REFUSALS = 3
"""Batches in a row that DALI may fail at with nothing wrong in them."""

log = logging.getLogger("fastdata")


class Landed(NamedTuple):
    """What is to be known of a batch when it is handed out.

    Attributes
    ----------
    request : Request
    done : sequence of Done
        What has been read and replaced for it.
    """

    request: Request
    done: Sequence[Done]


@dataclass(slots=True)
class _Flight:
    """A batch on its way; it has no graph if it could not be launched."""

    feed: Feed
    graph: Graph | None = None
    error: Exception | None = None


class Flights:
    """Launches feeds, and makes batches of what comes back.

    Parameters
    ----------
    feeds : iterator of Feed
        Its errors are raised in their place.
    maker : BatchMaker
    graphs : Graphs
    streams : DeviceStreams, optional
        Of the GPU; None: the CPU.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(
        self,
        feeds: Iterator[Feed],
        maker: BatchMaker,
        graphs: Graphs,
        streams: DeviceStreams | None = None,
        side: Any = None,
    ) -> None:
        self._feeds = feeds
        self._maker = maker
        self._graphs = graphs
        self._streams = streams
        self._side = side
        self._flying: deque[_Flight] = deque()
        self._error: Exception | None = None
        self._ended = False
        self._refusals = 0

    def pull(self) -> Pulled:
        """Return the next batch, tagged by a `Landed`.

        Raises
        ------
        StopIteration
            After the last one.
        ShardCorruptError, OptionError
            In the place of the batch that cannot be made.
        WorkerError
            If DALI does not work.
        """
        while not self._ended and len(self._flying) < IN_FLIGHT:
            self._launch_next()
        if not self._flying:
            error, self._error = self._error, None
            raise error or StopIteration
        flight = self._flying.popleft()
        batch, done = self._land(flight)
        return Pulled(batch, None, Landed(flight.feed.request, done))

    def _launch_next(self) -> None:
        try:
            flight = _Flight(next(self._feeds))
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._ended, self._error = True, error
        else:
            self._launch(flight)
            self._flying.append(flight)

    def _launch(self, flight: _Flight) -> None:
        feed = flight.feed
        graph = None
        try:
            graph = self._graphs.of(feed.graph, len(feed.indices))
            graph.launch(feed.arguments)
        except FAILURES as error:
            flight.error = error
            if graph is not None:
                graph.broken = True
            graph = None
        flight.graph = graph

    def _land(self, flight: _Flight) -> tuple[Any, Sequence[Done]]:
        """Wait for a batch, and return it."""
        feed, graph = flight.feed, flight.graph
        error = flight.error
        if graph is not None:
            try:
                with graph.outputs() as images:
                    batch = self._batch(feed, images)
                self._refusals = 0
                return batch, [feed.done]
            except FAILURES as failure:
                error = failure
                self._graphs.discard(graph)
        # Before others are launched: a graph gives back batches in the order of their launch.
        for other in self._flying:
            if other.graph is None or other.graph.broken:
                if other.graph is not None:
                    self._graphs.discard(other.graph)
                self._launch(other)
        assert error is not None, "a batch without a graph has the error that it has none for"
        return self._made_here(feed.request, error)

    def _batch(self, feed: Feed, images: Sequence[Any]) -> Any:
        """Return the batch of what DALI made, out of its memory, which it uses again."""
        if self._streams is not None:
            return self._batch_on_gpu(feed, images, self._streams)
        # Copying 256 images of 224 x 224 takes 6 ms, and 1.5% of the speed (1,980 images/s
        # against 2,010 where DALI's own memory is handed out).  For that, memory goes round in a
        # pool that counts it, and a table of pixel values is one pass from there to here.
        work = self._maker.work
        job = RenderJob(self._maker, feed.request)
        assert job.slot is not None, "there are images"
        memory = job.slot.memory
        for place, made in zip(job.places, images, strict=True):
            pixels, target = np.asarray(made), place.array(memory)
            table = work.tables.get(place.name)
            if table is None:
                np.copyto(target, pixels)
            else:
                tall = (-1, *pixels.shape[2:])  # OpenCV knows no batches
                table.apply(pixels.reshape(tall), target.reshape(tall))
        return job.assemble([feed.done])

    def _batch_on_gpu(self, feed: Feed, images: Sequence[Any], streams: DeviceStreams) -> Any:
        """Return the batch with its images in torch's memory on the GPU.

        Not run yet: it needs a GPU.
        """
        # DLPack has this stream wait for DALI's; and this thread waits for the copies, so
        # that DALI may use its memory again, and any stream may read the batch.
        with streams.on(self._side):
            copies = [from_dlpack(made).clone() for made in images]
            streams.synchronize(streams.mark(self._side))
        work = self._maker.work
        names = work.dataset.schema.images
        tensors = {name: copy.permute(0, 3, 1, 2) for name, copy in zip(names, copies, strict=True)}
        return batch_of(work, tensors, feed.request.keys.replaced(feed.indices))

    def _made_here(self, request: Request, error: Exception) -> tuple[Any, Sequence[Done]]:
        """Return a batch that DALI failed at, made without it."""
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
        return job.assemble(done), done

    def close(self) -> None:
        """Drop what is on its way; graphs stay, and wait for nothing."""
        for flight in self._flying:
            if flight.graph is None or flight.graph.broken:
                continue
            try:
                with flight.graph.outputs():
                    pass
            except FAILURES:
                self._graphs.discard(flight.graph)
        self._flying.clear()
        self._ended, self._error = True, None


def _reason(error: Exception) -> str:
    """Return what DALI says of an error, without its traceback of the pipeline."""
    text = str(error)
    _, found, reason = text.partition("encountered:")
    lines = [line.strip() for line in (reason if found else text).splitlines()]
    return next(filter(None, lines), type(error).__name__)
