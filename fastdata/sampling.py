"""Which sample stands where: the order of an epoch, cut into batches for a rank.

Everything here is a pure function of (seed, epoch, rank, batch number).  Batch
1,000 of epoch 7 is computed without touching the 999 before it, so resuming is
a matter of two numbers, and every rank and worker agrees without talking.

    Order.of(epoch)      position in the epoch -> sample index
    Batches              positions -> batches of this rank
    Batches.of(epoch)    one epoch: len() batches, [number] gives sample indices
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id

__all__ = ["Batches", "EpochBatches", "Order", "SamplerOrder", "Sequential", "Shuffled"]

Indices: TypeAlias = NDArray[np.int64]

SHUFFLE = operation_id(0, "Shuffled")


class Order(ABC):
    """Where each sample of an epoch stands.

    `len` is the number of positions in an epoch.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def of(self, epoch: int) -> Callable[[Indices], Indices]:
        """Return a function from positions to sample indices, both int64 [n].

        It may be expensive once an epoch; what it returns is cheap to call
        and safe to call from several threads.
        """


@dataclass(frozen=True, slots=True)
class Sequential(Order):
    """Every sample, in the order of the dataset."""

    count: int

    def __len__(self) -> int:
        return self.count

    def of(self, epoch: int) -> Callable[[Indices], Indices]:
        return lambda positions: positions


@dataclass(frozen=True, slots=True)
class Shuffled(Order):
    """Every sample once, in an order uniformly drawn for each epoch.

    Parameters
    ----------
    count : int
        Number of samples, below 2**32.
    seed : int
        Epochs of one seed are independent permutations.
    """

    count: int
    seed: int

    def __len__(self) -> int:
        return self.count

    def of(self, epoch: int) -> Callable[[Indices], Indices]:
        # Random words are sorted with each sample's index in their low bits:
        # no ties, so the result is one and the same for every sort algorithm,
        # and no argsort, which is several times slower than a plain sort.
        low = np.uint64((1 << max(self.count - 1, 0).bit_length()) - 1)
        samples = np.arange(self.count, dtype=np.int64)
        words = Draws(self.seed, epoch, SHUFFLE, samples).bits()[:, 0]
        words = (words & ~low) | samples.astype(np.uint64)
        words.sort()
        permutation = (words & low).astype(np.int64)
        return lambda positions: permutation[positions]


class SamplerOrder(Order):
    """The order that a user's sampler yields.

    Parameters
    ----------
    sampler : iterable of int, with a length
        Run through once an epoch, after ``sampler.set_epoch(epoch)`` where it
        has that method.  Resuming is exact if it yields the same indices again.
    count : int
        Number of samples of the dataset, to check indices against.
    """

    def __init__(self, sampler: Iterable[int], count: int) -> None:
        if not isinstance(sampler, Sized):
            raise OptionError(
                f"sampler {type(sampler).__name__} has no length; a sampler yields the indices "
                "of one epoch and says how many they are (__len__)"
            )
        self._sampler = sampler
        self._length = len(sampler)
        self._count = count

    def __len__(self) -> int:
        return self._length

    def of(self, epoch: int) -> Callable[[Indices], Indices]:
        set_epoch = getattr(self._sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        samples = np.array([int(index) for index in self._sampler], np.int64)
        if len(samples) != self._length:
            raise OptionError(
                f"the sampler yielded {len(samples)} indices, but its length is {self._length}"
            )
        outside = samples[(samples < -self._count) | (samples >= self._count)]
        if outside.size:
            raise OptionError(
                f"the sampler yielded {outside[0]}, but the dataset has {self._count} samples"
            )
        samples[samples < 0] += self._count
        return lambda positions: samples[positions]


@dataclass(frozen=True, slots=True)
class Batches:
    """An order cut into batches for one rank.

    Position p of the epoch belongs to rank ``p % world_size``, as in torch's
    `DistributedSampler`, so batch k of all ranks together is always the same
    ``batch_size * world_size`` consecutive positions.

    Parameters
    ----------
    order : Order
    batch_size : int
        Samples a batch and rank.
    drop_last : bool
        True: positions that do not divide over the ranks, then an incomplete
        last batch, are left out.  False: the first positions are repeated
        at the end (`padding` says how many) until all ranks have the same
        number, and the last batch may be smaller.
    rank, world_size : int
        Which share, of how many.
    """

    order: Order
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise OptionError(f"batch_size is at least 1, not {self.batch_size}")
        if self.world_size < 1:
            raise OptionError(f"world_size is at least 1, not {self.world_size}")
        if not 0 <= self.rank < self.world_size:
            raise OptionError(f"rank is 0 to {self.world_size - 1}, not {self.rank}")

    @property
    def samples(self) -> int:
        """Samples of an epoch on this rank, the same on every rank."""
        per_rank, rest = divmod(len(self.order), self.world_size)
        if self.drop_last:
            return per_rank - per_rank % self.batch_size
        return per_rank + (rest > 0)

    @property
    def padding(self) -> int:
        """Positions repeated over all ranks so that each has as many samples."""
        return max(0, self.samples * self.world_size - len(self.order))

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def of(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch."""
        return EpochBatches(self, self.order.of(epoch))


class EpochBatches(Sequence[Indices]):
    """The batches of one epoch: ``batches[k]`` is int64 [n], sample indices.

    Safe to read from several threads.
    """

    def __init__(self, batches: Batches, lookup: Callable[[Indices], Indices]) -> None:
        self._batches = batches
        self._lookup = lookup

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, number: int) -> Indices:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of an epoch of {len(self)}")
        cut = self._batches
        start = number * cut.batch_size
        stop = min(start + cut.batch_size, cut.samples)
        positions = np.arange(start, stop, dtype=np.int64) * cut.world_size + cut.rank
        return self._lookup(positions % len(cut.order))
