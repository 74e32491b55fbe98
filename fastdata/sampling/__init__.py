"""The order of an epoch's samples, cut into batches for a rank.

Everything here is a pure function of (seed, epoch, rank, batch number).  Batch
1,000 of epoch 7 is computed without touching the 999 before it, so resuming is
a matter of two numbers, and every rank and worker agrees without talking.

    Order.in_epoch(epoch)      position in the epoch -> sample index
    Batches              positions -> batches of this rank
    Batches.in_epoch(epoch)    one epoch: len() batches, [number] gives sample indices

      order.py      what an order is; Sequential, Weighted
      shuffle.py    Shuffled, BlockShuffled, and what `shuffle=` may be
      samplers.py   samplers and batch samplers of the user's
      batches.py    an order cut into batches for one rank; a fixed part for each rank

Orders and batches have an `identity`: what must be the same for a place in an
epoch (epoch, batch number) to mean the same thing later, elsewhere.
"""

from __future__ import annotations

from fastdata.sampling.batches import Batches, EpochBatches, PartOrder, part_of_rank
from fastdata.sampling.order import Identity, Order, Sequential, Weighted
from fastdata.sampling.samplers import SampledBatches, SamplerEpoch, SamplerOrder
from fastdata.sampling.shuffle import BlockShuffle, BlockShuffled, Shuffled, order_of

__all__ = [
    "Batches",
    "BlockShuffle",
    "BlockShuffled",
    "EpochBatches",
    "Identity",
    "Order",
    "PartOrder",
    "SampledBatches",
    "SamplerEpoch",
    "SamplerOrder",
    "Sequential",
    "Shuffled",
    "Weighted",
    "order_of",
    "part_of_rank",
]
