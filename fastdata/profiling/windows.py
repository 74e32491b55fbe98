"""Windows: some steps in one go, with the real loader or on cached batches, and what they took."""

from __future__ import annotations

import itertools
import statistics
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fastdata.profiling.batches import Batches
from fastdata.profiling.report import Event
from fastdata.profiling.source import Ended, Source
from fastdata.steps import Step
from fastdata.steps.meter import Meter

__all__ = [
    "LEAST_STEPS",
    "TIMELINE_STEPS",
    "CachedRun",
    "LoaderRun",
    "Rates",
    "Run",
    "marks_seconds",
]

LEAST_STEPS = 3
"""A window has so many at least; one where that alone takes longer than a window."""

WAITED = 0.03
"""Share of the first look in which the loop waited, from which on it matters whether a window
has whole waves of batches."""

TIMELINE_STEPS = 24


@dataclass(slots=True)
class Rates:
    """What was measured, in seconds.

    Attributes
    ----------
    loader, host, device : list of float
        A step, of each window.
    device_cpu : list of float
        On cores, of this process, a step on cached batches.
    loader_cpu : list of float
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


class Run(Protocol):
    """Windows of one kind."""

    @property
    def took(self) -> float:
        """Seconds a step, in the first look."""

    def look(self, window: float) -> float:
        """Do some steps unmeasured, one where it fills a window, and return seconds a step."""

    def window(self, count: int) -> None:
        """Measure so many steps, in one go."""


class LoaderRun:
    """The real loader.

    Parameters
    ----------
    source : Source
    step : callable
    meter : Meter
    rates : Rates
        What is found is added to it.

    Attributes
    ----------
    took : float
        Seconds a step, in the first look.
    wave : int
        Windows are whole multiples of so many steps: where a loop waits for batches that come
        in waves, it waits for the first of a wave alone, and others are there already.
    """

    def __init__(self, source: Source, step: Step, meter: Meter, rates: Rates) -> None:
        self._source, self._step, self._meter, self._rates = source, step, meter, rates
        self._marks: list[tuple[Any, float]] = []
        self._waited = 0.0
        self.took = 0.0
        self.wave = 1

    def look(self, window: float) -> float:
        source, clock = self._source, time.perf_counter
        first, paused = clock(), source.paused_seconds
        self._steps(source.primed)
        waited = self._waited - (source.paused_seconds - paused)
        if waited > WAITED * (clock() - first):
            self.wave = source.wave
        for least in (1, LEAST_STEPS):
            began, paused = clock(), source.paused_seconds
            done = self._steps(self.whole(least))
            self._meter.synchronize()
            took = clock() - began - (source.paused_seconds - paused)
            self.took = took / max(done, 1)
            if self.took >= window:
                break
        return self.took

    def whole(self, count: int) -> int:
        """Return so many steps, or as many more as make whole waves."""
        return -(-count // self.wave) * self.wave

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
            asked = time.perf_counter()
            try:
                batch = self._source.next()
            except Ended:
                self._rates.ended = True
                return number
            self._waited += time.perf_counter() - asked
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


class CachedRun:
    """Batches that are there already.

    Parameters
    ----------
    batches : Batches
    step : callable
    meter : Meter
    rates : Rates
        What is found is added to it.
    device : torch.device
    on_host : bool
        The first of those on the host, again and again, or all of those on the device.
    """

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
        self._sent = batches.sent if on_host and batches.arrives else None
        self.took = 0.0
        self._found = rates.host if on_host else rates.device
        self._cpu = [] if on_host else rates.device_cpu

    def look(self, window: float) -> float:
        self._steps(1)
        self.took = self._meter.seconds(lambda: self._steps(1))
        if self.took < window:
            self.took = self._meter.seconds(lambda: self._steps(LEAST_STEPS)) / LEAST_STEPS
        return self.took

    def window(self, count: int) -> None:
        cpu = time.process_time()
        took = self._meter.seconds(lambda: self._steps(count))
        self._cpu.append((time.process_time() - cpu) / count)
        self._found.append(took / count)

    def _steps(self, count: int) -> None:
        batches, step, sent = self._batches, self._step, self._sent
        for number in range(count):
            batch = batches[number % len(batches)]
            step(batch if sent is None else sent(batch, self._device))


def marks_seconds(source: Source, meter: Meter) -> float:
    """Return what the marks of one step with the real loader cost: as `LoaderRun` sets them.

    Parameters
    ----------
    source : Source
        In the midst of a pass.
    meter : Meter
    """
    clock, count = time.perf_counter, 300
    found: list[Any] = []
    meter.synchronize()
    began = clock()
    for _ in range(count):
        found.append(source.ready())
        clock()
        time.thread_time()
        time.thread_time()
        clock()
        found.append(clock())
        found.append((meter.mark(), 0.0))
    return (clock() - began) / count
