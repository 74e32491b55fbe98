"""Windows: batches with nothing done to them, steps on batches that are there, both together.

A window begins and ends as a batch arrives, after what was made ahead has been thrown away, so
that it counts what workers can go on with and not what they had in stock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastdata.steps.meter import Meter
from fastdata.tuning.batches import Endless
from fastdata.tuning.fitting import ahead_of
from fastdata.tuning.settings import Settings

__all__ = [
    "LEAST_BATCHES",
    "Supplied",
    "Windows",
    "demand",
    "group_of",
    "steps_of_run",
    "storage_bytes",
    "supply",
    "trained",
]

LEAST_BATCHES = 2
"""Of a window, however long they take."""

MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Windows:
    """How many windows are measured, and how long.

    Attributes
    ----------
    count : int
    seconds : float
        Of each, at least.
    most_seconds : float
        For all of them: none is begun that would not fit, but one there always is.
    """

    count: int
    seconds: float
    most_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Supplied:
    """What a turn of some settings gave.

    Attributes
    ----------
    rates : tuple of float
        Batches a second, of each window.
    start_seconds : float
        From the making of the loader to its first batch.
    storage_bytes_per_second : float
        Read from disks meanwhile, by this process and workers that have ended.
    """

    rates: tuple[float, ...]
    start_seconds: float
    storage_bytes_per_second: float = 0.0


def supply(
    loader: Any,
    settings: Settings,
    windows: Windows,
    *,
    began: float,
    meter: Meter,
    clock: Callable[[], float] = time.perf_counter,
    batches_of_epoch: int | None = None,
) -> Supplied:
    """Take batches and do nothing to them.

    Parameters
    ----------
    loader : iterable
    settings : Settings
        Those it was made with.
    windows : Windows
    began : float
        When the making of the loader was begun, by `clock`.
    meter : Meter
        Of the device where batches arrive.
    clock : callable
    batches_of_epoch : int, optional
        Where workers do not persist: each window's rate is that of an epoch which begins with
        their start, unless epochs are so short that windows have several starts anyway.
    """
    batches = Endless(loader)
    try:
        next(batches)
        meter.synchronize()
        start_seconds = clock() - began
        for _ in range(ahead_of(settings) + 1):
            next(batches)
        group, epochs = group_of(settings), batches.epochs
        rates: list[float] = []
        took, begun = 0.0, clock()
        while _another(len(rates), windows, clock() - begun + took):
            meter.synchronize()
            count, started = 0, clock()
            while True:
                for _ in range(group):
                    next(batches)
                count += group
                if count >= LEAST_BATCHES:
                    meter.synchronize()
                    took = clock() - started
                    if took >= windows.seconds:
                        break
            rates.append(count / took)
        if batches_of_epoch and batches.epochs == epochs:
            rates = [batches_of_epoch / (start_seconds + batches_of_epoch / r) for r in rates]
        return Supplied(tuple(rates), start_seconds)
    finally:
        batches.close()


def demand(
    step: Callable[[Any], Any],
    batches: Sequence[Any],
    windows: Windows,
    *,
    meter: Meter,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Return steps a second on batches that are where the step wants them, in turn.

    Parameters
    ----------
    step : callable
    batches : sequence of batches
    windows : Windows
        A step that is longer than a window is one, and two steps are then all there need be.
    meter : Meter
    clock : callable
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
    while _another(len(rates), windows, clock() - begun + took):
        took = meter.seconds(partial(work, count))
        rates.append(count / took)
    return tuple(rates)


def trained(
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

    Parameters
    ----------
    loader, step, settings, windows, meter
        As above.
    rate : float
        About how many steps a second are expected, for the length of windows.
    clock : callable
    """
    batches = Endless(loader)
    first, count = steps_of_run(settings, rate, windows.seconds)
    rates: list[float] = []

    def work(count: int) -> None:
        for _ in range(count):
            step(next(batches))

    try:
        took, begun = 0.0, clock()
        work(first)
        while _another(len(rates), windows, clock() - begun + took):
            took = meter.seconds(partial(work, count))
            rates.append(count / took)
        return tuple(rates)
    finally:
        batches.close()


def steps_of_run(settings: Settings, rate: float, seconds: float) -> tuple[int, int]:
    """Return the steps of a run before its windows, and those of a window.

    Parameters
    ----------
    settings : Settings
    rate : float
        Steps a second.
    seconds : float
        Of a window, at least.
    """
    group = group_of(settings)
    count = max(LEAST_BATCHES, round(rate * seconds))
    # What is in stock must be used up, or shown to last.
    return ahead_of(settings) + 3, -(-count // group) * group


def group_of(settings: Settings) -> int:
    """Return how many batches come at once: workers of a stock loader come in waves."""
    return max(1, settings.num_workers) if settings.backend == "torch" else 1


def _another(done: int, windows: Windows, until: float) -> bool:
    """Return whether one more window is wanted, and fits, as it would last `until`."""
    return not done or (done < windows.count and until <= windows.most_seconds)


def storage_bytes() -> int:
    """Return what this process, with children that it has waited for, has read from disks."""
    try:
        with open("/proc/self/io") as file:
            return next(
                (int(line.split()[1]) for line in file if line.startswith("read_bytes:")), 0
            )
    except (OSError, ValueError):
        return 0
