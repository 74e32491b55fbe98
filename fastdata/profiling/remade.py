"""A stock DataLoader made anew, over the same dataset and sampler, whose batches bring times along.

Dataset and collate function are wrapped; in worker processes, or where there are none in this
one, functions of libraries and transforms of the dataset are recorded (`fastdata.profiling.hooks`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from fastdata.profiling.hooks import installed
from fastdata.profiling.lines import Lines, LineSampler
from fastdata.profiling.recorder import Recorder, Times
from fastdata.profiling.where import boundary

__all__ = ["Remade", "Timed"]


@dataclass(slots=True)
class Timed:
    """A batch, how it was made, at which lines, and by which worker."""

    batch: Any
    times: Times
    lines: Lines
    worker: int


class Remade:
    """A loader like another, that takes times.

    Parameters
    ----------
    loader : DataLoader
    sample : bool
        Whether to look for the lines that take the time as well, which takes some.

    Attributes
    ----------
    sampled_seconds : float
        That the sampler has taken so far: in the loop, whoever makes the batches.
    """

    def __init__(self, loader: DataLoader[Any], *, sample: bool) -> None:
        self.sampled_seconds = 0.0
        self._loader = loader
        self._clock = _Clock(sample=sample)

    def here(self) -> _Here:
        """Return a block in which this process is the worker."""
        return _Here(self._clock, self._loader.dataset)

    def loader(self, workers: int = 1, prefetch_factor: int = 1) -> DataLoader[Any]:
        """Return the loader; where the other has no worker processes, this has none either."""
        loader, clock = self._loader, self._clock
        iterable = isinstance(loader.dataset, IterableDataset)
        wrapper: Any = _TimedIterable if iterable else _TimedDataset
        dataset: Dataset[Any] = wrapper(loader.dataset, clock)
        arguments: dict[str, Any] = {}
        if loader.batch_sampler is not None and not iterable:
            arguments["batch_sampler"] = _TimedSampler(loader.batch_sampler, self)
        else:
            arguments["batch_size"] = loader.batch_size
            if not iterable:
                arguments["sampler"] = _TimedSampler(loader.sampler, self)
            elif loader.batch_size is not None:
                arguments["drop_last"] = loader.drop_last
        if loader.num_workers:
            arguments |= {
                "num_workers": workers,
                "prefetch_factor": prefetch_factor,
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


class _TimedSampler:
    """A sampler whose time is added up; it stays in the loop's process."""

    def __init__(self, sampler: Iterable[Any], remade: Remade) -> None:
        self._sampler = sampler
        self._remade = remade

    def __iter__(self) -> Iterator[Any]:
        over, iterator = object(), None
        while True:
            began = time.perf_counter()
            iterator = iter(self._sampler) if iterator is None else iterator
            drawn = next(iterator, over)
            self._remade.sampled_seconds += time.perf_counter() - began
            if drawn is over:
                return
            yield drawn


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
        info = get_worker_info()
        return Timed(batch, recorder.take(), lines, info.id if info is not None else 0)
