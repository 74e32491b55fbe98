"""How long things will take, told before they are begun (pure).

a turn         start, what was made ahead, windows of batches
the run        what was made ahead, windows of steps: with the real step, in the end
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastdata.tuning.choice import HEADROOM
from fastdata.tuning.fitting import ahead_of
from fastdata.tuning.measuring import LEAST_BATCHES, group_of, steps_of_run
from fastdata.tuned_settings.settings import Settings

__all__ = [
    "TURNS_SHARE",
    "Plan",
    "likely_workers",
    "plan_of",
    "primed_seconds",
    "run_seconds",
    "turn_seconds",
]

TURNS_SHARE = 0.3
"""Of the time that was given, what comparing settings gets however slow the step is."""

RUN_SHARE = 0.15
"""What the run with the step gets at least: several, where the first choice falls short."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is kept of the time, and what lacks.

    Attributes
    ----------
    run_seconds : float
        For the run with the step.
    lacking_seconds : float
        That it all will take longer than the time that was given; 0 where it will not.
    """

    run_seconds: float
    lacking_seconds: float = 0.0


def likely_workers(rate: float, batch_seconds: float, most: int) -> int:
    """Return how many workers a step of `rate` batches a second will take, 1 to `most`.

    By what a batch takes in one thread: the best guess before any worker was started.
    """
    return min(max(1, math.ceil(HEADROOM * rate * batch_seconds)), max(1, most))


def primed_seconds(settings: Settings, batch_seconds: float) -> float:
    """Return what a turn takes until its windows: a first batch, and what was made ahead of it.

    Where workers get in nobody's way.

    Parameters
    ----------
    settings : Settings
    batch_seconds : float
        That making one batch takes in one thread.
    """
    return (ahead_of(settings) + 2) * batch_seconds / max(1, settings.num_workers)


def turn_seconds(settings: Settings, batch_seconds: float) -> float:
    """Return the least time of a turn, of one window; as `primed_seconds`."""
    window = max(LEAST_BATCHES, group_of(settings)) * batch_seconds / max(1, settings.num_workers)
    return primed_seconds(settings, batch_seconds) + window


def run_seconds(settings: Settings, rate: float, window_seconds: float, windows: int) -> float:
    """Return how long a run with the step takes, at `rate` steps a second."""
    first, each = steps_of_run(settings, rate, window_seconds)
    return (first + windows * each) / rate


def plan_of(
    settings: Settings,
    rate: float,
    *,
    given: float,
    used: float,
    window_seconds: float,
) -> Plan:
    """Return how much of the time to keep for the run with the step.

    Parameters
    ----------
    settings : Settings
        Those that are likely to be chosen.
    rate : float
        Steps a second.
    given, used : float
        Seconds.
    window_seconds : float
        There is time for one at least.
    """
    least = run_seconds(settings, rate, window_seconds, 1)
    there = given - used - TURNS_SHARE * given
    if least > there:
        return Plan(least, least - there)
    return Plan(min(max(RUN_SHARE * given, least), there))
