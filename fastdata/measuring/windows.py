"""Timed windows: batches with nothing done to them, steps on batches that are there, and both.

A window begins and ends as a batch arrives, after what was made ahead has been thrown away, so
that it counts what workers can go on with and not what they had in stock.

Windows of a second are skewed: something else took the core, never the other way.  So rates
are medians, and their intervals are order statistics, which assume nothing of a distribution.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from fastdata.measuring.loaders import EndlessBatches
from fastdata.steps.meter import Meter
from fastdata.tuned_settings.settings import Settings

__all__ = [
    "CONFIDENCE",
    "LEAST_BATCHES",
    "Rate",
    "Supply",
    "Windows",
    "in_turns",
    "measure_demand",
    "measure_supply",
    "measure_training",
    "rate_of",
    "steps_of_run",
    "storage_bytes_read",
]

CONFIDENCE = 0.95

LEAST_BATCHES = 2
"""Of a window, however long they take."""

MOST_STEPS = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rate:
    """Batches a second: the median of several windows, and a 95% interval of it.

    `windows` has the rate of each, in the order in which they were measured.
    """

    median: float
    low: float
    high: float
    windows: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Windows:
    """How many windows are measured, of at least so many seconds each.

    Of those that would not fit into `most_seconds` altogether, only the first is begun.
    """

    count: int
    seconds: float
    most_seconds: float = math.inf

    def another(self, done: int, until: float) -> bool:
        """Return whether one more window is wanted after `done`, and fits, lasting `until`."""
        return not done or (done < self.count and until <= self.most_seconds)


@dataclass(frozen=True, slots=True)
class Supply:
    """Batches a second of each window of a loader; how long its first batch took.

    Read from storage is what this process and workers that have ended have read meanwhile.
    """

    rates: tuple[float, ...]
    start_seconds: float
    storage_bytes_per_second: float = 0.0


def rate_of(windows: Sequence[float]) -> Rate:
    """Return the median of some windows' rates and its 95% interval.

    The interval is from the k-th smallest to the k-th largest, k as large as the binomial
    distribution allows (Conover, "Practical Nonparametric Statistics", 3.2).  Of fewer than six
    it is all there are, which is less sure: 94% of five, 75% of three.  Of none it raises
    `ValueError`.
    """
    if not len(windows):
        raise ValueError("a rate needs a window")
    ordered = np.sort(np.asarray(windows, float))
    left_out = _left_out(len(ordered))
    return Rate(
        median=float(np.median(ordered)),
        low=float(ordered[left_out]),
        high=float(ordered[-1 - left_out]),
        windows=tuple(float(window) for window in windows),
    )


def _left_out(count: int) -> int:
    """Return how many of so many windows lie outside of the interval at each end."""
    left_out, outside = 0, 2 / 2**count
    while 2 * (left_out + 1) < count:
        outside += 2 * math.comb(count, left_out + 1) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        left_out += 1
    return left_out


def in_turns(
    contenders: Iterable[T], rounds: int, order: random.Random | None = None
) -> Iterator[list[T]]:
    """Yield the contenders once a round, each time in another random order.

    So whatever the machine does meanwhile happens to all of them.  Without `order` the orders are
    the same in each call.
    """
    turn = list(contenders)
    order = order or random.Random(0)
    for _ in range(rounds):
        order.shuffle(turn)
        yield list(turn)


def measure_supply(
    loader: Any,
    settings: Settings,
    windows: Windows,
    *,
    began: float,
    meter: Meter,
    clock: Callable[[], float] = time.perf_counter,
    batches_of_epoch: int | None = None,
) -> Supply:
    """Take batches and do nothing to them.

    The making of the loader, with `settings`, was begun at `began` by `clock`; its batches arrive
    on the device of `meter`.  Where workers do not persist, `batches_of_epoch` makes each
    window's rate that of an epoch which begins with their start, unless epochs are so short that
    windows have several starts anyway.
    """
    with closing(EndlessBatches(loader)) as batches:
        next(batches)
        meter.synchronize()
        start_seconds = clock() - began
        for _ in range(settings.batches_ahead + 1):
            next(batches)
        wave, epochs = settings.batches_at_once, batches.epochs
        rates: list[float] = []
        took, begun = 0.0, clock()
        while windows.another(len(rates), clock() - begun + took):
            meter.synchronize()
            count, started = 0, clock()
            while True:
                for _ in range(wave):
                    next(batches)
                count += wave
                if count >= LEAST_BATCHES:
                    meter.synchronize()
                    took = clock() - started
                    if took >= windows.seconds:
                        break
            rates.append(count / took)
        if batches_of_epoch and batches.epochs == epochs:
            rates = [batches_of_epoch / (start_seconds + batches_of_epoch / r) for r in rates]
        return Supply(tuple(rates), start_seconds)


def measure_demand(
    step: Callable[[Any], Any],
    batches: Sequence[Any],
    windows: Windows,
    *,
    meter: Meter,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Return steps a second on batches that are where the step wants them, in turn.

    A step that is longer than a window is one, and two steps are then all there need be.
    """

    def work(count: int) -> None:
        for number in range(count):
            step(batches[number % len(batches)])

    begun = clock()
    meter.seconds(partial(work, 1))  # what the first time costs
    once = meter.seconds(partial(work, 1))
    rates: list[float] = []
    took = once
    if once >= windows.seconds:
        count, rates = 1, [1 / once]
    else:
        least = max(1, min(10, int(windows.seconds / max(once, 1e-9))))
        count = min(meter.repeats(work, windows.seconds, least=least), MOST_STEPS)
    while windows.another(len(rates), clock() - begun + took):
        took = meter.seconds(partial(work, count))
        rates.append(count / took)
    return tuple(rates)


def measure_training(
    loader: Any,
    step: Callable[[Any], Any],
    settings: Settings,
    windows: Windows,
    *,
    meter: Meter,
    rate: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Return steps a second of a training loop: each takes a batch, and does the step on it.

    About `rate` steps a second are expected, for the length of windows.
    """
    first, count = steps_of_run(settings, rate, windows.seconds)
    rates: list[float] = []
    with closing(EndlessBatches(loader)) as batches:

        def work(count: int) -> None:
            for _ in range(count):
                step(next(batches))

        took, begun = 0.0, clock()
        work(first)
        while windows.another(len(rates), clock() - begun + took):
            took = meter.seconds(partial(work, count))
            rates.append(count / took)
    return tuple(rates)


def steps_of_run(settings: Settings, rate: float, seconds: float) -> tuple[int, int]:
    """Return the steps of a run at `rate` steps a second before its windows, and of a window."""
    wave = settings.batches_at_once
    count = max(LEAST_BATCHES, round(rate * seconds))
    # What is in stock must be used up, or shown to last.
    return settings.batches_ahead + 3, -(-count // wave) * wave


def storage_bytes_read() -> int:
    """Return what this process, with children that it has waited for, has read from disks."""
    try:
        with open("/proc/self/io") as file:
            return next(
                (int(line.split()[1]) for line in file if line.startswith("read_bytes:")), 0
            )
    except (OSError, ValueError):
        return 0
