"""Orders and batches that a user's own sampler decides.

Such an epoch is a list: the whole sampler is run when the epoch begins.  Resuming is exact if
it then yields the same again.

Where the sampler, or the one inside it, has ``set_epoch`` and shows its ``epoch``, as torch's
`DistributedSampler` does, the loader sets it to each of its own epochs, until other code sets
it: from then on the sampler keeps the epoch that it is given, and the loader counts on from
there.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sized
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.sampling.batches import EpochBatches
from fastdata.sampling.order import Identity, Indices, Lookup, Order

__all__ = ["SampledBatches", "SamplerEpoch", "SamplerOrder"]


LISTS = list, tuple, range, str, np.ndarray, torch.Tensor
"""Samplers that draw nothing; their indices are also checked when the loader is made."""


class SamplerEpoch:
    """The epoch of a user's sampler, which the loader sets unless other code does.

    Of a batch sampler it is that of the sampler in it where only that has one: torch's
    `BatchSampler` has no ``set_epoch``, but a `DistributedSampler` in it has.
    """

    def __init__(self, sampler: object) -> None:
        parts = (sampler, getattr(sampler, "sampler", None))
        self._sampler: Any = next((part for part in parts if hasattr(part, "set_epoch")), None)
        self._last_seen = self._current
        # Samplers begin with epoch 0: another one was set before the loader was made.
        self._first_epoch = self._last_seen if (self._last_seen or 0) > 0 else None
        # Where it cannot be seen whether other code sets the epoch, it is left to that code.
        self._set_by_others = self._last_seen is None

    @property
    def _current(self) -> int | None:
        epoch = getattr(self._sampler, "epoch", None)
        return epoch if isinstance(epoch, int) else None

    def newly_set(self) -> int | None:
        """Return the epoch that other code has set since the last call; None if it set none.

        The loader begins to count at the epoch that the sampler has when the loader is made: the
        user may have set it, or an earlier loader left it.
        """
        epoch, first_epoch = self._current, self._first_epoch
        self._first_epoch = None
        if epoch == self._last_seen:
            return first_epoch
        self._last_seen, self._set_by_others = epoch, True
        return epoch

    def follow(self, other: SamplerEpoch) -> None:
        """Take over the state of `other`, which is of the same sampler."""
        self._last_seen, self._first_epoch = other._last_seen, other._first_epoch
        self._set_by_others = other._set_by_others

    def set(self, epoch: int, *, by_user: bool) -> None:
        """Set the sampler's epoch; one that other code set only if the user asks for it."""
        self._first_epoch = None
        if self._sampler is None or (self._set_by_others and not by_user):
            return
        self._set_by_others = False
        self._sampler.set_epoch(epoch)
        self._last_seen = self._current


class SamplerOrder(Order):
    """The order that a user's sampler yields, of a dataset of `count` samples.

    Negative indices count from the end of the dataset.  `OptionError` if the sampler has no length;
    from `in_epoch` (for a list at once) if it yields a wrong number of indices, or a wrong one.
    """

    pure: ClassVar[bool] = False
    repeats = True  # it may: nothing is known of it

    def __init__(self, sampler: Iterable[int], count: int) -> None:
        self._sampler = sampler
        self._epoch = SamplerEpoch(sampler)
        self._length = _length("sampler", sampler, "indices")
        self._count = count
        if type(sampler) in LISTS:
            self.in_epoch(0)

    def __len__(self) -> int:
        return self._length

    @property
    def sampler_epoch(self) -> SamplerEpoch:
        return self._epoch

    def in_epoch(self, epoch: int) -> Lookup:
        self._epoch.set(epoch, by_user=False)
        # One more than it should yield is enough, of a sampler that never ends too.
        samples = _indices("sampler", islice(self._sampler, self._length + 1))
        _check_yielded("sampler", len(samples), self._length, "indices")
        _check_inside("sampler", samples, -self._count, self._count)
        samples[samples < 0] += self._count
        return samples.take

    def _options(self) -> Identity:
        return {"sampler": type(self._sampler).__name__}


class SampledBatches:
    """The batches that a user's batch sampler yields, with the interface of `Batches`.

    All are this rank's: with several ranks, the batch sampler yields those of its rank, and as many
    on every rank.  They may differ in size.  `OptionError` if the batch sampler has no length; from
    `in_epoch` (for a list at once) if it yields a wrong number of batches, an empty one, or a wrong
    index.
    """

    padding = 0
    """Nothing is repeated: a batch sampler decides by itself."""

    joins = False
    """An epoch of the batch sampler is run when it begins, not before."""

    samples = None
    """Samples of an epoch are known only by running the batch sampler."""

    def __init__(self, batch_sampler: Iterable[Iterable[int]], count: int) -> None:
        self._batch_sampler = batch_sampler
        self.sampler_epoch = SamplerEpoch(batch_sampler)
        """Of the batch sampler, or of the sampler in it."""
        self._length = _length("batch_sampler", batch_sampler, "batches")
        self._count = count
        if type(batch_sampler) in LISTS:
            self.in_epoch(0)

    def __len__(self) -> int:
        return self._length

    def in_epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch."""
        self.sampler_epoch.set(epoch, by_user=False)
        batches = []
        for number, batch in enumerate(islice(self._batch_sampler, self._length + 1)):
            name = f"batch_sampler, in batch {number},"
            if not isinstance(batch, Iterable):
                raise OptionError(
                    f"the {name} yielded {batch!r}, but a batch is a list of sample indices; what "
                    "yields single indices is a sampler (sampler=...)"
                )
            samples = _indices(name, batch)
            if not samples.size:
                raise OptionError(f"the {name} yielded no samples; leave empty batches out")
            _check_inside(name, samples, 0, self._count)
            batches.append(samples)
        _check_yielded("batch_sampler", len(batches), self._length, "batches")
        return _SampledEpoch(batches)

    @property
    def identity(self) -> Identity:
        """What must be the same for a saved place to make sense."""
        return {
            "order": type(self).__name__,
            "batches": self._length,
            "batch_sampler": type(self._batch_sampler).__name__,
        }


class _SampledEpoch(EpochBatches):
    """The batches of an epoch, as they were yielded."""

    def __init__(self, batches: list[Indices]) -> None:
        self._batches = batches
        self._stops = np.cumsum([len(batch) for batch in batches])

    def __len__(self) -> int:
        return len(self._batches)

    def samples_in(self, number: int) -> int:
        self._check(number)
        return len(self._batches[number])

    def occurrences(self, number: int) -> Indices:
        stop = int(self._stops[number])
        return np.arange(stop - self.samples_in(number), stop)

    def _look_up(self, number: int) -> Indices:
        samples: Indices = self._batches[number].copy()
        return samples


def _length(name: str, sampler: object, what: str) -> int:
    if not isinstance(sampler, Sized):
        raise OptionError(
            f"{name} {type(sampler).__name__} has no length; a {name} yields the {what} "
            "of one epoch and says how many they are (__len__)"
        )
    return len(sampler)


def _indices(name: str, values: Iterable[Any]) -> Indices:
    """Return what a sampler yielded, int64 [n]; raise `OptionError` for what is no integer."""

    def index(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            raise OptionError(f"the {name} yielded {value!r}, which is not an index") from None
        return max(-(2**62), min(number, 2**62))  # beyond these there is no index

    return np.fromiter(map(index, values), np.int64)


def _check_yielded(name: str, yielded: int, length: int, what: str) -> None:
    if yielded != length:
        number = f"more than {length}" if yielded > length else yielded
        raise OptionError(f"the {name} yielded {number} {what}, but its length is {length}")


def _check_inside(name: str, samples: Indices, least: int, count: int) -> None:
    outside = samples[(samples < least) | (samples >= count)]
    if outside.size:
        hint = "; negative indices are not taken here" if least == 0 > outside[0] else ""
        raise OptionError(
            f"the {name} yielded {outside[0]}, but the dataset has {count} samples{hint}"
        )
