"""From all that was measured to the report: a model is fitted, and asked for findings and fixes."""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.engine.cores import available_cores
from fastdata.measuring.workload import describe_loader
from fastdata.profiling.batches import CachedBatches, LoaderBatches
from fastdata.profiling.fixes import conditions_of, fixes_for
from fastdata.profiling.model import Cost, LoaderCosts, Model
from fastdata.profiling.rates import Rates, median
from fastdata.profiling.report import Event, ProfileReport, Stall
from fastdata.profiling.tracing import makes_batches_in_thread
from fastdata.profiling.verdict import (
    Measured,
    bottleneck_of,
    is_input_bound,
    restarts_of,
    shares_cores,
    stages_of,
    verdict_of,
)

__all__ = ["Measurements", "conclude"]


@dataclass(frozen=True, slots=True)
class Measurements:
    """All that was measured; `step` is the name of the step, None without one."""

    loader: Any
    step: str | None
    device: torch.device
    batches: LoaderBatches
    cached: CachedBatches
    rates: Rates
    costs: LoaderCosts
    copy_costs: tuple[Cost, ...]
    copy_bytes_per_second: float
    stalls: tuple[Stall, ...]
    timeline: tuple[Event, ...]


def conclude(measurements: Measurements, notes: Sequence[str] = ()) -> ProfileReport:
    """Return the report; `notes` come before those about the measurements."""
    m, rates, batches = measurements, measurements.rates, measurements.batches
    wait, interval = statistics.fmean(rates.waits), statistics.fmean(rates.intervals)
    measured = Measured(
        median(rates.loader),
        median(rates.host),
        median(rates.device),
        wait / interval if interval > 0 else 0.0,
        has_step=m.step is not None,
        on_gpu=m.device.type == "cuda",
    )
    model = _model(m, measured, wait)
    input_bound = is_input_bound(measured)
    stages = stages_of(model, measured, m.costs.lines)
    bottleneck = bottleneck_of(stages, m.stalls, input_bound=input_bound)
    restarts = restarts_of(batches.restart_seconds, batches.epoch_length, wait, measured)
    conditions = conditions_of(
        m.loader,
        m.cached,
        on_gpu=measured.on_gpu,
        input_bound=input_bound,
        shares_cores=shares_cores(measured),
        start_seconds=batches.start_seconds,
    )
    ready = [count for count in rates.ready if not math.isnan(count)]
    p50, p99 = np.quantile(rates.intervals, [0.5, 0.99]).tolist()
    more_help = measured.has_step and any(cost.parallel for cost in model.costs)
    return ProfileReport(
        verdict=verdict_of(model, measured, stages, bottleneck, m.stalls, restarts=restarts),
        bottleneck=bottleneck,
        input_bound=input_bound,
        steps_per_second=_rate(measured.loader),
        steps_per_second_host=_rate(measured.host),
        steps_per_second_device=_rate(measured.device),
        batch_size=m.cached.size,
        waiting=measured.waiting,
        stages=stages,
        stalls=m.stalls,
        fixes=fixes_for(model, conditions, m.stalls, m.costs.lines),
        batch_seconds_p50=p50,
        batch_seconds_p99=p99,
        ready_batches=statistics.fmean(ready) if ready else math.nan,
        wait_seconds=wait,
        copy_bytes_per_second=m.copy_bytes_per_second,
        workers=batches.workers,
        workers_to_saturate=model.workers_to_saturate() if more_help else None,
        cores=model.cores,
        cores_to_saturate=model.cores_to_saturate(),
        overhead=rates.reading_clocks / measured.loader if measured.loader > 0 else 0.0,
        steps=rates.steps,
        timeline=m.timeline,
        step=m.step if m.step is not None else "no step",
        loader=describe_loader(m.loader),
        machine=_describe_machine(m.device),
        notes=(*notes, *m.costs.notes, *_remarks(m, model, measured, input_bound)),
    )


def _model(m: Measurements, measured: Measured, wait: float) -> Model:
    """Return the model of the pipeline, fitted to the measured rate."""
    rates, costs = m.rates, m.costs.costs
    model = Model(
        (*(costs or (Cost("load", wait, False),)), *m.copy_costs),
        measured.device if measured.has_step else 0.0,
        max(m.batches.workers, int(makes_batches_in_thread(m.loader))) if costs else 0,
        available_cores(),
        statistics.median(rates.device_cpu) if measured.has_step else 0.0,
    )
    return model.fitted(measured.loader, median(rates.busy))


def _remarks(m: Measurements, model: Model, measured: Measured, input_bound: bool) -> Iterator[str]:
    """Yield what to know when reading the report."""
    if m.costs.overhead > 0.05:
        yield (
            f"taking times made {m.costs.overhead:.0%} of what the stages seemed to take; it is "
            "taken off"
        )
    rest = _load_seconds(model.costs) - _load_seconds(m.costs.costs)
    if m.costs.costs and rest > 0:
        yield (
            f"{rest * 1e3:.3g} ms a batch are explained by no stage that could be measured by "
            'itself (a sampler, say, or a lock that others hold): they are called "load"'
        )
    if not m.cached.host_known:
        yield (
            "batches come on the device, and what is sent there for them is not known: the host "
            "batch is a copy of what arrived, and copying is no stage"
        )
    if m.rates.ended:
        yield (
            f"the iterable ended after {m.rates.steps} measured steps: give one that can be "
            "iterated over again for more"
        )
    if m.batches.epochs > 2 and not m.batches.joins_epochs and m.batches.workers:
        yield (
            f"{m.batches.epochs - 1} passes ended while measuring; beginning the next one "
            f"is left out of all rates ({m.batches.start_seconds:.2g} s for the first)"
        )
    if measured.has_step and not input_bound and measured.waiting > 0.05:
        yield (
            f"beside the loader the step takes longer, by {measured.waiting:.0%} of the time, "
            "but hardly ever waits for a batch: they share cores"
        )
    if m.device.type == "cpu" and m.stalls:
        yield (
            "the step was measured on the CPU, where nothing waits for a value: the places "
            "listed would make a GPU wait"
        )


def _load_seconds(costs: Iterable[Cost]) -> float:
    return sum(cost.seconds for cost in costs if cost.name == "load")


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


def _describe_machine(device: torch.device) -> dict[str, Any]:
    machine = {
        "system": platform.platform(),
        "cores": available_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if device.type == "cuda":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return machine
