"""Stage by stage, of a loader of packed data: its own parts, one after another, on some batches.

=========  ====================================================================
read       the images' places in the shards, and their bytes, until they are in memory
decode     decoding, cutting, resizing, flipping; checksums, where they are due
augment    pixel transforms, callables; transforms of whole batches
collate    planning the batch, its columns, putting it together
hand over  what a worker adds over doing a task in the caller: queues, messages
=========  ====================================================================

All of a batch is made by one thread, with the work that the loader's workers do, over data and
transforms that take times.  The same batch by a worker, that is waited for, takes longer by what
handing over costs; the two take turns.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

from fastdata.engine.batches import BatchMaker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.delivery import arrive
from fastdata.engine.finishing import finish_on_device
from fastdata.engine.job import Request, Workers
from fastdata.engine.packed import Loader
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.profiling.batches import move, requests_of
from fastdata.profiling.costs import Cost
from fastdata.profiling.lines import LineSampler, heaviest
from fastdata.profiling.parts import Parts, handing_over
from fastdata.profiling.recorded import doing, recorded
from fastdata.profiling.recorder import Recorder, Times, hook_seconds
from fastdata.profiling.subject import told
from fastdata.profiling.where import boundary
from fastdata.steps.meter import Meter

__all__ = ["measure_packed"]

LEAST_BATCHES = 3
MOST_BATCHES = 100
LINES_SHARE = 0.25
"""Of the time, for looking for lines, where there are callables."""


def measure_packed(loader: Loader, seconds: float) -> Parts:
    """Return what the stages of a loader of packed data take.

    Parameters
    ----------
    loader : Loader
        Is not iterated over itself.
    seconds : float
        To take, about; some batches are measured however long they take.

    Notes
    -----
    Only for backends whose workers are ours (`CpuBackend`); others make a batch in one go, of
    which nothing more is known here.
    """
    backend = loader.backend
    if not isinstance(backend, CpuBackend):
        note = (
            f"{told(backend, str)} makes batches in one go: what that consists of is not measured"
        )
        return Parts(notes=(note,))
    work, options = backend.work, backend.workers
    calls = not work.pipeline.direct
    share = 1 - LINES_SHARE if calls else 1.0
    requests = requests_of(loader)
    recorder = Recorder()
    with closing(BufferPool(4)) as buffers:
        maker = BatchMaker(
            recorded(work, recorder), pieces=max(1, options.num_workers), buffers=buffers
        )
        times, device_seconds = _batches(maker, recorder, requests, backend, seconds * share / 2)
        where: dict[str, str] = {}
        if calls:
            where = _lines(maker, recorder, requests, seconds * LINES_SHARE)
    costs, overhead = _costs(times)
    if device_seconds:
        # On the copying stream, beside the step.
        seconds_there = statistics.median(device_seconds)
        costs.append(Cost("augment", seconds_there, False, overlapped=True))
    if options.num_workers:
        costs += _hand_over(work, options, requests, seconds * share / 2)
    return Parts(tuple(costs), where, overhead)


def _costs(found: list[tuple[Times, Times]]) -> tuple[list[Cost], float]:
    """Return costs of what workers do and of what the loop does, without that of the hooks."""
    per_hook = hook_seconds()
    overheads = []
    sums: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for tasks, loop in found:
        for times, shared in ((tasks, True), (loop, False)):
            total = sum(times.wall.values())
            share = min(times.hooks * per_hook / total, 0.9) if total else 0.0
            if times is tasks:
                overheads.append(share)
            merged: dict[str, tuple[float, float]] = {}
            for kind, wall in times.wall.items():
                name = {"sample": "decode", "load": "decode"}.get(kind, kind)
                before = merged.get(name, (0.0, 0.0))
                merged[name] = (
                    before[0] + wall * (1 - share),
                    before[1] + times.cpu[kind] * (1 - share),
                )
            for name, one in merged.items():
                sums.setdefault((name, shared), []).append(one)
    costs = []
    for (name, shared), some in sums.items():
        seconds = statistics.median(wall for wall, _ in some)
        cpu = statistics.median(cpu for _, cpu in some)
        if seconds > 0:
            costs.append(Cost(name, seconds, shared, min(cpu, seconds)))  # type: ignore[arg-type]
    return costs, statistics.fmean(overheads)


def _batches(
    maker: BatchMaker,
    recorder: Recorder,
    requests: Iterator[Request],
    backend: CpuBackend,
    seconds: float,
) -> tuple[list[tuple[Times, Times]], list[float]]:
    """Return what tasks and loop take of each of some batches, and what is done on the device."""
    device = backend.device
    elsewhere = device is not None and device.type != "cpu"
    found: list[tuple[Times, Times]] = []
    device_seconds: list[float] = []
    deadline = time.perf_counter() + seconds
    for number, request in enumerate(requests):
        tasks, loop, batch = make_recorded(maker, recorder, request, finish=not elsewhere)
        if elsewhere:
            assert device is not None, "it is elsewhere"
            meter, there = Meter(device), move(batch, device)
            pipeline, seed = maker.work.pipeline, maker.work.seed
            took = meter.seconds(partial(arrive, pipeline, seed, request, there))
            if number:
                device_seconds.append(took)
        if number:  # the first pays for what is done once
            found.append((tasks, loop))
        enough = len(found) >= LEAST_BATCHES and time.perf_counter() > deadline
        if enough or len(found) >= MOST_BATCHES:
            break
    return found, device_seconds


@boundary
def make_recorded(
    maker: BatchMaker, recorder: Recorder, request: Request, *, finish: bool = True
) -> tuple[Times, Times, Any]:
    """Return what the tasks of a batch take, what the loop adds, and the batch."""
    recorder.take()
    with doing(recorder, "collate"):
        job = maker.prepare(request)
        tasks = job.tasks()
    begun = recorder.take()
    memory = job.slot.memory if job.slot is not None else None
    results = []
    for task in tasks:
        with doing(recorder, "sample"):
            results.append(maker.work(task, memory))
    done = recorder.take()
    with doing(recorder, "collate"):
        batch = job.finish(results)
    pipeline = maker.work.pipeline
    if finish and (pipeline.batch is not None or pipeline.views):
        with doing(recorder, "augment"):
            batch = finish_on_device(batch, request, pipeline, maker.work.seed)
    loop = recorder.take()
    for kind in loop.wall:
        loop.wall[kind] += begun.wall[kind]
        loop.cpu[kind] += begun.cpu[kind]
    loop.hooks += begun.hooks
    return done, loop, batch


def _lines(
    maker: BatchMaker, recorder: Recorder, requests: Iterator[Request], seconds: float
) -> dict[str, str]:
    """Return the user's line that takes most of each stage."""
    sampler = LineSampler(recorder)
    try:
        deadline = time.perf_counter() + seconds
        for request in itertools.islice(requests, MOST_BATCHES):
            make_recorded(maker, recorder, request)
            if time.perf_counter() > deadline:
                break
    finally:
        sampler.stop()
    return heaviest(sampler.lines())


def _hand_over(
    work: BatchWork, options: WorkerOptions, requests: Iterator[Request], seconds: float
) -> list[Cost]:
    """Return what one worker adds to a batch over doing it in the caller."""
    one = WorkerOptions(1, options.method, 1, True, options.context)
    shared = options.method == "process"
    added: list[float] = []
    loop: list[float] = []
    with closing(BufferPool(4, kind="shared" if shared else "private")) as buffers:
        maker = BatchMaker(work, pieces=options.num_workers, buffers=buffers)
        with closing(WorkerOptions(0).start(work)) as caller, closing(one.start(work)) as worker:
            deadline = time.perf_counter() + seconds
            for number, request in enumerate(requests):
                # In turns first, as the second finds bytes and pages warm.
                order = [(caller, -1), (worker, 1)]
                if number % 2:
                    order.reverse()
                _made(maker, caller, request)  # warm for both
                took = {sign: _made(maker, by, request) for by, sign in order}
                if number:
                    added.append(took[1][0] - took[-1][0])
                    loop.append(took[1][1])
                enough = len(added) >= LEAST_BATCHES and time.perf_counter() > deadline
                if enough or len(added) >= MOST_BATCHES // 2:
                    break
    return handing_over(max(statistics.median(added), 0.0), statistics.median(loop))


def _made(maker: BatchMaker, by: Workers, request: Request) -> tuple[float, float]:
    """Return how long it takes to have a batch made, and to hand over its tasks, on a core."""
    began = time.perf_counter()
    job = maker.prepare(request)
    tasks = job.tasks()
    busy = time.thread_time()
    results = [one.result() for one in [by.submit(task, job.slot) for task in tasks]]
    busy = time.thread_time() - busy
    job.finish(results)
    return time.perf_counter() - began, busy
