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

Only from page-locked memory does a GPU copy by itself while everything else goes on.  What of
a batch lies in other memory is copied into one page-locked block first (`Staging`).

Source: "CUDA semantics" in torch's documentation, and its notes on `record_stream`.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.prefetch.streams import DeviceStreams
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = ["Mover", "Sent"]

STEPS_AHEAD = 4
"""Steps that the host may be ahead of the device.

Two would do to keep it busy; beyond that each costs the memory of a batch, and a
captured graph takes one launch a step, so that a thousand fit into CUDA's queue.
"""

LARGE_BYTES = 1 << 20
"""From here on a tensor is large: it gets device memory of its own, which dies with it.  All
small ones of a batch travel as one, since a copy costs 10 us however small it is."""

ALIGNMENT = 256
"""Bytes; that of CUDA's own allocations, on which kernels rely for wide loads."""

log = logging.getLogger("fastdata")


@dataclass(frozen=True, slots=True, eq=False)
class Sent:
    """A batch on its way: on the device, and not to be touched before `Mover.take`."""

    batch: Any
    ready: Any


@dataclass(frozen=True, slots=True, eq=False)
class _BeingCopied:
    """Host memory that is being copied from, until an event."""

    event: Any
    tensors: list[torch.Tensor]
    block: torch.Tensor | None


class Mover:
    """Moves batches to a device, on a side stream of its own.

    With `report`, large tensors in pageable memory are reported, once.  For one thread at a time.
    """

    def __init__(self, streams: DeviceStreams, *, report: bool = True) -> None:
        self._streams = streams
        self._side = streams.side()
        self._staging = Staging(streams)
        self._copying: deque[_BeingCopied] = deque()
        self._steps: deque[Any] = deque()
        self._unreported = report
        # The last copies may outlive this object; what they read from must not go before.
        weakref.finalize(self, _finish, streams, self._copying, self._staging).atexit = False

    def send(self, batch: Any, transform: Callable[[Any], Any] | None = None) -> Sent:
        """Submit the copy of a batch, and `transform` of what arrives, to the side stream.

        Tensors of the device itself are passed on; what the current stream still has to do
        for them is done before.  Raises what `transform` raises, but a `RuntimeError` in place of
        `StopIteration`, which would be taken for the end of the batches.
        """
        streams, side = self._streams, self._side
        self._release()
        sources = leaves(batch)
        on_device = [leaf for leaf in sources if streams.stages and _is_on(leaf, streams.device)]
        if on_device:
            streams.wait(side, streams.mark(streams.current()))
            for leaf in on_device:
                streams.use(leaf, side)
        pinned: list[torch.Tensor] = []
        block = None
        with streams.on(side):
            try:
                moved = [self._move(leaf, pinned) for leaf in sources]
                parcels = [value for value in moved if isinstance(value, Parcel)]
                if parcels:
                    self._report(parcels)
                    tensors, block = self._staging.send(parcels)
                    arrived = iter(tensors)
                    moved = [next(arrived) if isinstance(v, Parcel) else v for v in moved]
            finally:  # copies that were submitted before an error go on
                self._copying.append(_BeingCopied(streams.mark(side), pinned, block))
            supply = iter(moved)
            result = map_leaves(lambda leaf: next(supply), batch)
            if transform is not None:
                try:
                    result = transform(result)
                except StopIteration as error:
                    raise RuntimeError("a transform raised StopIteration") from error
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
        """Wait for all copies that were submitted, and release host memory."""
        _finish(self._streams, self._copying, self._staging)

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
        if streams.stages and parcel.nbytes:
            return parcel
        tensor = _as_tensor(parcel.source)
        return streams.copy(tensor) if parcel.nbytes else streams.twin(tensor)

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
        """Release host memory whose copies have been done."""
        while self._copying and self._streams.passed(self._copying[0].event):
            self._staging.give_back(self._copying.popleft().block)


def _finish(streams: DeviceStreams, copying: deque[_BeingCopied], staging: Staging) -> None:
    while copying:
        streams.synchronize(copying[0].event)
        staging.give_back(copying.popleft().block)


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


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """A tensor or array to be staged, and the dtype, shape and strides of it on the device.

    Strides are those of `source` where it is dense.
    """

    source: Any
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, source: Any) -> Parcel | None:
        """Return the parcel of a tensor or an array; None where torch has no such dtype."""
        if isinstance(source, torch.Tensor):
            strides = source.stride()
            if not source.is_contiguous():  # channels-last, or a part of something
                strides = torch.empty_like(source, device="meta").stride()
            return cls(source.detach(), source.dtype, tuple(source.shape), tuple(strides))
        if not source.dtype.isnative:
            source = source.astype(source.dtype.newbyteorder("="))
        try:
            dtype = torch.from_numpy(np.empty(0, source.dtype)).dtype
        except TypeError:  # text, objects, dates
            return None
        strides = torch.empty(source.shape, device="meta").stride()
        return cls(source, dtype, source.shape, tuple(strides))

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self, memory: torch.Tensor, offset: int) -> torch.Tensor:
        """Return the tensor that lies at `offset` in memory, uint8 [n]."""
        flat = memory[offset : offset + self.nbytes].view(self.dtype)
        return flat.as_strided(self.shape, self.strides, flat.storage_offset())

    def write(self, target: torch.Tensor) -> None:
        """Copy its values to a tensor on the host."""
        if isinstance(self.source, np.ndarray):
            np.copyto(target.numpy(), self.source)
        else:
            target.copy_(self.source)


class Staging:
    """Blocks of page-locked memory, used again as soon as the copy from them is done.

    As many blocks as there are copies under way at a time, each as large as the largest batch so
    far.  For one thread at a time.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self._streams = streams
        self._free: list[torch.Tensor] = []
        self._largest = 0

    def send(self, parcels: list[Parcel]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Copy parcels to the device.

        Returns the tensors there, which are complete when the current stream has come so far, and
        the block they are copied from, to be given back when that has happened.
        """
        order = sorted(range(len(parcels)), key=lambda at: parcels[at].nbytes >= LARGE_BYTES)
        offsets = [0] * len(parcels)
        end = small_end = 0
        for at in order:
            offsets[at] = end
            end += -(-parcels[at].nbytes // ALIGNMENT) * ALIGNMENT
            if parcels[at].nbytes < LARGE_BYTES:
                small_end = end
        block = self._take(end)
        for parcel, offset in zip(parcels, offsets, strict=True):
            parcel.write(parcel.view(block, offset))
        together = self._streams.copy(block[:small_end]) if small_end else None
        moved = []
        for parcel, offset in zip(parcels, offsets, strict=True):
            if parcel.nbytes < LARGE_BYTES and together is not None:
                moved.append(parcel.view(together, offset))
            else:
                moved.append(self._streams.copy(parcel.view(block, offset)))
        return moved, block

    def _take(self, nbytes: int) -> torch.Tensor:
        self._largest = max(self._largest, nbytes)
        self._free = [block for block in self._free if block.numel() >= self._largest]
        return self._free.pop() if self._free else self._streams.pin(self._largest)

    def give_back(self, block: torch.Tensor | None) -> None:
        """Take back a block that nothing is copied from any more."""
        if block is not None:
            self._free.append(block)
