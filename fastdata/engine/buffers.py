"""Memory of batches, used again once nobody looks at it any more.

Fresh memory is expensive: the kernel zeroes each page when it is first
touched, which made a normalised float32 batch of 256 x 3 x 224 x 224 (154 MB)
cost more than decoding its images.  So blocks go round: when the last view of a
batch has died, be it a tensor, a NumPy array or a storage, its block returns.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["BufferPool"]

Block: TypeAlias = NDArray[Any]


class BufferPool:
    """Hands out memory; takes it back by itself.

    Parameters
    ----------
    keep : int
        Unused blocks that are kept; more are freed, the oldest first.
    pinned : bool
        Pinned memory, from torch's own caching allocator.

    Notes
    -----
    Thread-safe.  Tensors stay valid however long they are kept, also after
    the pool is gone.
    """

    def __init__(self, keep: int, *, pinned: bool = False) -> None:
        self.keep = keep
        self.pinned = pinned
        # By id, oldest first.  A batch may die in any thread and, through the
        # garbage collector, in the middle of any line here: hence no step
        # below relies on what the one before has seen.
        self._unused: dict[int, Block] = {}

    def take(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous CPU tensor of undefined content."""
        if self.pinned:
            return torch.empty(shape, dtype=dtype, pin_memory=True)
        block = self._block(math.prod(shape) * dtype.itemsize)
        # The tensor keeps this view of the block alive, and nothing else does:
        # it dies with the storage that all tensors made from this one share.
        lease = block.view()
        weakref.finalize(lease, _give_back, self._unused, self.keep, block).atexit = False
        return torch.from_numpy(lease).view(dtype).view(shape)

    def _block(self, size: int) -> Block:
        for key, block in reversed(list(self._unused.items())):
            if block.size == size and self._unused.pop(key, None) is not None:
                return block
        return np.empty(size, np.uint8)


def _give_back(unused: dict[int, Block], keep: int, block: Block) -> None:
    unused[id(block)] = block
    for key in list(unused)[: max(0, len(unused) - keep)]:
        unused.pop(key, None)
