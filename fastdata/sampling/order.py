"""What an order is: a function from positions of an epoch to sample indices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import OptionError

__all__ = ["Identity", "Indices", "Lookup", "Order", "SamplerEpoch", "Sequential", "check_count"]

Indices: TypeAlias = NDArray[np.int64]
Lookup: TypeAlias = Callable[[Indices], Indices]
Identity: TypeAlias = dict[str, bool | int | str]
"""What makes two orders the same, as plain JSON values."""


class SamplerEpoch:
    """The epoch of a user's sampler, and who sets it.

    Parameters
    ----------
    sampler : object
        A sampler or a batch sampler.  torch's `BatchSampler` has no ``set_epoch``, but a
        `DistributedSampler` in it has.
    """

    def __init__(self, sampler: object) -> None:
        parts = (sampler, getattr(sampler, "sampler", None))
        self._part: Any = next((part for part in parts if hasattr(part, "set_epoch")), None)
        self._seen = self._epoch
        # Samplers begin with epoch 0: another one was set before the loader was made.
        self._begins = self._seen if (self._seen or 0) > 0 else None
        # Where it cannot be seen that somebody else set it, it is left to them.
        self._theirs = self._seen is None

    @property
    def _epoch(self) -> int | None:
        epoch = getattr(self._part, "epoch", None)
        return epoch if isinstance(epoch, int) else None

    def given(self) -> int | None:
        """Return the epoch that the sampler was given by others since it was last looked at.

        The one that it has when the loader is made is where the loader begins to count: this may
        be the user's, or what a loader before has left.
        """
        epoch, begins = self._epoch, self._begins
        self._begins = None
        if epoch == self._seen:
            return begins
        self._seen, self._theirs = epoch, True
        return epoch

    def follow(self, other: SamplerEpoch) -> None:
        """Know of the same sampler what `other` does."""
        self._seen, self._begins, self._theirs = other._seen, other._begins, other._theirs

    def set(self, epoch: int, *, asked: bool) -> None:
        """Set the sampler's epoch, but not over one that others set unless the user asks for it."""
        self._begins = None
        if self._part is None or (self._theirs and not asked):
            return
        self._theirs = False
        self._part.set_epoch(epoch)
        self._seen = self._epoch


class Order(ABC):
    """Where each sample of an epoch stands.

    `len` is the number of positions in an epoch.
    """

    pure: ClassVar[bool] = True
    """Whether `of` may be called for an epoch before the one before it has ended."""

    repeats: bool = False
    """Whether an epoch may have a sample more than once; each time it draws anew."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def of(self, epoch: int) -> Lookup:
        """Return a function from positions to sample indices, both int64 [n].

        Positions are from 0 to ``len(self) - 1``.  This call may be expensive,
        once an epoch; what it returns is cheap to call, best with thousands
        of positions at a time, and safe to call from several threads and
        after a fork.
        """

    @property
    def sampler_epoch(self) -> SamplerEpoch | None:
        """The epoch of the user's sampler that decides this order; None where none does."""
        return None

    @property
    def repeated(self) -> int:
        """Samples that this order has on two ranks, over all of them."""
        return 0

    @property
    def identity(self) -> Identity:
        """What must be the same for a position of an epoch to mean the same sample."""
        return {"order": type(self).__name__, "samples": len(self), **self._options()}

    @abstractmethod
    def _options(self) -> Identity:
        """Return the part of `identity` that is this order's own."""


@dataclass(frozen=True, slots=True)
class Sequential(Order):
    """Every sample, in the order of the dataset.

    Parameters
    ----------
    count : int
        Number of samples.
    """

    count: int

    def __post_init__(self) -> None:
        check_count("count", self.count, 0)

    def __len__(self) -> int:
        return self.count

    def of(self, epoch: int) -> Lookup:
        return _same

    def _options(self) -> Identity:
        return {}


def check_count(name: str, value: Any, least: int) -> None:
    """Refuse what is no int of at least `least`, or more than 2**62."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**62:
        raise OptionError(f"{name} is an int from {least} to 2**62, not {value!r}")


def _same(positions: Indices) -> Indices:
    return positions
