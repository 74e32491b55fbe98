"""Where a batch arrives: on the CPU as it is made, or on another device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fastdata.engine.finishing import finish_on_device
from fastdata.engine.job import Request
from fastdata.engine.stream import Stream
from fastdata.schema import ImageField, Schema
from fastdata.transforms.pipeline import Pipeline, PixelStage

__all__ = ["Delivery"]


class Delivery:
    """Batches of a stream, brought to a device and finished there; a `BatchStream`.

    Parameters
    ----------
    stream : Stream
        Closed with this.
    schema : Schema
    pipeline : Pipeline
    seed : int
    device : torch.device, optional
        By default batches stay where they are.
    """

    def __init__(
        self,
        stream: Stream,
        schema: Schema,
        pipeline: Pipeline,
        seed: int,
        device: torch.device | None,
    ) -> None:
        self._stream = stream
        self._schema = schema
        self._pipeline = pipeline
        self._seed = seed
        self._device = device

    @property
    def request(self) -> Request | None:
        """What the batch that was taken last is the answer to."""
        return self._stream.request

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""
        return self._stream.ready

    def begin(self, requests: Iterable[Request]) -> None:
        """Drop what is in the making and make the batches of `requests`."""
        self._stream.begin(requests)

    def stop(self) -> None:
        """Drop what is in the making; the workers stay."""
        self._stream.stop()

    def __next__(self) -> Any:
        batch = deliver(next(self._stream), self._schema, self._device, self._pipeline.pixels)
        assert self._stream.request is not None, "a batch answers a request"
        return finish_on_device(batch, self._stream.request, self._pipeline, self._seed)

    def close(self) -> None:
        """End the workers.  Idempotent."""
        self._stream.close()


def deliver(
    batch: Any, schema: Schema, device: torch.device | None, pixels: PixelStage | None
) -> Any:
    """Return a batch on `device`; where that is not the CPU, with its pixel stage done there.

    uint8 images are moved, a quarter of what float32 ones would be.
    """
    if device is None:
        return batch
    moved = [_move(value, device) for value in batch]
    if pixels is not None and device.type != "cpu":
        for place, field in enumerate(schema.values()):
            if isinstance(field, ImageField) and not field.mask:
                moved[place] = pixels.lookup(moved[place])
    return type(batch)(*moved)


def _move(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        # Copies out of pinned memory overlap with the training loop.
        return value.to(device, non_blocking=value.is_pinned())
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [tensor.to(device) for tensor in value]
    return value
