"""Rules for busy machines: the clock that judges training steps, and when trials end.

OpenMP threads spin while they wait: one busy neighbour makes a step of two threads 3-25 times as
slow.  CPU time of a step with one thread stays within 0.7-2.2% at a load of 8-12.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, TypeAlias

from fastdata.measuring.statistics import student_quantile

__all__ = ["Clock", "clock_for", "noise_of", "too_noisy"]

BUSY = 0.1
"""Other programs may use this share of the cores; above it, wall time is not trusted."""

MOST_NOISE = 0.2
"""A comparison of the baseline with itself that is less certain than this ends the trials."""

Clock: TypeAlias = Literal["wall", "cpu"]


def clock_for(cores_of_others: float, cores: int, *, threads: int, on_gpu: bool) -> Clock | None:
    """Return the clock that judges steps; None if neither can.

    Other programs use `cores_of_others` of the `cores` of this process on average.  A step has
    `threads` on the CPU.  CPU time does not contain work of a GPU.
    """
    if cores_of_others <= BUSY * cores:
        return "wall"
    return "cpu" if threads == 1 and not on_gpu else None


def noise_of(rounds: Sequence[float], count: int = 0) -> float:
    """Return the 95% half-width of an A/A comparison, as a fraction, from one process's rounds.

    `rounds` are three or more logarithms of baseline time over baseline time.  A larger `count`
    gives the half-width of that number of rounds.  It is the error of their median, from their
    median absolute deviation (MAD).  A single disturbed round cannot raise the MAD much.  For
    normal rounds, sigma is 1.4826 MAD, and the error of a median is 1.2533 times the error of a
    mean.
    """
    middle = statistics.median(rounds)
    sigma = 1.4826 * statistics.median(abs(one - middle) for one in rounds)
    count = max(count, len(rounds))
    error = 1.2533 * sigma / math.sqrt(count)
    return math.expm1(student_quantile(0.95, count - 1) * error)


def too_noisy(noise: float, clock: Clock | None, cores_of_others: float, cores: int) -> str:
    """Return why trials end without a verdict; "" if they can go on."""
    if clock is None:
        noun = "core" if cores == 1 else "cores"
        busy = f"other programs use {cores_of_others:.1f} of your {cores} {noun}"
        return f"too noisy to measure: {busy}"
    if noise > MOST_NOISE:
        return f"too noisy to measure: the same step differs from itself by {noise:.0%}"
    return ""
