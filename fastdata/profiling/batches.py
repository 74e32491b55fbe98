"""Batches of the profiled loader, in sequence, and cached on the host and the device.

LoaderBatches    epoch after epoch, with the clock stopped while an epoch begins
CachedBatches    input of the training without a loader:  host --copy, arrive--> device
CopyCosts        cost of copying a batch to the device
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastdata.engine.backend import CpuBackend
from fastdata.engine.delivery import arrive
from fastdata.engine.epoch import Epoch
from fastdata.engine.loader import Loader
from fastdata.measuring.loaders import (
    BatchesExhaustedError,
    EndlessBatches,
    batch_nbytes,
    inner_loader,
)
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves, map_leaves
from fastdata.profiling.loaders import batch_size, loader_info, move_batch
from fastdata.profiling.model import Cost
from fastdata.profiling.packed import make_batch, requests_of
from fastdata.steps.meter import Meter

__all__ = [
    "CachedBatches",
    "LoaderBatches",
    "batches_of",
    "measure_copying",
    "measure_prefetcher_transform",
]

CACHED = 4
"""Batches."""

COPIES, PINNINGS = 10, 5
"""How often each is timed."""


@contextmanager
def batches_of(loader: Any) -> Iterator[LoaderBatches]:
    """Give batches of a loader inside the block; at its end a `Loader` is where it was before."""
    inner = inner_loader(loader)
    # Not by `state_dict`: an epoch that is under way keeps its position, and the next is the next.
    place = inner.position_restored() if isinstance(inner, Loader) else nullcontext()
    with place, closing(LoaderBatches(loader)) as batches:
        yield batches


class LoaderBatches(EndlessBatches):
    """Batches of a loader, epoch after epoch, as they come in a steady state.

    If the next epoch must start its workers again, the clock is stopped, and batches that were
    made ahead of their requests are dropped.

    `primed` batches may be made ahead of their requests, by workers or a prefetcher's thread if
    it `makes_ahead`; `wave` batches come at once if the loop waits for them.  A loader that
    `joins_epochs` makes the first batches of the next epoch ahead.  `start_seconds` is the time
    from the beginning of the first epoch to its first batch, `restart_seconds` that of each later
    epoch that is not joined, and `paused_seconds` the sum.  `epoch_length` is the number of batches
    of the last complete epoch, else the loader's length, else a large number.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        info = loader_info(loader)
        prefetched = inner_loader(loader) is not loader
        self.workers = info.workers
        self.primed = info.batches_ahead + (2 if prefetched else 1)
        self.wave = info.batches_at_once
        self.makes_ahead = bool(info.workers) or prefetched
        self.joins_epochs = isinstance(loader, Loader) and loader.backend.workers.persistent
        self.paused_seconds = self.start_seconds = 0.0
        self.restart_seconds: list[float] = []
        length = info.batches_per_epoch
        self.epoch_length = 1 << 30 if length is None else length
        self._requested = 0.0

    def __next__(self) -> Any:
        self._requested = time.perf_counter()
        return super().__next__()

    def end_epoch(self) -> None:
        """Note the length of the epoch that has ended."""
        self.epoch_length = self.taken
        super().end_epoch()

    def begin_epoch(self) -> Any:
        """Begin an epoch, and return the first batch that was not made ahead."""
        batch = super().begin_epoch()
        # Ending the workers of the last epoch does not count either.
        took = time.perf_counter() - self._requested
        if self.epochs == 1:
            self.start_seconds = took
        elif self.joins_epochs:
            return batch
        else:
            self.restart_seconds.append(took)
            assert self.iterator is not None, "the epoch has begun"
            # In a short epoch, half the batches remain.
            for ahead in islice(self.iterator, min(self.primed, (self.epoch_length - 1) // 2)):
                batch = ahead
                self.taken += 1
        self.paused_seconds += time.perf_counter() - self._requested
        return batch

    def ready(self) -> float:
        """Return how many batches wait to be taken; nan where that is unknown."""
        if isinstance(self.iterator, Epoch):
            return float(self.iterator.ready)
        queue, tasks = (getattr(self.iterator, n, None) for n in ("_data_queue", "_task_info"))
        if queue is None or tasks is None:
            return float("nan")
        try:  # including later batches that came before an earlier one
            return float(queue.qsize() + sum(len(info) > 1 for info in tasks.values()))
        except NotImplementedError:  # macOS
            return float("nan")


@dataclass(frozen=True, slots=True)
class CachedBatches:
    """Copies of some batches of a loader.

    A loader with a device may deliver another dtype than it copies: uint8 images become float32
    there.  So `host` has the batches before the copy.
    """

    host: list[Any]
    """On the CPU, as they travel; page-locked where the loader's are."""
    device: list[Any]
    """On the device, as the step gets them, or would if it were given them there."""
    on_arrival: Callable[[Any], Any] | None
    """What the loader does on the device to the first of `host`, once it is copied there."""
    loader_copies: bool
    """Whether the loader copies batches to the device, and not the step."""
    host_known: bool
    """Whether `host` has the copied batches; if not, it has the delivered ones."""
    size: int
    nbytes: int
    """Samples of a batch, and bytes of one that travels."""

    @classmethod
    def take(cls, batches: LoaderBatches, device: torch.device) -> CachedBatches:
        """Take some batches; the loader may have to make more."""
        taken = list(_some(batches))
        tensors = [leaf for leaf in leaves(taken[0]) if isinstance(leaf, torch.Tensor)]
        copies = device.type != "cpu" and any(t.device.type == device.type for t in tensors)
        if not copies:
            host = [map_leaves(_copied_to_host, batch) for batch in taken]
            moved = [move_batch(b, device) for b in host] if device.type != "cpu" else host
            return cls(host, moved, None, False, True, batch_size(host[0]), batch_nbytes(host[0]))
        arrived = [map_leaves(_copied_in_place, batch) for batch in taken]
        host, on_arrival = _before_copying(batches.loader)
        known = bool(host)
        if not known:
            host = [map_leaves(_copied_and_pinned, batch) for batch in arrived]
        size, nbytes = batch_size(arrived[0]), batch_nbytes(host[0])
        return cls(host, arrived, on_arrival, True, known, size, nbytes)

    def delivered(self, batch: Any, device: torch.device) -> Any:
        """Return a host batch as the loader would hand it out: on the device, and changed there."""
        moved = move_batch(batch, device)
        return moved if self.on_arrival is None else self.on_arrival(moved)


def _some(batches: LoaderBatches) -> Iterator[Any]:
    with suppress(BatchesExhaustedError):
        for _ in range(CACHED):
            yield next(batches)


def _before_copying(loader: Any) -> tuple[list[Any], Callable[[Any], Any] | None]:
    """Return new batches on the host, and the transform of the first on the device."""
    if isinstance(loader, CUDAPrefetcher):
        if isinstance(loader.iterable, Iterator):  # it has one epoch, which is under way
            return [], None
        with batches_of(loader.iterable) as inner:
            host = [map_leaves(_copied_and_pinned, batch) for batch in _some(inner)]
        return host, loader.transform
    backend = getattr(loader, "backend", None)
    if not (isinstance(loader, Loader) and isinstance(backend, CpuBackend)):
        return [], None
    requests = list(islice(requests_of(loader), CACHED))
    host = [map_leaves(_copied_to_host, make_batch(backend, request)) for request in requests]
    return host, partial(arrive, backend.work, requests[0])


def _copied_in_place(leaf: Any) -> Any:
    """Return a copy on its device: a prefetcher may put the next batch into the same memory."""
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf.copy()


def _copied_to_host(leaf: Any) -> Any:
    """Return a copy on the host, page-locked where the original is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.copy()
    copied = leaf.detach().cpu() if leaf.device.type != "cpu" else leaf.detach().clone()
    return copied.pin_memory() if torch.cuda.is_available() and leaf.is_pinned() else copied


def _copied_and_pinned(leaf: Any) -> Any:
    """Return a copy on the host, page-locked: a prefetcher copies from no other memory.

    Numeric arrays become tensors; meta tensors, which have no content, zeros.
    """
    if not isinstance(leaf, torch.Tensor):
        if leaf.dtype.kind not in "biuf":
            return leaf.copy()
        leaf = torch.from_numpy(leaf)
    if leaf.device.type == "meta":
        return torch.zeros_like(leaf, device="cpu")
    copied = leaf.detach().cpu().clone()
    return copied.pin_memory() if torch.cuda.is_available() else copied


# -- what copying takes ----------------------------------------------------------------------


def measure_copying(
    loader: Any, cached: CachedBatches, device: torch.device
) -> tuple[tuple[Cost, ...], float]:
    """Return the costs of page-locking and copying a batch, and the copy's bytes per second.

    They are timed alone, on a cached batch.  Without a copy, or with unknown copies, there are no
    costs, and 0 bytes per second.
    """
    if device.type == "cpu" or not cached.host_known:
        return (), 0.0
    meter, batch = Meter(device), cached.host[0]
    copy = partial(move_batch, batch, device)
    copy()
    took = statistics.median(meter.seconds(copy) for _ in range(COPIES))
    costs = [Cost("copy", took, False, overlapped=cached.loader_copies)]
    inner = inner_loader(loader)
    if device.type == "cuda" and isinstance(inner, DataLoader) and inner.pin_memory:
        costs.append(Cost("pin", _pinning_seconds(batch), False, overlapped=True))
    return tuple(costs), cached.nbytes / took if took else 0.0


def _pinning_seconds(batch: object) -> float:
    # Clones are not page-locked; the memory that is page-locked for the first round is reused.
    tensors = [leaf.clone() for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
    times = []
    for _ in range(1 + PINNINGS):
        began = time.perf_counter()
        for tensor in tensors:
            tensor.pin_memory()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def measure_prefetcher_transform(loader: Any, device: torch.device) -> tuple[Cost, ...]:
    """Return the cost of a prefetcher's own transform, concurrent with the step.

    It is unknown for an iterable with only one epoch, which may be over.
    """
    transform = loader.transform if isinstance(loader, CUDAPrefetcher) else None
    inner = inner_loader(loader)
    if transform is None or isinstance(inner, Iterator):
        return ()
    meter = Meter(device)
    with batches_of(inner) as batches:
        moved = (move_batch(batch, device) for batch in _some(batches))
        times = [meter.seconds(partial(transform, batch)) for batch in moved]
    if len(times) < 2:
        return ()
    return (Cost("augment", statistics.median(times[1:]), False, overlapped=True),)
