"""Distributions as bars, and what is said below them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Histogram", "histogram"]

_MOST_BARS = 24


class Histogram(NamedTuple):
    """A distribution.

    Attributes
    ----------
    name : str
    bars : list of (float, str)
        Height of each from 0 to 1, and what it stands for.
    low, middle, high : str
        Least, median and largest value.
    """

    name: str
    bars: list[tuple[float, str]]
    low: str
    middle: str
    high: str


def histogram(
    name: str, values: np.ndarray[Any, Any], shown: Callable[[float], str]
) -> Histogram | None:
    """Return the distribution of some numbers; None where there are none.

    Bars are as wide as the rule of Freedman and Diaconis has them (`numpy.histogram_bin_edges`),
    and at most 24.
    """
    if len(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    middle = float(np.partition(values, (len(values) - 1) // 2)[(len(values) - 1) // 2])
    if low == high:
        bars = [(1.0, f"{shown(low)}: {len(values):,}")]
        return Histogram(name, bars, shown(low), shown(middle), shown(high))
    # Of very many values some tell as much of how wide bars should be.
    some = values[:: max(1, len(values) // 100_000)]
    edges = np.histogram_bin_edges(some, "fd", (low, high))
    whole = bool(np.all(values == np.round(values)))
    most = min(_MOST_BARS, int(high - low) + 1) if whole else _MOST_BARS
    count = int(np.clip(len(edges) - 1, min(8, most), most))
    counts, edges = np.histogram(values, count, (low, high))
    tops = counts / counts.max()
    bars = [
        (float(top), f"{shown(float(a))} - {shown(float(b))}: {number:,}")
        for top, number, a, b in zip(tops, counts, edges[:-1], edges[1:], strict=True)
    ]
    return Histogram(name, bars, shown(low), shown(middle), shown(high))
