"""A timeline: a few steps of the loop, and what each worker does meanwhile.

They are steps of their own, in none of the measured windows: workers take times, and send them
along with their batches.  A worker's row shows its work for each batch, one kind after another:
within a batch they may alternate a thousand times, which would be invisible.

    packed data, by threads, processes or the caller     its own workers, over recorded data
    a stock DataLoader                                   made anew, with as many workers
    a prefetcher over one of these                       the same, behind a prefetcher like it

Of other iterables it is only known when the loop got a batch.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, TypeAlias

from torch.utils.data import DataLoader

from fastdata.engine.backend import CpuBackend
from fastdata.engine.contracts import Job, Request
from fastdata.engine.loader import Loader
from fastdata.measuring.loaders import inner_loader
from fastdata.prefetch import CUDAPrefetcher
from fastdata.profiling.loaders import loader_info
from fastdata.profiling.packed import RecordedResult, RecordedWork, requests_of
from fastdata.profiling.rates import LEAST_STEPS, TIMELINE_STEPS, loop_events
from fastdata.profiling.recorder import Times
from fastdata.profiling.report import Event
from fastdata.profiling.stock import RecordedDataLoader
from fastdata.steps import Step

__all__ = ["makes_batches_in_thread", "trace"]

MadeBy: TypeAlias = list[tuple[Any, Times]]
"""The worker of each part of a batch, and what it took."""


def makes_batches_in_thread(loader: Any) -> bool:
    """Return whether a prefetcher's thread makes batches beside the step, as a worker does."""
    return isinstance(loader, CUDAPrefetcher) and loader.device.type == "cpu"


def trace(loader: Any, step: Step, *, primed: int, seconds: float) -> tuple[Event, ...]:
    """Run some steps and return their events; none where workers cannot be seen.

    The loader is not iterated over itself.  `primed` batches may be made before they are requested
    for: so many steps are run first.  After so many `seconds` no more steps are run; some are,
    however long they take.  Whatever loader or step raise is raised.
    """
    info, inner = loader_info(loader), inner_loader(loader)
    made_by: list[MadeBy] = []  # appended to in the thread of a prefetcher, perhaps
    if isinstance(inner, Loader) and isinstance(inner.backend, CpuBackend):
        traced = _packed_batches(inner, inner.backend, made_by)
    elif isinstance(inner, DataLoader):
        traced = _stock_batches(inner, made_by)
    else:
        return ()
    skipped = primed
    if info.batches_per_epoch is not None:
        skipped = min(primed, (info.batches_per_epoch - 1) // 2)
    with closing(traced):
        batches: Any = traced
        if isinstance(loader, CUDAPrefetcher):
            batches = CUDAPrefetcher(traced, loader.device, loader.transform, depth=loader.depth)
        loop = _run_steps(batches, step, skipped, seconds, made_by)
        has_workers = bool(info.workers) or makes_batches_in_thread(loader)
        return _events(loop, made_by, has_workers=has_workers)


def _events(loop: list[Event], made: Sequence[MadeBy], *, has_workers: bool) -> tuple[Event, ...]:
    """Return events of loop and workers, from the first of the loop to its last."""
    if not loop:
        return ()
    first, last = loop[0].start, loop[-1].start + loop[-1].seconds
    workers = sorted({worker for parts in made for worker, _ in parts})
    events = list(loop)
    for number, parts in enumerate(made):
        for worker, times in parts:
            row = f"worker {workers.index(worker)}" if has_workers else "loop: load"
            begun = times.begun
            for stage, (seconds, _) in times.stages().items():
                start, end = max(begun, first), min(begun + seconds, last)
                begun += seconds
                if end > start:
                    events.append(Event(row, start, end - start, f"batch {number}", stage))
    events.sort(key=lambda event: event.start)
    return tuple(replace(event, start=event.start - first) for event in events)


def _run_steps(
    iterable: Iterable[Any], step: Step, skipped: int, seconds: float, made_by: list[MadeBy]
) -> list[Event]:
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
        # What workers are at now they report with batches that no step has had yet.
        now = clock()
        for _ in range(skipped):
            if next(iterator, end) is end or all(times.begun > now for _, times in made_by[-1]):
                break
    return events


def _stock_batches(loader: DataLoader[Any], made_by: list[MadeBy]) -> Generator[Any, None, None]:
    recorded_loader = RecordedDataLoader(loader)
    with recorded_loader.open(loader.num_workers, loader.prefetch_factor or 2) as made:
        for one in made:
            made_by.append([(one.worker, one.times)])
            yield one.batch


def _packed_batches(
    loader: Loader, backend: CpuBackend, made_by: list[MadeBy]
) -> Generator[Any, None, None]:
    def prepare(request: Request) -> Job:
        return _TracedJob(backend.maker.prepare(request), made_by)

    workers = backend.workers.start(RecordedWork(backend.work))
    with closing(backend.stream_of(prepare, workers)) as stream:
        stream.begin(requests_of(loader))
        end = object()
        while (batch := next(stream, end)) is not end:
            yield batch


class _TracedJob:
    """A batch whose tasks report what they took."""

    def __init__(self, job: Job, made_by: list[MadeBy]) -> None:
        self._job = job
        self._made_by = made_by
        self.slot, self.tasks = job.slot, job.tasks

    def finish(self, results: Sequence[RecordedResult]) -> Any:
        self._made_by.append([(one.worker, one.times) for one in results])
        return self._job.finish([one.done for one in results])
