"""A timeline: a few steps of the loop, and what each worker was at meanwhile.

They are steps of their own, in none of the measured windows: workers take times, and send them
along with what they made.  A worker's row has what it did for each batch, the kinds of work one
after another: within a batch they may take turns a thousand times, which nobody could see.

    packed data, by threads, processes or the caller     its own workers, over recorded data
    a stock DataLoader                                   made anew, with as many workers
    a prefetcher over one of these                       the same, behind a prefetcher like it

Of other iterables nothing is known but when the loop got a batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Job, Request
from fastdata.engine.packed import Loader
from fastdata.engine.tasks import Done, ReadAheadTask
from fastdata.engine.work import BatchWork
from fastdata.prefetch import CUDAPrefetcher
from fastdata.profiling.batches import requests_of
from fastdata.profiling.recorded import doing, recorded
from fastdata.profiling.recorder import Recorder, Times
from fastdata.profiling.remade import Remade
from fastdata.profiling.report import Event
from fastdata.profiling.source import inner_loader, length_of
from fastdata.profiling.windows import LEAST_STEPS, TIMELINE_STEPS
from fastdata.steps import Step

__all__ = ["trace"]


def trace(loader: Any, step: Step, *, primed: int, seconds: float) -> tuple[Event, ...]:
    """Return the events of some steps; none where workers cannot be seen.

    Parameters
    ----------
    loader : Loader, DataLoader, CUDAPrefetcher or other iterable
        Is not iterated over itself.
    step : callable
        Really run.
    primed : int
        Batches that are made before they are asked for: so many steps are run first.
    seconds : float
        After which no more steps are run; some are, however long they take.

    Raises
    ------
    Exception
        Whatever loader or step raise.
    """
    in_thread = isinstance(loader, CUDAPrefetcher) and loader.device.type == "cpu"
    log = _Log(in_thread or bool(getattr(inner_loader(loader), "num_workers", 0)))
    inner = _traced(inner_loader(loader), log)
    if inner is None:
        return ()
    watched: Any = inner
    if isinstance(loader, CUDAPrefetcher):
        watched = CUDAPrefetcher(inner, loader.device, loader._transform, depth=loader._depth)
    skipped = min(primed, (length_of(loader) - 1) // 2)
    return log.events(_watched(watched, step, skipped, seconds))


@dataclass(frozen=True, slots=True)
class _Made:
    """What a worker did for a batch: seconds by stage, from `begun` on."""

    worker: Any
    number: int
    begun: float
    stages: dict[str, float]


class _Log:
    """What workers told so far; may be added to in one thread and read in another.

    Parameters
    ----------
    workers : bool
        Whether it is workers who make batches, and not the loop itself.
    """

    def __init__(self, workers: bool) -> None:
        self.made: list[_Made] = []
        self.count = 0
        self._workers = workers

    def add(self, told: Iterable[tuple[Any, Times, dict[str, float]]]) -> None:
        """Add who made parts of the next batch, and how."""
        for worker, times, stages in told:
            self.made.append(_Made(worker, self.count, times.begun, stages))
        self.count += 1

    def events(self, loop: list[Event]) -> tuple[Event, ...]:
        """Return events of loop and workers, from the first of the loop to its last."""
        if not loop:
            return ()
        first, last = loop[0].start, loop[-1].start + loop[-1].seconds
        numbers = {who: n for n, who in enumerate(sorted({made.worker for made in self.made}))}
        found = list(loop)
        for made in self.made:
            row = f"worker {numbers[made.worker]}" if self._workers else "loop: load"
            begun = made.begun
            for stage, seconds in made.stages.items():
                start, end = max(begun, first), min(begun + seconds, last)
                begun += seconds
                if end > start:
                    label = f"batch {made.number}"
                    found.append(Event(row, start, end - start, label, stage))
        found.sort(key=lambda event: event.start)
        return tuple(
            Event(event.row, event.start - first, event.seconds, event.label, event.stage)
            for event in found
        )


def _watched(iterable: Iterable[Any], step: Step, skipped: int, seconds: float) -> list[Event]:
    """Run steps, and return what the loop did in each, by ``time.perf_counter``."""
    clock = time.perf_counter
    found: list[Event] = []
    with ExitStack() as stack:
        iterator = iter(iterable)
        close = getattr(iterator, "close", None)
        if callable(close):
            stack.callback(close)
        for _ in range(skipped):
            if (batch := next(iterator, _OVER)) is _OVER:
                return []
            step(batch)
        began = clock()
        for number in range(skipped, skipped + TIMELINE_STEPS):
            asked = clock()
            if (batch := next(iterator, _OVER)) is _OVER:
                break
            taken = clock()
            step(batch)
            now = clock()
            label = f"batch {number}"
            found.append(Event("loop: wait", asked, taken - asked, label))
            found.append(Event("loop: step", taken, now - taken, label))
            if now - began > seconds and number + 1 >= skipped + LEAST_STEPS:
                break
    return found


_OVER = object()


def _traced(inner: Any, log: _Log) -> Iterable[Any] | None:
    """Return the same batches, of which the log is told; None where nobody tells."""
    if isinstance(inner, Loader) and isinstance(inner.backend, CpuBackend):
        return _Again(partial(_packed, inner, inner.backend, log))
    if isinstance(inner, DataLoader):
        return _Again(partial(_stock, inner, log))
    return None


class _Again:
    """An iterable of what a function gives."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


def _stock(loader: DataLoader[Any], log: _Log) -> Iterator[Any]:
    remade = Remade(loader, sample=False)
    with ExitStack() as stack:
        if not loader.num_workers:
            stack.enter_context(remade.here())
        for timed in remade.loader(loader.num_workers, loader.prefetch_factor or 2):
            log.add([(timed.worker, timed.times, timed.times.stages())])
            yield timed.batch


def _packed(loader: Loader, backend: CpuBackend, log: _Log) -> Iterator[Any]:
    def prepare(request: Request) -> Job:
        return _TracedJob(backend.maker.prepare(request), log)

    workers = backend.workers.start(_TracedWork(backend.work))
    with closing(backend.stream_of(prepare, workers)) as stream:
        stream.begin(requests_of(loader))
        while True:
            try:
                batch = next(stream)
            except StopIteration:
                return
            yield batch


@dataclass(frozen=True, slots=True)
class _Told:
    """What a task gives back, by whom, and what it took."""

    done: Done
    worker: tuple[int, int]
    times: Times


class _TracedWork:
    """The work of a loader, of which each thread takes times of its own; picklable."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._here = threading.local()

    def __reduce__(self) -> tuple[type[_TracedWork], tuple[BatchWork]]:
        return _TracedWork, (self._work,)

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Any:
        if isinstance(task, ReadAheadTask):
            return self._work(task, memory)
        here = self._here
        if not hasattr(here, "recorder"):
            here.recorder = Recorder()
            here.work = recorded(self._work, here.recorder)
        with doing(here.recorder, "sample"):
            done = here.work(task, memory)
        return _Told(done, (os.getpid(), threading.get_ident()), here.recorder.take())


class _TracedJob:
    """A batch whose tasks tell what they took."""

    def __init__(self, job: Job, log: _Log) -> None:
        self._job = job
        self._log = log
        self.slot, self.tasks = job.slot, job.tasks

    def finish(self, results: Any) -> Any:
        self._log.add((told.worker, told.times, told.times.noted()) for told in results)
        return self._job.finish([told.done for told in results])
