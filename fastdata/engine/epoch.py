"""One pass over a loader: where it stands, and the batches that it gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastdata.engine.backend import BatchStream

if TYPE_CHECKING:
    from fastdata.engine.packed import Loader

__all__ = ["Counts", "Epoch", "Place"]


@dataclass(slots=True)
class Place:
    """A place in training: the next batch of an epoch."""

    epoch: int
    batch: int
    claim: object = field(default=None, compare=False, repr=False)
    """Of the `Epoch` that begins, or began, here."""


@dataclass(slots=True)
class Counts:
    """What `LoaderStats` is computed from."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    ready: int = 0


class Epoch(Iterator[Any]):
    """One epoch of a loader: what ``iter(loader)`` returns.

    Parameters
    ----------
    loader : Loader
    spent : float
        Seconds that it took to start the workers.
    """

    def __init__(self, loader: Loader, spent: float) -> None:
        self._loader = loader
        self._clock = -spent
        self._length = 0
        self._claim = object()
        self._closed = False
        self._place: Place | None = None
        """Where it stands, moved on with each batch handed out; None before the first."""
        self._stream: BatchStream | None = None

    def __next__(self) -> Any:
        loader, counts = self._loader, self._loader._counts
        if self._place is None and not (self._closed or loader._closed):
            called = time.perf_counter()
            loader._begin(self)
            self._clock += called
        # Out of hand until all is well: where Ctrl-C strikes between taking a batch and
        # counting it, the stream is ahead of `_place` and must not be gone on with.
        stream, self._stream = self._stream, None
        if stream is None or self._place is None:
            raise StopIteration
        if self._place.batch >= self._length:
            loader._give_back(stream, Place(self._place.epoch + 1, 0))
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
        if self._place.batch < self._length:
            self._stream = stream
        else:  # at once: who counts batches, as Lightning does, never asks for one more
            loader._give_back(stream, Place(self._place.epoch + 1, 0))
        return loader._record.format(batch)

    def close(self) -> None:
        """End this epoch; workers may stay for the next.  Idempotent."""
        stream, self._stream = self._stream, None
        loader, self._closed = self._loader, True
        if stream is not None:
            loader._give_back(stream, None)
        elif self._place is None and not loader._backend.persistent:
            loader._end_idle()

    def __del__(self) -> None:
        if hasattr(self, "_stream"):
            self.close()
