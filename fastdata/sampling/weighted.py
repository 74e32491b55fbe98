"""Samples drawn by weight: classes that are rare can be seen as often as others."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import ArrayLike, NDArray

from fastdata.errors import OptionError
from fastdata.random import Draws, operation_id
from fastdata.sampling.order import Identity, Indices, Lookup, Order, check_count

__all__ = ["Weighted"]

WEIGHTED = operation_id(0, "Weighted")


class Weighted(Order):
    """Samples drawn at random, each as likely as its weight says.

    What `torch.utils.data.WeightedRandomSampler` does, but the same on every
    rank and after a resume.

    Parameters
    ----------
    weights : array_like of float, shape [count]
        One for each sample of the dataset, finite and at least 0, in any scale.
    seed : int
        Epochs of one seed are drawn independently.
    num_samples : int, optional
        Samples of an epoch; by default as many as there are weights.
    replacement : bool
        True: every position is drawn by itself, as a function of (seed, epoch,
        position).  False: no sample comes twice in an
        epoch; the first is drawn by weight, the next by weight among those
        left, and so on.  Both keep some arrays as long as the weights, made
        anew each epoch: a sum with replacement, a sort without.

    Raises
    ------
    OptionError
        If a weight is negative, infinite or not a number, if all are 0, or if
        without replacement fewer are above 0 than samples are to be drawn.

    Notes
    -----
    Without replacement: sample i gets the key E / weight, E exponentially
    distributed, and samples are taken by ascending key (Efraimidis and
    Spirakis, "Weighted random sampling with a reservoir", 2006).  Keys come
    from NumPy's logarithm, whose last bit differs between builds: two keys
    that are equal but for it may change places there.
    """

    def __init__(
        self,
        weights: ArrayLike,
        seed: int,
        num_samples: int | None = None,
        *,
        replacement: bool = True,
    ) -> None:
        # A copy: what the caller changes later must not change the order.
        self._weights = np.array(weights, np.float64)
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
        drawable = np.flatnonzero(self._weights)
        if not drawable.size:
            raise OptionError(
                f"all {self.count} weights are 0; at least one sample must be possible to draw"
            )
        with np.errstate(over="ignore"):
            total = self._weights.sum()
        if not np.isfinite(total):
            raise OptionError("the sum of the weights is infinite; scale them down")
        if num_samples is None:
            num_samples = self.count
        check_count("num_samples", num_samples, 1)
        if not replacement and num_samples > drawable.size:
            raise OptionError(
                f"{num_samples} samples are to be drawn without replacement, but {drawable.size} "
                f"of {self.count} weights are above 0; lower num_samples, or draw with replacement"
            )
        self._drawable = drawable
        self._seed = seed
        self._num_samples = num_samples
        self._replacement = self.repeats = replacement

    @property
    def count(self) -> int:
        """Number of weights, which is that of the samples of the dataset."""
        return len(self._weights)

    def __len__(self) -> int:
        return self._num_samples

    def of(self, epoch: int) -> Lookup:
        if self._replacement:
            return _WithReplacement(self._weights, self._seed, epoch)
        keys = -np.log1p(-Draws(self._seed, epoch, WEIGHTED, self._drawable).uniform()[:, 0])
        keys /= self._weights[self._drawable]
        # Stable, so that equal keys keep the order of the dataset everywhere.
        order = self._drawable[np.argsort(keys, kind="stable")[: self._num_samples]]
        return order.take

    def _options(self) -> Identity:
        return {
            "seed": self._seed,
            "replacement": self._replacement,
            "weights": xxhash.xxh3_128_hexdigest(self._weights.astype("<f8").tobytes()),
        }


class _WithReplacement:
    """One epoch with replacement: each position looks up its own random number."""

    def __init__(self, weights: NDArray[np.float64], seed: int, epoch: int) -> None:
        self._bounds = np.cumsum(weights)
        self._last = int(np.flatnonzero(weights)[-1])
        self._seed = seed
        self._epoch = epoch

    def __call__(self, positions: Indices) -> Indices:
        drawn = Draws(self._seed, self._epoch, WEIGHTED, positions).uniform()[:, 0]
        # The first bound above the point; a sample of weight 0 has an empty interval.
        drawn_samples = np.searchsorted(self._bounds, drawn * self._bounds[-1], side="right")
        # Rounding may put the point on the very last bound, above which there is none.
        samples: Indices = np.minimum(drawn_samples, self._last).astype(np.int64)
        return samples
