"""Facts about a loader before it gives a batch, and about a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.engine.loader import Loader
from fastdata.measuring.loaders import inner_loader
from fastdata.prefetch.tree import leaves, map_leaves

__all__ = ["LoaderInfo", "batch_size", "loader_info", "move_batch"]


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """Facts about a loader before it gives a batch."""

    kind: Literal["packed", "stock", "iterable"]
    """A `fastdata.Loader`, a `DataLoader`, anything else."""
    workers: int = 0
    batches_ahead: int = 0
    """Made before the loop takes them: by workers, a thread that pins memory, or a copy."""
    batches_at_once: int = 1
    """Workers of a stock `DataLoader` each make a whole batch, and deliver in waves of so many."""
    batches_per_epoch: int | None = None
    persistent: bool = True
    """Whether workers outlive an epoch."""
    calls_python: bool = False
    """Of packed data: whether callables make samples."""


def loader_info(loader: Any) -> LoaderInfo:
    """Return the facts about a loader, or about the one inside a prefetcher."""
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
        ahead = workers * (loader.prefetch_factor or 0) + bool(pinned)
        persistent = loader.persistent_workers
        return LoaderInfo("stock", workers, ahead, max(workers, 1), length, persistent)
    return LoaderInfo("iterable", batches_per_epoch=length)


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
