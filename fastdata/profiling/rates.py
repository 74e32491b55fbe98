"""How fast training is, and would be: with the real loader, and without one.

    loader   the real loader and the step
    host     one batch on the host, again and again: nothing is loaded, all is copied
    device   batches that are on the device: the ceiling

Windows of the three take turns, in an order that is drawn, so that a machine that gets slower
or faster does so for all; each is reported by its median.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping

import torch

from fastdata.errors import OptionError
from fastdata.profiling.batches import Batches
from fastdata.profiling.source import Source
from fastdata.profiling.windows import LEAST_STEPS, CachedRun, LoaderRun, Rates, Run, marks_seconds
from fastdata.steps import Step
from fastdata.steps.meter import Meter

__all__ = ["measure_rates"]

ROUNDS, LEAST_ROUNDS = 5, 3
LONGEST_FACTOR = 2
"""No round is begun after so many times the seconds that were asked for."""

LONGEST_SETTLING_SECONDS = 1.0

NEGLIGIBLE_SECONDS = 5.0
"""Nobody wants to be told that it will take so long."""

log = logging.getLogger("fastdata")


def measure_rates(
    source: Source,
    step: Step,
    batches: Batches,
    device: torch.device,
    *,
    seconds: float,
    steps: int | None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Rates:
    """Return how long a step takes with the real loader, a host batch, and device batches.

    Parameters
    ----------
    source : Source
    step : callable
    batches : Batches
    device : torch.device
    seconds : float
        For all of it, about.
    steps : int, optional
        With the real loader, in place of as many as fit.
    seed : int
        Of the order of windows.
    progress : callable, optional

    Notes
    -----
    On CUDA windows are between events of the current stream; a pass that begins within is
    taken out by the host's clock, between synchronisations.
    """
    meter = Meter(device)
    rates = Rates(marks_seconds=marks_seconds(source, meter))
    real = LoaderRun(source, step, meter, rates)
    runs: dict[str, Run] = {
        "loader": real,
        "host": CachedRun(batches, step, meter, rates, device, on_host=True),
        "device": CachedRun(batches, step, meter, rates, device, on_host=False),
    }
    deadline = time.perf_counter() + LONGEST_FACTOR * seconds
    counts = _counts(runs, seconds / (3 * ROUNDS))
    if steps is not None:
        counts["loader"] = max(1, math.ceil(steps / ROUNDS))
    counts["loader"] = real.whole(counts["loader"])
    lead = source.primed if source.makes_ahead else 0
    _warn_of_slow_steps(runs, {**counts, "loader": counts["loader"] + lead}, seconds, source.primed)
    order = random.Random(seed)
    settling = min(LONGEST_SETTLING_SECONDS, source.primed * runs["loader"].took)
    for number in range(ROUNDS):
        if number >= LEAST_ROUNDS and steps is None and time.perf_counter() > deadline:
            break
        if progress is not None:
            progress(f"rates, {number + 1} of {ROUNDS}")
        for name in order.sample(list(runs), len(runs)):
            if rates.ended and name == "loader":
                continue
            runs[name].window(counts[name])
            if name == "loader" and source.makes_ahead:
                time.sleep(settling)  # until workers have made what they make ahead
    if not rates.loader:
        raise OptionError(
            "the iterable ended before anything could be measured: give one with more batches, "
            "or one that can be iterated over again"
        )
    return rates


def _warn_of_slow_steps(
    runs: Mapping[str, Run], counts: Mapping[str, int], seconds: float, primed: int
) -> None:
    """Say that it all will take much longer than the time that was given, where it will."""
    rounds = LEAST_ROUNDS * sum(counts[name] * run.took for name, run in runs.items())
    if rounds <= max(LONGEST_FACTOR * seconds, NEGLIGIBLE_SECONDS):
        return
    slow = runs["loader"].took
    log.warning(
        "profiling takes %.0f s or more from now on, and not the time that was given: a step with "
        "its batch takes %.2g s, and some have to be run",
        rounds + (primed + LEAST_STEPS) * slow,  # those of the timeline
        slow,
    )


def _counts(runs: Mapping[str, Run], window: float) -> dict[str, int]:
    """Return how many steps fill a window of each kind.

    Found by a first look, unmeasured, which also pays for what a first time costs.
    """
    counts = {}
    for name, run in runs.items():
        took = run.look(window)
        least = LEAST_STEPS if took < window else 1
        counts[name] = int(max(least, min(window / max(took, 1e-9), 100_000)))
    return counts
