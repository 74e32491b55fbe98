"""Windows: batches with nothing done to them, steps on batches that are there, both together.

A window begins and ends as a batch arrives, after what was made ahead has been thrown away, so
that it counts what workers can go on with and not what they had in stock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.steps.meter import Meter
from fastdata.tuning.fitting import ahead_of
from fastdata.tuning.settings import Settings

__all__ = [
    "LEAST_BATCHES",
    "Endless",
    "Supplied",
    "Windows",
    "batch_nbytes",
    "demand",
    "storage_bytes",
    "supply",
    "trained",
]

LEAST_BATCHES = 2
"""Of a window, however long they take."""

MOST_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Windows:
    """How many windows are measured, and how long each is at least."""

    count: int
    seconds: float


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


class Endless(Iterator[Any]):
    """Batches of one epoch after another.

    Parameters
    ----------
    loader : iterable

    Attributes
    ----------
    epochs : int
        That have been begun.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._epoch: Iterator[Any] = iter(())
        self.epochs = 0

    def __next__(self) -> Any:
        try:
            return next(self._epoch)
        except StopIteration:
            self._epoch = iter(self._loader)
            self.epochs += 1
        try:
            return next(self._epoch)
        except StopIteration:
            raise OptionError(
                "the loader has no batches: the dataset is empty, or smaller than a batch with "
                "drop_last=True"
            ) from None

    def close(self) -> None:
        """Leave the epoch."""
        self._epoch = iter(())


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
        # Workers of a stock loader come in waves, each with one batch.
        group = settings.num_workers if settings.backend == "torch" and settings.num_workers else 1
        epochs = batches.epochs
        rates = []
        for _ in range(windows.count):
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
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, ...]:
    """Return steps a second on batches that are where the step wants them, in turn.

    Parameters
    ----------
    step : callable
    batches : sequence of batches
    windows : Windows
    meter : Meter
    seconds : float
        When so much time is over, no window is begun any more; one there always is.
    clock : callable
    """

    def work(count: int) -> None:
        for number in range(count):
            step(batches[number % len(batches)])

    end = clock() + seconds
    meter.seconds(partial(work, 1))  # what the first time costs
    once = meter.seconds(partial(work, 1))
    if once >= windows.seconds:
        count = 1
    else:
        least = max(1, min(10, int(windows.seconds / max(once, 1e-9))))
        count = min(meter.repeats(work, windows.seconds, least=least), MOST_STEPS)
    rates: list[float] = []
    while len(rates) < windows.count and (not rates or clock() < end):
        rates.append(count / meter.seconds(partial(work, count)))
    return tuple(rates)


def trained(
    loader: Any,
    step: Callable[[Any], Any],
    settings: Settings,
    windows: Windows,
    *,
    meter: Meter,
    rate: float,
) -> tuple[float, ...]:
    """Return steps a second of a training loop: each takes a batch, and does the step on it.

    Parameters
    ----------
    loader, step, settings, windows, meter
        As above.
    rate : float
        About how many steps a second are expected, for the length of windows.
    """
    batches = Endless(loader)

    def work(count: int) -> None:
        for _ in range(count):
            step(next(batches))

    try:
        # What is in stock must be used up, or shown to last.
        work(ahead_of(settings) + 3)
        group = settings.num_workers if settings.backend == "torch" and settings.num_workers else 1
        count = max(LEAST_BATCHES, round(rate * windows.seconds))
        count = -(-count // group) * group
        return tuple(count / meter.seconds(partial(work, count)) for _ in range(windows.count))
    finally:
        batches.close()


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors and arrays in a batch, however it is nested."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return int(batch.nbytes)
    if isinstance(batch, Mapping):
        return sum(map(batch_nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(batch_nbytes, batch))
    return len(batch) if isinstance(batch, (bytes, str)) else 0


def storage_bytes() -> int:
    """Return what this process, with children that it has waited for, has read from disks."""
    try:
        with open("/proc/self/io") as file:
            return next(
                (int(line.split()[1]) for line in file if line.startswith("read_bytes:")), 0
            )
    except (OSError, ValueError):
        return 0
