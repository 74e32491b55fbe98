"""Medians of few measurements, with intervals that assume nothing of their distribution.

Windows of a second are skewed: something else took the core, never the other way.  So rates
are medians, and their intervals are order statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np

from fastdata.tuning.results import Rate

__all__ = ["CONFIDENCE", "rate_of"]

CONFIDENCE = 0.95


def rate_of(windows: Sequence[float]) -> Rate:
    """Return the median of some rates and its 95% interval.

    The interval is from the k-th smallest to the k-th largest, k as large as the binomial
    distribution allows (Conover, "Practical Nonparametric Statistics", 3.2).  Of fewer than six
    it is all there are, which is less sure: 94% of five, 75% of three.

    Raises
    ------
    ValueError
        If there is none.
    """
    if not len(windows):
        raise ValueError("a rate needs a window")
    ordered = np.sort(np.asarray(windows, float))
    place = _place(len(ordered))
    return Rate(
        median=float(np.median(ordered)),
        low=float(ordered[place]),
        high=float(ordered[-1 - place]),
        windows=tuple(float(window) for window in windows),
    )


def _place(count: int) -> int:
    """Return how many may be left out at each end."""
    place, outside = 0, 2 / 2**count
    while 2 * (place + 1) < count:
        outside += 2 * comb(count, place + 1) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        place += 1
    return place
