"""Costs of a loader of packed data, stage by stage, on some batches.

=========  ====================================================================
read       the images' places in the shards, and their bytes, until they are in memory
decode     decoding, cutting, resizing, flipping; checksums, if they are due
augment    pixel transforms, callables; transforms of whole batches
collate    planning the batch, its columns, assembly
hand over  from the tasks to their results, without the worker's time: queues, messages
=========  ====================================================================

One worker of the loader's kind does all tasks of a batch, with recorded data and transforms, and
sends its times with the results.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.engine.backend import CpuBackend
from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.contracts import Request
from fastdata.engine.delivery import arrive, finish
from fastdata.engine.epoch import request_of
from fastdata.engine.loader import Loader
from fastdata.engine.work import BatchWork, Done, ReadAheadTask
from fastdata.engine.workers import WorkerOptions
from fastdata.measuring.downloads import in_cache
from fastdata.measuring.lines import boundary
from fastdata.printable import safe_repr
from fastdata.profiling.lines import LineSampler, heaviest_lines
from fastdata.profiling.loaders import move_batch
from fastdata.profiling.model import Cost, LoaderCosts, hand_over_costs
from fastdata.profiling.recorder import Recorder, Times, recording, stage_costs
from fastdata.steps.meter import Meter
from fastdata.transforms.stages import CallStage, ChangeStage, PixelStage
from fastdata.waits import wait_until

__all__ = ["RecordedResult", "RecordedWork", "make_batch", "measure_packed", "requests_of"]

LEAST_BATCHES, MOST_BATCHES = 3, 100
LINES_SHARE = 0.25
"""Share of the time for sampling lines, if there are callables."""


def requests_of(loader: Loader) -> Iterator[Request]:
    """Yield batches of an epoch to come in random order, then those of the next, without end."""
    for epoch in itertools.count(loader.state_dict()["epoch"] + 1):
        batches = loader.batches.in_epoch(epoch)
        order = np.random.default_rng(epoch).permutation(len(batches))
        for number in order.tolist():
            yield request_of(batches, epoch, number)
        if not len(batches):
            return


def make_batch(backend: CpuBackend, request: Request) -> Any:
    """Return a batch that is made in the calling thread, as workers do it."""
    job = backend.maker.prepare(request)
    memory = job.slot.memory if job.slot is not None else None
    return job.finish([backend.work(task, memory) for task in job.tasks()])


def _requests_in_cache(loader: Loader) -> Iterator[Request]:
    """Yield batches, without end, of samples that are drawn from those in the cache.

    So that no stage waits for a download, which is a stage of its own.
    """
    for number in itertools.count():
        here = np.flatnonzero(in_cache(loader.dataset))
        size, random = loader.options.batch_size, np.random.default_rng(number)
        indices = random.choice(here, size, replace=len(here) < size)
        yield Request(loader.epoch, indices, None, number)


def measure_packed(loader: Loader, seconds: float, *, cached: bool = False) -> LoaderCosts:
    """Return the costs of a loader's stages, measured for about `seconds`.

    With `cached`, for data of a store, on samples in the cache.

    The loader itself is not iterated.  Only for `CpuBackend`; other backends make a batch in one
    step.
    """
    backend = loader.backend
    if not isinstance(backend, CpuBackend):
        name = safe_repr(backend, str)
        note = f"{name} makes batches in one go: what that consists of is not measured"
        return LoaderCosts(notes=(note,))
    calls_python = not backend.work.pipeline.direct
    requests = _requests_in_cache(loader) if cached else requests_of(loader)
    share = 1 - LINES_SHARE if calls_python else 1.0
    one = dataclasses.replace(backend.workers, num_workers=min(backend.workers.num_workers, 1))
    with _Bench(backend, one) as bench:
        made = [*bench.run(requests, seconds * share)]
    costs, overhead = stage_costs([batch.tasks for batch in made], parallel=True)
    costs += stage_costs([batch.loop for batch in made], parallel=False)[0]
    if any(batch.device_seconds for batch in made):
        # On the copying stream, concurrent with the step.
        augment = statistics.median(batch.device_seconds for batch in made)
        costs.append(Cost("augment", augment, False, overlapped=True))
    if one.num_workers:
        outside = statistics.median(batch.outside for batch in made)
        costs += hand_over_costs(outside, statistics.median(batch.busy for batch in made))
    lines: dict[str, str] = {}
    if calls_python:
        with _Bench(backend, WorkerOptions(0)) as bench, LineSampler(bench.recorder) as sampler:
            for _ in bench.run(requests, seconds * LINES_SHARE):
                pass
        lines = heaviest_lines(sampler.counts())
    return LoaderCosts(tuple(costs), lines, overhead)


@dataclass(frozen=True, slots=True)
class _Made:
    """Costs of a batch: its tasks, and planning and assembly in the loop.

    `outside` are the seconds until its tasks came back minus their own time; the loop was `busy`
    for a part of it.  `device_seconds` are those on the device.
    """

    tasks: Times
    loop: Times
    outside: float
    busy: float
    device_seconds: float


class _Bench:
    """Makes batches one after another, by workers whose tasks are recorded; a context."""

    def __init__(self, backend: CpuBackend, options: WorkerOptions) -> None:
        work = RecordedWork(backend.work)
        self.recorder, loops_work = work.of_this_thread()
        self._device = backend.device
        self._buffers = BufferPool(
            4, kind="shared" if options.num_workers and options.method == "process" else "private"
        )
        pieces = max(1, backend.workers.num_workers)
        # Each task plans its own part, so that its reads are recorded as its own.
        self._maker = BatchMaker(loops_work, pieces=pieces, buffers=self._buffers, plans_once=False)
        self._workers = options.start(work)

    def __enter__(self) -> _Bench:
        return self

    def __exit__(self, *exception: object) -> None:
        self._workers.close()
        self._buffers.close()

    def run(self, requests: Iterator[Request], seconds: float) -> Iterator[_Made]:
        """Make batches for about `seconds`; yield all except the first, which is a warm-up."""
        deadline = time.perf_counter() + seconds
        for number, request in enumerate(requests):
            made = self._make(request)
            if number:
                yield made
            if number >= MOST_BATCHES or (
                number >= LEAST_BATCHES and time.perf_counter() > deadline
            ):
                return

    @boundary
    def _make(self, request: Request) -> _Made:
        recorder, work = self.recorder, self._maker.work
        recorder.take()
        with recording(recorder, "collate"):
            job = self._maker.prepare(request)
            tasks = job.tasks()
        loop = recorder.take()
        began, core = time.perf_counter(), time.thread_time()
        pending = [self._workers.submit(task, job.slot) for task in tasks]
        for one in pending:
            wait_until(partial(self._workers.wait, one), "the worker that is measured")
        results: list[RecordedResult] = [one.result() for one in pending]
        took, busy = time.perf_counter() - began, time.thread_time() - core
        with recording(recorder, "collate"):
            batch = job.finish([one.done for one in results])
        device_seconds = 0.0
        if self._device is not None and self._device.type != "cpu":
            moved = move_batch(batch, self._device)
            on_device = partial(arrive, work, request, moved)
            device_seconds = Meter(self._device).seconds(on_device)
        elif work.pipeline.batch is not None or work.pipeline.views:
            with recording(recorder, "augment"):
                finish(batch, request, work.pipeline, work.seed)
        by_tasks = sum((one.times for one in results), Times(all_reading_recorded=True))
        took -= sum(one.times.ended - one.times.begun for one in results)
        return _Made(by_tasks, loop + recorder.take(), max(took, 0.0), busy, device_seconds)


# -- the work of a loader, recorded ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedResult:
    """The result of a task, with its process, thread and times."""

    done: Done
    worker: tuple[int, int]
    times: Times


class RecordedWork:
    """The work of a loader, with times for each thread; picklable."""

    def __init__(self, work: BatchWork) -> None:
        self._work = work
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[RecordedWork], tuple[BatchWork]]:
        return RecordedWork, (self._work,)

    def of_this_thread(self) -> tuple[Recorder, BatchWork]:
        """Return the recorder of the calling thread, and the work that it records."""
        if not hasattr(self._local, "recorded"):
            recorder = Recorder(all_reading_recorded=True)
            self._local.recorded = recorder, _recorded(self._work, recorder)
        recorded: tuple[Recorder, BatchWork] = self._local.recorded
        return recorded

    def __call__(self, task: Any, memory: NDArray[np.uint8] | None) -> Any:
        if isinstance(task, ReadAheadTask):
            return self._work(task, memory)
        recorder, work = self.of_this_thread()
        with recording(recorder, "sample"):
            done = work(task, memory)
        return RecordedResult(done, (os.getpid(), threading.get_ident()), recorder.take())


def _recorded(work: BatchWork, recorder: Recorder) -> BatchWork:
    """Return the same work over data and transforms that are recorded."""
    pipeline: Any = work.pipeline
    if not pipeline.direct:
        pipeline = _RecordedPipeline(pipeline, recorder)
    data: Any = _RecordedData(work.dataset, recorder)
    copy = dataclasses.replace(work, dataset=data, pipeline=pipeline)
    for part in copy.parts:
        tables: Any = part.tables
        tables.update({name: _RecordedTable(t, recorder) for name, t in tables.items()})
    return copy


class _RecordedData:
    """Packed data whose `images` are recorded, and read with all their bytes at once."""

    def __init__(self, data: Any, recorder: Recorder) -> None:
        self._data = data
        self._recorder = recorder
        self.schema, self.digest = data.schema, data.digest
        self._gather, self._describe_sample = data._gather, data._describe_sample
        self._unreadable = data._unreadable

    def __len__(self) -> int:
        return len(self._data)

    def _images(self, name: str, indices: Any, decoder: Any) -> Any:
        with recording(self._recorder, "read"):
            images = self._data._images(name, indices, decoder)
            images.read_ahead()
            # Data that are not shards may read later, with the first access.
            touch = getattr(images, "touch", None)
            if touch is not None:
                touch()
            return images


class _RecordedTable:
    """A `PixelTable` whose use is recorded."""

    def __init__(self, table: Any, recorder: Recorder) -> None:
        self._table = table
        self._recorder = recorder
        self.dtype, self.values = table.dtype, table.values

    def apply(self, image: Any, out: Any) -> None:
        with recording(self._recorder, "augment"):
            self._table.apply(image, out)


class _RecordedPipeline:
    """A `Pipeline` with callables whose stages are recorded: geometry decodes, others augment."""

    def __init__(self, pipeline: Any, recorder: Recorder) -> None:
        self._pipeline = pipeline
        self._recorder = recorder
        self.direct, self.batch, self.geometry = False, pipeline.batch, pipeline.geometry
        self.drop, self.pixels = pipeline.drop, pipeline.pixels
        self.views, self.schema = pipeline.views, pipeline.schema

    def run(self, samples: Any, seed: int, keys: Any, describe: Any) -> Any:
        if self.views:
            with recording(self._recorder, "augment"):
                return self._pipeline.run(samples, seed, keys, describe)
        for stage in self._pipeline.stages:
            augments = isinstance(stage, (CallStage, ChangeStage, PixelStage))
            with recording(self._recorder, "augment" if augments else "sample"):
                samples = stage.run(samples, seed, keys, describe)
        return samples
