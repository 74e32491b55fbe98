"""A timeline: a few steps of the loop, and what each worker does meanwhile.

They are steps of their own, in none of the measured windows: workers take times, and send them
along with their batches.  A worker's row has its work for each batch, one kind after another:
within a batch they may alternate a thousand times, which nobody could see.

    packed data, by threads, processes or the caller     its own workers, over recorded data
    a stock DataLoader                                   made anew, with as many workers
    a prefetcher over one of these                       the same, behind a prefetcher like it

Of other iterables it is only known when the loop got a batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Job, Request
from fastdata.engine.loader import Loader
from fastdata.engine.tasks import Done, ReadAheadTask
from fastdata.engine.work import BatchWork
from fastdata.measuring.loaders import inner_loader, loader_info
from fastdata.prefetch import CUDAPrefetcher
from fastdata.profiling.packed import recorded, requests_of
from fastdata.profiling.rates import LEAST_STEPS, TIMELINE_STEPS, loop_events
from fastdata.profiling.recorder import Recorder, Times, recording
from fastdata.profiling.report import Event
from fastdata.profiling.stock import RecordedDataLoader
from fastdata.steps import Step

__all__ = ["makes_batches_in_thread", "trace"]


def makes_batches_in_thread(loader: Any) -> bool:
    """Return whether a prefetcher's thread makes batches beside the step, as a worker does."""
    return isinstance(loader, CUDAPrefetcher) and loader.device.type == "cpu"


def trace(loader: Any, step: Step, *, primed: int, seconds: float) -> tuple[Event, ...]:
    """Run some steps and return their events; none where workers cannot be seen.

    The loader is not iterated over itself.  `primed` batches may be made before they are requested
    for: so many steps are run first.  After so many `seconds` no more steps are run; some are,
    however long they take.

    Raises
    ------
    Exception
        Whatever loader or step raise.
    """
    info, inner = loader_info(loader), inner_loader(loader)
    log = _Log(has_workers=bool(info.workers) or makes_batches_in_thread(loader))
    if isinstance(inner, Loader) and isinstance(inner.backend, CpuBackend):
        traced = _packed_batches(inner, inner.backend, log)
    elif isinstance(inner, DataLoader):
        traced = _stock_batches(inner, log)
    else:
        return ()
    skipped = primed
    if info.batches_per_epoch is not None:
        skipped = min(primed, (info.batches_per_epoch - 1) // 2)
    with closing(traced):
        batches: Any = traced
        if isinstance(loader, CUDAPrefetcher):
            batches = CUDAPrefetcher(traced, loader.device, loader._transform, depth=loader._depth)
        return log.events(_run_steps(batches, step, skipped, seconds))


@dataclass(frozen=True, slots=True)
class _WorkerTimes:
    """What a worker did for a batch: seconds by stage, from `begun` on."""

    worker: Any
    number: int
    begun: float
    stages: dict[str, float]


class _Log:
    """What workers reported so far; may be added to in one thread and read in another."""

    def __init__(self, *, has_workers: bool) -> None:
        self._times: list[_WorkerTimes] = []
        self._batches = 0
        self._has_workers = has_workers

    def add(self, parts: Iterable[tuple[Any, Times, dict[str, float]]]) -> None:
        """Add workers, times and stages of the parts of the next batch."""
        for worker, times, stages in parts:
            self._times.append(_WorkerTimes(worker, self._batches, times.begun, stages))
        self._batches += 1

    def events(self, loop: list[Event]) -> tuple[Event, ...]:
        """Return events of loop and workers, from the first of the loop to its last."""
        if not loop:
            return ()
        first, last = loop[0].start, loop[-1].start + loop[-1].seconds
        workers = sorted({times.worker for times in self._times})
        events = list(loop)
        for times in self._times:
            row = f"worker {workers.index(times.worker)}" if self._has_workers else "loop: load"
            begun = times.begun
            for stage, seconds in times.stages.items():
                start, end = max(begun, first), min(begun + seconds, last)
                begun += seconds
                if end > start:
                    events.append(Event(row, start, end - start, f"batch {times.number}", stage))
        events.sort(key=lambda event: event.start)
        return tuple(replace(event, start=event.start - first) for event in events)


def _run_steps(iterable: Iterable[Any], step: Step, skipped: int, seconds: float) -> list[Event]:
    """Run steps, and return what the loop did in each, by ``time.perf_counter``."""
    clock, end = time.perf_counter, object()
    events: list[Event] = []
    with ExitStack() as stack:
        iterator = iter(iterable)
        close = getattr(iterator, "close", None)
        if callable(close):
            stack.callback(close)
        for _ in range(skipped):
            if (batch := next(iterator, end)) is end:
                return []
            step(batch)
        began = clock()
        for number in range(skipped, skipped + TIMELINE_STEPS):
            requested = clock()
            if (batch := next(iterator, end)) is end:
                break
            taken = clock()
            step(batch)
            now = clock()
            events += loop_events(number, requested, taken, now)
            if now - began > seconds and number + 1 >= skipped + LEAST_STEPS:
                break
    return events


def _stock_batches(loader: DataLoader[Any], log: _Log) -> Generator[Any, None, None]:
    recorded_loader = RecordedDataLoader(loader)
    with recorded_loader.open(loader.num_workers, loader.prefetch_factor or 2) as made:
        for one in made:
            log.add([(one.worker, one.times, one.times.stages())])
            yield one.batch


def _packed_batches(loader: Loader, backend: CpuBackend, log: _Log) -> Generator[Any, None, None]:
    def prepare(request: Request) -> Job:
        return _TracedJob(backend.maker.prepare(request), log)

    workers = backend.workers.start(_TracedWork(backend.work))
    with closing(backend.stream_of(prepare, workers)) as stream:
        stream.begin(requests_of(loader))
        end = object()
        while (batch := next(stream, end)) is not end:
            yield batch


@dataclass(frozen=True, slots=True)
class _Result:
    """What a task returns, which process and thread did it, and what it took."""

    done: Done
    worker: tuple[int, int]
    times: Times


class _TracedWork:
    """The work of a loader, of which each thread takes times of its own; picklable."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[_TracedWork], tuple[BatchWork]]:
        return _TracedWork, (self._work,)

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Any:
        if isinstance(task, ReadAheadTask):
            return self._work(task, memory)
        local = self._local
        if not hasattr(local, "recorder"):
            local.recorder = Recorder()
            local.work = recorded(self._work, local.recorder)
        with recording(local.recorder, "sample"):
            done = local.work(task, memory)
        return _Result(done, (os.getpid(), threading.get_ident()), local.recorder.take())


class _TracedJob:
    """A batch whose tasks report what they took."""

    def __init__(self, job: Job, log: _Log) -> None:
        self._job = job
        self._log = log
        self.slot, self.tasks = job.slot, job.tasks

    def finish(self, results: Any) -> Any:
        self._log.add((one.worker, one.times, one.times.stages_by_clock()) for one in results)
        return self._job.finish([one.done for one in results])
