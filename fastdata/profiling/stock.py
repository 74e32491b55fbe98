"""Stage by stage, of a stock DataLoader: what its samples, its collate and its queues take.

The loader is made anew, over the same dataset and sampler, with one worker that is given the
next batch when the one before has arrived: so nothing waits for anything but itself.

    period of a batch in the loop
    - what the worker took, by its own clock     read, decode, augment, collate
    - the sampler, where that is most of it      load: in the loop, with or without workers
    = hand over                                  of which the loop itself is busy with a part

Dataset and collate function are wrapped, so that each batch carries its times; in worker
processes, or where there are none in this one, libraries are recorded (`hooks_installed`).  A
second, unmeasured pass looks for the lines.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastdata.measuring.lines import boundary
from fastdata.measuring.loaders import dataloader_arguments, worker_arguments
from fastdata.profiling.lines import LineCounts, LineSampler, heaviest_lines
from fastdata.profiling.loaders import loader_info
from fastdata.profiling.model import Cost, LoaderCosts, hand_over_costs
from fastdata.profiling.recorder import Kind, Recorder, Times, hooks_installed, stage_costs

__all__ = ["RecordedDataLoader", "measure_stock"]

LEAST_BATCHES, MOST_BATCHES = 3, 200

SAMPLER_SHARE = 0.5
"""Of a batch's time outside the worker: a sampler that takes more is a stage of its own."""

SLOW_SAMPLER_SECONDS = 0.001
"""A batch: a faster sampler is not worth a stage."""

LINES_SHARE = 0.3
"""Of the time, for the pass that looks for lines."""


def measure_stock(loader: DataLoader[Any], seconds: float) -> LoaderCosts:
    """Return what the stages of a stock DataLoader take, measured for about `seconds`.

    The loader is not iterated over itself, but its dataset and sampler are.  With worker
    processes only those are patched; without, this one, and put back.  Errors of the dataset, the
    sampler and the collate function are raised, as the loader would.
    """
    taken = _take(RecordedDataLoader(loader), seconds * (1 - LINES_SHARE))
    if not taken:
        note = "the loader gives no batches when it is made anew: its stages are not known"
        return LoaderCosts(notes=(note,))
    notes = []
    times = [one.times for one in taken]
    costs, overhead = stage_costs(times, parallel=True)
    outside = statistics.median(
        max(one.period - (one.times.ended - one.times.begun), 0.0) for one in taken
    )
    busy = statistics.median(one.loop_cpu for one in taken)
    sampling = statistics.median(one.sampling for one in taken)
    if sampling > max(SAMPLER_SHARE * outside, SLOW_SAMPLER_SECONDS):
        costs.append(Cost("load", sampling, False))
        notes.append(
            f'the sampler takes {sampling * 1e3:.3g} ms a batch, in the loop: this is called "load"'
        )
        outside, busy = max(outside - sampling, 0.0), max(busy - sampling, 0.0)
    if loader.num_workers:
        costs += hand_over_costs(outside, busy)
    lined = _take(RecordedDataLoader(loader, sample_lines=True), seconds * LINES_SHARE)
    # Counts of a worker add up: where epochs are short, those of the worker that lived longest.
    counts = max((one.lines for one in lined), key=lambda some: sum(some.values()), default={})
    if not any(one.wall["load"] or one.wall["decode"] for one in times):
        notes.append(
            "nothing that decodes images was recognised in __getitem__: what it computes "
            "outside of transforms is called decoding"
        )
    return LoaderCosts(tuple(costs), heaviest_lines(counts), overhead, tuple(notes))


def _take(recorded: RecordedDataLoader, seconds: float) -> list[RecordedBatch]:
    """Return how batches were made for about `seconds`, epoch after epoch; not the batches."""
    taken: list[RecordedBatch] = []
    deadline = time.perf_counter() + seconds

    def is_enough() -> bool:
        over = time.perf_counter() > deadline and len(taken) >= LEAST_BATCHES
        return over or len(taken) >= MOST_BATCHES

    with recorded.open() as loader:
        while not is_enough():
            before, iterator, batch = len(taken), iter(loader), None
            for number in itertools.count():
                began, core = time.perf_counter(), time.thread_time()
                sampled = recorded.sampler_seconds
                made = next(iterator, None)
                if made is None:
                    break
                # The memory of the batch before is given back now, as in any loop.
                batch, made.batch = made.batch, None
                made.period = time.perf_counter() - began
                made.loop_cpu = time.thread_time() - core
                made.sampling = recorded.sampler_seconds - sampled
                # The first includes the start of workers; an epoch of one batch has no other.
                if number or recorded.epoch_length == 1:
                    taken.append(made)
                if is_enough():
                    break
            del iterator, batch
            if len(taken) == before:
                break
    return taken


# -- a DataLoader whose batches carry their times --------------------------------------------


@dataclass(slots=True)
class RecordedBatch:
    """A batch, how it was made, at which lines, and by which worker."""

    batch: Any
    times: Times
    lines: LineCounts
    worker: int
    period: float = 0.0
    loop_cpu: float = 0.0
    sampling: float = 0.0
    """Seconds in the loop until it came, of these on a core, and of the sampler."""


class RecordedDataLoader:
    """A DataLoader like another that gives each batch as a `RecordedBatch`.

    With `sample_lines`, the lines that take the time are looked for as well, which takes some.
    `sampler_seconds` is what the sampler has taken so far, in the loop.
    """

    def __init__(self, loader: DataLoader[Any], *, sample_lines: bool = False) -> None:
        self.sampler_seconds = 0.0
        self.epoch_length = loader_info(loader).batches_per_epoch
        self._like = loader
        self._clock = _Clock(loader, sample_lines)

    @contextmanager
    def open(self, workers: int = 1, prefetch_factor: int = 1) -> Iterator[DataLoader[Any]]:
        """Make the loader; without worker processes where the other has none.

        Then this process is recorded while the block lasts.
        """
        like, clock = self._like, self._clock
        arguments = dataloader_arguments(like, as_batch_sampler=True)
        arguments["collate_fn"] = _RecordedCollate(like.collate_fn, clock)
        for name in ("batch_sampler", "sampler"):
            if name in arguments:
                arguments[name] = _TimedSampler(arguments[name], self)
        if isinstance(like.dataset, IterableDataset):
            arguments["dataset"] = _RecordedIterable(like.dataset, clock)
        else:
            arguments["dataset"] = _RecordedDataset(like.dataset, clock)
        with ExitStack() as stack:
            if like.num_workers:
                arguments |= worker_arguments(like) | {
                    "num_workers": workers,
                    "prefetch_factor": prefetch_factor,
                    "worker_init_fn": clock,
                }
            else:
                stack.enter_context(clock.running())
            yield DataLoader(**arguments)


class _TimedSampler:
    """A sampler whose time is added up; it stays in the loop's process."""

    def __init__(self, sampler: Iterable[Any], recorded: RecordedDataLoader) -> None:
        self._sampler = sampler
        self._recorded = recorded

    def __iter__(self) -> Iterator[Any]:
        end, iterator = object(), None
        while True:
            began = time.perf_counter()
            iterator = iter(self._sampler) if iterator is None else iterator
            drawn = next(iterator, end)
            self._recorded.sampler_seconds += time.perf_counter() - began
            if drawn is end:
                return
            yield drawn


class _Clock:
    """Records the process that makes batches; as a ``worker_init_fn``, the worker that calls it.

    It is sent there together with dataset and collate function, so that all have the same one;
    its recorder is made there, as threads cannot be sent.
    """

    def __init__(self, like: DataLoader[Any], sample_lines: bool) -> None:
        self.recorder: Recorder | None = None
        self.line_sampler: LineSampler | None = None
        self._dataset, self._init_worker = like.dataset, like.worker_init_fn
        self._sample_lines = sample_lines
        self._running: Any = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Record this process inside the block."""
        with ExitStack() as stack:
            self.recorder = Recorder()
            if self._sample_lines:
                self.line_sampler = stack.enter_context(LineSampler(self.recorder))
            stack.enter_context(hooks_installed(self.recorder, self._dataset))
            try:
                yield
            finally:
                self.recorder = self.line_sampler = None

    def __call__(self, worker: int) -> None:
        """Record this worker process for as long as it lives."""
        if self._init_worker is not None:
            self._init_worker(worker)
        self._running = self.running()
        self._running.__enter__()

    @boundary
    def call(self, kind: Kind, function: Callable[..., Any], *args: Any) -> Any:
        """Call the user's function, recorded while the clock runs."""
        if self.recorder is None:
            return function(*args)
        return self.recorder.call(kind, function, *args)


class _Recorded:
    """A dataset whose samples are recorded; its attributes are those of the original."""

    def __init__(self, dataset: Any, clock: _Clock) -> None:
        self.__dict__["_fastdata_dataset"] = dataset
        self.__dict__["_fastdata_clock"] = clock

    def __len__(self) -> int:
        return len(self._fastdata_dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_fastdata") or (name.startswith("__") and name != "__getitems__"):
            raise AttributeError(name)
        value = getattr(self.__dict__["_fastdata_dataset"], name)
        if name != "__getitems__":
            return value
        clock = self.__dict__["_fastdata_clock"]
        return lambda indices: clock.call("sample", value, indices)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fastdata_dataset, name, value)


class _RecordedDataset(_Recorded, Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self._fastdata_clock.call("sample", self._fastdata_dataset.__getitem__, index)


class _RecordedIterable(_Recorded, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        clock = self._fastdata_clock
        iterator = clock.call("sample", iter, self._fastdata_dataset)
        end = object()
        while (sample := clock.call("sample", next, iterator, end)) is not end:
            yield sample


class _RecordedCollate:
    """A collate function that is recorded; it returns the batch with its times."""

    def __init__(self, collate: Callable[[Any], Any], clock: _Clock) -> None:
        self._collate = collate
        self._clock = clock

    def __call__(self, samples: Any) -> RecordedBatch:
        batch = self._clock.call("collate", self._collate, samples)
        recorder, sampler = self._clock.recorder, self._clock.line_sampler
        assert recorder is not None, "recording began before the first batch"
        lines = sampler.counts() if sampler is not None else {}
        info = get_worker_info()
        return RecordedBatch(batch, recorder.take(), lines, info.id if info is not None else 0)
