"""What the measured times come to: stalls by stage, the bottleneck, one line.

All of it is arithmetic on a fitted `Model` and the times that it was fitted to.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from fastdata.profiling.model import Model
from fastdata.profiling.report import Stage, StageName, Stall
from fastdata.profiling.where import short

__all__ = [
    "WAITS",
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
"""Of fewer nothing is said: one may be an accident."""

NOTHING = "nothing to gain from the data side"

DOING: dict[str, str] = {
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
    """Seconds a step, in the median.

    Attributes
    ----------
    loader, host, device : float
        With the real loader; one cached host batch; cached batches on the device.
    waited : float
        Share of the time with the real loader in which the loop stood and waited for a batch.
    has_step : bool
        Whether there is a step at all.
    on_gpu : bool
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


def stages_of(model: Model, measured: Measured, where: Mapping[str, str]) -> tuple[Stage, ...]:
    """Return what each stage takes, and how much of the waiting is its.

    What copying in the loop costs is measured: host batches against device batches.  The rest of
    the waiting belongs to what the loop waits for, by the time that each takes of it: the stages
    of the workers, or those of the loop itself, or all where there are no workers.
    """
    seconds: dict[str, float] = {}
    shared: dict[str, float] = {}
    for cost in model.costs:
        seconds[cost.name] = seconds.get(cost.name, 0.0) + cost.seconds
        if cost.parallel:
            shared[cost.name] = shared.get(cost.name, 0.0) + cost.seconds
    rest = max(measured.loader - measured.device, 0.0)
    stalls = dict.fromkeys(seconds, 0.0)
    if any(cost.name == "copy" and not cost.overlapped for cost in model.costs):
        stalls["copy"] = min(rest, max(measured.host - measured.device, 0.0))
        rest -= stalls["copy"]
    waited_for = [cost for cost in model.binding() if cost.name != "copy" or cost.overlapped]
    if shares_cores(measured):  # nothing is waited for: it is those who compute beside the step
        waited_for = [cost for cost in model.costs if cost.parallel]
    waited_for = waited_for or [cost for cost in model.costs if cost.name != "copy"]
    total = sum(cost.seconds for cost in waited_for)
    for cost in waited_for:
        if total:
            stalls[cost.name] += rest * cost.seconds / total
    period = model.period()
    found = []
    for name in get_args(StageName):
        free = model.period(free=(name,))
        gain = max(period / free, 1.0) if free > 0 else (1.0 if not period else float("inf"))
        if name == "step" and measured.has_step:
            found.append(Stage("step", model.step, False, 0.0, gain, where.get("step", "")))
        elif name in seconds:
            parallel = model.workers > 0 and shared.get(name, 0.0) > seconds[name] / 2
            found.append(
                Stage(name, seconds[name], parallel, stalls[name], gain, where.get(name, ""))
            )
    return tuple(found)


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
    """Return what the beginnings of passes cost, which are in no rate; "" where that is little.

    Parameters
    ----------
    seconds : sequence of float
        To the first batch of some passes.
    batches : int
        Of a pass.
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

    `restarts` is what is to be said of the beginnings of passes, as of `restarts_of`.
    """
    said = _limit(model, measured, stages, bottleneck, stalls)
    if not restarts:
        return said
    return f"{said.removesuffix(': ' + NOTHING)}; but {restarts}"


def _limit(
    model: Model,
    measured: Measured,
    stages: Sequence[Stage],
    bottleneck: StageName | None,
    stalls: Sequence[Stall],
) -> str:
    """Return what limits within a pass."""
    who = "the GPU" if measured.on_gpu else "the step"
    if bottleneck in (None, "step"):
        bound = "GPU-bound" if measured.on_gpu else "step-bound"
        if not stalls:
            if shares_cores(measured):
                longer = measured.loader / measured.device
                return (
                    f"{bound}: the step waits for no batch, but shares its cores with the "
                    f"workers, and takes {longer:.2g} times as long beside them"
                )
            return f"{bound}: {NOTHING}"
        first = stalls[0]
        what = f"{first.operation} at {first.where.partition(' ')[0]}"
        if first.kind == "host tensor":
            return f"{bound}, and the step makes a large tensor on the host: {what}"
        makes = "makes the device wait" if measured.on_gpu else "would make a GPU wait"
        return f"{bound}, and the step {makes}: {what}"
    stage = next(stage for stage in stages if stage.name == bottleneck)
    verb = f"{DOING[stage.name]} is the bottleneck"
    if stage.where:
        verb += f" ({short(stage.where)})"
    if not measured.has_step:
        rate = 1 / measured.loader if measured.loader else 0.0
        return f"no step to compare with: {rate:,.4g} batches a second are made; {verb}"
    parts = [f"input-bound: {who} waits {measured.waiting:.0%} of the time", verb]
    more = _workers(model)
    if more:
        parts.append(more)
    return "; ".join(parts)


def _workers(model: Model) -> str:
    """Return what more workers would change; "" where they would not."""
    if not any(cost.parallel for cost in model.costs):
        return ""
    wanted = model.workers_to_saturate() or model.best_workers()
    waiting = model.waiting(wanted)
    if wanted <= model.workers or waiting > model.waiting() - WAITS:
        return ""
    noun = "worker" if wanted == 1 else "workers"
    return f"with {wanted} {noun} it would wait {waiting:.0%}"
