"""A fixed part of a dataset for each rank, where a rank holds no more than that in memory.

    rank r's part    every world_size-th sample of one permutation, from the r-th

Each epoch is then an order of the part.  That is no longer a shuffle of the whole: two
samples of different ranks never meet in one rank's batch.  The parts are drawn at random,
so each is like the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fastdata.random import operation_id
from fastdata.sampling.order import Identity, Indices, Lookup, Order, check_count
from fastdata.sampling.permutation import Permutation

__all__ = ["PartOrder", "part_of_rank"]

PARTS = operation_id(0, "parts of ranks")


def part_of_rank(
    count: int, seed: int, rank: int, world_size: int, *, even: bool = True
) -> Indices:
    """Return the samples of one rank, int64 [n], ascending.

    Parameters
    ----------
    count : int
        Samples of the dataset.
    seed : int
        The same on all ranks.
    rank, world_size : int
    even : bool
        Whether parts are equally large; up to world_size - 1 samples are then in two of them.

    Raises
    ------
    OptionError
        If a number is out of its range.
    """
    check_count("world_size", world_size, 1)
    check_count("rank", rank, 0)
    end = -(-count // world_size) * world_size if even and count else count
    positions = np.arange(rank, end, world_size, dtype=np.int64) % max(count, 1)
    return np.sort(Permutation.drawn(count, seed, 0, PARTS, 0)(positions))


@dataclass(frozen=True, slots=True, eq=False)
class PartOrder(Order):
    """An order of some of the samples.

    Parameters
    ----------
    part : ndarray of int64, shape [n]
    order : Order
        Of n samples.
    count, world_size : int
        Samples of the dataset, and among how many ranks it is divided.
    """

    part: Indices = field(repr=False)
    order: Order
    count: int
    world_size: int

    def __len__(self) -> int:
        return len(self.part)

    def of(self, epoch: int) -> Lookup:
        lookup = self.order.of(epoch)
        return lambda positions: self.part[lookup(positions)]

    @property
    def repeated(self) -> int:
        """Samples that are in two parts."""
        return max(0, len(self.part) * self.world_size - self.count)

    def _options(self) -> Identity:
        inner = self.order.identity
        inner["order"] = f"{inner['order']} in parts"
        return {**inner, "samples": self.count, "world_size": self.world_size}
