"""When each block of a dataset is needed, and so which to fetch and which to remove.

What is needed soonest comes first, and what is needed last goes first: the replacement of Belady,
"A study of replacement algorithms for a virtual-storage computer" (IBM Systems Journal, 1966), that
needs to know the future.  Here it is known: `fastdata.sampling` computes the order of every epoch.
Nothing is removed for what is needed later than it (the rule "do no harm" of Cao, Felten, Karlin
and Li, "A study of integrated prefetching and caching strategies", SIGMETRICS 1995).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEVER", "Plan", "in_blocks_of", "next_uses"]

NEVER = np.inf
"""The next use of a block that no loader is known to need."""


class Plan:
    """The batches of one loader in which blocks are needed, for some epochs.

    Time is the number of batches since the loader began.  In an epoch, a block is needed from the
    first batch with one of its samples to the last one.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._epochs: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self.now = 0

    def add(
        self,
        epoch: int,
        blocks: NDArray[np.int64],
        first: NDArray[np.int64],
        last: NDArray[np.int64],
    ) -> None:
        """Add uses of blocks in an epoch, int64 [n] each; a block may come again."""
        if epoch not in self._epochs:
            for old in [known for known in self._epochs if known < epoch - 1]:
                del self._epochs[old]
            never = np.iinfo(np.int64).max
            self._epochs[epoch] = (
                np.full(self._num_blocks, never, np.int64),
                np.full(self._num_blocks, -1, np.int64),
            )
        firsts, lasts = self._epochs[epoch]
        known = blocks < self._num_blocks  # the last block may be told in parts that are not there
        np.minimum.at(firsts, blocks[known], first[known])
        np.maximum.at(lasts, blocks[known], last[known])

    def next_use(self) -> NDArray[np.float64]:
        """Return in how many batches each block is needed: 0 now, `NEVER` if that is not known."""
        soonest = np.full(self._num_blocks, NEVER)
        for first, last in self._epochs.values():
            uses = np.where(last >= self.now, np.maximum(first - self.now, 0), NEVER)
            np.minimum(soonest, uses, out=soonest)
        return soonest


def next_uses(plans: Iterable[Plan], num_blocks: int) -> NDArray[np.float64]:
    """Return in how many batches each block is needed by any of several loaders."""
    soonest = np.full(num_blocks, NEVER)
    for plan in plans:
        np.minimum(soonest, plan.next_use(), out=soonest)
    return soonest


def in_blocks_of(
    size: int,
    their_size: int,
    blocks: NDArray[np.int64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return uses of blocks as uses of the blocks of another size that have samples of these."""
    if size == their_size:
        return blocks, first, last
    starts = blocks * their_size // size
    counts = ((blocks + 1) * their_size - 1) // size - starts + 1
    ours = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    ours += np.repeat(starts, counts)
    return ours, np.repeat(first, counts), np.repeat(last, counts)
