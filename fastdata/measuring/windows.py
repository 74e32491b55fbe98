"""Timed windows: batches with nothing done to them, steps on batches that are there, and both.

A window begins and ends as a batch arrives, and the stock of batches is used up before the first.
Other programs can only make windows slower, so they are skewed: rates are medians, and their
intervals are order statistics, which assume no distribution.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, cycle
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from fastdata.measuring.loaders import EndlessBatches
from fastdata.steps.meter import Meter
from fastdata.tuned_settings.settings import Settings

__all__ = [
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

LEAST_BATCHES = 2
"""Of a window, however long they take."""

MOST_STEPS = 10_000

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
    count = len(windows)
    if not count:
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
    batches_of_epoch: int | None = None,
) -> Supply:
    """Take batches, which arrive on the device of `meter`, and do nothing to them.

    The making of the loader, with `settings`, began at `began`.  If workers do not persist,
    `batches_of_epoch` makes each rate that of an epoch which begins with their start, unless epochs
    are so short that windows have several starts anyway.
    """
    clock, wave = meter.clock, settings.batches_at_once
    with closing(EndlessBatches(loader)) as batches:

        def window() -> tuple[int, float]:
            meter.synchronize()
            count, took, started = 0, 0.0, clock()
            while count < LEAST_BATCHES or took < windows.seconds:
                for _ in range(wave):
                    next(batches)
                count += wave
                if count >= LEAST_BATCHES:
                    meter.synchronize()
                    took = clock() - started
            return count, took

        next(batches)
        meter.synchronize()
        start_seconds = clock() - began
        for _ in range(settings.batches_ahead + 1):
            next(batches)
        epochs = batches.epochs
        rates = windows.rates(window, meter, clock())
        if (length := batches_of_epoch) and batches.epochs == epochs:
            rates = tuple(length / (start_seconds + length / rate) for rate in rates)
        return Supply(rates, start_seconds)


def measure_demand(
    step: Callable[[Any], Any], batches: Sequence[Any], windows: Windows, *, meter: Meter
) -> tuple[float, ...]:
    """Return steps a second on batches that are where the step wants them, in turn."""
    work, began = partial(_take_steps, step, cycle(batches)), meter.clock()
    meter.seconds(partial(work, 1))  # what the first time costs
    once = meter.seconds(partial(work, 1))
    if once >= windows.seconds:  # each step is a window
        return windows.rates(lambda: (1, meter.seconds(partial(work, 1))), meter, began, once)
    least = max(1, min(10, int(windows.seconds / max(once, 1e-9))))
    count = min(meter.repeats(work, windows.seconds, least=least), MOST_STEPS)
    return windows.rates(lambda: (count, meter.seconds(partial(work, count))), meter, began)


def measure_training(
    loader: Any,
    step: Callable[[Any], Any],
    settings: Settings,
    windows: Windows,
    *,
    meter: Meter,
    rate: float,
) -> tuple[float, ...]:
    """Return steps a second of a training loop; about `rate` are expected."""
    first, count = steps_of_run(settings, rate, windows.seconds)
    with closing(EndlessBatches(loader)) as batches:
        work, began = partial(_take_steps, step, batches), meter.clock()
        work(first)
        return windows.rates(lambda: (count, meter.seconds(partial(work, count))), meter, began)


def _take_steps(step: Callable[[Any], Any], batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        step(next(batches))


def steps_of_run(settings: Settings, rate: float, seconds: float) -> tuple[int, int]:
    """Return the steps of a run at `rate` steps a second before its windows, and of a window."""
    wave = settings.batches_at_once
    count = max(LEAST_BATCHES, round(rate * seconds))
    # The stock must be used up, or shown to last.
    return settings.batches_ahead + 3, -(-count // wave) * wave


def storage_bytes_read() -> int:
    """Return what this process, with children that it has waited for, has read from disks."""
    with suppress(OSError, IndexError):
        counts = Path("/proc/self/io").read_text()
        return int(counts.partition("\nread_bytes:")[2].split()[0])
    return 0
