"""Stage by stage, of a loader of packed data: its own parts, one after another, on some batches.

=========  ====================================================================
read       the images' places in the shards, and their bytes, until they are in memory
decode     decoding, cutting, resizing, flipping; checksums, where they are due
augment    pixel transforms, callables; transforms of whole batches
collate    planning the batch, its columns, putting it together
hand over  what a worker adds over doing a task in the caller: queues, messages
=========  ====================================================================

One thread makes all of a batch by the work that the loader's workers do, over data and transforms
that are recorded.  A worker that is waited for makes the same batch: it takes longer by what
handing over costs.  The two are measured in turns.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.delivery import arrive
from fastdata.engine.finishing import finish_on_device
from fastdata.engine.job import Request, Workers, request_of
from fastdata.engine.loader import Loader
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.measuring.batches import move_batch
from fastdata.printable import safe_repr
from fastdata.profiling.lines import LineSampler, boundary, heaviest_lines
from fastdata.profiling.model import Cost, LoaderCosts, hand_over_costs
from fastdata.profiling.recorder import Recorder, Times, hook_seconds, recording
from fastdata.steps.meter import Meter
from fastdata.transforms.stages import CallStage, PixelStage

__all__ = ["make_batch", "measure_packed", "recorded", "requests_of"]

LEAST_BATCHES, MOST_BATCHES = 3, 100
LINES_SHARE = 0.25
"""Of the time, for sampling lines, where there are callables."""


def requests_of(loader: Loader) -> Iterator[Request]:
    """Yield batches of an epoch to come in random order, then those of the next, without end."""
    for epoch in itertools.count(loader.state_dict()["epoch"] + 1):
        batches = loader.batches.of(epoch)
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


def measure_packed(loader: Loader, seconds: float) -> LoaderCosts:
    """Return what the stages of a loader of packed data take, measured for about `seconds`.

    The loader is not iterated over itself.  Only for backends whose workers are fastdata's own
    (`CpuBackend`); others make a batch in one go, of which nothing more is known here.
    """
    backend = loader.backend
    if not isinstance(backend, CpuBackend):
        name = safe_repr(backend, str)
        note = f"{name} makes batches in one go: what that consists of is not measured"
        return LoaderCosts(notes=(note,))
    work, options = backend.work, backend.workers
    calls_python = not work.pipeline.direct
    share = 1 - LINES_SHARE if calls_python else 1.0
    requests = requests_of(loader)
    recorder = Recorder()
    lines: dict[str, str] = {}
    with closing(BufferPool(4)) as buffers:
        pieces = max(1, options.num_workers)
        maker = BatchMaker(recorded(work, recorder), pieces=pieces, buffers=buffers)
        times, device_seconds = _measure(maker, recorder, requests, backend, seconds * share / 2)
        if calls_python:
            lines = _sample_lines(maker, recorder, requests, seconds * LINES_SHARE)
    costs, overhead = _costs(times)
    if device_seconds:
        # On the copying stream, beside the step.
        augment = statistics.median(device_seconds)
        costs.append(Cost("augment", augment, False, overlapped=True))
    if options.num_workers:
        costs += _hand_over(work, options, requests, seconds * share / 2)
    return LoaderCosts(tuple(costs), lines, overhead)


def _for_seconds(
    requests: Iterator[Request],
    seconds: float,
    *,
    least: int = LEAST_BATCHES,
    most: int = MOST_BATCHES,
) -> Iterator[tuple[int, Request]]:
    """Yield requests with their number; number 0 pays for what is done once, and is not counted."""
    deadline = time.perf_counter() + seconds
    for number, request in enumerate(requests):
        yield number, request
        if number >= most or (number >= least and time.perf_counter() > deadline):
            return


def _measure(
    maker: BatchMaker,
    recorder: Recorder,
    requests: Iterator[Request],
    backend: CpuBackend,
    seconds: float,
) -> tuple[list[tuple[Times, Times]], list[float]]:
    """Return what tasks and loop take of each of some batches, and seconds on the device."""
    device = backend.device
    times: list[tuple[Times, Times]] = []
    device_seconds: list[float] = []
    for number, request in _for_seconds(requests, seconds):
        if device is None or device.type == "cpu":
            tasks, loop, _ = _make_recorded(maker, recorder, request)
        else:
            tasks, loop, batch = _make_recorded(maker, recorder, request, finish=False)
            moved, work = move_batch(batch, device), maker.work
            took = Meter(device).seconds(partial(arrive, work.pipeline, work.seed, request, moved))
            if number:
                device_seconds.append(took)
        if number:
            times.append((tasks, loop))
    return times, device_seconds


@boundary
def _make_recorded(
    maker: BatchMaker, recorder: Recorder, request: Request, *, finish: bool = True
) -> tuple[Times, Times, Any]:
    """Return what the tasks of a batch take, what the loop adds, and the batch."""
    recorder.take()
    with recording(recorder, "collate"):
        job = maker.prepare(request)
        tasks = job.tasks()
    begun = recorder.take()
    memory = job.slot.memory if job.slot is not None else None
    results = []
    for task in tasks:
        with recording(recorder, "sample"):
            results.append(maker.work(task, memory))
    by_tasks = recorder.take()
    with recording(recorder, "collate"):
        batch = job.finish(results)
    pipeline = maker.work.pipeline
    if finish and (pipeline.batch is not None or pipeline.views):
        with recording(recorder, "augment"):
            batch = finish_on_device(batch, request, pipeline, maker.work.seed)
    by_loop = recorder.take()
    by_loop.add(begun)
    return by_tasks, by_loop, batch


def _costs(times: list[tuple[Times, Times]]) -> tuple[list[Cost], float]:
    """Return costs of what tasks and loop do, without that of recording, and its share."""
    per_hook = hook_seconds()
    overheads = []
    seconds: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for tasks, loop in times:
        for some, parallel in ((tasks, True), (loop, False)):
            total = sum(some.wall.values())
            overhead = min(some.hooks * per_hook / total, 0.9) if total else 0.0
            if parallel:
                overheads.append(overhead)
            wall, cpu = some.stages_by_clock(), some.stages_by_clock(some.cpu)
            for name in wall:
                pair = wall[name] * (1 - overhead), cpu[name] * (1 - overhead)
                seconds.setdefault((name, parallel), []).append(pair)
    costs = []
    for (name, parallel), pairs in seconds.items():
        took = statistics.median(wall for wall, _ in pairs)
        cpu_seconds = statistics.median(cpu for _, cpu in pairs)
        if took > 0:
            costs.append(Cost(name, took, parallel, min(cpu_seconds, took)))  # type: ignore[arg-type]
    return costs, statistics.fmean(overheads)


def _sample_lines(
    maker: BatchMaker, recorder: Recorder, requests: Iterator[Request], seconds: float
) -> dict[str, str]:
    """Return the user's line that takes most of each stage."""
    with LineSampler(recorder) as sampler:
        for _, request in _for_seconds(requests, seconds, least=0):
            _make_recorded(maker, recorder, request)
    return heaviest_lines(sampler.counts())


def _hand_over(
    work: BatchWork, options: WorkerOptions, requests: Iterator[Request], seconds: float
) -> list[Cost]:
    """Return what one worker adds to a batch over making it in the caller."""
    one = WorkerOptions(1, options.method, 1, True, options.context)
    shared = options.method == "process"
    added: list[float] = []
    busy: list[float] = []
    with closing(BufferPool(4, kind="shared" if shared else "private")) as buffers:
        maker = BatchMaker(work, pieces=options.num_workers, buffers=buffers)
        with closing(WorkerOptions(0).start(work)) as caller, closing(one.start(work)) as worker:
            for number, request in _for_seconds(requests, seconds, most=MOST_BATCHES // 2):
                # In turns first, as the second finds bytes and pages warm.
                order = [caller, worker] if number % 2 == 0 else [worker, caller]
                _time_batch(maker, caller, request)  # warm for both
                took = {workers: _time_batch(maker, workers, request) for workers in order}
                if number:
                    added.append(took[worker][0] - took[caller][0])
                    busy.append(took[worker][1])
    return hand_over_costs(max(statistics.median(added), 0.0), statistics.median(busy))


def _time_batch(maker: BatchMaker, workers: Workers, request: Request) -> tuple[float, float]:
    """Return seconds until a batch is made, and seconds on a core for handing over its tasks."""
    began = time.perf_counter()
    job = maker.prepare(request)
    tasks = job.tasks()
    busy = time.thread_time()
    results = [one.result() for one in [workers.submit(task, job.slot) for task in tasks]]
    busy = time.thread_time() - busy
    job.finish(results)
    return time.perf_counter() - began, busy


# -- the work of a loader, recorded ----------------------------------------------------------


def recorded(work: BatchWork, recorder: Recorder) -> BatchWork:
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
    """Packed data whose images are read, bytes and all, when they are asked for."""

    def __init__(self, data: Any, recorder: Recorder) -> None:
        self._data = data
        self._recorder = recorder
        self.schema, self.digest = data.schema, data.digest
        self.gather, self.describe_sample = data.gather, data.describe_sample
        self.unreadable = data.unreadable

    def __len__(self) -> int:
        return len(self._data)

    def images(self, name: str, indices: Any, decoder: Any) -> Any:
        with recording(self._recorder, "read"):
            images = self._data.images(name, indices, decoder)
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
            augments = isinstance(stage, (CallStage, PixelStage))
            with recording(self._recorder, "augment" if augments else "sample"):
                samples = stage.run(samples, seed, keys, describe)
        return samples
