"""Delivery of finished batches: on the CPU, or on another device, one ahead.

    stream --Ahead, Mover--> the device: pixel stage, transforms of whole batches

On a device, a side stream does all of this during the computation of the batch before
(`fastdata.prefetch`).  Images are copied as uint8, a quarter of the bytes of float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from fastdata.engine.contracts import BatchStream, Request
from fastdata.engine.work import BatchWork
from fastdata.prefetch.ahead import Ahead
from fastdata.prefetch.mover import Mover
from fastdata.prefetch.streams import streams_of
from fastdata.transforms.image_tensors import in_memory_format
from fastdata.transforms.pipeline import Pipeline

__all__ = ["DEPTH", "arrive", "deliver", "finish", "has_batch_stage"]

DEPTH = 1
"""Batches that are copied to a device ahead of their use."""


def deliver(stream: BatchStream, work: BatchWork, device: torch.device | None) -> BatchStream:
    """Return the finished batches of `stream`, on `device` unless that is None."""
    moves = device is not None and device.type != "cpu"
    one_channel = any(field.channels == 1 for field in work.pipeline.schema.images.values())
    contiguous = work.memory_format == torch.contiguous_format or one_channel
    by_sample = work.image_lists and not work.pipeline.direct  # in any format
    changes = by_sample or (contiguous and not work.planar)
    if moves or changes or has_batch_stage(work.pipeline):
        return Delivery(stream, work, device if moves else None)
    return stream


def has_batch_stage(pipeline: Pipeline) -> bool:
    """Return whether a pipeline or one of its views has batch transforms."""
    return any(part.batch is not None for part in (pipeline, *pipeline.views))


class Delivery(Ahead):
    """The finished batches of a stream, on their device; a `BatchStream`.

    Without a device batches stay where they are, and each is finished when it is taken.  With
    one, the batch behind the one that is taken is sent on its way where it is made already: the
    loop never waits for workers before it has to.  The stream is closed with this.
    """

    def __init__(self, stream: BatchStream, work: BatchWork, device: torch.device | None) -> None:
        super().__init__(0 if device is None else DEPTH)
        self._stream = stream
        self._work = work
        self._mover = None if device is None else Mover(streams_of(device), report=False)

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
        """Drop the batches that are being made, and make those of `requests`."""
        self.drop()
        self._stream.begin(requests)

    def stop(self) -> None:
        """Drop the batches that are being made; the workers stay."""
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
            return _hand_out(self._work, request, batch), request
        return self._mover.send(batch, partial(arrive, self._work, request)), request

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


def arrive(work: BatchWork, request: Request, batch: Any) -> Any:
    """Run the pixel and batch stages of a batch on its device."""
    return _hand_out(work, request, _each_view(work.pipeline, batch, _look_up))


def _hand_out(work: BatchWork, request: Request, batch: Any) -> Any:
    """Run the batch stage of a batch, and return it in the wanted memory format."""

    def lay_out(pipeline: Pipeline, batch: Any) -> Any:
        images = {name: getattr(batch, name) for name in pipeline.schema.images}

        def change(images: torch.Tensor) -> torch.Tensor:
            return in_memory_format(images, work.memory_format)

        changed = {name: _each_image(change, image) for name, image in images.items()}
        return batch._replace(**changed)

    return _each_view(work.pipeline, finish(batch, request, work.pipeline, work.seed), lay_out)


def finish(batch: Any, request: Request, pipeline: Pipeline, seed: int) -> Any:
    """Run the batch stage of a batch, a named tuple, on its device.

    Random draws are those of the request: the substitute of a corrupt sample gets the draws of the
    requested one.  All draws are made on the CPU.  Does not wait for the device, except for
    `DropEmptyBoxes` behind geometry.  Thread-safe.  Raises `OptionError` if the transforms do not
    fit the batch.
    """

    def finish_view(part: Pipeline, batch: Any) -> Any:
        return batch if part.batch is None else part.batch.run(batch, seed, request)

    return _each_view(pipeline, batch, finish_view)


def _look_up(pipeline: Pipeline, batch: Any) -> Any:
    """Run the pixel stage of a batch, or of one view."""
    if pipeline.pixels is None:
        return batch
    changed = {
        name: _each_image(pipeline.pixels.lookup, getattr(batch, name))
        for name, field in pipeline.schema.images.items()
        if not field.mask
    }
    return batch._replace(**changed)


def _each_image(change: Callable[[torch.Tensor], torch.Tensor], images: Any) -> Any:
    """Return images [N, C, H, W], or those of a list [C, H, W], changed; others as they are."""
    if isinstance(images, torch.Tensor) and images.ndim == 4:
        return change(images)
    if not isinstance(images, list):
        return images
    return [
        change(one[None])[0] if isinstance(one, torch.Tensor) and one.ndim == 3 else one
        for one in images
    ]


def _each_view(pipeline: Pipeline, batch: Any, change: Callable[[Pipeline, Any], Any]) -> Any:
    """Return a batch with `change` applied to each view, with the pipeline of the view."""
    if not pipeline.views:
        return change(pipeline, batch)
    names = list(pipeline.schema.images)
    made = []
    for at, view in enumerate(pipeline.views):
        images = {name: getattr(batch, name)[at] for name in names}
        made.append(change(view, batch._replace(**images)))
    return batch._replace(**{n: [getattr(one, n) for one in made] for n in names})
