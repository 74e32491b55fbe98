"""The time and the memory that a tuning has, and what settings will take of both.

    a trial            start, what was made ahead, windows of batches
    the training run   what was made ahead, windows of steps: with the real step, in the end

What a step or a batch takes is known only after the first look: then a part of the time is
reserved for the training run, and the whole is extended where it cannot be shorter.

Memory is predicted before settings are tried, as the system kills what takes too much.  The
figures are upper bounds for the batches that exist at one time, without what a user's dataset
holds in each worker; so memory is watched during a trial too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastdata.engine.backend import SPARE_BUFFERS
from fastdata.engine.delivery import DEPTH
from fastdata.measuring.windows import LEAST_BATCHES, steps_of_run
from fastdata.processes.resources import RESERVE_BYTES, format_bytes
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.choice import HEADROOM

__all__ = [
    "PROCESS_BYTES",
    "MemoryEstimate",
    "TimeBudget",
    "cost_of",
    "likely_workers",
    "memory_estimate",
    "refusal",
    "run_seconds",
    "seconds_until_windows",
    "trial_seconds",
]

TRIALS_SHARE = 0.3
"""Of the time that was given, what comparing settings gets however slow the step is."""

RUN_SHARE = 0.2
"""What training runs get at least: of the choice, and of other numbers of workers."""

PROCESS_BYTES = 64 << 20
"""Private memory of a forked worker process: 40 to 60 MB with torch imported."""

SHM_RESERVE_BYTES = 1 << 20


# -- time -----------------------------------------------------------------------------------


class TimeBudget:
    """The time that a tuning has: `seconds` were given, and it takes at most `total`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = self.total = seconds
        self._clock = clock
        self._reserved = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._began = self._clock()

    def reserve_run(self, settings: Settings, rate: float) -> float:
        """Keep time for a training run with these settings, for a window of it at least.

        `for_trials` does not count it.  At `rate` steps a second; returns how many seconds too few
        there are for that.
        """
        least = run_seconds(settings, rate, self.run_window_seconds, 1)
        left = self.seconds - self.used - TRIALS_SHARE * self.seconds
        self._reserved = max(least, min(RUN_SHARE * self.seconds, left))
        return max(0.0, least - left)

    def extend(self, seconds: float) -> None:
        """Have so much more."""
        self.total += seconds

    @property
    def used(self) -> float:
        """Seconds that are over."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.total - self.used)

    @property
    def for_trials(self) -> float:
        """Seconds that are left for comparing settings, at least 0."""
        return max(0.0, self.left - self._reserved)

    @property
    def window_seconds(self) -> float:
        """How long a window of batches is: about 240 are measured."""
        return min(max(self.seconds / 240, 0.05), 1.0)

    @property
    def run_window_seconds(self) -> float:
        """How long a window of the training run is."""
        return min(max(self.seconds / 60, 0.2), 2.0)


def run_seconds(settings: Settings, rate: float, window_seconds: float, windows: int) -> float:
    """Return how long a training run takes, at `rate` steps a second."""
    first, each = steps_of_run(settings, rate, window_seconds)
    return (first + windows * each) / rate


def likely_workers(rate: float, batch_seconds: float, most: int) -> int:
    """Return how many workers a step of `rate` batches a second will take, 1 to `most`.

    By what a batch takes in one thread: the best guess before any worker was started.
    """
    return min(max(1, math.ceil(HEADROOM * rate * batch_seconds)), max(1, most))


def seconds_until_windows(settings: Settings, batch_seconds: float) -> float:
    """Return what a trial takes until its windows: a first batch, and what was made ahead of it.

    Where no worker is in another's way; `batch_seconds` makes one batch in one thread.
    """
    return (settings.batches_ahead + 2) * batch_seconds / max(1, settings.num_workers)


def trial_seconds(settings: Settings, batch_seconds: float) -> float:
    """Return the least time of a trial, of one window; as `seconds_until_windows`."""
    batches = max(LEAST_BATCHES, settings.batches_at_once)
    window = batches * batch_seconds / max(1, settings.num_workers)
    return seconds_until_windows(settings, batch_seconds) + window


# -- memory ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes of host memory, and those of them in ``/dev/shm``."""

    memory_bytes: int
    shm_bytes: int


def memory_estimate(
    settings: Settings, batch_bytes: int, *, to_device: bool = False
) -> MemoryEstimate:
    """Return the memory that settings take, where one batch takes `batch_bytes` on the host."""
    batches = settings.batches_ahead + SPARE_BUFFERS + DEPTH * to_device
    stock = settings.backend == "torch"
    processes = settings.num_workers > 0 and (stock or settings.worker_method == "process")
    memory = batches * batch_bytes
    # Memory that fastdata shares with its workers is no file of /dev/shm: only stock ones are.
    shm = memory if stock and processes else 0
    if stock and settings.pin_memory and processes:
        memory += (1 + DEPTH) * batch_bytes
    if processes:
        memory += settings.num_workers * PROCESS_BYTES
    return MemoryEstimate(memory, shm)


def cost_of(settings: Settings, batch_bytes: int) -> tuple[int, ...]:
    """Return what settings are ordered by: workers first, then memory, then what is unusual."""
    return (
        settings.num_workers,
        memory_estimate(settings, batch_bytes).memory_bytes,
        settings.prefetch_factor,
        settings.worker_method == "process",
        settings.backend == "dali",
        settings.pin_memory,
        settings.persistent_workers,
    )


def refusal(estimate: MemoryEstimate, *, available_bytes: int, shm_bytes: int) -> str:
    """Return why settings would not fit; "" where they do."""
    if estimate.memory_bytes + RESERVE_BYTES > available_bytes:
        return (
            f"would not fit: takes about {format_bytes(estimate.memory_bytes)} of memory, and "
            f"{format_bytes(RESERVE_BYTES)} are to stay free, but {format_bytes(available_bytes)} "
            "are available"
        )
    if estimate.shm_bytes and estimate.shm_bytes + SHM_RESERVE_BYTES > shm_bytes:
        return (
            f"would not fit: takes about {format_bytes(estimate.shm_bytes)} of /dev/shm, which has "
            f"{format_bytes(shm_bytes)} free (docker run --shm-size makes it larger)"
        )
    return ""
