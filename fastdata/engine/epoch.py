"""The passes over a loader: its position, its iterators, and the streams that these take from.

A stream of batches outlives the pass that it was made for, so that workers begin the next epoch
while the last batches of this one are in use; meanwhile `Passes` holds it as the idle one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fastdata.distributed import rank_and_world_size
from fastdata.engine.backend import Backend
from fastdata.engine.contracts import BatchOrder, BatchStream, Request
from fastdata.errors import WorkerError
from fastdata.sampling.batches import EpochBatches

__all__ = ["Counts", "Epoch", "LoaderStats", "Passes", "Position", "request_of"]


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a loader has done since it was made.

    Attributes
    ----------
    batches, samples : int
        Handed out.
    seconds : float
        From the start of each iteration to its last batch, the time of the
        training loop included.
    wait_seconds : float
        Part of `seconds` in which the loop waited for batches.
    ready_batches : float
        Mean number of finished batches at each request of the loop.  Near
        `prefetch_factor`, loading is ahead of training; near 0, training waits.
    buffers_in_use : int
        Slots of memory with batches: made ahead, or kept by the caller.
    skipped_samples : int
        Corrupt samples that were replaced (``on_corrupt="skip"``).
    bytes_read : int
        Stored bytes of the images that were decoded for batches handed out.
    cache_bytes : int
        Memory that ``cache=`` takes when it is full.
    download_wait_seconds : float
        Time that the threads of this process have waited for images of a store, in sum; without
        worker processes.
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ready_batches: float = 0.0
    buffers_in_use: int = 0
    skipped_samples: int = 0
    bytes_read: int = 0
    cache_bytes: int = 0
    download_wait_seconds: float = 0.0

    @property
    def images_per_second(self) -> float:
        """Samples handed out over seconds; 0 before the first batch."""
        return self.samples / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Counts:
    """What `LoaderStats` is computed from."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ready: int = 0


@dataclass(slots=True)
class Position:
    """A position in training: the next batch of an epoch."""

    epoch: int
    batch: int
    owner: object = field(default=None, compare=False, repr=False)
    """Identity of the `Epoch` that begins here."""


class Passes:
    """The position of a loader, and the streams of its iterators.

    The next pass begins at `next`; `latest` is the position of the iterator that began last.
    """

    def __init__(self, batches: BatchOrder, backend: Backend) -> None:
        self.batches = batches
        self.backend = backend
        self.next = Position(0, 0)
        self.latest = self.next
        self.counts = Counts()
        self.closed = False
        self._idle: tuple[BatchStream, Position | None] | None = None
        # Epochs' streams are held here too.  Otherwise the garbage collector might
        # find one together with its epoch, and end its processes before the epoch
        # gives it back to be used again.
        self._in_use: set[BatchStream] = set()
        self._epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()
        self._process = os.getpid()

    @property
    def under_way(self) -> bool:
        """Whether an iterator has begun and not ended."""
        self.leave_parents_streams()
        return bool(self._in_use)

    def leave_parents_streams(self) -> None:
        """In a forked process, leave all streams, whose workers are the parent's, alone."""
        if os.getpid() == self._process or not self.backend.workers.num_workers:
            return
        parent, self._process = self._process, os.getpid()
        _of_parent.extend(self._in_use)
        self._in_use.clear()
        idle, self._idle = self._idle, None
        if idle is not None:
            _of_parent.append(idle[0])
        for epoch in list(self._epochs):
            epoch.leave_stream_to(parent)

    def replace(self, batches: BatchOrder, backend: Backend) -> None:
        """Go on with another order and backend; when no stream is left."""
        before, sampler_epoch = self.backend, self.batches.sampler_epoch
        self.batches, self.backend = batches, backend
        if sampler_epoch is not None and batches.sampler_epoch is not None:
            batches.sampler_epoch.follow(sampler_epoch)
        before.close()

    # -- the position of the loader ---------------------------------------------------------

    def set_next(self, position: Position, *, by_user: bool = False) -> None:
        """Begin the next pass at `position`; `by_user`: set the epoch of their sampler too."""
        self.latest = self.next = position
        sampler_epoch = self.batches.sampler_epoch
        if sampler_epoch is not None and by_user:
            sampler_epoch.set(position.epoch, by_user=True)

    def upcoming(self, owner: object = None) -> Position:
        """Return where the next pass begins, or the position at which that of `owner` began.

        It is of the epoch that the user gave their own sampler, if they did.
        """
        position = self.next
        if position.owner is not None and position.owner is not owner:
            position = self.next = Position(position.epoch + 1, 0)
        sampler_epoch = self.batches.sampler_epoch
        given = None if sampler_epoch is None else sampler_epoch.newly_set()
        if given is not None and given != position.epoch:
            position = self.next = Position(given, 0)
        return position

    def current(self) -> Position:
        """Return the position of the next batch, of the iterator that began last."""
        if self.latest is self.next and self.next.owner is None:
            self.latest = self.upcoming()  # of the epoch of the user's sampler
        return self.within_epoch(self.latest)

    def within_epoch(self, position: Position) -> Position:
        """Return `position`, or the beginning of the next epoch where this one is at its end."""
        return Position(position.epoch + 1, 0) if position.batch >= len(self.batches) else position

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the position of the loader afterwards, whatever is iterated over."""
        before = self.latest, self.next
        self.next = dataclasses.replace(self.next)  # an iterator moves it on
        try:
            yield
        finally:
            self.latest, self.next = before

    # -- passes -----------------------------------------------------------------------------

    def open(self, resolve: Callable[[], None], format_batch: Callable[[Any], Any] | None) -> Epoch:
        """Return a new iterator; workers start now if the order is known.

        `resolve` is called before the first batch, to look up the rank; `format_batch`, if given,
        converts each batch for the user.
        """
        began = time.perf_counter()
        if self.batches.joins:  # a user's sampler is asked when the first batch is
            upcoming = self.upcoming()
            position = Position(upcoming.epoch, upcoming.batch)
            self._idle = self._stream_at(position), position
        epoch = Epoch(self, resolve, format_batch, time.perf_counter() - began)
        self._epochs.add(epoch)
        return epoch

    def begin(self, owner: object) -> tuple[BatchStream, Position]:
        """Begin the next epoch for an iterator; if this fails, it is still to come.

        Ctrl-C may strike between any two lines: until the iterator has its position, calling this
        again begins the same epoch, and no other iterator begins it.
        """
        position = self.upcoming(owner)
        position.owner = owner
        try:
            stream = self._stream_at(position)
        except Exception:
            position.owner = None
            raise
        self._in_use.add(stream)
        return stream, position

    def _stream_at(self, position: Position) -> BatchStream:
        """Return a stream of the batches from `position` on: the idle one, or a new one."""
        self.leave_parents_streams()
        stream, prepared = self._idle or (None, None)
        self._idle = None
        if stream is None:
            stream, prepared = self.backend.stream(), None
        if prepared != position:
            joins = self.batches.joins and self.backend.workers.persistent
            # Samplers of several ranks may yield one sample: each occurrence has its own draws.
            own = self.batches.sampler_epoch is not None
            rank = rank_and_world_size(None, None)[0] if own else 0
            try:
                self.backend.begins(self.batches, position.epoch, position.batch)
                stream.begin(_requests(self.batches, position, joins, rank))
            except BaseException:
                stream.close()
                raise
        return stream

    def give_back(self, stream: BatchStream, position: Position | None) -> None:
        """Keep a stream, which is at `position`, for the next epoch, or end it.

        Without a position it makes no batches ahead.
        """
        self._in_use.discard(stream)
        if position is None or not self.batches.joins:
            position = None
            stream.stop()
            self.backend.stopped()
        worth_keeping = position is not None or self.backend.slow_to_start
        if not (self.backend.workers.persistent and worth_keeping) or self.closed or self._idle:
            stream.close()
            return
        self._idle = (stream, position)

    def end(self, stream: BatchStream) -> None:
        """End a stream and its workers."""
        self._in_use.discard(stream)
        self.backend.stopped()  # else workers would wait for downloads of this stream
        stream.close()

    def end_idle(self) -> None:
        """End the stream that no iterator uses."""
        self.leave_parents_streams()
        idle, self._idle = self._idle, None
        if idle is not None:
            idle[0].close()

    def close(self) -> None:
        """End all iterators and their workers.  Idempotent."""
        self.closed = True
        self.leave_parents_streams()
        for epoch in list(self._epochs):
            epoch.close()
        for stream in list(self._in_use):  # of an epoch that was interrupted
            self.end(stream)
        self.end_idle()
        self.backend.close()


_of_parent: list[BatchStream] = []
"""Streams of a parent process, kept alive: finalizers would wait for the parent's threads."""


class Epoch(Iterator[Any]):
    """One epoch of a loader: what ``iter(loader)`` returns.

    `spent` are the seconds that it took to start the workers; else see `Passes.open`.
    """

    def __init__(
        self,
        passes: Passes,
        resolve: Callable[[], None],
        format_batch: Callable[[Any], Any] | None,
        spent: float,
    ) -> None:
        self._passes = passes
        self._resolve = resolve
        self._format_batch = format_batch
        self._clock = -spent
        self._length = 0
        self._owner = object()
        self._closed = False
        self._position: Position | None = None
        """Position of the next batch; None before the first."""
        self._stream: BatchStream | None = None
        self._parent: int | None = None
        """The parent process, if the epoch began there."""

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken."""
        return 0 if self._stream is None else self._stream.ready

    def __next__(self) -> Any:
        passes, counts = self._passes, self._passes.counts
        passes.leave_parents_streams()
        if self._parent is not None:
            raise WorkerError(
                f"the workers of this iterator belong to process {self._parent}, from which this "
                f"one ({os.getpid()}) was forked: call iter() on the loader here"
            )
        if self._position is None and not (self._closed or passes.closed):
            called = time.perf_counter()
            self._begin()
            self._clock += called
        # Detached meanwhile: after Ctrl-C between taking a batch and counting it, the
        # stream is ahead of `_position`, and must not be used again.
        stream, self._stream = self._stream, None
        if stream is None or self._position is None:
            raise StopIteration
        if self._position.batch >= self._length:
            passes.give_back(stream, Position(self._position.epoch + 1, 0))
            raise StopIteration
        try:
            called = time.perf_counter()
            ready = stream.ready
            batch = next(stream)
            now = time.perf_counter()
        except BaseException:  # nothing else would end the workers
            passes.end(stream)
            raise
        counts.ready += ready
        counts.batches += 1
        assert stream.request is not None, "a batch answers a request"
        counts.samples += len(stream.request.indices)
        passes.backend.handed_out(stream.request)
        counts.seconds += now - self._clock
        counts.wait_seconds += now - called
        self._clock = now
        self._position.batch += 1
        if self._position.batch < self._length:
            self._stream = stream
        else:  # at once: a loop that counts batches, as Lightning does, never asks for one more
            passes.give_back(stream, Position(self._position.epoch + 1, 0))
        return batch if self._format_batch is None else self._format_batch(batch)

    def _begin(self) -> None:
        self._resolve()
        if self._stream is not None:  # Ctrl-C has struck below
            self._passes.end(self._stream)
        self._stream, position = self._passes.begin(self._owner)
        self._length = len(self._passes.batches)
        self._position = self._passes.latest = position

    def close(self) -> None:
        """End this epoch; workers may stay for the next.  Idempotent."""
        self._passes.leave_parents_streams()
        stream, self._stream = self._stream, None
        passes, self._closed = self._passes, True
        if stream is not None:
            passes.give_back(stream, None)
        elif self._position is None and not passes.backend.workers.persistent:
            passes.end_idle()

    def leave_stream_to(self, parent: int) -> None:
        """Give up the stream, in a process that was forked from `parent`."""
        self._stream = None
        if self._position is not None and self._position.batch < self._length:
            self._parent = parent

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.close()


def _requests(batches: BatchOrder, position: Position, joins: bool, rank: int) -> Iterator[Request]:
    """Yield the requests from `position` on: of this epoch, or of all if epochs join.

    Not a method of the loader: a stream must not keep the loader alive.
    """
    epoch, first = position.epoch, position.batch
    while True:
        found = batches.in_epoch(epoch)
        for number in range(first, len(found)):
            yield request_of(found, epoch, number, rank)
        if not joins or not len(found):
            return
        epoch, first = epoch + 1, 0


def request_of(batches: EpochBatches, epoch: int, number: int, rank: int = 0) -> Request:
    """Return the request of a batch of an epoch.

    `rank` is given where each rank has an order of its own, in which samples of others may come.
    """
    occurrences = batches.occurrences(number)
    if occurrences is not None:
        occurrences = occurrences + (rank << 48)
    return Request(epoch, batches[number], occurrences, number)
