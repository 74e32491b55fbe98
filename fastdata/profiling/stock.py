"""Stage by stage, of a stock DataLoader: what its samples, its collate and its queues take.

The loader is made anew, over the same dataset and sampler, with one worker that is given the
next batch when the one before has arrived: so nothing waits for anything but itself.

    period of a batch in the loop
    - what the worker took, by its own clock     read, decode, augment, collate
    = hand over                                  of which the loop itself is busy with a part

Each batch brings its times along.  A second, unmeasured pass looks for the lines.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

from fastdata.profiling.hooks import installed
from fastdata.profiling.lines import Lines, LineSampler, heaviest
from fastdata.profiling.model import Cost
from fastdata.profiling.parts import Parts, handing_over
from fastdata.profiling.recorder import Recorder, Times, hook_seconds
from fastdata.profiling.where import boundary

__all__ = ["measure_stock"]

LEAST_BATCHES = 3
MOST_BATCHES = 200
LINES_SHARE = 0.3
"""Of the time, for the pass that looks for lines."""


def measure_stock(loader: DataLoader[Any], seconds: float) -> Parts:
    """Return what the stages of a stock DataLoader take.

    Parameters
    ----------
    loader : DataLoader
        Is not iterated over itself, but its dataset and sampler are.
    seconds : float
        To take, about; some batches are measured however long they take.

    Raises
    ------
    Exception
        Whatever the dataset, the sampler or the collate function raises, as the loader would.

    Notes
    -----
    With worker processes everything is patched in theirs alone; without, in this one, and put
    back.
    """
    found, periods, loop = _run(loader, seconds * (1 - LINES_SHARE), sample=False)
    if not found:
        note = "the loader gives no batches when it is made anew: its stages are not known"
        return Parts(notes=(note,))
    times = [timed.times for timed in found]
    per_hook = hook_seconds()
    stages = {name: 0.0 for name in times[0].stages()}
    overheads = []
    for one in times:
        total = sum(one.wall.values())
        hooks = min(one.hooks * per_hook, 0.9 * total)
        overheads.append(hooks / total if total else 0.0)
        for name, value in one.stages().items():
            # A note is taken at both ends of a stretch, so by share of time at worst.
            stages[name] += value * (1 - overheads[-1]) / len(times)
    computed = statistics.fmean(sum(one.cpu.values()) for one in times)
    total = sum(stages.values())
    costs = []
    for name, value in stages.items():
        if value > 0:
            # Reading waits; what is computed belongs to the others, by their share.
            others = total - stages["read"]
            cpu = 0.0 if name == "read" or not others else min(value, computed * value / others)
            costs.append(Cost(name, value, True, cpu))  # type: ignore[arg-type]
    if loader.num_workers:
        gaps = [
            max(period - (one.ended - one.begun), 0.0)
            for period, one in zip(periods, times, strict=True)
        ]
        costs += handing_over(statistics.median(gaps), statistics.median(loop))
    lines, *_ = _run(loader, seconds * LINES_SHARE, sample=True)
    # Those that a worker saw until then: where passes are short, of the one that lived longest.
    seen = max((one.lines for one in lines), key=lambda some: sum(some.values()), default={})
    where = heaviest(seen)
    notes = []
    if not any(one.wall["load"] or one.wall["decode"] for one in times):
        notes.append(
            "nothing that decodes images was recognised in __getitem__: what it computes "
            "outside of transforms is called decoding"
        )
    return Parts(tuple(costs), where, statistics.fmean(overheads), tuple(notes))


@dataclass(slots=True)
class Timed:
    """A batch, and how it was made."""

    batch: Any
    times: Times
    lines: Lines


def _run(
    loader: DataLoader[Any], seconds: float, *, sample: bool
) -> tuple[list[Timed], list[float], list[float]]:
    """Return what came with some batches, the time from one to the next, the loop's own of it."""
    make = _Make(loader, sample=sample)
    found: list[Timed] = []
    periods: list[float] = []
    loop: list[float] = []
    held: list[Any] = [None]
    deadline = time.perf_counter() + seconds
    with ExitStack() as stack:
        if not loader.num_workers:
            stack.enter_context(make.here())
        rebuilt = make.loader()
        while True:
            before = len(found)
            iterator = iter(rebuilt)
            first = True
            while len(found) < MOST_BATCHES:
                began, busy = time.perf_counter(), time.thread_time()
                timed = next(iterator, None)
                if timed is None:
                    break
                # The memory of the one before is given back now, as in any loop.
                held[0], timed.batch = timed.batch, None
                now, core = time.perf_counter(), time.thread_time() - busy
                # The first brings the start of workers with it; a pass of one has no other.
                if not first or _length(loader) < 2:
                    found.append(timed)
                    periods.append(now - began)
                    loop.append(core)
                first = False
                if now > deadline and len(found) >= LEAST_BATCHES:
                    break
            held[0] = None
            del iterator
            enough = len(found) >= LEAST_BATCHES
            ended = len(found) >= MOST_BATCHES or time.perf_counter() > deadline
            if len(found) == before or (enough and ended):
                break
    return found, periods, loop


class _Make:
    """A loader like another, with one worker, that takes times."""

    def __init__(self, loader: DataLoader[Any], *, sample: bool) -> None:
        self._loader = loader
        self._clock = _Clock(sample=sample)

    def here(self) -> _Here:
        """Return a block in which this process is the worker."""
        return _Here(self._clock, self._loader.dataset)

    def loader(self) -> DataLoader[Any]:
        """Return the loader."""
        loader, clock = self._loader, self._clock
        iterable = isinstance(loader.dataset, IterableDataset)
        wrapper: Any = _TimedIterable if iterable else _TimedDataset
        dataset: Dataset[Any] = wrapper(loader.dataset, clock)
        arguments: dict[str, Any] = {}
        if loader.batch_sampler is not None and not iterable:
            arguments["batch_sampler"] = loader.batch_sampler
        else:
            arguments["batch_size"] = loader.batch_size
            if not iterable:
                arguments["sampler"] = loader.sampler
            elif loader.batch_size is not None:
                arguments["drop_last"] = loader.drop_last
        if loader.num_workers:
            arguments |= {
                "num_workers": 1,
                "prefetch_factor": 1,
                "timeout": loader.timeout,
                "multiprocessing_context": loader.multiprocessing_context,
                "worker_init_fn": _Start(clock, loader.dataset, loader.worker_init_fn),
            }
        return DataLoader(
            dataset,
            collate_fn=_TimedCollate(loader.collate_fn, clock),
            generator=loader.generator,
            **arguments,
        )


class _Clock:
    """The recorder of the process that makes batches; begun there, as threads cannot be sent."""

    def __init__(self, *, sample: bool) -> None:
        self.sample = sample
        self.recorder: Recorder | None = None
        self.sampler: LineSampler | None = None
        self.kept: Any = None

    def begin(self) -> Recorder:
        self.recorder = Recorder()
        if self.sample:
            self.sampler = LineSampler(self.recorder)
        return self.recorder

    def end(self) -> None:
        if self.sampler is not None:
            self.sampler.stop()
        self.recorder = self.sampler = None

    @boundary
    def call(self, kind: Any, function: Callable[..., Any], *args: Any) -> Any:
        if self.recorder is None:
            return function(*args)
        return self.recorder.call(kind, function, *args)


class _Here:
    """Records in this process while its block lasts."""

    def __init__(self, clock: _Clock, dataset: Any) -> None:
        self._clock = clock
        self._dataset = dataset
        self._stack = ExitStack()

    def __enter__(self) -> None:
        recorder = self._clock.begin()
        self._stack.callback(self._clock.end)
        self._stack.enter_context(installed(recorder, self._dataset))

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


class _Start:
    """Begins to record in a worker process, for as long as that lives.

    Sent there together with dataset and collate function, so that all have the same clock.
    """

    def __init__(self, clock: _Clock, dataset: Any, then: Callable[[int], None] | None) -> None:
        self._clock = clock
        self._dataset = dataset
        self._then = then

    def __call__(self, worker: int) -> None:
        if self._then is not None:
            self._then(worker)
        # Never left: the process ends with it.
        self._clock.kept = _Here(self._clock, self._dataset)
        self._clock.kept.__enter__()


class _Timed:
    """A dataset whose samples are recorded; everything else of it is as it was."""

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


class _TimedDataset(_Timed, Dataset[Any]):
    def __getitem__(self, index: Any) -> Any:
        return self._fastdata_clock.call("sample", self._fastdata_dataset.__getitem__, index)


class _TimedIterable(_Timed, IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        clock = self._fastdata_clock
        iterator = clock.call("sample", iter, self._fastdata_dataset)
        over = object()
        while (sample := clock.call("sample", next, iterator, over)) is not over:
            yield sample


class _TimedCollate:
    """A collate function that is recorded; what it returns has the times of the batch with it."""

    def __init__(self, collate: Callable[[Any], Any], clock: _Clock) -> None:
        self._collate = collate
        self._clock = clock

    def __call__(self, samples: Any) -> Timed:
        batch = self._clock.call("collate", self._collate, samples)
        recorder, sampler = self._clock.recorder, self._clock.sampler
        assert recorder is not None, "recording began before the first batch"
        lines = sampler.lines() if sampler is not None else {}
        return Timed(batch, recorder.take(), lines)


def _length(loader: DataLoader[Any]) -> int:
    try:
        return len(loader)
    except TypeError:
        return 1 << 30
