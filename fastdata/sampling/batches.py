"""An order cut into batches for one rank.

    batch k of all ranks together    positions k * B to (k + 1) * B of the epoch,
                                     B = batch_size * world_size
    rank r's part of them            the r-th of world_size equal blocks of them

So the samples of batch k are the same whichever way B is divided into ranks,
and training can continue on another number of ranks in the middle of an epoch.
What is gathered from all ranks and joined in their order is in the order of the
epoch, and what the last batch repeats is at its end: there Accelerate's
``gather_for_metrics`` cuts it off.

Where a rank holds no more than a part of the dataset in memory, `part_of_rank` says which:

    rank r's part    every world_size-th sample of one permutation, from the r-th

Each epoch is then a `PartOrder`, an order of the part.  That is no longer a shuffle of the
whole: two samples of different ranks never meet in one rank's batch.  The parts are drawn at
random, so each is like the whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.random import operation_id
from fastdata.sampling.order import Identity, Indices, Lookup, Order
from fastdata.sampling.shuffle import Permutation

if TYPE_CHECKING:
    from fastdata.sampling.samplers import SamplerEpoch

__all__ = ["Batches", "EpochBatches", "PartOrder", "part_of_rank"]

PARTS = operation_id(0, "parts of ranks")

WINDOW_SAMPLES = 8192
"""Samples looked up together.  A shuffled batch of 512 takes 160 us by itself, for NumPy's calls
cost more than what they compute, and 30 us as one of 16; more than 8,192 samples gain nothing."""


class EpochBatches(Sequence[Indices]):
    """The batches of one epoch: ``batches[k]`` is int64 [n], sample indices.

    Each lookup gives an array of its own.  Safe to read from several threads
    and after a fork.
    """

    def __getitem__(self, number: int) -> Indices:  # type: ignore[override]
        self._check(number)
        return self._look_up(number)

    @abstractmethod
    def samples_in(self, number: int) -> int:
        """Return the number of samples of batch `number`, without looking them up."""

    @abstractmethod
    def occurrences(self, number: int) -> Indices | None:
        """Return the positions in the epoch of the samples of a batch, int64 [n].

        None where the order has no sample more than once.  What is repeated so that ranks have as
        many samples has its first position.
        """

    @abstractmethod
    def _look_up(self, number: int) -> Indices:
        """Return the sample indices of batch `number`, which exists."""

    def _check(self, number: int) -> None:
        if not 0 <= number < len(self):
            raise IndexError(f"batch {number} of an epoch of {len(self)}")


@dataclass(frozen=True, slots=True)
class Batches:
    """An order cut into batches of `batch_size` samples for one rank of `world_size`.

    With `drop_last`, positions that do not make a whole batch on every rank are left out.  Without,
    the last batch may be smaller, and where its positions do not divide over the ranks, some of
    them are repeated (`padding` says how many), so that every rank has as many.  The repeated ones
    are of the same batch, so that its samples are the same for any world size.

    With ``even=False``, for exact evaluation, each position comes once over all ranks, nothing is
    repeated and nothing left out: some ranks may have one sample less, and one batch less, than
    others, so collective operations (gradients of DDP, `all_gather`) must stay out of the loop.

    `OptionError` if a number is out of its range, or `drop_last` is combined with ``even=False``.
    """

    order: Order
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    even: bool = True

    def __post_init__(self) -> None:
        check_int("batch_size", self.batch_size)
        check_int("world_size", self.world_size)
        check_int("rank", self.rank)
        if self.rank >= self.world_size:
            raise OptionError(f"rank is 0 to {self.world_size - 1}, not {self.rank}")
        if self.drop_last and not self.even:
            raise OptionError(
                "drop_last=True leaves samples out, and even=False is for exactly all of them; "
                "choose one"
            )

    @property
    def samples(self) -> int:
        """Samples of an epoch on this rank; the same on every rank if `even`."""
        per_rank, rest = divmod(len(self.order), self.world_size)
        if self.drop_last:
            return per_rank - per_rank % self.batch_size
        return per_rank + (rest > (0 if self.even else self.rank))

    @property
    def padding(self) -> int:
        """Positions repeated over all ranks so that each has as many samples."""
        return self._repeated + (0 if self.drop_last else self.order.repeated)

    @property
    def _repeated(self) -> int:
        """Positions repeated by the cutting; `Order.repeated` counts those of the order itself."""
        if not self.even:
            return 0
        return max(0, self.samples * self.world_size - len(self.order))

    @property
    def identity(self) -> Identity:
        """What must be the same for a saved place to make sense, on this world size or another."""
        return {
            **self.order.identity,
            "global_batch_size": self.batch_size * self.world_size,
            "drop_last": self.drop_last,
            "even": self.even,
        }

    @property
    def joins(self) -> bool:
        """Whether an epoch may be looked up before the one before it has ended."""
        return self.order.pure

    @property
    def sampler_epoch(self) -> SamplerEpoch | None:
        """The epoch of the user's sampler that decides the order; None where none does."""
        return self.order.sampler_epoch

    def __len__(self) -> int:
        """Batches of an epoch on this rank."""
        return -(-self.samples // self.batch_size)

    def in_epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch."""
        return _CutEpoch(self, self.order.in_epoch(epoch))


class _CutEpoch(EpochBatches):
    """The batches of one epoch of an order.

    Batches are looked up some at a time and cached until others are asked for.
    There is no lock: threads at a boundary may look up the same twice, and a
    fork finds nothing locked.
    """

    def __init__(self, batches: Batches, lookup: Lookup) -> None:
        self._batches = batches
        self._lookup = lookup
        self._length = len(batches)
        self._samples = batches.samples
        self._batches_at_once = max(1, WINDOW_SAMPLES // batches.batch_size)
        # Number of the first batch, samples; replaced as one, never changed.
        self._window = -1, np.empty(0, np.int64)

    def __len__(self) -> int:
        return self._length

    def samples_in(self, number: int) -> int:
        self._check(number)
        size = self._batches.batch_size
        return min(size, self._samples - number * size)

    def occurrences(self, number: int) -> Indices | None:
        if not self._batches.order.repeats:
            return None
        start = number * self._batches.batch_size
        return self._positions(start, start + self.samples_in(number))

    def _look_up(self, number: int) -> Indices:
        size = self._batches.batch_size
        first_wanted = number - number % self._batches_at_once
        first, samples = self._window
        if first != first_wanted:
            stop = (first_wanted + self._batches_at_once) * size
            samples = self._lookup(self._positions(first_wanted * size, stop))
            self._window = first_wanted, samples
        start = (number - first_wanted) * size
        batch: Indices = samples[start : start + size].copy()
        return batch

    def _positions(self, start: int, stop: int) -> Indices:
        """Return the positions of this rank's samples `start` to `stop` - 1."""
        cut = self._batches
        mine = np.arange(start, min(stop, self._samples), dtype=np.int64)
        batches, places = np.divmod(mine, cut.batch_size)
        shift = np.full_like(mine, cut.rank * cut.batch_size)
        last = (self._length - 1) * cut.batch_size * cut.world_size
        left = min(len(cut.order) - last, cut.batch_size * cut.world_size)
        # The last batch is divided over the ranks, whatever there is of it.
        per_rank, rest = divmod(left, cut.world_size)
        share = cut.rank * per_rank + min(cut.rank, rest)
        shift[batches == self._length - 1] = (
            cut.rank * (per_rank + (rest > 0)) if cut.even else share
        )
        positions = batches * (cut.batch_size * cut.world_size) + shift + places
        if cut._repeated:
            # Positions past the end begin again at the first one of the last batch.
            past = positions >= len(cut.order)
            positions[past] = last + (positions[past] - last) % left
        return positions


def part_of_rank(
    count: int, seed: int, rank: int, world_size: int, *, even: bool = True
) -> Indices:
    """Return the samples of one rank, of `count` in all, int64 [n], ascending.

    `seed` is the same on all ranks.  Where parts are `even`, up to world_size - 1 samples are in
    two of them.
    """
    check_int("world_size", world_size)
    check_int("rank", rank)
    end = -(-count // world_size) * world_size if even and count else count
    positions = np.arange(rank, end, world_size, dtype=np.int64) % max(count, 1)
    return np.sort(Permutation.drawn(count, seed, 0, PARTS, 0)(positions))


@dataclass(frozen=True, slots=True, eq=False)
class PartOrder(Order):
    """An order of some of the samples: `order` has as many as `part`, int64 [n].

    `count` and `world_size` are the samples of the dataset, and the ranks that divide them.
    """

    part: Indices = field(repr=False)
    order: Order
    count: int
    world_size: int

    def __len__(self) -> int:
        return len(self.part)

    def in_epoch(self, epoch: int) -> Lookup:
        lookup = self.order.in_epoch(epoch)
        return lambda positions: self.part[lookup(positions)]

    @property
    def repeated(self) -> int:
        """Samples that are in two parts."""
        return max(0, len(self.part) * self.world_size - self.count)

    def _options(self) -> Identity:
        inner = self.order.identity
        inner["order"] = f"{inner['order']} in parts"
        return {**inner, "samples": self.count, "world_size": self.world_size}
