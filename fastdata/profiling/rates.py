"""How fast training is, and would be: with the real loader, and without one.

    loader   the real loader and the step
    host     one batch on the host, again and again: nothing is loaded, all is copied
    device   batches that are on the device: the ceiling

Windows of the three are measured in turns, in a random order, so that a machine that gets slower
or faster does so for all; each is reported by its median.
"""

from __future__ import annotations

import itertools
import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from fastdata.errors import OptionError
from fastdata.measuring.cores import CoresOfOthers
from fastdata.measuring.loaders import BatchesExhaustedError
from fastdata.measuring.windows import in_turns
from fastdata.profiling.batches import CachedBatches, LoaderBatches
from fastdata.profiling.downloads import DownloadWatch
from fastdata.profiling.report import Event
from fastdata.steps import Step
from fastdata.steps.meter import Meter

__all__ = [
    "LEAST_STEPS",
    "TIMELINE_STEPS",
    "WAITS",
    "Measured",
    "Rates",
    "compare_loaders",
    "loop_events",
    "measure_rates",
    "median",
]

ROUNDS, LEAST_ROUNDS = 5, 3

LEAST_STEPS = 3
"""Of a window, however long they take; one where that alone takes longer than a window."""

TIMELINE_STEPS = 24

MOST_STEPS = 100_000
"""Of a window."""

LONGEST_FACTOR = 2
"""No round begins after so many times the given seconds."""

DOWNLOAD_SHARE = 0.5
"""Of the time, for the loop with a loader whose images come out of a store meanwhile."""

LONGEST_PAUSE_SECONDS = 1.0
"""After a window with the real loader, until workers have made what they make ahead."""

NEGLIGIBLE_SECONDS = 5.0
"""A profile that takes so long is not worth a warning."""

WAITS = 0.05
"""A step that waits a smaller share of its time is fed."""

WAITED = 0.03
"""Share of the warm-up in which the loop waits, from which on windows have whole waves."""

log = logging.getLogger("fastdata")


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

    @property
    def is_input_bound(self) -> bool:
        """Whether training waits for data.

        On the CPU a step is slower also where workers share its cores; it is fed all the same if
        the loop hardly ever waits for a batch.
        """
        if not self.has_step:
            return True
        if not self.on_gpu and self.waited < WAITS / 2:
            return False
        return self.waiting > WAITS

    @property
    def shares_cores(self) -> bool:
        """Whether the step is slower because workers compute on its cores."""
        return self.has_step and not self.is_input_bound and self.waiting > WAITS


@dataclass(slots=True)
class Rates:
    """What was measured, in seconds."""

    loader: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    """A step, of each window."""
    device_cpu: list[float] = field(default_factory=list)
    """On cores, of this process, a step on cached batches."""
    intervals: list[float] = field(default_factory=list)
    """From one batch to the next."""
    waits: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Waiting for a batch, and on a core in that time, in this thread."""
    downloading: list[float] = field(default_factory=list)
    """Of the waiting for a batch, that for images out of a store; nothing where all are here."""
    ready: list[float] = field(default_factory=list)
    """Batches that were ready when the loop requested one."""
    timeline: list[Event] = field(default_factory=list)
    steps: int = 0
    """With the real loader."""
    ended: bool = False
    """Whether there were no more batches."""
    others: float = 0.0
    """Cores that other processes took, while no workers of this one wanted any."""
    reading_clocks: float = 0.0
    """What taking times took, of a step with the real loader."""

    def measured(self, *, has_step: bool, on_gpu: bool) -> Measured:
        """Return the medians, and how much of the time the loop waited."""
        interval = statistics.fmean(self.intervals)
        waited = statistics.fmean(self.waits) / interval if interval > 0 else 0.0
        return Measured(
            median(self.loader), median(self.host), median(self.device), waited, has_step, on_gpu
        )


def median(values: list[float]) -> float:
    """Return the median; 0 of nothing."""
    return statistics.median(values) if values else 0.0


def loop_events(
    number: int, requested: float, taken: float, ended: float, downloading: float = 0.0
) -> list[Event]:
    """Return what the loop did in a step, of which these are the times.

    For so many seconds of its wait it was `downloading`.
    """
    label = f"batch {number}"
    downloads = [Event("loop: download", requested, downloading, label)] * (downloading > 0)
    return [
        *downloads,
        Event("loop: wait", requested, taken - requested, label),
        Event("loop: step", taken, ended - taken, label),
    ]


def measure_rates(
    batches: LoaderBatches,
    step: Step,
    cached: CachedBatches,
    device: torch.device,
    *,
    seconds: float,
    steps: int | None,
    progress: Callable[[str], None],
    download: DownloadWatch | None = None,
) -> Rates:
    """Return how long a step takes with the real loader, a host batch, and device batches.

    That takes about so many `seconds`; `steps` are run with the real loader, if given, and else
    as many as fit.  On CUDA windows are between events of the current stream; an epoch that begins
    within is taken out by the host's clock, between synchronisations.

    Where images are downloaded meanwhile, which `download` watches, the real loader has one window,
    before those of the others: in turns with it, what comes while these are measured would be a
    stock that no training has.  Its mean is given, as images come by the block, in bursts.
    """
    meter = Meter(device)
    rates = Rates(reading_clocks=_reading_clocks(batches, meter))
    real = _LoaderRun(batches, step, meter, rates, download)
    runs: dict[str, _Run] = {
        "loader": real,
        "host": _CachedRun(cached, step, meter, rates, on_host=True),
        "device": _CachedRun(cached, step, meter, rates, on_host=False),
    }
    if download is not None:  # the last to warm up, right before its window
        runs["loader"] = runs.pop("loader")
    deadline = time.perf_counter() + LONGEST_FACTOR * seconds
    counts = _steps_of_windows(runs, seconds / (3 * ROUNDS))
    if steps is not None:
        counts["loader"] = max(1, math.ceil(steps / ROUNDS))
    counts["loader"] = real.whole_waves(counts["loader"])
    _warn_of_slow_steps(runs, counts, seconds, batches)
    if download is not None:
        progress("downloading and the loop")
        real.measure(MOST_STEPS if steps is None else steps, DOWNLOAD_SHARE * seconds)
        download.stop()
        del runs["loader"]
    others = CoresOfOthers()
    for number, names in enumerate(in_turns(runs, ROUNDS)):
        if number >= LEAST_ROUNDS and steps is None and time.perf_counter() > deadline:
            break
        progress(f"rates, {number + 1} of {ROUNDS}")
        for name in names:
            if name == "loader" and rates.ended:
                continue
            if name == "loader":
                real.measure(counts[name])
                real.pause()
                continue
            others.begin()
            runs[name].measure(counts[name])
            others.end()
    rates.others = others.cores
    if not rates.loader:
        raise OptionError(
            "the iterable ended before anything could be measured: give one with more batches, "
            "or one that can be iterated over again"
        )
    return rates


def compare_loaders(
    loaders: Mapping[str, tuple[LoaderBatches, float]],
    step: Step,
    device: torch.device,
    *,
    seconds: float,
) -> dict[str, float] | None:
    """Return how long a step takes with each of some loaders, in turns, for about `seconds`.

    With each is given how long it is expected to take.  None where all together take much longer
    than there is time, or a loader ends.
    """
    meter = Meter(device)
    runs = {name: _LoaderRun(one, step, meter, Rates()) for name, (one, _) in loaders.items()}
    limit = max(LONGEST_FACTOR * seconds, NEGLIGIBLE_SECONDS)
    least = (4 * one.primed * expected for one, expected in loaders.values())  # of one round
    if sum(least) > limit:
        return None
    counts = _steps_of_windows(runs, seconds / (len(runs) * ROUNDS))
    # Much longer than what workers have in hand, of which it is not known how far it is.
    counts = {n: run.whole_waves(max(counts[n], 2 * run.lead)) for n, run in runs.items()}
    deadline = time.perf_counter() + limit
    for number, names in enumerate(in_turns(runs, ROUNDS)):
        if number and time.perf_counter() > deadline:
            break
        for name in names:
            runs[name].measure(counts[name])
            runs[name].pause()
    if not all(run.supplied for run in runs.values()):
        return None
    return {name: median(run.supplied) for name, run in runs.items()}


def _steps_of_windows(runs: Mapping[str, _Run], window: float) -> dict[str, int]:
    """Warm up, and return how many steps fill a window of each kind."""
    counts = {}
    for name, run in runs.items():
        took = run.warm_up(window)
        least = LEAST_STEPS if took < window else 1
        counts[name] = int(max(least, min(window / max(took, 1e-9), MOST_STEPS)))
    return counts


def _warn_of_slow_steps(
    runs: Mapping[str, _Run], counts: Mapping[str, int], seconds: float, batches: LoaderBatches
) -> None:
    """Warn where profiling will take much longer than the time that was given."""
    slow = runs["loader"].step_seconds
    lead = batches.primed if batches.makes_ahead else 0
    a_round = sum(counts[name] * run.step_seconds for name, run in runs.items()) + lead * slow
    if LEAST_ROUNDS * a_round <= max(LONGEST_FACTOR * seconds, NEGLIGIBLE_SECONDS):
        return
    log.warning(
        "profiling takes %.0f s or more from now on, and not the time that was given: a step with "
        "its batch takes %.2g s, and some have to be run",
        LEAST_ROUNDS * a_round + (2 * batches.primed + LEAST_STEPS) * slow,  # those of the timeline
        slow,
    )


def _reading_clocks(batches: LoaderBatches, meter: Meter) -> float:
    """Return what taking times costs in a step with the real loader, as `_LoaderRun` does it."""
    clock, count = time.perf_counter, 300
    results: list[Any] = []
    meter.synchronize()
    began = clock()
    for _ in range(count):
        results.append(batches.ready())
        clock()
        time.thread_time()
        time.thread_time()
        clock()
        results.append(clock())
        results.append((meter.mark(), 0.0))
    return (clock() - began) / count


class _LoaderRun:
    """Steps with the real loader, whose times are added to `rates`.

    `step_seconds` is what one took in the warm-up.
    """

    def __init__(
        self,
        batches: LoaderBatches,
        step: Step,
        meter: Meter,
        rates: Rates,
        download: DownloadWatch | None = None,
    ) -> None:
        self._batches, self._step, self._meter, self.rates = batches, step, meter, rates
        self._download = download
        # Batches that were made while others were measured, to be used up first.
        self.lead = batches.primed if batches.makes_ahead else 0
        self.supplied: list[float] = []  # seconds a step of windows that live on no stock
        self._marks: list[tuple[Any, float]] = []  # after each step, and seconds paused in it
        self._waited = 0.0
        self._wave = 1
        self.step_seconds = 0.0

    def warm_up(self, window: float) -> float:
        """Run some steps unmeasured, one where it fills a window, and return seconds a step."""
        batches, clock = self._batches, time.perf_counter
        first, paused = clock(), batches.paused_seconds
        self._run(batches.primed)
        waited = self._waited - (batches.paused_seconds - paused)
        if waited > WAITED * (clock() - first):
            # The loop waits for the first batch of a wave only; the others are there already.
            self._wave = batches.wave
        for least in (1, LEAST_STEPS):
            began, paused = clock(), batches.paused_seconds
            done = self._run(self.whole_waves(least))
            self._meter.synchronize()
            took = clock() - began - (batches.paused_seconds - paused)
            self.step_seconds = took / max(done, 1)
            if self.step_seconds >= window:
                break
        return self.step_seconds

    def whole_waves(self, count: int) -> int:
        """Return so many steps, or as many more as make whole waves of batches."""
        return -(-count // self._wave) * self._wave

    def measure(self, count: int, most_seconds: float = math.inf) -> None:
        """Measure so many steps, in one go; fewer where they take more than so many seconds."""
        rates, begun = self.rates, len(self.rates.ready)
        took = self._meter.seconds(
            lambda: self._run_measured(count, most_seconds), lambda: self._run(self.lead)
        )
        marks, self._marks = self._marks, []
        done, paused = len(marks) - 1, sum(paused for _, paused in marks)
        # The host may be ahead of a GPU: the time from batch to batch is the device's.
        for (first, _), (last, without) in itertools.pairwise(marks):
            rates.intervals.append(max(self._meter.between(first, last) - without, 0.0))
        if not done:
            return
        seconds = (took - paused) / done
        if rates.reading_clocks > 0.05 * seconds:
            seconds = max(seconds - rates.reading_clocks, 0.0)
        rates.loader.append(seconds)
        rates.steps += done
        # What a window took out of the stock was made before it, while another one was measured.
        drop = rates.ready[begun] - self._batches.ready()
        made = done - drop if 0 < drop < done else done
        self.supplied.append(seconds * done / made)

    def pause(self) -> None:
        """Wait until workers have made what they make ahead, so that they take no more cores."""
        time.sleep(min(LONGEST_PAUSE_SECONDS, self.lead * self.step_seconds))

    def _run(self, count: int) -> int:
        for number in range(count):
            requested = time.perf_counter()
            try:
                batch = next(self._batches)
            except BatchesExhaustedError:
                self.rates.ended = True
                return number
            self._waited += time.perf_counter() - requested
            self._step(batch)
        return count

    def _run_measured(self, count: int, most_seconds: float) -> None:
        batches, step, rates = self._batches, self._step, self.rates
        download = self._download
        clock = time.perf_counter
        events = None if rates.timeline else rates.timeline
        start = clock()
        self._marks = [(self._meter.mark(), 0.0)]
        for number in range(count):
            if number >= LEAST_STEPS and clock() - start > most_seconds:
                return
            rates.ready.append(batches.ready())
            if download is not None:
                download.requested()
            paused = batches.paused_seconds
            requested, core = clock(), time.thread_time()
            try:
                batch = next(batches)
            except BatchesExhaustedError:
                rates.ended = True
                return
            core, taken = time.thread_time() - core, clock()
            step(batch)
            now = clock()
            paused = batches.paused_seconds - paused
            rates.waits.append(taken - requested - paused)
            if download is not None:
                rates.downloading.append(download.waited(rates.waits[-1]))
            if not paused:
                rates.busy.append(core)
            self._marks.append((self._meter.mark(), paused))
            if events is not None and number < TIMELINE_STEPS:
                downloading = rates.downloading[-1] if rates.downloading else 0.0
                times = requested - start, taken - start, now - start
                events += loop_events(number, *times, downloading)


class _CachedRun:
    """Steps on cached batches: the first of those on the host, or all those on the device."""

    def __init__(
        self, cached: CachedBatches, step: Step, meter: Meter, rates: Rates, *, on_host: bool
    ) -> None:
        self._step, self._meter = step, meter
        self._batches = cached.host[:1] if on_host else cached.device
        # A step that gets host batches copies them itself.
        self._deliver = cached.delivered if on_host and cached.loader_copies else None
        self._seconds = rates.host if on_host else rates.device
        self._cpu = [] if on_host else rates.device_cpu
        self.step_seconds = 0.0

    def warm_up(self, window: float) -> float:
        """Run some steps unmeasured, one where it fills a window, and return seconds a step."""
        self._run(1)
        self.step_seconds = self._meter.seconds(lambda: self._run(1))
        if self.step_seconds < window:
            self.step_seconds = self._meter.seconds(lambda: self._run(LEAST_STEPS)) / LEAST_STEPS
        return self.step_seconds

    def measure(self, count: int) -> None:
        """Measure so many steps, in one go."""
        cpu = time.process_time()
        took = self._meter.seconds(lambda: self._run(count))
        self._cpu.append((time.process_time() - cpu) / count)
        self._seconds.append(took / count)

    def _run(self, count: int) -> None:
        batches, step, deliver = self._batches, self._step, self._deliver
        for number in range(count):
            batch = batches[number % len(batches)]
            step(batch if deliver is None else deliver(batch, self._meter.device))


_Run: TypeAlias = _LoaderRun | _CachedRun
