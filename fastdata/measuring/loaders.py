"""Loaders of any kind: their batches, epoch after epoch, and a `DataLoader` like another one."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from fastdata.engine.loader import Loader
from fastdata.errors import OptionError
from fastdata.loading import is_location
from fastdata.opening import open as open_dataset
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves

__all__ = [
    "BatchesExhaustedError",
    "EndlessBatches",
    "batch_nbytes",
    "dali_is_installed",
    "dataloader_arguments",
    "dataset_of",
    "end_workers",
    "inner_loader",
    "stock_loader_like",
    "worker_arguments",
]


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
    """Return whether NVIDIA DALI can be imported, without importing it."""
    return all(importlib.util.find_spec(name) for name in ("nvidia", "nvidia.dali"))


def end_workers(loader: Loader | DataLoader[Any]) -> None:
    """End the workers of a loader, also those of a `DataLoader` that something refers to."""
    if isinstance(loader, Loader):
        loader.close()
    elif (iterator := loader._iterator) is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()


def dataloader_arguments(
    like: DataLoader[Any], *, as_batch_sampler: bool = False
) -> dict[str, Any]:
    """Return the arguments that make a `DataLoader` like another, except those of workers.

    With `as_batch_sampler`, batches are given by the batch sampler also if torch made that itself.
    """
    names = ["dataset", "collate_fn", "worker_init_fn", "generator"]
    if not getattr(like, "in_order", True):
        names.append("in_order")
    own = like.batch_size is None or type(like.batch_sampler) is not BatchSampler
    if isinstance(like.dataset, IterableDataset):
        names += "batch_size", "drop_last"
    elif like.batch_sampler is not None and (own or as_batch_sampler):
        names.append("batch_sampler")
    else:
        names += "batch_size", "sampler", "drop_last"
    return {name: getattr(like, name) for name in names}


def worker_arguments(like: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a `DataLoader` that only one with workers takes."""
    names = "timeout", "multiprocessing_context"
    return {name: value for name in names if (value := getattr(like, name))}


@contextlib.contextmanager
def stock_loader_like(
    like: DataLoader[Any], num_workers: int, *, pin_memory: bool, **of_workers: Any
) -> Iterator[DataLoader[Any]]:
    """Make a `DataLoader` like another with other workers, which end with the block."""
    arguments = dataloader_arguments(like) | {"num_workers": num_workers, "pin_memory": pin_memory}
    if num_workers:
        arguments |= worker_arguments(like) | of_workers
    with warnings.catch_warnings():
        # More workers than cores are tried on purpose.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        made: DataLoader[Any] = DataLoader(**arguments)
        try:
            yield made
        finally:
            end_workers(made)


class BatchesExhaustedError(OptionError):
    """There are no more batches, and the iterable cannot be begun again."""


class EndlessBatches(Iterator[Any]):
    """Batches of one epoch after another; for one thread.

    `epochs` have been begun so far, and `taken` batches of this one.  Without any batch it raises
    `OptionError`, after the only epoch of an iterable `BatchesExhaustedError`.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epochs = self.taken = 0
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
            name = type(self.loader).__name__
            if self.epochs > 1:
                raise BatchesExhaustedError(
                    f"{name} gave no more batches: it can be iterated over once only"
                ) from None
            raise OptionError(
                f"{name} gave no batch: the dataset is empty, or smaller than a batch with "
                "drop_last=True"
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
    """Return the bytes of all tensors and arrays in a batch; a sparse tensor counts as 0."""
    total = 0
    for leaf in leaves(batch):
        with contextlib.suppress(RuntimeError):  # a sparse tensor has no `nbytes`
            total += int(leaf.nbytes)
    return total
