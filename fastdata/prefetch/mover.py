"""One batch on its way: copied on a side stream, waited for by the consumer's.

    send: host memory --copy--> device memory --transform-->      ready
    take:                          the consumer's stream waits for ready

Three rules keep that safe, whatever each stream is busy with.

- *Wait*: what the consumer submits runs after the batch is complete.
- *Record*: device memory is the side stream's.  Once a batch dies, the allocator would
  give it to the next copy there, while the consumer's stream may still be reading it.  So
  each tensor is recorded on the stream that was current when it was handed out.
- *Hold*: host memory is held until the copy from it has been done.

And one keeps memory bounded: the host submits steps far faster than the device does
them, and each holds a batch.  So it never gets more than a few steps ahead.

Source: "CUDA semantics" in torch's documentation, and its notes on `record_stream`.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.prefetch.staging import LARGE_BYTES, Parcel, Staging
from fastdata.prefetch.streams import DeviceStreams
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = ["Mover", "Sent"]

STEPS_AHEAD = 4
"""Steps that the host may be ahead of the device.

Two would do to keep it busy; beyond that each costs the memory of a batch, and a
captured graph takes one launch a step, so that a thousand fit into CUDA's queue.
"""

log = logging.getLogger("fastdata")


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A batch on its way.

    Attributes
    ----------
    batch : Any
        On the device; not to be touched before `Mover.take`.
    ready : event
    """

    batch: Any
    ready: Any


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Host memory that is being copied from, until an event."""

    event: Any
    tensors: list[torch.Tensor]
    block: torch.Tensor | None


class Mover:
    """Moves batches to a device, on a side stream of its own.

    Parameters
    ----------
    streams : DeviceStreams
    report : bool
        Whether large tensors in pageable memory are reported, once.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(self, streams: DeviceStreams, *, report: bool = True) -> None:
        self._streams = streams
        self._side = streams.side()
        self._staging = Staging(streams)
        self._held: deque[_Held] = deque()
        self._steps: deque[Any] = deque()
        self._unreported = report
        # The last copies may outlive this object; what they read from must not go before.
        weakref.finalize(self, _finish, streams, self._held).atexit = False

    def send(self, batch: Any, transform: Callable[[Any], Any] | None = None) -> Sent:
        """Submit the copy of a batch, and `transform` of what arrives, to the side stream.

        Tensors of the device itself are passed on; what the current stream still has to do
        for them is done before.
        """
        streams, side = self._streams, self._side
        self._release()
        found = leaves(batch)
        there = [leaf for leaf in found if streams.stages and _is_on(leaf, streams.device)]
        if there:
            streams.wait(side, streams.mark(streams.current()))
            for leaf in there:
                streams.use(leaf, side)
        pinned: list[torch.Tensor] = []
        block = None
        with streams.on(side):
            try:
                moved = [self._move(leaf, pinned) for leaf in found]
                parcels = [value for value in moved if isinstance(value, Parcel)]
                if parcels:
                    self._report(parcels)
                    tensors, block = self._staging.send(parcels)
                    arrived = iter(tensors)
                    moved = [next(arrived) if isinstance(v, Parcel) else v for v in moved]
            finally:  # copies that were submitted before an error go on
                self._held.append(_Held(streams.mark(side), pinned, block))
            supply = iter(moved)
            result = map_leaves(lambda leaf: next(supply), batch)
            if transform is not None:
                result = transform(result)
            return Sent(result, streams.mark(side))

    def take(self, sent: Sent) -> Any:
        """Return a batch that was sent, for the calling thread's current stream to use."""
        streams = self._streams
        if streams.stages:
            current = streams.current()
            self._steps.append(streams.mark(current))
            if len(self._steps) > STEPS_AHEAD:
                streams.synchronize(self._steps.popleft())
            streams.wait(current, sent.ready)
            for leaf in leaves(sent.batch):
                if isinstance(leaf, torch.Tensor):
                    streams.use(leaf, current)
        self._release()
        return sent.batch

    def finish(self) -> None:
        """Wait for all copies that were submitted, and let go of host memory."""
        _finish(self._streams, self._held, self._staging)

    def _move(self, leaf: Any, pinned: list[torch.Tensor]) -> Any:
        """Return a leaf on the device, or the parcel to be staged."""
        streams = self._streams
        if isinstance(leaf, torch.Tensor):
            plain = type(leaf) in (torch.Tensor, torch.nn.Parameter)
            if leaf.device.type != "cpu" or not plain or leaf.layout != torch.strided:
                return leaf.to(streams.device)
            if not leaf.numel():
                return streams.twin(leaf)
            if not streams.stages:
                return streams.copy(leaf)
            if leaf.is_conj() or leaf.is_neg():
                leaf = leaf.resolve_conj().resolve_neg()
            elif streams.is_pinned(leaf) and _is_dense(leaf):
                pinned.append(leaf)
                return streams.copy(leaf)
        parcel = Parcel.of(leaf)
        if parcel is None:  # torch has nothing for it
            return leaf
        if not (streams.stages and parcel.nbytes):
            tensor = _as_tensor(parcel.source)
            return streams.copy(tensor) if parcel.nbytes else streams.twin(tensor)
        return parcel

    def _report(self, parcels: list[Parcel]) -> None:
        nbytes = sum(parcel.nbytes for parcel in parcels)
        if self._unreported and nbytes >= LARGE_BYTES:
            self._unreported = False
            log.warning(
                "batches come in pageable memory (%.1f MB of this one), from which a GPU cannot "
                "copy in the background: each is copied to page-locked memory first. Have them "
                "made there, by DataLoader(..., pin_memory=True) for example (said once)",
                nbytes / 1e6,
            )

    def _release(self) -> None:
        """Let go of host memory whose copies have been done."""
        while self._held and self._streams.passed(self._held[0].event):
            self._let_go(self._held.popleft())

    def _let_go(self, held: _Held) -> None:
        if held.block is not None:
            self._staging.give_back(held.block)


def _finish(streams: DeviceStreams, held: deque[_Held], staging: Staging | None = None) -> None:
    while held:
        streams.synchronize(held[0].event)
        block = held.popleft().block
        if staging is not None and block is not None:
            staging.give_back(block)


def _is_on(leaf: Any, device: torch.device) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device == device


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether values lie side by side, in some order, so that they are one copy."""
    if tensor.is_contiguous():
        return True
    return tensor.stride() == torch.empty_like(tensor, device="meta").stride()


def _as_tensor(source: Any) -> torch.Tensor:
    if isinstance(source, torch.Tensor):
        return source
    return torch.from_numpy(np.array(source))  # a copy: it may be read-only, or change
