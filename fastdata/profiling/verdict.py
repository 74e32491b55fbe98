"""What the measured times amount to: stalls by stage, the bottleneck, one line.

All of it is arithmetic on a fitted `Model` and the times that it was fitted to.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fastdata.profiling.lines import short_line
from fastdata.profiling.model import Model
from fastdata.profiling.report import Stage, StageName, Stall

__all__ = [
    "Measured",
    "bottleneck_of",
    "is_input_bound",
    "restarts_of",
    "shares_cores",
    "stages_of",
    "verdict_of",
]

WAITS = 0.05
"""A step that waits a smaller share of its time is fed."""

LEAST_RESTARTS = 2
"""Fewer are not mentioned: one may be an accident."""

NOTHING_TO_GAIN = "nothing to gain from the data side"

ACTIVITIES: dict[str, str] = {
    "read": "reading",
    "decode": "decoding",
    "augment": "augmentation",
    "collate": "collate",
    "hand over": "handing over from workers",
    "pin": "pinning memory",
    "copy": "copying to the device",
    "load": "making batches",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Median seconds a step: with the real loader, a cached host batch, cached device batches.

    `waited` is the share of the time with the real loader in which the loop waited for a batch.
    """

    loader: float
    host: float
    device: float
    waited: float
    has_step: bool = True
    on_gpu: bool = False

    @property
    def waiting(self) -> float:
        """Share of the time, 0 to 1, by which the real loader makes a step longer."""
        return max(0.0, 1 - self.device / self.loader) if self.loader > 0 else 0.0


def is_input_bound(measured: Measured) -> bool:
    """Return whether training waits for data.

    On the CPU a step is slower also where workers share its cores; it is fed all the same if
    the loop hardly ever waits for a batch.
    """
    if not measured.has_step:
        return True
    if not measured.on_gpu and measured.waited < WAITS / 2:
        return False
    return measured.waiting > WAITS


def shares_cores(measured: Measured) -> bool:
    """Return whether the step is slower because workers compute on its cores."""
    fed = measured.has_step and not is_input_bound(measured)
    return fed and measured.waiting > WAITS


def stages_of(model: Model, measured: Measured, lines: Mapping[str, str]) -> tuple[Stage, ...]:
    """Return what each stage takes, and how much of the waiting it causes.

    What copying in the loop costs is measured: host batches against device batches.  The rest of
    the waiting is split among the stages that the loop waits for, in proportion to their times:
    those of the workers, or those of the loop itself, or all where there are no workers.  `lines`
    are the user's, by stage.
    """
    seconds: dict[str, float] = {}
    shared: dict[str, float] = {}
    for cost in model.costs:
        seconds[cost.name] = seconds.get(cost.name, 0.0) + cost.seconds
        if cost.parallel:
            shared[cost.name] = shared.get(cost.name, 0.0) + cost.seconds
    stalls = _stall_seconds(model, measured)
    period = model.period()
    stages = []
    for name in get_args(StageName):
        free = model.period(free=(name,))
        gain = max(period / free, 1.0) if free > 0 else (1.0 if not period else float("inf"))
        line = lines.get(name, "")
        if name == "step" and measured.has_step:
            stages.append(Stage("step", model.step, False, 0.0, gain, line))
        elif name in seconds:
            parallel = model.workers > 0 and shared.get(name, 0.0) > seconds[name] / 2
            stages.append(Stage(name, seconds[name], parallel, stalls.get(name, 0.0), gain, line))
    return tuple(stages)


def _stall_seconds(model: Model, measured: Measured) -> dict[str, float]:
    """Return seconds a batch that the loop waits because of each stage."""
    stalls: dict[str, float] = {}
    rest = max(measured.loader - measured.device, 0.0)
    if any(cost.name == "copy" and not cost.overlapped for cost in model.costs):
        stalls["copy"] = min(rest, max(measured.host - measured.device, 0.0))
        rest -= stalls["copy"]
    waited_for = [cost for cost in model.binding() if cost.name != "copy" or cost.overlapped]
    if shares_cores(measured):  # nothing is waited for: workers compute beside the step
        waited_for = [cost for cost in model.costs if cost.parallel]
    waited_for = waited_for or [cost for cost in model.costs if cost.name != "copy"]
    total = sum(cost.seconds for cost in waited_for)
    for cost in waited_for:
        if total:
            stalls[cost.name] = stalls.get(cost.name, 0.0) + rest * cost.seconds / total
    return stalls


def bottleneck_of(
    stages: Sequence[Stage], stalls: Sequence[Stall], *, input_bound: bool
) -> StageName | None:
    """Return the stage that would have to be faster; None where there is nothing to gain."""
    if not input_bound:
        return "step" if stalls else None
    loading = [stage for stage in stages if stage.name != "step"]
    if not loading:
        return None
    return max(loading, key=lambda stage: (stage.stall_seconds, stage.seconds)).name


def restarts_of(seconds: Sequence[float], batches: int, wait: float, measured: Measured) -> str:
    """Return what beginning an epoch costs, which is in no rate; "" where that is little.

    Parameters
    ----------
    seconds : sequence of float
        To the first batch of some epochs.
    batches : int
        Of an epoch.
    wait : float
        Seconds for any other batch.
    measured : Measured
    """
    if len(seconds) < LEAST_RESTARTS or not measured.has_step:
        return ""
    lost = max(statistics.median(seconds) - wait, 0.0)
    share = lost / (lost + batches * measured.loader) if lost else 0.0
    if share <= WAITS:
        return ""
    noun = "batch" if batches == 1 else "batches"
    return (
        f"each pass of {batches:,} {noun} begins with {lost:.2g} s without one, {share:.0%} of "
        "the time"
    )


def verdict_of(
    model: Model,
    measured: Measured,
    stages: Sequence[Stage],
    bottleneck: StageName | None,
    stalls: Sequence[Stall],
    *,
    restarts: str = "",
) -> str:
    """Return one line: what limits, by how much, and what would change it.

    `restarts` is what `restarts_of` returns.
    """
    if bottleneck in (None, "step"):
        verdict = _step_bound(measured, stalls)
    else:
        stage = next(stage for stage in stages if stage.name == bottleneck)
        verdict = _input_bound(model, measured, stage)
    if not restarts:
        return verdict
    return f"{verdict.removesuffix(': ' + NOTHING_TO_GAIN)}; but {restarts}"


def _step_bound(measured: Measured, stalls: Sequence[Stall]) -> str:
    bound = "GPU-bound" if measured.on_gpu else "step-bound"
    if not stalls:
        if not shares_cores(measured):
            return f"{bound}: {NOTHING_TO_GAIN}"
        longer = measured.loader / measured.device
        return (
            f"{bound}: the step waits for no batch, but shares its cores with the "
            f"workers, and takes {longer:.2g} times as long beside them"
        )
    first = stalls[0]
    where = f"{first.operation} at {first.where.partition(' ')[0]}"
    if first.kind == "host tensor":
        return f"{bound}, and the step makes a large tensor on the host: {where}"
    makes = "makes the device wait" if measured.on_gpu else "would make a GPU wait"
    return f"{bound}, and the step {makes}: {where}"


def _input_bound(model: Model, measured: Measured, stage: Stage) -> str:
    bottleneck = f"{ACTIVITIES[stage.name]} is the bottleneck"
    if stage.where:
        bottleneck += f" ({short_line(stage.where)})"
    if not measured.has_step:
        rate = 1 / measured.loader if measured.loader else 0.0
        return f"no step to compare with: {rate:,.4g} batches a second are made; {bottleneck}"
    waits = "the GPU" if measured.on_gpu else "the step"
    verdict = f"input-bound: {waits} waits {measured.waiting:.0%} of the time; {bottleneck}"
    if not any(cost.parallel for cost in model.costs):
        return verdict
    workers = model.workers_to_saturate() or model.best_workers()
    waiting = model.waiting(workers)
    if workers <= model.workers or waiting > model.waiting() - WAITS:
        return verdict
    noun = "worker" if workers == 1 else "workers"
    return f"{verdict}; with {workers} {noun} it would wait {waiting:.0%}"
