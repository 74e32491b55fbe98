"""The loader of packed data: an epoch of batches at each ``iter()``, and where it stands.

`Loader` puts two parts together: the order of batches (`fastdata.sampling`) and who
makes them, a `Backend`.  What it adds is bookkeeping: epochs, resuming, statistics,
and the end.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastdata.engine.job import Backend, BatchOrder, BatchStream, Request
from fastdata.engine.stats import LoaderStats
from fastdata.errors import OptionError

__all__ = ["Loader", "LoaderStats"]


class Loader:
    """Batches of a packed dataset; made by `fastdata.loader`, which describes the parameters.

    A batch is a named tuple of the schema's fields.  Images are uint8 tensors
    [N, C, H, W] in channels-last memory (of another dtype after `Normalize`,
    `ToDtype` or with `dtype`), numbers and fixed-shape arrays tensors, other
    arrays lists of tensors, text and bytes lists.

    Each ``iter(loader)`` is one epoch, beginning with epoch 0 and counting by
    itself; `set_epoch` chooses the next one.  Workers stay from one epoch to
    the next, and begin it while the last batches of this one are still in use;
    they end with `close`, or with the loader, and threads also with an epoch
    that is left before its end.  Iterators are independent: two at once are two
    epochs, with workers of their own.  `state_dict` speaks of the iterator that
    was made last.

    To be used by one thread at a time; cannot be pickled.

    Parameters
    ----------
    batches : BatchOrder
    backend : Backend

    Attributes
    ----------
    options : fastdata.assembly.LoaderOptions or None
        What it was made by, so that another can be made that differs in some.
    """

    def __init__(self, batches: BatchOrder, backend: Backend) -> None:
        self.options: Any = None
        self.batches = batches
        self.backend = backend
        self.dataset = backend.dataset
        self.pipeline = backend.pipeline
        self.seed = backend.seed
        self._next = _Place(0, 0)
        self._latest = self._next
        self._idle: tuple[BatchStream, _Place | None] | None = None
        # Epochs' streams are held here too.  Otherwise the garbage collector might
        # find one together with its epoch, and end its processes before the epoch
        # gives it back to be used again.
        self._in_use: set[BatchStream] = set()
        self._open: weakref.WeakSet[_Epoch] = weakref.WeakSet()
        self._counts = _Counts()
        self._closed = False

    @property
    def num_workers(self) -> int:
        """Threads or processes that make batches."""
        return self.backend.num_workers

    @property
    def padding(self) -> int:
        """Samples that an epoch repeats, over all ranks, so that each rank has as many."""
        return self.batches.padding

    def __len__(self) -> int:
        """Batches of an epoch, on this rank."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        if self._closed:
            raise OptionError("this loader is closed; make a new one")
        place = self._next
        epoch = _Epoch(self, place)  # where this fails, the epoch is still to come
        self._latest, self._next = place, _Place(place.epoch + 1, 0)
        self._open.add(epoch)
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Make the next iterator one of this epoch, from its first batch."""
        _check_count("epoch", epoch)
        self._latest = self._next = _Place(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return where the iterator that was made last stands, as plain JSON types.

        Batches handed out count as done; those made ahead do not.  After the
        last batch of an epoch the state is the beginning of the next.  It is
        the same on every rank.
        """
        place = self._latest
        if place.batch >= len(self):
            place = _Place(place.epoch + 1, 0)
        return {"version": 1, "epoch": place.epoch, "batch": place.batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iterator continue where `state` was taken.

        It yields exactly the batches that an uninterrupted run would have
        yielded, provided that transforms are the same and callables among
        them draw no random numbers.  The number and method of workers may
        differ, and so may the number of ranks if all of them together still
        take as many samples a step.

        Raises
        ------
        OptionError
            If the state is of another dataset, seed, order or global batch
            size, or no state at all.
        """
        if state.get("version") != 1:
            raise OptionError(f"not the state of a loader of this version: {state!r}")
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise OptionError(
                    f"the state was taken with {name} {state.get(name)!r}, but this loader has "
                    f"{value!r}; make the loader as it was then, or start without the state"
                )
        for name in ("epoch", "batch"):
            _check_count(name, state.get(name))
        self._latest = self._next = _Place(state["epoch"], state["batch"])

    def _identity(self) -> dict[str, Any]:
        """Return what must be the same for a state to make sense."""
        return {"digest": self.dataset.digest, "seed": self.seed, **self.batches.identity}

    def stats(self) -> LoaderStats:
        """Return counts and times over all iterators so far."""
        counts, usage = self._counts, self.backend.usage()
        return LoaderStats(
            batches=counts.batches,
            samples=counts.samples,
            seconds=counts.seconds,
            wait_seconds=counts.wait_seconds,
            ready_batches=counts.ready / counts.batches if counts.batches else 0.0,
            buffers_in_use=usage.buffers_in_use,
            skipped_samples=usage.skipped_samples,
            bytes_read=usage.bytes_read,
            cache_bytes=usage.cache_bytes,
        )

    def close(self) -> None:
        """End all iterators and their workers.  Idempotent."""
        self._closed = True
        for epoch in list(self._open):
            epoch.close()
        for stream in list(self._in_use):  # of an epoch that was interrupted
            self._end(stream)
        if self._idle is not None:
            self._idle[0].close()
            self._idle = None
        self.backend.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        identity = self.batches.identity
        size = identity.get("global_batch_size")
        return (
            f"Loader({len(self)} batches{f' of {size}' if size else ''}, {identity['order']}, "
            f"{self.backend})\n{self.dataset!r}"
        )

    def _take_stream(self, place: _Place) -> BatchStream:
        """Return a stream that stands at `place`."""
        stream, stands_at = self._idle or (None, None)
        self._idle = None
        if stream is None:
            stream = self.backend.stream()
            stands_at = None
        self._in_use.add(stream)
        if stands_at != place:
            joins = self.batches.joins and self.backend.persistent
            try:
                stream.begin(_requests(self.batches, place, joins))
            except BaseException:
                self._end(stream)
                raise
        return stream

    def _give_back(self, stream: BatchStream, stands_at: _Place | None) -> None:
        """Keep a stream for the next epoch, or end it."""
        self._in_use.discard(stream)
        if stands_at is None or not self.batches.joins:
            stands_at = None
            stream.stop()
        worth_keeping = stands_at is not None or self.backend.slow_to_start
        if not (self.backend.persistent and worth_keeping) or self._closed or self._idle:
            stream.close()
            return
        self._idle = (stream, stands_at)

    def _end(self, stream: BatchStream) -> None:
        """End a stream and its workers."""
        self._in_use.discard(stream)
        stream.close()


@dataclass(slots=True)
class _Place:
    """A place in training: the next batch of an epoch."""

    epoch: int
    batch: int


@dataclass(slots=True)
class _Counts:
    """What `LoaderStats` is computed from."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ready: int = 0


def _requests(batches: BatchOrder, place: _Place, joins: bool) -> Iterator[Request]:
    """Yield the requests from `place` on: of this epoch, or without end where epochs join.

    No method of the loader: workers' streams outlive what they would hold.
    """
    epoch, first = place.epoch, place.batch
    while True:
        indices = batches.of(epoch)
        for number in range(first, len(indices)):
            yield Request(epoch, number, indices[number])
        if not joins or not len(indices):
            return
        epoch, first = epoch + 1, 0


class _Epoch(Iterator[Any]):
    """One epoch of a loader: what ``iter(loader)`` returns.

    Parameters
    ----------
    loader : Loader
    place : _Place
        Where to begin; moved on with each batch handed out.
    """

    def __init__(self, loader: Loader, place: _Place) -> None:
        self._loader = loader
        self._place = place
        self._clock = time.perf_counter()
        self._stream: BatchStream | None = loader._take_stream(place)

    def __next__(self) -> Any:
        loader, counts = self._loader, self._loader._counts
        # Out of hand until all is well: where Ctrl-C strikes between taking a batch and
        # counting it, the stream is ahead of `_place` and must not be gone on with.
        stream, self._stream = self._stream, None
        if stream is None:
            raise StopIteration
        if self._place.batch >= len(loader.batches):
            loader._give_back(stream, _Place(self._place.epoch + 1, 0))
            raise StopIteration
        try:
            called = time.perf_counter()
            ready = stream.ready
            batch = next(stream)
            now = time.perf_counter()
        except BaseException:  # nothing else would end the workers
            loader._end(stream)
            raise
        counts.ready += ready
        counts.batches += 1
        assert stream.request is not None, "a batch answers a request"
        counts.samples += len(stream.request.indices)
        counts.seconds += now - self._clock
        counts.wait_seconds += now - called
        self._clock = now
        self._place.batch += 1
        self._stream = stream
        return batch

    def close(self) -> None:
        """End this epoch; workers may stay for the next.  Idempotent."""
        stream, self._stream = self._stream, None
        if stream is not None:
            self._loader._give_back(stream, None)

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self.close()


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise OptionError(f"{name} is an int from 0 up, not {value!r}")
