"""Stage by stage, of a stock DataLoader: what its samples, its collate and its queues take.

The loader is made anew, over the same dataset and sampler, with one worker that is given the
next batch when the one before has arrived: so nothing waits for anything but itself.

    period of a batch in the loop
    - what the worker took, by its own clock     read, decode, augment, collate
    - the sampler, where that is most of it      load: in the loop, with or without workers
    = hand over                                  of which the loop itself is busy with a part

Dataset and collate function are wrapped, so that each batch carries its times; in worker
processes, or where there are none in this one, libraries are recorded (`fastdata.profiling.hooks`).
A second, unmeasured pass looks for the lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastdata.measuring.loaders import dataloader_arguments, loader_info, worker_arguments
from fastdata.profiling.hooks import hooks_installed
from fastdata.profiling.lines import LineCounts, LineSampler, boundary, heaviest_lines
from fastdata.profiling.model import Cost, LoaderCosts, hand_over_costs
from fastdata.profiling.recorder import Kind, Recorder, Times, hook_seconds

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
    processes only those are patched; without, this one, and put back.

    Raises
    ------
    Exception
        Whatever the dataset, the sampler or the collate function raises, as the loader would.
    """
    taken = _take(RecordedDataLoader(loader), seconds * (1 - LINES_SHARE))
    if not taken:
        note = "the loader gives no batches when it is made anew: its stages are not known"
        return LoaderCosts(notes=(note,))
    notes = []
    times = [one.times for one in taken]
    costs, overhead = _worker_costs(times)
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


def _worker_costs(times: list[Times]) -> tuple[list[Cost], float]:
    """Return costs of what makes batches, without that of recording, and its share of them."""
    per_hook = hook_seconds()
    stages = dict.fromkeys(times[0].stages(), 0.0)
    overheads = []
    for one in times:
        total = sum(one.wall.values())
        hooks = min(one.hooks * per_hook, 0.9 * total)
        overheads.append(hooks / total if total else 0.0)
        for name, value in one.stages().items():
            # Clocks are read at both ends of a stretch, so at worst in proportion to its time.
            stages[name] += value * (1 - overheads[-1]) / len(times)
    computed = statistics.fmean(sum(one.cpu.values()) for one in times)
    # Reading waits; what is computed belongs to the others, by their share.
    others = sum(stages.values()) - stages["read"]
    costs = []
    for name, value in stages.items():
        if value > 0:
            cpu = 0.0 if name == "read" or not others else min(value, computed * value / others)
            costs.append(Cost(name, value, True, cpu))  # type: ignore[arg-type]
    return costs, statistics.fmean(overheads)


@dataclass(slots=True)
class _Taken:
    """How a batch was made, and its seconds in the loop: in all, on a core, of the sampler."""

    times: Times
    lines: LineCounts
    period: float
    loop_cpu: float
    sampling: float


def _take(recorded: RecordedDataLoader, seconds: float) -> list[_Taken]:
    """Take batches for about `seconds`, epoch after epoch."""
    taken: list[_Taken] = []
    alone = recorded.epoch_length == 1
    deadline = time.perf_counter() + seconds
    with recorded.open() as loader:
        batch = None
        while True:
            before = len(taken)
            iterator = iter(loader)
            first = True
            while len(taken) < MOST_BATCHES:
                began, core = time.perf_counter(), time.thread_time()
                sampled = recorded.sampler_seconds
                made = next(iterator, None)
                if made is None:
                    break
                # The memory of the batch before is given back now, as in any loop.
                batch, made.batch = made.batch, None
                now, core = time.perf_counter(), time.thread_time() - core
                # The first includes the start of workers; an epoch of one batch has no other.
                if not first or alone:
                    sampling = recorded.sampler_seconds - sampled
                    taken.append(_Taken(made.times, made.lines, now - began, core, sampling))
                first = False
                if now > deadline and len(taken) >= LEAST_BATCHES:
                    break
            batch = None
            del iterator
            enough = len(taken) >= LEAST_BATCHES
            ended = len(taken) >= MOST_BATCHES or time.perf_counter() > deadline
            if len(taken) == before or (enough and ended):
                del batch
                return taken


# -- a DataLoader whose batches carry their times --------------------------------------------


@dataclass(slots=True)
class RecordedBatch:
    """A batch, how it was made, at which lines, and by which worker."""

    batch: Any
    times: Times
    lines: LineCounts
    worker: int


class RecordedDataLoader:
    """A DataLoader like another that gives each batch as a `RecordedBatch`.

    With `sample_lines`, the lines that take the time are looked for as well, which takes some.
    `sampler_seconds` is what the sampler has taken so far, in the loop.
    """

    def __init__(self, loader: DataLoader[Any], *, sample_lines: bool = False) -> None:
        self.sampler_seconds = 0.0
        self.epoch_length = loader_info(loader).batches_per_epoch
        self._like = loader
        self._clock = _Clock(sample_lines)

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
                    "worker_init_fn": _StartRecording(clock, like.dataset, like.worker_init_fn),
                }
            else:
                stack.enter_context(clock.running(like.dataset))
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
    """The recorder of the process that makes batches; begun there, as threads cannot be sent."""

    def __init__(self, sample_lines: bool) -> None:
        self.recorder: Recorder | None = None
        self.line_sampler: LineSampler | None = None
        self._sample_lines = sample_lines
        self._running: Any = None

    @contextmanager
    def running(self, dataset: Any) -> Iterator[None]:
        """Record this process inside the block."""
        with ExitStack() as stack:
            stack.callback(self._forget)
            self.recorder = Recorder()
            if self._sample_lines:
                self.line_sampler = stack.enter_context(LineSampler(self.recorder))
            stack.enter_context(hooks_installed(self.recorder, dataset))
            yield

    def _forget(self) -> None:
        self.recorder = self.line_sampler = None

    def run_until_exit(self, dataset: Any) -> None:
        """Record this process for as long as it lives."""
        self._running = self.running(dataset)
        self._running.__enter__()

    @boundary
    def call(self, kind: Kind, function: Callable[..., Any], *args: Any) -> Any:
        """Call the user's function, recorded while the clock runs."""
        if self.recorder is None:
            return function(*args)
        return self.recorder.call(kind, function, *args)


class _StartRecording:
    """A ``worker_init_fn`` that records its worker process.

    It is sent there together with dataset and collate function, so that all have the same clock.
    """

    def __init__(self, clock: _Clock, dataset: Any, then: Callable[[int], None] | None) -> None:
        self._clock = clock
        self._dataset = dataset
        self._users = then

    def __call__(self, worker: int) -> None:
        if self._users is not None:
            self._users(worker)
        self._clock.run_until_exit(self._dataset)


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
