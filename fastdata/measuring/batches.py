"""Batches of any loader: one epoch after another, how large they are, and bringing them along."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from fastdata.errors import OptionError
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = ["BatchesExhaustedError", "EndlessBatches", "batch_nbytes", "batch_size", "move_batch"]


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
                "the loader has no batches: the dataset is empty, or smaller than a batch with "
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
    """Return the bytes of all tensors and arrays in a batch, however it is nested.

    A sparse tensor, which does not tell, counts as 0.
    """
    total = 0
    for leaf in leaves(batch):
        try:
            total += int(leaf.nbytes)
        except RuntimeError:
            continue
    return total


def batch_size(batch: Any) -> int:
    """Return the samples of a batch: the length of the first thing in it that has one."""
    for leaf in leaves(batch):
        if leaf.ndim:
            return int(leaf.shape[0])
    try:
        return len(batch)
    except TypeError:
        return 1


def move_batch(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors and numeric arrays on a device."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if leaf.dtype.kind not in "biuf":
                return leaf
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        return leaf.to(device, non_blocking=True)

    return map_leaves(moved, batch)
