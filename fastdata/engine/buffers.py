"""Memory of batches.

Every batch is allocated anew, as NumPy arrays are: of huge pages where the
kernel grants them, which makes first touching 38 MB cost 3 ms instead of the
18 ms of torch's allocator.  Pinned memory comes from torch's caching host
allocator, which hands blocks out again once their copies to the device ended.
"""

from __future__ import annotations

import math

import numpy as np
import torch

__all__ = ["allocate"]


def allocate(shape: tuple[int, ...], dtype: torch.dtype, *, pinned: bool = False) -> torch.Tensor:
    """Return a contiguous CPU tensor of undefined content."""
    if pinned:
        return torch.empty(shape, dtype=dtype, pin_memory=True)
    words = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    return torch.from_numpy(words).view(dtype).view(shape)
