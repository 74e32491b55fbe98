"""From all that was measured to the report: stages, bottleneck, verdict, predictions.

A model is fitted to the measurements; all else is arithmetic on it.
"""

from __future__ import annotations

import math
import platform
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.measuring.lines import short_line
from fastdata.measuring.stalls import Stall
from fastdata.printable import safe_repr
from fastdata.processes.resources import available_cores, format_bytes
from fastdata.profiling.batches import CachedBatches, LoaderBatches
from fastdata.profiling.downloads import DownloadWatch
from fastdata.profiling.fixes import best_of, conditions_of, fixes_for
from fastdata.profiling.model import ENOUGH, LEAST_GAIN_OF_WORKERS, Cost, LoaderCosts, Model
from fastdata.profiling.rates import WAITS, Measured, Rates, median
from fastdata.profiling.report import Download, Event, ProfileReport, Stage, StageName
from fastdata.profiling.tracing import makes_batches_in_thread
from fastdata.profiling.trying import MoreWorkers
from fastdata.tuned_settings.store import Entry

__all__ = [
    "Measurements",
    "bottleneck_of",
    "conclude",
    "enough_workers",
    "model_of",
    "restarts_of",
    "stages_of",
    "verdict_of",
]

LEAST_RESTARTS = 2
"""Fewer are not mentioned: one may be an accident."""

NOTHING_TO_GAIN = "nothing to gain from the data side"

ACTIVITIES: dict[str, str] = {
    "download": "downloading",
    "read": "reading",
    "decode": "decoding",
    "augment": "augmentation",
    "collate": "collate",
    "hand over": "handing over from workers",
    "pin": "pinning memory",
    "copy": "copying to the device",
    "load": "making batches",
}


# -- the report ----------------------------------------------------------------------------


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
    kept: Entry | None = None
    """What is kept of a tuning of this loader."""
    watch: DownloadWatch | None = None
    """What watched the downloads, where some images were not in the cache."""

    @property
    def measured(self) -> Measured:
        """The three rates, as medians."""
        has_step, on_gpu = self.step is not None, self.device.type == "cuda"
        return self.rates.measured(has_step=has_step, on_gpu=on_gpu)

    @property
    def download(self) -> Download | None:
        """How images came out of a store meanwhile; None where they were all here."""
        watch, rates, measured = self.watch, self.rates, self.measured
        if watch is None or not rates.downloading:
            return None
        before, after = watch.before, watch.after
        waited, interval = statistics.fmean(rates.downloading), statistics.fmean(rates.intervals)
        needed = self.cached.size * before.sample_bytes
        return Download(
            wait_seconds=waited,
            waiting=waited / interval if interval > 0 else 0.0,
            bytes_per_second=watch.bytes_per_second,
            needed_bytes_per_second=needed / measured.device if measured.has_step else None,
            sample_bytes=before.sample_bytes,
            present_before=before.present,
            present=after.present,
            total_bytes=before.total_bytes,
            cache_bytes=before.cache_bytes,
            streams=before.streams,
        )

    @property
    def wait(self) -> float:
        """Mean seconds that the loop waits for a batch."""
        return statistics.fmean(self.rates.waits)


def conclude(
    measurements: Measurements,
    model: Model,
    tried: Sequence[MoreWorkers] = (),
    notes: Sequence[str] = (),
) -> ProfileReport:
    """Return the report, by the model of `model_of` and the numbers of workers that were tried.

    `notes` come before those about the measurements.
    """
    m, rates, batches = measurements, measurements.rates, measurements.batches
    wait, measured = m.wait, m.measured
    stages = stages_of(model, measured, m.costs.lines)
    bottleneck = bottleneck_of(measured, stages, m.stalls)
    restarts = restarts_of(batches.restart_seconds, batches.epoch_length, wait, measured)
    conditions = conditions_of(m.loader, m.cached, measured, batches.start_seconds, m.download)
    ready = [count for count in rates.ready if not math.isnan(count)]
    p50, p99 = np.quantile(rates.intervals, [0.5, 0.99]).tolist()
    return ProfileReport(
        verdict=verdict_of(measured, stages, bottleneck, m.stalls, tried, restarts=restarts),
        bottleneck=bottleneck,
        input_bound=measured.is_input_bound,
        steps_per_second=_rate(measured.loader),
        steps_per_second_host=_rate(measured.host),
        steps_per_second_device=_rate(measured.device),
        batch_size=m.cached.size,
        waiting=measured.waiting,
        stages=stages,
        stalls=m.stalls,
        fixes=fixes_for(model, conditions, m.stalls, m.costs.lines, tried),
        batch_seconds_p50=p50,
        batch_seconds_p99=p99,
        ready_batches=statistics.fmean(ready) if ready else math.nan,
        wait_seconds=wait,
        copy_bytes_per_second=m.copy_bytes_per_second,
        workers=batches.workers,
        workers_to_saturate=enough_workers(model, measured, tried),
        cores=model.cores,
        cores_of_others=rates.others,
        cores_to_saturate=model.cores_to_saturate(),
        overhead=rates.reading_clocks / measured.loader if measured.loader > 0 else 0.0,
        steps=rates.steps,
        timeline=m.timeline,
        step=m.step if m.step is not None else "no step",
        loader=_describe_loader(m.loader),
        machine=_describe_machine(m.device),
        notes=(*notes, *m.costs.notes, *_remarks(m, model, measured, tried)),
        download=m.download,
    )


def model_of(m: Measurements) -> Model:
    """Return the model of the pipeline, fitted to the measured rate."""
    rates, costs, measured = m.rates, m.costs.costs, m.measured
    curve = m.kept.tuned.curve if m.kept is not None else ()
    downloading: tuple[Cost, ...] = ()
    wait = m.wait
    if m.download is not None and m.download.waiting >= WAITS / 2:
        downloading = (Cost("download", m.download.wait_seconds, False),)
        wait -= m.download.wait_seconds
    model = Model(
        (*downloading, *(costs or (Cost("load", wait, False),)), *m.copy_costs),
        measured.device if measured.has_step else 0.0,
        max(m.batches.workers, int(makes_batches_in_thread(m.loader))) if costs else 0,
        available_cores(),
        statistics.median(rates.device_cpu) if measured.has_step else 0.0,
        others=rates.others,
        supplied={point.num_workers: 1 / point.supply for point in curve if point.supply > 0},
    )
    return model.fitted(measured.loader, median(rates.busy))


def enough_workers(model: Model, measured: Measured, tried: Sequence[MoreWorkers]) -> int | None:
    """Return how many workers feed the step: as there are, or tried; None where none do."""
    if not (measured.has_step and any(cost.parallel for cost in model.costs)):
        return None
    if not measured.is_input_bound and model.workers:
        return model.workers_to_saturate()
    more = best_of(tried)
    return more.workers if more is not None and more.waiting(measured) <= ENOUGH else None


def _remarks(
    m: Measurements, model: Model, measured: Measured, tried: Sequence[MoreWorkers]
) -> Iterator[str]:
    """Yield what to know when reading the report."""
    if m.download is not None:
        yield from _remarks_of_download(m.download)
    if m.kept is not None and tried:
        curve = ", ".join(f"{one.num_workers}: {one.supply:.3g}" for one in m.kept.tuned.curve)
        yield (
            "which number of workers was tried is by what tune-workers measured on "
            f"{m.kept.measured_at:%Y-%m-%d}, batches a second with no step beside: {curve}"
        )
    for more in tried:
        if not more.untried and more.speedup < LEAST_GAIN_OF_WORKERS:
            yield (
                f"num_workers={more.workers} was tried for a moment, and is {more.speedup:.2f} "
                "times as fast"
            )
        elif not more.speedup:
            yield f"num_workers={more.workers} was tried, and failed: {more.untried}"
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
    if measured.shares_cores:
        yield (
            f"beside the loader the step takes longer, by {measured.waiting:.0%} of the time, "
            "but hardly ever waits for a batch: they share cores"
        )
    if m.device.type == "cpu" and m.stalls:
        yield (
            "the step was measured on the CPU, where nothing waits for a value: the places "
            "listed would make a GPU wait"
        )


def _remarks_of_download(download: Download) -> Iterator[str]:
    came = f"{download.bytes_per_second / 1e6:.3g} MB/s"
    yield (
        f"{1 - download.present_before:.0%} of the samples were not in the cache, and came out of "
        f"the store meanwhile, {came} for all that use the cache; stages are measured on samples "
        "that are in it"
    )
    if download.fits:
        yield (
            f"the cache has room for the whole dataset ({format_bytes(download.total_bytes)}): "
            f"once an epoch has fetched it, nothing is downloaded; now {download.present:.0%} of "
            "the samples are there"
        )
    needed = download.needed_bytes_per_second
    if needed is not None and download.waiting >= WAITS / 2:
        yield (
            f"the step alone takes images of {needed / 1e6:.3g} MB/s, and {came} came: as long as "
            "no more comes, no setting of workers helps"
        )


def _load_seconds(costs: Iterable[Cost]) -> float:
    return sum(cost.seconds for cost in costs if cost.name == "load")


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


def _describe_loader(loader: Any) -> str:
    """Return a loader in one line."""
    if not isinstance(loader, DataLoader):
        return safe_repr(loader).partition("\n")[0][:200]
    workers, dataset = loader.num_workers, type(loader.dataset).__name__
    return f"{type(loader).__name__} of {dataset}, {workers} worker process{'es' * (workers != 1)}"


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


# -- findings --------------------------------------------------------------------------------


def stages_of(model: Model, measured: Measured, lines: Mapping[str, str]) -> tuple[Stage, ...]:
    """Return what each stage takes, and how much of the waiting it causes.

    What copying in the loop costs is measured: host batches against device batches; and so is what
    the loop waits for downloads.  The rest of the waiting is split among the stages that the loop
    waits for, in proportion to their times: those of the workers, or those of the loop itself, or
    all where there are no workers.  `lines` are the user's, by stage.
    """
    stalls = _stall_seconds(model, measured)
    period = model.period()
    stages = []
    for name in get_args(StageName):
        costs = [cost for cost in model.costs if cost.name == name]
        is_step = name == "step" and measured.has_step
        if not (costs or is_step):
            continue
        free = model.period(factors={name: 0.0})
        gain = max(period / free, 1.0) if free > 0 else (1.0 if not period else math.inf)
        seconds = model.step if is_step else sum(cost.seconds for cost in costs)
        shared = sum(cost.seconds for cost in costs if cost.parallel)
        parallel = model.workers > 0 and shared > seconds / 2
        line = lines.get(name, "")
        stages.append(Stage(name, seconds, parallel, stalls.get(name, 0.0), gain, line))
    return tuple(stages)


def _stall_seconds(model: Model, measured: Measured) -> dict[str, float]:
    """Return seconds a batch that the loop waits because of each stage."""
    stalls: dict[str, float] = {}
    rest = max(measured.loader - measured.device, 0.0)
    downloading = [cost.seconds for cost in model.costs if cost.name == "download"]
    if downloading:
        stalls["download"] = min(rest, sum(downloading))
        rest -= stalls["download"]
        others = tuple(cost for cost in model.costs if cost.name != "download")
        model = replace(model, costs=others)
    if any(cost.name == "copy" and not cost.overlapped for cost in model.costs):
        stalls["copy"] = min(rest, max(measured.host - measured.device, 0.0))
        rest -= stalls["copy"]
    waited_for = [cost for cost in model.binding() if cost.name != "copy" or cost.overlapped]
    if measured.shares_cores:  # nothing is waited for: workers compute beside the step
        waited_for = [cost for cost in model.costs if cost.parallel]
    waited_for = waited_for or [cost for cost in model.costs if cost.name != "copy"]
    total = sum(cost.seconds for cost in waited_for)
    for cost in waited_for:
        if total:
            stalls[cost.name] = stalls.get(cost.name, 0.0) + rest * cost.seconds / total
    return stalls


def bottleneck_of(
    measured: Measured, stages: Sequence[Stage], stalls: Sequence[Stall]
) -> StageName | None:
    """Return the stage that would have to be faster; None where there is nothing to gain."""
    if not measured.is_input_bound:
        return "step" if stalls else None
    loading = [stage for stage in stages if stage.name != "step"]
    if not loading:
        return None
    return max(loading, key=lambda stage: (stage.stall_seconds, stage.seconds)).name


def restarts_of(seconds: Sequence[float], batches: int, wait: float, measured: Measured) -> str:
    """Return what beginning an epoch costs, which is in no rate; "" where that is little.

    `seconds` passed until the first batch of some epochs, of so many `batches` each, and `wait`
    until any other.
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
    measured: Measured,
    stages: Sequence[Stage],
    bottleneck: StageName | None,
    stalls: Sequence[Stall],
    tried: Sequence[MoreWorkers] = (),
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
        verdict = _input_bound(measured, stage, best_of(tried))
    if not restarts:
        return verdict
    return f"{verdict.removesuffix(': ' + NOTHING_TO_GAIN)}; but {restarts}"


def _step_bound(measured: Measured, stalls: Sequence[Stall]) -> str:
    bound = "GPU-bound" if measured.on_gpu else "step-bound"
    if not stalls:
        if not measured.shares_cores:
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


def _input_bound(measured: Measured, stage: Stage, more: MoreWorkers | None) -> str:
    bottleneck = f"{ACTIVITIES[stage.name]} is the bottleneck"
    if stage.where:
        bottleneck += f" ({short_line(stage.where)})"
    if not measured.has_step:
        rate = 1 / measured.loader if measured.loader else 0.0
        return f"no step to compare with: {rate:,.4g} batches a second are made; {bottleneck}"
    waits = "the GPU" if measured.on_gpu else "the step"
    verdict = f"input-bound: {waits} waits {measured.waiting:.0%} of the time; {bottleneck}"
    if more is None or more.untried:
        return verdict
    noun = "worker" if more.workers == 1 else "workers"
    return f"{verdict}; with {more.workers} {noun} it waits {more.waiting(measured):.0%}"
