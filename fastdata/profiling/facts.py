"""What is known of a loader besides its times: which fixes apply to it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from fastdata.cache.ram import RamCacheBackend
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.packed import Loader
from fastdata.prefetch.tree import leaves
from fastdata.profiling.batches import Batches, nbytes_of

__all__ = ["Facts", "facts_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a loader, besides its times.

    Attributes
    ----------
    kind : {"packed", "stock", "iterable"}
    input_bound : bool
    shares_cores : bool
        Whether workers make the step slower, on whose cores they compute.
    on_gpu : bool
        Whether the step computes on one.
    arrives : bool
        Whether batches come on the device, copied ahead.
    pinned : bool
    raw : bool
        Whether packed images are stored as pixels.
    callables : bool
        Whether there are callables among the transforms of packed data.
    plain : bool
        Whether packed data come from fastdata's own workers, without a cache.
    float_bytes : float
        Share of a batch's bytes that are of floating dtypes.
    start_seconds : float
        Until the first batch of a pass.
    epoch_batches : int or None
    persistent : bool
        Whether workers stay from one pass to the next.
    dali : bool
        Whether it is installed.
    """

    kind: Literal["packed", "stock", "iterable"]
    input_bound: bool = True
    shares_cores: bool = False
    on_gpu: bool = False
    arrives: bool = False
    pinned: bool = False
    raw: bool = False
    callables: bool = False
    plain: bool = True
    float_bytes: float = 0.0
    start_seconds: float = 0.0
    epoch_batches: int | None = None
    persistent: bool = True
    dali: bool = False


def facts_of(
    loader: Any,
    batches: Batches,
    *,
    on_gpu: bool,
    input_bound: bool,
    shares_cores: bool,
    start_seconds: float,
) -> Facts:
    """Return what is known of a loader.

    Parameters
    ----------
    loader : Loader, DataLoader or iterable
        What makes batches, without what brings them to a device.
    batches : Batches
        Some of its.
    on_gpu, input_bound, shares_cores, start_seconds
        As of `Facts`.
    """
    tensors = [leaf for leaf in leaves(batches.host[0]) if isinstance(leaf, torch.Tensor)]
    floats = sum(nbytes_of(t) for t in tensors if t.is_floating_point())
    kind: Literal["packed", "stock", "iterable"] = "iterable"
    raw = callables = False
    backend = getattr(loader, "backend", None)
    if isinstance(loader, Loader):
        kind = "packed"
        callables = not loader.pipeline.direct
        if isinstance(backend, CpuBackend):
            decoder, first = backend.work.decoder, np.zeros(1, np.int64)
            names = loader.dataset.schema.images
            raw = all(loader.dataset.images(n, first, decoder).all_raw for n in names)
    elif isinstance(loader, DataLoader):
        kind = "stock"
    try:
        length = len(loader)
    except Exception:  # a user's own may raise anything
        length = None
    return Facts(
        kind,
        input_bound=input_bound,
        shares_cores=shares_cores,
        on_gpu=on_gpu,
        arrives=batches.arrives,
        pinned=on_gpu and any(t.is_pinned() for t in tensors),
        raw=raw,
        callables=callables,
        plain=isinstance(backend, CpuBackend) and not isinstance(backend, RamCacheBackend),
        float_bytes=floats / batches.nbytes if batches.nbytes else 0.0,
        start_seconds=start_seconds,
        epoch_batches=length,
        persistent=bool(getattr(loader, "persistent_workers", True)),
        dali=importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None,
    )
