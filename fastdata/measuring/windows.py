"""Timed windows: how long they are, their order, and a rate with an interval from several.

Other programs can only make windows slower, so they are skewed: rates are medians, and their
intervals are order statistics, which assume no distribution.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import TypeVar

from fastdata.steps.meter import Meter
from fastdata.tuned_settings.settings import Settings

__all__ = [
    "LEAST_BATCHES",
    "Rate",
    "Supply",
    "Windows",
    "in_turns",
    "rate_of",
    "steps_of_run",
]

LEAST_BATCHES = 2
"""Of a window, however long they take."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rate:
    """Batches a second: the median of `windows`, in the order of measurement; a 95% interval."""

    median: float
    low: float
    high: float
    windows: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """`count` windows of at least `seconds`; all but the first have to fit into `most_seconds`."""

    count: int
    seconds: float
    most_seconds: float = math.inf

    def rates(
        self, window: Callable[[], tuple[int, float]], meter: Meter, began: float, *first: float
    ) -> tuple[float, ...]:
        """Return the rate of each `window()`, a count and its seconds; `first` is one of 1."""
        done = [(1, took) for took in first]
        while not done or (
            len(done) < self.count and meter.clock() - began + done[-1][1] <= self.most_seconds
        ):
            done.append(window())
        return tuple(count / took for count, took in done)


@dataclass(frozen=True, slots=True)
class Supply:
    """Batches a second in each window of a loader; bytes include those of workers that ended."""

    rates: tuple[float, ...]
    start_seconds: float
    storage_bytes_per_second: float = 0.0


def rate_of(windows: Sequence[float]) -> Rate:
    """Return the median of the rates of windows and its 95% interval, by order statistics.

    Source: Conover, "Practical Nonparametric Statistics", 3.2.  The range of fewer than six windows
    is less sure: 94% of five, 75% of three.
    """
    if not (count := len(windows)):
        raise ValueError("a rate needs a window")
    outside = accumulate(2 * math.comb(count, k) / 2**count for k in range((count + 1) // 2))
    left_out = max(0, sum(share <= 1 - 0.95 for share in outside) - 1)
    rates = tuple(map(float, windows))
    ordered = sorted(rates)
    return Rate(median(ordered), ordered[left_out], ordered[-1 - left_out], rates)


def in_turns(
    contenders: Iterable[T], rounds: int, order: random.Random | None = None
) -> Iterator[list[T]]:
    """Yield the contenders once a round, each time in another random order."""
    turn, order = list(contenders), order or random.Random(0)
    for _ in range(rounds):
        order.shuffle(turn)
        yield list(turn)


def steps_of_run(settings: Settings, rate: float, seconds: float) -> tuple[int, int]:
    """Return the steps of a run at `rate` steps a second before its windows, and of a window."""
    wave = settings.batches_at_once
    count = max(LEAST_BATCHES, round(rate * seconds))
    # The stock must be used up, or shown to last.
    return settings.batches_ahead + 3, -(-count // wave) * wave
