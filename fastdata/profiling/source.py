"""A loader as an endless source of batches, whatever it is.

What is no steady state is kept out of the time: when a pass ends and the next one has to
start its workers anew, the clock is stopped, and batches that were made before anybody asked
are thrown away.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastdata.engine.packed import Loader
from fastdata.errors import OptionError
from fastdata.prefetch import CUDAPrefetcher

__all__ = ["Ended", "Source", "inner_loader", "length_of"]


class Ended(Exception):  # noqa: N818 - no error
    """There are no more batches, and the iterable cannot be begun again."""


def inner_loader(loader: Any) -> Any:
    """Return what makes the batches that a prefetcher brings to a device."""
    return loader.iterable if isinstance(loader, CUDAPrefetcher) else loader


class Source:
    """Batches without end, of pass after pass.

    For one thread at a time.

    Parameters
    ----------
    loader : iterable of batches

    Attributes
    ----------
    primed : int
        Batches that may be made before they are asked for.
    workers : int
    wave : int
        Batches that come at once, where the loop waits for them: workers of a stock DataLoader
        each make a whole one, side by side.
    makes_ahead : bool
        Whether some are, in workers or in a prefetcher's thread.
    paused_seconds : float
        In which passes were begun, so far.
    start_seconds : float
        From the beginning of the first pass to its first batch.
    passes : int
        Begun so far.
    restarts : list of float
        Seconds to the first batch of each pass but the first, where nobody made it meanwhile.
    pass_length : int
        Batches of a pass: of the last one that ended, or as the loader says.

    Raises
    ------
    OptionError
        While iterating, if a pass has no batch at all.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        inner = inner_loader(loader)
        self.workers, ahead = _workers_of(inner)
        self.primed = ahead + (2 if inner is not loader else 1)
        self.wave = max(self.workers, 1) if isinstance(inner, DataLoader) else 1
        self.makes_ahead = bool(self.workers) or inner is not loader
        self.joins = isinstance(loader, Loader) and loader.backend.persistent
        self.paused_seconds = 0.0
        self.start_seconds = 0.0
        self.passes = 0
        self.restarts: list[float] = []
        self.pass_length = length_of(loader)
        self._iterator: Any = None
        self._taken = 0

    def next(self) -> Any:
        """Return the next batch.

        Raises
        ------
        Ended
        """
        if self._iterator is None:
            return self._begin(time.perf_counter())
        asked = time.perf_counter()
        try:
            batch = next(self._iterator)
        except StopIteration:
            if self._iterator is self.loader:
                raise Ended from None
            self.pass_length = self._taken  # of what has no length, too
            return self._begin(asked)  # workers that end are no part of a step either
        self._taken += 1
        return batch

    def ready(self) -> float:
        """Return how many batches wait to be taken; nan where the loader does not say."""
        iterator = self._iterator
        stream = getattr(iterator, "_stream", None)
        if stream is not None and hasattr(stream, "ready"):
            return float(stream.ready)
        queue, arrived = (getattr(iterator, n, None) for n in ("_data_queue", "_task_info"))
        if queue is None or arrived is None:
            return float("nan")
        try:  # those of later batches that came before an earlier one, too
            return float(queue.qsize() + sum(len(info) > 1 for info in arrived.values()))
        except NotImplementedError:  # macOS
            return float("nan")

    def close(self) -> None:
        """End the pass.  Idempotent."""
        iterator, self._iterator = self._iterator, None
        close = getattr(iterator, "close", None)
        if callable(close) and iterator is not self.loader:
            close()

    def _begin(self, began: float) -> Any:
        """Begin a pass, and return the first batch that was not made before it was asked for."""
        first, self.passes = not self.passes, self.passes + 1
        self._iterator = iter(self.loader)
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not first:  # it can be iterated over once
                raise Ended from None
            raise OptionError(
                f"{type(self.loader).__name__} gave no batch: a profile needs some; is the "
                "dataset empty, or smaller than a batch with drop_last=True?"
            ) from None
        self._taken = 1
        if first:
            self.start_seconds = time.perf_counter() - began
        elif not self.joins:
            self.restarts.append(time.perf_counter() - began)
            # Half of a short pass has to do.
            for _ in range(min(self.primed, (self.pass_length - 1) // 2)):
                try:
                    batch = next(self._iterator)
                except StopIteration:  # a pass that is shorter than the one before
                    break
                self._taken += 1
        if not (self.joins and not first):
            self.paused_seconds += time.perf_counter() - began
        return batch


def _workers_of(loader: Any) -> tuple[int, int]:
    """Return the number of workers, and of batches that they make ahead."""
    if isinstance(loader, Loader):
        options = getattr(loader.backend, "workers", None)
        ahead = getattr(options, "ahead", 2)
        device = getattr(loader.backend, "device", None)
        return loader.num_workers, ahead + (device is not None)
    if isinstance(loader, DataLoader):
        workers = loader.num_workers
        pinned = loader.pin_memory and torch.cuda.is_available()
        return workers, workers * (loader.prefetch_factor or 0) + bool(pinned)
    return 0, 0


def length_of(loader: Any) -> int:
    """Return the batches of a pass; many where it does not say."""
    try:
        return len(loader)
    except Exception:  # a user's own may raise anything
        return 1 << 30
