"""Which blocks each node needs at which step: by fastdata's own order, not by a model of it.

Nothing here is simulated.  `fastdata.sampling` says which samples a rank has at each step, and the
blocks of these are what `fastdata.remote.following` tells the downloader of a machine.  The ranks
of a node have neighbouring parts of each batch, so the node has the samples of one rank of `nodes`
whose batches are as large as those of all its ranks together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.remote.supply import NEAR
from fastdata.sampling import Batches, BlockShuffle, BlockShuffled, Order, order_of
from fastdata.sampling.shuffle import LANE_BLOCK_BYTES

__all__ = ["Kind", "Uses", "Work", "dispersion", "fetches_of_blocks"]

Indices: TypeAlias = NDArray[np.int64]

Kind: TypeAlias = Literal["lanes", "blocks", "samples"]
"""Of an order.  "lanes" is ``shuffle="lanes"``; "blocks" has the same blocks, as many in use at
once, in one lane; "samples" is a permutation of all samples, of which each is a request."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Blocks that a node needs, each once, ascending; and its first and last step with each."""

    blocks: Indices
    first: Indices
    last: Indices


@dataclass(frozen=True, slots=True)
class Work:
    """A dataset of `samples` of `sample_bytes` each, and the training that reads it.

    `node_batch` is the samples of a step on all ranks of a node.  `lanes` and `window_blocks` are
    those of ``shuffle="lanes"`` where they are None.
    """

    samples: int
    sample_bytes: int
    nodes: int
    node_batch: int
    seed: int = 0
    kind: Kind = "lanes"
    lanes: int | None = None
    window_blocks: int | None = None

    @property
    def order(self) -> Order:
        """The order of the whole training, the same for every node."""
        whole = self.node_batch * self.nodes
        if self.kind == "samples":
            return order_of(True, self.samples, self.seed, whole)
        chosen = BlockShuffle.in_lanes(self.samples, self.sample_bytes, whole)
        lanes = self.lanes or chosen.lanes
        window = self.window_blocks or chosen.window_blocks
        if self.kind == "blocks":
            lanes, window = 1, lanes * window
        shuffle = BlockShuffle(chosen.block_size, window, lanes)
        return order_of(shuffle, self.samples, self.seed, whole)

    @property
    def block_size(self) -> int:
        """Samples of a request."""
        order = self.order
        return order.block_size if isinstance(order, BlockShuffled) else 1

    @property
    def num_blocks(self) -> int:
        """Blocks of the dataset."""
        return -(-self.samples // self.block_size)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block, as if the last one were whole."""
        return self.block_size * self.sample_bytes

    @property
    def steps(self) -> int:
        """Steps of an epoch; what makes no whole batch is left out (``drop_last=True``)."""
        return self.samples // (self.node_batch * self.nodes)

    def batches(self, node: int) -> Batches:
        """Return the batches of a node."""
        return Batches(self.order, self.node_batch, True, node, self.nodes)

    def uses(self, node: int, epoch: int, first: int, last: int) -> Uses:
        """Return what a node needs in the steps `first` to `last` - 1 of an epoch."""
        found = self.batches(node).in_epoch(epoch)
        blocks = np.concatenate([found[step] for step in range(first, last)]) // self.block_size
        steps = np.repeat(np.arange(first, last), self.node_batch)
        used, firsts = np.unique(blocks, return_index=True)
        _, lasts = np.unique(blocks[::-1], return_index=True)
        return Uses(used, steps[firsts], steps[len(steps) - 1 - lasts])

    def first_requests(self, node: int, epoch: int, step: int) -> int:
        """Return the requests for the batch with which a loader begins, sample by sample.

        Samples that are near each other are one request, as `Supply.need` has it.
        """
        samples = np.sort(self.batches(node).in_epoch(epoch)[step])
        return 1 + int(np.count_nonzero(np.diff(samples) > NEAR))


def fetches_of_blocks(work: Work, uses: Sequence[Uses]) -> Indices:
    """Return by how many of some nodes each block is needed, int64 [blocks]."""
    counts = np.zeros(work.num_blocks, np.int64)
    for one in uses:
        counts[one.blocks] += 1
    return counts


def dispersion(order: Order, batch: int, classes: int, batches: int = 500) -> float:
    """Return how unevenly classes come: 1 as a permutation of all samples, more where they clump.

    It is the variance of the counts of classes in batches over that of a permutation, as in
    ``tests/test_lanes.py``, of samples that lie sorted by class and of a spread of batches.
    """
    there = len(order) // batch
    chosen = np.unique(np.linspace(0, there - 1, min(batches, there)).astype(np.int64))
    class_size = math.ceil(len(order) / classes)
    lookup = order.in_epoch(0)
    counts = np.stack(
        [
            np.bincount(
                lookup(np.arange(at * batch, (at + 1) * batch)) // class_size, minlength=classes
            )
            for at in chosen.tolist()
        ]
    )
    share = np.bincount(np.arange(len(order)) // class_size, minlength=classes) / len(order)
    expected = batch * share * (1 - share) * (1 - batch / len(order))
    return float((counts.var(axis=0, ddof=1) / expected).mean())


# The block of the arithmetic in docs/design/scale.md.
assert LANE_BLOCK_BYTES == 8 << 20
