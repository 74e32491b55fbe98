"""From what was measured to the report: a model is fitted, and asked what would be if."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fastdata.engine.cores import available_cores
from fastdata.prefetch import CUDAPrefetcher
from fastdata.profiling.batches import Batches
from fastdata.profiling.copying import Copying
from fastdata.profiling.costs import Cost
from fastdata.profiling.facts import facts_of
from fastdata.profiling.fixes import fixes_for
from fastdata.profiling.model import Model
from fastdata.profiling.parts import Parts
from fastdata.profiling.report import Event, ProfileReport, Stall
from fastdata.profiling.source import Source
from fastdata.profiling.subject import Subject, called, described, machine_of
from fastdata.profiling.verdict import (
    Measured,
    bottleneck_of,
    is_input_bound,
    restarts_of,
    shares_cores,
    stages_of,
    verdict_of,
)
from fastdata.profiling.windows import Rates

__all__ = ["Findings", "conclude"]


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was measured.

    Attributes
    ----------
    subject : Subject
    source : Source
        Closed.
    batches : Batches
    rates : Rates
    parts : Parts
        Of the loader.
    copying : Copying
    stalls : tuple of Stall
        Of the step.
    timeline : tuple of Event
    """

    subject: Subject
    source: Source
    batches: Batches
    rates: Rates
    parts: Parts
    copying: Copying
    stalls: tuple[Stall, ...]
    timeline: tuple[Event, ...]


def conclude(found: Findings, notes: Sequence[str] = ()) -> ProfileReport:
    """Return the report.

    Parameters
    ----------
    found : Findings
    notes : sequence of str
        What was said already, before what is to be said of the findings.
    """
    subject, source, rates, parts = found.subject, found.source, found.rates, found.parts
    wait = statistics.fmean(rates.waits)
    measured = _measured(found, wait)
    model = _model(found, measured, wait)
    input_bound = is_input_bound(measured)
    stages = stages_of(model, measured, parts.where)
    bottleneck = bottleneck_of(stages, found.stalls, input_bound=input_bound)
    facts = facts_of(
        subject.inner,
        found.batches,
        on_gpu=measured.on_gpu,
        input_bound=input_bound,
        shares_cores=shares_cores(measured),
        start_seconds=source.start_seconds,
    )
    ready = [count for count in rates.ready if not math.isnan(count)]
    p50, p99 = np.quantile(rates.intervals, [0.5, 0.99]).tolist()
    more_help = measured.has_step and any(cost.parallel for cost in model.costs)
    return ProfileReport(
        verdict=verdict_of(
            model,
            measured,
            stages,
            bottleneck,
            found.stalls,
            restarts=restarts_of(source.restarts, source.pass_length, wait, measured),
        ),
        bottleneck=bottleneck,
        input_bound=input_bound,
        steps_per_second=_rate(measured.loader),
        steps_per_second_host=_rate(measured.host),
        steps_per_second_device=_rate(measured.device),
        batch_size=found.batches.size,
        waiting=measured.waiting,
        stages=stages,
        stalls=found.stalls,
        fixes=fixes_for(model, facts, found.stalls, parts.where),
        batch_seconds_p50=p50,
        batch_seconds_p99=p99,
        ready_batches=statistics.fmean(ready) if ready else math.nan,
        wait_seconds=wait,
        copy_bytes_per_second=found.copying.bytes_per_second,
        workers=source.workers,
        workers_to_saturate=model.workers_to_saturate() if more_help else None,
        cores=model.cores,
        cores_to_saturate=model.cores_to_saturate(),
        overhead=rates.marks_seconds / measured.loader if measured.loader > 0 else 0.0,
        steps=rates.steps,
        timeline=found.timeline,
        step=called(subject.step) if subject.step is not None else "no step",
        loader=described(subject.loader),
        machine=machine_of(subject.device),
        notes=(*notes, *parts.notes, *_remarks(found, model, measured, input_bound)),
    )


def _measured(found: Findings, wait: float) -> Measured:
    rates = found.rates
    interval = statistics.fmean(rates.intervals)
    return Measured(
        rates.median("loader"),
        rates.median("host"),
        rates.median("device"),
        wait / interval if interval > 0 else 0.0,
        has_step=found.subject.step is not None,
        on_gpu=found.subject.device.type == "cuda",
    )


def _model(found: Findings, measured: Measured, wait: float) -> Model:
    """Return the model of the pipeline, fitted to what was measured of all of it."""
    subject, rates, parts = found.subject, found.rates, found.parts
    loader = subject.loader
    # A prefetcher's thread makes batches beside the step, as a worker does.
    in_thread = isinstance(loader, CUDAPrefetcher) and loader.device.type == "cpu"
    model = Model(
        (*(parts.costs or (Cost("load", wait, False),)), *found.copying.costs),
        measured.device if measured.has_step else 0.0,
        max(found.source.workers, int(in_thread)) if parts.costs else 0,
        available_cores(),
        statistics.median(rates.device_cpu) if measured.has_step else 0.0,
    )
    return model.fitted(measured.loader, statistics.median(rates.busy) if rates.busy else 0.0)


def _remarks(found: Findings, model: Model, measured: Measured, input_bound: bool) -> Iterator[str]:
    """Yield what to know when reading the report."""
    source, rates, parts = found.source, found.rates, found.parts
    if parts.overhead > 0.05:
        yield (
            f"taking times made {parts.overhead:.0%} of what the stages seemed to take; it is "
            "taken off"
        )
    rest = _load(model.costs) - _load(parts.costs)
    if parts.costs and rest > 0:
        yield (
            f"{rest * 1e3:.3g} ms a batch are explained by no stage that could be measured by "
            'itself (a sampler, say, or a lock that others hold): they are called "load"'
        )
    if not found.batches.known:
        yield (
            "batches come on the device, and what is sent there for them is not known: the host "
            "batch is a copy of what arrived, and copying is no stage"
        )
    if rates.ended:
        yield (
            f"the iterable ended after {rates.steps} measured steps: give one that can be "
            "iterated over again for more"
        )
    if source.passes > 2 and not source.joins and source.workers:
        yield (
            f"{source.passes - 1} passes ended while measuring; beginning the next one "
            f"is left out of all rates ({source.start_seconds:.2g} s for the first)"
        )
    if measured.has_step and not input_bound and measured.waiting > 0.05:
        yield (
            f"beside the loader the step takes longer, by {measured.waiting:.0%} of the time, "
            "but hardly ever waits for a batch: they share cores"
        )
    if found.subject.device.type == "cpu" and found.stalls:
        yield (
            "the step was measured on the CPU, where nothing waits for a value: the places "
            "listed would make a GPU wait"
        )


def _load(costs: Iterable[Cost]) -> float:
    """Return what is known of loading as a whole only."""
    return sum(cost.seconds for cost in costs if cost.name == "load")


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf
