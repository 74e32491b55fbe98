"""How fast training is, and would be: with the real loader, and without one.

    loader   the real loader and the step
    host     one batch on the host, again and again: nothing is loaded, all is copied
    device   batches that are on the device: the ceiling

Windows of the three take turns, in an order that is drawn, so that a machine that gets slower
or faster does so for all; each is reported by its median.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fastdata.errors import OptionError
from fastdata.profiling.batches import Batches, move
from fastdata.profiling.report import Event
from fastdata.profiling.source import Ended, Source
from fastdata.steps import Step
from fastdata.steps.meter import Meter

__all__ = ["Rates", "measure_rates"]

ROUNDS, LEAST_ROUNDS = 5, 3
LEAST_STEPS = 3
"""A window has so many at least; one where that alone takes longer than a window."""

LONGEST_FACTOR = 2
"""No round is begun after so many times the seconds that were asked for."""

LONGEST_SETTLING_SECONDS = 1.0
TIMELINE_STEPS = 24


@dataclass(slots=True)
class Rates:
    """What was measured, in seconds.

    Attributes
    ----------
    loader, host, device : list of float
        A step, of each window.
    step_cpu : float
        On cores, of this process, a step on cached batches.
    loader_cpu : float
        The same with the real loader.
    intervals, waits, busy, ready : list of float
        From one batch to the next; waited for a batch; on a core in that time, in this thread;
        batches that were ready then.
    timeline : list of Event
    steps : int
        With the real loader.
    ended : bool
        Whether there were no more batches.
    marks_seconds : float
        What taking times took, of a step with the real loader.
    """

    loader: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    device_cpu: list[float] = field(default_factory=list)
    loader_cpu: list[float] = field(default_factory=list)
    intervals: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    timeline: list[Event] = field(default_factory=list)
    steps: int = 0
    ended: bool = False
    marks_seconds: float = 0.0

    def median(self, which: str) -> float:
        """Return the median of "loader", "host" or "device"; 0 if there is none."""
        values = getattr(self, which)
        return statistics.median(values) if values else 0.0


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
    rates = Rates(marks_seconds=_marks_seconds())
    window = seconds / (3 * ROUNDS)
    runs = {
        "loader": _LoaderRun(source, step, meter, rates),
        "host": _CachedRun(batches, step, meter, rates, device, on_host=True),
        "device": _CachedRun(batches, step, meter, rates, device, on_host=False),
    }
    # A first look, unmeasured: what a first time costs, and how many steps fill a window.
    counts = {}
    deadline = time.perf_counter() + LONGEST_FACTOR * seconds
    for name, run in runs.items():
        took = run.look()
        least = LEAST_STEPS if took < window else 1
        counts[name] = int(max(least, min(window / max(took, 1e-9), 100_000)))
    if steps is not None:
        counts["loader"] = max(1, math.ceil(steps / ROUNDS))
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


class _Run:
    """Windows of one kind."""

    took = 0.0
    """Seconds a step, in the first look."""

    def look(self) -> float:
        raise NotImplementedError

    def window(self, count: int) -> None:
        raise NotImplementedError


class _LoaderRun(_Run):
    """The real loader."""

    def __init__(self, source: Source, step: Step, meter: Meter, rates: Rates) -> None:
        self._source, self._step, self._meter, self._rates = source, step, meter, rates
        self._marks: list[tuple[Any, float]] = []

    def look(self) -> float:
        self._steps(self._source.primed)
        began, paused = time.perf_counter(), self._source.paused_seconds
        done = self._steps(LEAST_STEPS)
        self._meter.synchronize()
        took = time.perf_counter() - began - (self._source.paused_seconds - paused)
        self.took = took / max(done, 1)
        return self.took

    def window(self, count: int) -> None:
        source, rates = self._source, self._rates
        # Those that were made while others were measured.
        lead = source.primed if source.makes_ahead else 0
        counted = [0, 0.0, 0.0]

        def work() -> None:
            paused, cpu = source.paused_seconds, time.process_time()
            counted[0] = self._measured_steps(count)
            counted[1] = source.paused_seconds - paused
            counted[2] = time.process_time() - cpu

        took = self._meter.seconds(work, lambda: self._steps(lead))
        # The host may be ahead of a GPU: the time from batch to batch is the device's.
        marks_of, self._marks = self._marks, []
        for (first, _), (last, without) in itertools.pairwise(marks_of):
            rates.intervals.append(max(self._meter.between(first, last) - without, 0.0))
        done, paused, cpu = counted
        if not done:
            return
        marks = rates.marks_seconds
        each = (took - paused) / done
        if marks > 0.05 * each:
            each = max(each - marks, 0.0)
        rates.loader.append(each)
        rates.loader_cpu.append(cpu / done)
        rates.steps += int(done)

    def _steps(self, count: int) -> int:
        for number in range(count):
            try:
                batch = self._source.next()
            except Ended:
                self._rates.ended = True
                return number
            self._step(batch)
        return count

    def _measured_steps(self, count: int) -> int:
        source, step, rates = self._source, self._step, self._rates
        clock = time.perf_counter
        events = rates.timeline if not rates.timeline else None
        start = clock()
        self._marks = [(self._meter.mark(), 0.0)]
        for number in range(count):
            rates.ready.append(source.ready())
            paused = source.paused_seconds
            asked, core = clock(), time.thread_time()
            try:
                batch = source.next()
            except Ended:
                rates.ended = True
                return number
            core, taken = time.thread_time() - core, clock()
            step(batch)
            now = clock()
            paused = source.paused_seconds - paused
            rates.waits.append(taken - asked - paused)
            if not paused:
                rates.busy.append(core)
            self._marks.append((self._meter.mark(), paused))
            if events is not None and number < TIMELINE_STEPS:
                label = f"batch {number}"
                events.append(Event("loop: wait", asked - start, taken - asked, label))
                events.append(Event("loop: step", taken - start, now - taken, label))
        return count


class _CachedRun(_Run):
    """Batches that are there already."""

    def __init__(
        self,
        batches: Batches,
        step: Step,
        meter: Meter,
        rates: Rates,
        device: torch.device,
        *,
        on_host: bool,
    ) -> None:
        self._step, self._meter, self._device = step, meter, device
        self._batches = batches.host[:1] if on_host else batches.device
        # A step that is used to host batches brings them there itself.
        self._copies = on_host and batches.arrive
        self._found = rates.host if on_host else rates.device
        self._cpu = [] if on_host else rates.device_cpu

    def look(self) -> float:
        self._steps(1)
        self.took = self._meter.seconds(lambda: self._steps(LEAST_STEPS)) / LEAST_STEPS
        return self.took

    def window(self, count: int) -> None:
        cpu = time.process_time()
        took = self._meter.seconds(lambda: self._steps(count))
        self._cpu.append((time.process_time() - cpu) / count)
        self._found.append(took / count)

    def _steps(self, count: int) -> None:
        batches, step = self._batches, self._step
        for number in range(count):
            batch = batches[number % len(batches)]
            step(move(batch, self._device) if self._copies else batch)


def _marks_seconds() -> float:
    """Return what the times of one step cost."""
    clock, count = time.perf_counter, 1000
    found: list[float] = []
    began = clock()
    for _ in range(count):
        clock()
        time.thread_time()
        clock()
        time.thread_time()
        found.append(clock())
        found.append(0.0)
        found.append(0.0)
        found.append(0.0)
    return (clock() - began) / count
