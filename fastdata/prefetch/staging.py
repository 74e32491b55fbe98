"""Page-locked memory for what lies elsewhere, used again as soon as its copy is done.

Only from page-locked memory does a GPU copy by itself while everything else goes on.
What of a batch lies in other memory is copied into one block first.  Large tensors get
device memory of their own, which dies with them; all small ones travel as one, since a
copy costs 10 us however small it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.prefetch.streams import DeviceStreams

__all__ = ["LARGE_BYTES", "Parcel", "Staging"]

LARGE_BYTES = 1 << 20
"""From here on a tensor is large."""

_ALIGNMENT = 256
"""Bytes; that of CUDA's own allocations, on which kernels rely for wide loads."""


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """What is to be known of a tensor or array to stage it.

    Attributes
    ----------
    source : torch.Tensor or numpy.ndarray
    dtype : torch.dtype
    shape, strides : tuple of int
        Of the tensor on the device; strides as those of `source` where it is dense.
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
    """Blocks of page-locked memory.

    Parameters
    ----------
    streams : DeviceStreams

    Notes
    -----
    For one thread at a time.  As many blocks as there are copies under way at a time, each
    as large as the largest batch so far.
    """

    def __init__(self, streams: DeviceStreams) -> None:
        self._streams = streams
        self._free: list[torch.Tensor] = []
        self._largest = 0
        self.allocated = 0
        """Blocks that were ever made, to see that none is made a batch."""

    def send(self, parcels: list[Parcel]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Copy parcels to the device.

        Returns
        -------
        list of torch.Tensor
            On the device; complete when the current stream has come so far.
        torch.Tensor
            The block they are copied from: give it back when that has happened.
        """
        order = sorted(range(len(parcels)), key=lambda at: parcels[at].nbytes >= LARGE_BYTES)
        offsets = [0] * len(parcels)
        end = small_end = 0
        for at in order:
            offsets[at] = end
            end += -(-parcels[at].nbytes // _ALIGNMENT) * _ALIGNMENT
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
        if self._free:
            return self._free.pop()
        self.allocated += 1
        return self._streams.pin(self._largest)

    def give_back(self, block: torch.Tensor) -> None:
        """Take back a block that nothing is copied from any more."""
        self._free.append(block)
