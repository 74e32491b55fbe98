"""Where batches arrive: on the CPU as they are made, or on another device, one ahead.

    stream --Ahead, Mover--> the device: pixel stage, transforms of whole batches

On a device all of this is done on a side stream, while the batch before is computed with
(`fastdata.prefetch`).  uint8 images are copied, a quarter of what float32 ones would be.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from fastdata.engine.backend import BatchStream
from fastdata.engine.finishing import each_view, finish_on_device
from fastdata.engine.job import Request
from fastdata.prefetch.ahead import Ahead
from fastdata.prefetch.mover import Mover
from fastdata.prefetch.streams import streams_of
from fastdata.transforms.pipeline import Pipeline

__all__ = ["DEPTH", "Delivery", "arrive"]

DEPTH = 1
"""Batches on their way to a device behind the one that is handed out."""


class Delivery(Ahead):
    """Batches of a stream, finished and where they are wanted; a `BatchStream`.

    Without a device batches stay where they are, and each is finished when it is taken.  With
    one, the batch behind the one that is taken is sent on its way where it is made already: the
    loop never waits for workers before it has to.  The stream is closed with this.
    """

    def __init__(
        self, stream: BatchStream, pipeline: Pipeline, seed: int, device: torch.device | None
    ) -> None:
        moves = device is not None and device.type != "cpu"
        super().__init__(DEPTH if moves else 0)
        self._stream = stream
        self._pipeline = pipeline
        self._seed = seed
        self._mover = Mover(streams_of(device), report=False) if device and moves else None

    @property
    def request(self) -> Request | None:
        """The request of the batch that was taken last."""
        request: Request | None = self.tag
        return request

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""
        return self._stream.ready + self.waiting

    def begin(self, requests: Iterable[Request]) -> None:
        """Drop what is in the making and make the batches of `requests`."""
        self.drop()
        self._stream.begin(requests)

    def stop(self) -> None:
        """Drop what is in the making; the workers stay."""
        self.drop()
        self._stream.stop()

    def close(self) -> None:
        """End the workers.  Idempotent."""
        super().close()
        self._stream.close()

    def pull(self) -> tuple[Any, Request]:
        """Take the next batch of the stream, and finish it or send it on its way."""
        batch = next(self._stream)
        request = self._stream.request
        assert request is not None, "a batch answers a request"
        if self._mover is None:
            return finish_on_device(batch, request, self._pipeline, self._seed), request
        transform = partial(arrive, self._pipeline, self._seed, request)
        return self._mover.send(batch, transform), request

    def may_pull(self) -> bool:
        """Return whether the next batch is made already."""
        return self._stream.ready > 0

    def finish(self, item: Any) -> Any:
        """Return a batch that was finished, or sent."""
        return item if self._mover is None else self._mover.take(item)

    def at_end(self) -> None:
        """Wait for the last copies, and release host memory."""
        if self._mover is not None:
            self._mover.finish()


def arrive(pipeline: Pipeline, seed: int, request: Request, batch: Any) -> Any:
    """Return a batch that has arrived on a device, with its pixel and batch stages done there."""
    return finish_on_device(each_view(pipeline, batch, _look_up), request, pipeline, seed)


def _look_up(pipeline: Pipeline, batch: Any) -> Any:
    """Return a batch, or a view of it, with its pixel stage done."""
    if pipeline.pixels is None:
        return batch
    changed = {
        name: pipeline.pixels.lookup(getattr(batch, name))
        for name, field in pipeline.schema.images.items()
        if not field.mask
    }
    return batch._replace(**changed)
