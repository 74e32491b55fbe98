"""Batches of any loader: one epoch after another, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fastdata.errors import OptionError

__all__ = ["Endless", "batch_nbytes"]


class Endless(Iterator[Any]):
    """Batches of one epoch after another.

    Parameters
    ----------
    loader : iterable

    Attributes
    ----------
    epochs : int
        That have been begun.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader
        self._epoch: Iterator[Any] = iter(())
        self.epochs = 0

    def __next__(self) -> Any:
        try:
            return next(self._epoch)
        except StopIteration:
            self._epoch = iter(self._loader)
            self.epochs += 1
        try:
            return next(self._epoch)
        except StopIteration:
            raise OptionError(
                "the loader has no batches: the dataset is empty, or smaller than a batch with "
                "drop_last=True"
            ) from None

    def close(self) -> None:
        """Leave the epoch."""
        self._epoch = iter(())


def batch_nbytes(batch: Any) -> int:
    """Return the bytes of all tensors and arrays in a batch, however it is nested."""
    if isinstance(batch, (torch.Tensor, np.ndarray)):
        return int(batch.nbytes)
    if isinstance(batch, Mapping):
        return sum(map(batch_nbytes, batch.values()))
    if isinstance(batch, (list, tuple)):
        return sum(map(batch_nbytes, batch))
    return len(batch) if isinstance(batch, (bytes, str)) else 0
