"""All that prefetching asks of a device: streams, events, page-locked memory, copies.

On a device with streams work is only *submitted*: it runs later, in order within a
stream, in any order between streams but where one waits for an event of another.  What
keeps that safe is in `fastdata.prefetch.mover`.  The calls that it makes are collected here, so
that the same code runs on devices without streams, and under a simulation of adversarial ones
(``tests/simulated_device.py``).
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastdata.errors import OptionError

__all__ = ["CudaStreams", "DeviceStreams", "streams_of"]


class DeviceStreams:
    """A device that has done its work when a call returns, as the CPU.

    A device with streams is a subclass.  Streams and events are its own objects, here None.
    """

    stages = False
    """Whether copies are only submitted, and want page-locked memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def side(self) -> Any:
        """Return a new stream."""

    def current(self) -> Any:
        """Return the stream that the calling thread submits work to."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Submit to this stream within the context."""
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        """Return an event: all that has been submitted to a stream so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """Have what is submitted to a stream from now on run after an event."""

    def passed(self, event: Any) -> bool:
        """Return whether all work before an event has been done."""
        return True

    def synchronize(self, event: Any) -> None:
        """Wait, in the calling thread, until it has."""

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        """Keep the memory of a tensor of the device, once it dies, for what a stream does."""

    def pin(self, nbytes: int) -> torch.Tensor:
        """Return page-locked memory of the host, uint8 [nbytes]."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor of the host lies in page-locked memory."""
        return True

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        """Submit a copy from the host to new memory of the device, to the current stream."""
        return source.to(self.device)

    def twin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return new memory of the device for a tensor like this one, which may be on the host."""
        return torch.empty_like(tensor, device=self.device)

    def copy_within(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Submit a copy from device to device, to the current stream."""
        target.copy_(source)


class CudaStreams(DeviceStreams):
    """CUDA, by way of torch; `device` has an index."""

    stages = True

    def side(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def current(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return context

    def mark(self, stream: Any) -> Any:
        return stream.record_event()

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def passed(self, event: Any) -> bool:
        passed: bool = event.query()
        return passed

    def synchronize(self, event: Any) -> None:
        event.synchronize()

    def use(self, tensor: torch.Tensor, stream: Any) -> None:
        if tensor.device == self.device:
            tensor.record_stream(stream)

    def pin(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def copy(self, source: torch.Tensor) -> torch.Tensor:
        return source.to(self.device, non_blocking=True)


def streams_of(device: torch.device | str) -> DeviceStreams:
    """Return the streams of a device; an `OptionError` if it is none, or a GPU not there."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(
            f'device is a torch.device or its name, as "cuda", not {device!r} ({error})'
        ) from None
    if device.type != "cuda":
        try:
            torch.empty(0, device=device)
        except Exception as error:  # of any type, as kinds of devices have it
            raise OptionError(
                f"device is {str(device)!r}, which torch {torch.__version__} cannot use here "
                f'({error}); give device="cpu", or leave it out'
            ) from None
        return DeviceStreams(device)
    if not torch.cuda.is_available():
        raise OptionError(
            f"device is {str(device)!r}, but torch finds no CUDA device "
            f"(torch {torch.__version__}); install a driver and a CUDA build of torch, or give "
            'device="cpu"'
        )
    chosen: int | None = device.index  # None where the text had none, whatever its type says
    index = torch.cuda.current_device() if chosen is None else chosen
    if index >= torch.cuda.device_count():
        raise OptionError(
            f"device is {str(device)!r}, but there are {torch.cuda.device_count()} CUDA devices, "
            "numbered from 0"
        )
    return CudaStreams(torch.device("cuda", index))
