"""Any loader: what is known of it, its batches, the arguments that make a `DataLoader` like it."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fastdata.engine.loader import Loader
from fastdata.errors import OptionError
from fastdata.loading import is_location
from fastdata.opening import open as open_dataset
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = [
    "BatchesExhaustedError",
    "EndlessBatches",
    "LoaderInfo",
    "batch_nbytes",
    "batch_size",
    "dali_is_installed",
    "dataloader_arguments",
    "dataset_of",
    "end_workers",
    "inner_loader",
    "loader_info",
    "move_batch",
    "stock_loader_like",
    "worker_arguments",
]

_PARAMETERS = inspect.signature(DataLoader.__init__).parameters


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """What is known of a loader before it gives a batch."""

    kind: Literal["packed", "stock", "iterable"]
    """A `fastdata.Loader`, a `DataLoader`, anything else."""
    workers: int = 0
    batches_ahead: int = 0
    """That may be made before the loop takes them: by workers, a thread that pins memory, and a
    copy to a device."""
    batches_at_once: int = 1
    """Workers of a stock `DataLoader` each make a whole batch, and deliver in waves of so many."""
    batches_per_epoch: int | None = None
    persistent: bool = True
    """Whether workers outlive an epoch."""
    calls_python: bool = False
    """Of packed data: whether callables make samples."""


def end_workers(loader: Loader | DataLoader[Any]) -> None:
    """End the workers of a loader that was made to be measured.

    Those of a `DataLoader` would live as long as anything that refers to it.
    """
    if isinstance(loader, Loader):
        loader.close()
        return
    stop = getattr(getattr(loader, "_iterator", None), "_shutdown_workers", None)
    if stop is not None:
        stop()


def loader_info(loader: Any) -> LoaderInfo:
    """Return what is known of a loader, without the prefetcher that it may be in."""
    loader = inner_loader(loader)
    try:
        length: int | None = len(loader)
    except Exception:  # a user's own may raise anything
        length = None
    if isinstance(loader, Loader):
        backend = loader.backend
        return LoaderInfo(
            "packed",
            loader.num_workers,
            getattr(getattr(backend, "workers", None), "ahead", 2)
            + (getattr(backend, "device", None) is not None),
            batches_per_epoch=length,
            persistent=backend.workers.persistent,
            calls_python=not loader.pipeline.direct,
        )
    if isinstance(loader, DataLoader):
        workers = loader.num_workers
        pinned = loader.pin_memory and torch.cuda.is_available()
        return LoaderInfo(
            "stock",
            workers,
            workers * (loader.prefetch_factor or 0) + bool(pinned),
            max(workers, 1),
            length,
            loader.persistent_workers,
        )
    return LoaderInfo("iterable", batches_per_epoch=length)


def inner_loader(loader: Any) -> Any:
    """Return the loader whose batches a prefetcher brings to a device; any other as it is."""
    return loader.iterable if isinstance(loader, CUDAPrefetcher) else loader


def dataset_of(data: Any) -> Any:
    """Return the dataset of a loader, opened if it is a path; anything else as it is."""
    data = inner_loader(data)
    if isinstance(data, (Loader, DataLoader)):
        return data.dataset
    return open_dataset(data) if is_location(data) else data


def dali_is_installed() -> bool:
    """Return whether NVIDIA DALI can be imported; it is not."""
    return (
        importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None
    )


def dataloader_arguments(
    like: DataLoader[Any], *, as_batch_sampler: bool = False
) -> dict[str, Any]:
    """Return the arguments that make a `DataLoader` like another, but for its workers.

    Batches are given by ``batch_size``, ``sampler`` and ``drop_last``, unless the other has a
    batch sampler of its own; with `as_batch_sampler` always by ``batch_sampler``, also where
    `DataLoader` made that itself.
    """
    arguments: dict[str, Any] = {
        "dataset": like.dataset,
        "collate_fn": like.collate_fn,
        "worker_init_fn": like.worker_init_fn,
        "generator": like.generator,
    }
    if getattr(like, "in_order", True) is False and "in_order" in _PARAMETERS:
        arguments["in_order"] = False
    if isinstance(like.dataset, IterableDataset):
        return arguments | {"batch_size": like.batch_size, "drop_last": like.drop_last}
    own = like.batch_size is None or type(like.batch_sampler) is not BatchSampler
    if like.batch_sampler is not None and (own or as_batch_sampler):
        return arguments | {"batch_sampler": like.batch_sampler}
    return arguments | {
        "batch_size": like.batch_size,
        "sampler": like.sampler,
        "drop_last": like.drop_last,
    }


def worker_arguments(like: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a `DataLoader` that only one with workers takes."""
    given = {
        "timeout": like.timeout,
        "multiprocessing_context": like.multiprocessing_context,
    }
    return {name: value for name, value in given.items() if value}


@contextlib.contextmanager
def stock_loader_like(
    like: DataLoader[Any], num_workers: int, *, pin_memory: bool, **of_workers: Any
) -> Iterator[DataLoader[Any]]:
    """Make a `DataLoader` like another with other workers, which end with the block.

    `of_workers` are the arguments that only one with workers takes.
    """
    arguments = dataloader_arguments(like) | {"num_workers": num_workers, "pin_memory": pin_memory}
    if num_workers:
        arguments |= worker_arguments(like) | of_workers
    with warnings.catch_warnings():
        # That these are more than there are cores is what is to be found out about.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        made: DataLoader[Any] = DataLoader(**arguments)
        try:
            yield made
        finally:
            end_workers(made)


# -- batches ---------------------------------------------------------------------------------


class BatchesExhaustedError(OptionError):
    """There are no more batches, and the iterable cannot be begun again."""


class EndlessBatches(Iterator[Any]):
    """Batches of one epoch after another; for one thread.

    `epochs` have been begun so far, and `taken` batches of this one.  A loader whose first epoch
    has no batch raises `OptionError`, one that can be iterated over once only
    `BatchesExhaustedError`.  A subclass may override `begin_epoch`, to time it or to throw
    batches away.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epochs = 0
        self.taken = 0
        self.iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self.iterator is not None:
            try:
                batch = next(self.iterator)
            except StopIteration:
                self.end_epoch()
            else:
                self.taken += 1
                return batch
        return self.begin_epoch()

    def begin_epoch(self) -> Any:
        """Begin an epoch, and return its first batch."""
        self.iterator = iter(self.loader)
        self.epochs += 1
        try:
            batch = next(self.iterator)
        except StopIteration:
            if self.epochs > 1:
                raise BatchesExhaustedError(
                    f"{type(self.loader).__name__} gave no more batches: it can be iterated over "
                    "once only"
                ) from None
            raise OptionError(
                f"{type(self.loader).__name__} gave no batch: the dataset is empty, or smaller "
                "than a batch with drop_last=True"
            ) from None
        self.taken = 1
        return batch

    def end_epoch(self) -> None:
        """Note that an epoch has ended."""
        if self.iterator is self.loader:
            raise BatchesExhaustedError(f"{type(self.loader).__name__} has ended") from None
        self.iterator = None

    def close(self) -> None:
        """Leave the epoch.  Idempotent."""
        iterator, self.iterator = self.iterator, None
        close = getattr(iterator, "close", None)
        if callable(close) and iterator is not self.loader:
            close()


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors and arrays in a batch, however it is nested.

    A sparse tensor, which has no `nbytes`, counts as 0.
    """
    total = 0
    for leaf in leaves(batch):
        try:
            total += int(leaf.nbytes)
        except RuntimeError:
            continue
    return total


def batch_size(batch: Any) -> int:
    """Return the samples of a batch: of a list of images, or of the first thing with a length."""
    values = batch.values() if isinstance(batch, Mapping) else batch
    for value in values if isinstance(batch, (Mapping, list, tuple)) else ():
        if isinstance(value, (list, tuple)) and value and all(map(_is_image, value)):
            return len(value)
    for leaf in leaves(batch):
        if leaf.ndim:
            return int(leaf.shape[0])
    try:
        return len(batch)
    except TypeError:
        return 1


def _is_image(value: Any) -> bool:
    """Return whether a value is one image, [C, H, W]."""
    return isinstance(value, torch.Tensor) and value.ndim == 3 and value.shape[0] in (1, 3)


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors and numeric arrays on a device."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if leaf.dtype.kind not in "biuf":
                return leaf
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        return leaf.to(device, non_blocking=True)

    return map_leaves(moved, batch)
