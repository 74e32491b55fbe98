"""A dataset that is being read: which of its blocks are there, on their way, and needed when."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fastdata.remote.dataset import StoredDataset
from fastdata.remote.schedule import NEVER, Plan, next_uses

__all__ = ["Held"]

LOOK_SHARE = 0.1
"""Of a core, for looking when blocks are needed: of 14,000,000 samples and eight loaders one look
takes some 18 ms, and is then good for 180."""


@dataclass(eq=False)
class Held:
    """A dataset that is being read."""

    stored: StoredDataset
    block_size: int
    plans: dict[tuple[int, int], Plan] = field(default_factory=dict)
    """By client and number."""
    users: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cut(self.block_size)

    def cut(self, block_size: int) -> None:
        """Have blocks of so many samples; while none is in use."""
        samples = self.stored.num_samples
        self.block_size = block_size
        self.starts = np.arange(0, max(samples, 1), block_size)
        self.counts = np.diff(np.append(self.starts, samples))
        self.filled = np.add.reduceat(self.stored.present > 0, self.starts).astype(np.int64)
        self.busy = np.zeros(len(self.starts), np.int64)
        self.fetching = np.zeros(len(self.starts), np.bool_)
        self.kept_until = np.zeros(len(self.starts))
        self.not_before = np.zeros(len(self.starts))
        self.waited_until = np.zeros(len(self.starts))
        self._uses = np.full(len(self.starts), NEVER)
        self._look_at = 0.0
        self.bytes_each = self.counts * (self.stored.total_bytes / max(samples, 1))

    def bounds(self, block: int) -> tuple[int, int]:
        """Return the first sample of a block, and the one behind its last."""
        first = int(self.starts[block])
        return first, first + int(self.counts[block])

    def count(self, block: int) -> None:
        """Count again the samples of a block that are there."""
        first, last = self.bounds(block)
        self.filled[block] = np.count_nonzero(self.stored.present[first:last])

    def next_use(self) -> NDArray[np.float64]:
        """Return in how many batches each block is needed.

        One that somebody waits for is needed now: loaders ask for images of batches ahead before
        they hand out those that are made.  What plans say may be as old as `LOOK_SHARE` has it.
        """
        now = time.monotonic()
        if now >= self._look_at:
            self._uses = next_uses(self.plans.values(), len(self.starts))
            self._look_at = now + (time.monotonic() - now) / LOOK_SHARE
        uses: NDArray[np.float64] = self._uses.copy()
        uses[self.waited_until > now] = 0.0
        return uses
