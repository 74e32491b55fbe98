"""What an order is: a function from positions of an epoch to sample indices.

`Sequential` has every sample where the dataset has it; `Weighted` draws samples by weight, so
that classes that are rare can be seen as often as others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from fastdata.bounds import check_int
from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id

if TYPE_CHECKING:
    from fastdata.sampling.samplers import SamplerEpoch

__all__ = ["Identity", "Indices", "Lookup", "Order", "Sequential", "Weighted"]

Indices: TypeAlias = NDArray[np.int64]
Lookup: TypeAlias = Callable[[Indices], Indices]
Identity: TypeAlias = dict[str, bool | int | str]
"""What makes two orders the same, as plain JSON values."""

WEIGHTED = operation_id(0, "Weighted")


class Order(ABC):
    """The sample at each position of an epoch.

    `len` is the number of positions in an epoch.
    """

    pure: ClassVar[bool] = True
    """Whether `in_epoch` may be called for an epoch before the one before it has ended."""

    repeats: bool = False
    """Whether an epoch may have a sample more than once; each time it draws anew."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def in_epoch(self, epoch: int) -> Lookup:
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
    """Every sample, in the order of the dataset."""

    count: int

    def __post_init__(self) -> None:
        check_int("count", self.count)

    def __len__(self) -> int:
        return self.count

    def in_epoch(self, epoch: int) -> Lookup:
        return _same

    def _options(self) -> Identity:
        return {}


class Weighted(Order):
    """Samples drawn at random with replacement, each as likely as its weight says.

    What `torch.utils.data.WeightedRandomSampler` does, but every position is a function of (seed,
    epoch, position): the same on every rank and after a resume.  An epoch has as many samples as
    there are weights.  `OptionError` if the weights are not one number for each sample, finite and
    at least 0, in any scale, and not all 0.
    """

    repeats = True

    def __init__(self, weights: ArrayLike, seed: int) -> None:
        # A copy: what the caller changes later must not change the order.
        try:
            self._weights = np.array(weights, np.float64)
        except (TypeError, ValueError) as error:
            raise OptionError(f"weights are one number for each sample ({error})") from None
        self._seed = seed
        if self._weights.ndim != 1:
            raise OptionError(
                f"weights are one number for each sample, not an array of shape "
                f"{self._weights.shape}"
            )
        wrong = np.flatnonzero(~(np.isfinite(self._weights) & (self._weights >= 0)))
        if wrong.size:
            raise OptionError(
                f"weights are finite and at least 0, but that of sample {wrong[0]} is "
                f"{self._weights[wrong[0]]}"
            )
        if not self._weights.any():
            raise OptionError(
                f"all {len(self)} weights are 0; at least one sample must be possible to draw"
            )
        with np.errstate(over="ignore"):
            total = self._weights.sum()
        if not np.isfinite(total):
            raise OptionError("the sum of the weights is infinite; scale them down")

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def possible(self) -> Indices:
        """The samples that can be drawn, int64 [n]."""
        return np.flatnonzero(self._weights)

    def in_epoch(self, epoch: int) -> Lookup:
        bounds = np.cumsum(self._weights)
        last = int(np.flatnonzero(self._weights)[-1])

        def look_up(positions: Indices) -> Indices:
            drawn = Draws(self._seed, epoch, WEIGHTED, positions).uniform()[:, 0]
            # The first bound above the point; a sample of weight 0 has an empty interval.
            samples = np.searchsorted(bounds, drawn * bounds[-1], side="right")
            # Rounding may put the point on the very last bound, above which there is none.
            found: Indices = np.minimum(samples, last).astype(np.int64)
            return found

        return look_up

    def _options(self) -> Identity:
        return {
            "seed": self._seed,
            "replacement": True,  # as states that were saved have it
            "weights": xxhash.xxh3_128_hexdigest(self._weights.astype("<f8").tobytes()),
        }


def _same(positions: Indices) -> Indices:
    return positions
