"""Some batches of a loader, kept: what training would be fed without one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastdata.prefetch.tree import leaves, map_leaves
from fastdata.profiling.source import Ended, Source

__all__ = ["Batches", "move"]

CACHED = 4
"""Batches that are kept."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Some batches of a loader, as copies that are ours.

    Attributes
    ----------
    host : list of batch
        On the CPU, page-locked where they were.
    device : list of batch
        On the device.
    arrive : bool
        Whether the loader brings them there itself.
    size : int
        Samples a batch.
    nbytes : int
        Of tensors and arrays, a batch.
    """

    host: list[Any]
    device: list[Any]
    arrive: bool
    size: int
    nbytes: int

    @classmethod
    def of(cls, source: Source, device: torch.device) -> Batches:
        """Take some from a source; the first of all have been made before they were asked for."""
        taken = [source.next()]
        with suppress(Ended):
            for _ in range(CACHED - 1):
                taken.append(source.next())
        tensors = [leaf for leaf in leaves(taken[0]) if isinstance(leaf, torch.Tensor)]
        arrive = device.type != "cpu" and any(t.device.type == device.type for t in tensors)
        host = [map_leaves(_own, batch) for batch in taken]
        there = [move(batch, device) for batch in host] if device.type != "cpu" else host
        return cls(host, there, arrive, size_of(host[0]), _nbytes(host[0]))


def move(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors and arrays on a device."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            if leaf.dtype.kind not in "biuf":
                return leaf
            leaf = torch.from_numpy(np.ascontiguousarray(leaf))
        return leaf.to(device, non_blocking=True)

    return map_leaves(one, batch)


def size_of(batch: Any) -> int:
    """Return the samples of a batch: the length of the first thing in it that has one."""
    for leaf in leaves(batch):
        if leaf.ndim:
            return int(leaf.shape[0])
    try:
        return len(batch)
    except TypeError:
        return 1


def nbytes_of(leaf: Any) -> int:
    """Return the bytes of a tensor or array; 0 of a sparse one, which does not say."""
    try:
        return int(leaf.nbytes)
    except RuntimeError:
        return 0


def _own(leaf: Any) -> Any:
    """Return a copy on the host, page-locked where the original is."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.copy()
    copied = leaf.detach().cpu() if leaf.device.type != "cpu" else leaf.detach().clone()
    pinned = torch.cuda.is_available() and (leaf.device.type == "cuda" or leaf.is_pinned())
    return copied.pin_memory() if pinned else copied


def _nbytes(batch: Any) -> int:
    return sum(map(nbytes_of, leaves(batch)))
