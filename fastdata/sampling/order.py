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
    """The epoch of a user's sampler, which the loader sets unless other code does.

    Parameters
    ----------
    sampler : object
        A sampler or a batch sampler.  torch's `BatchSampler` has no ``set_epoch``, but a
        `DistributedSampler` in it has.
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

    def given(self) -> int | None:
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
        """The epoch of the user's sampler that decides this order; None without a sampler."""
        return None

    @property
    def repeated(self) -> int:
        """How many samples this order has on two ranks, over all ranks."""
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
    """Raise `OptionError` unless `value` is an int from `least` to 2**62."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**62:
        raise OptionError(f"{name} is an int from {least} to 2**62, not {value!r}")


def _same(positions: Indices) -> Indices:
    return positions
