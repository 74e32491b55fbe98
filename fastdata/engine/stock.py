"""The stock DataLoader with the settings one would look up, for any torch dataset."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fastdata.engine.shared_folder import shared_folder_fault
from fastdata.errors import OptionError, WorkerError

__all__ = ["stock_loader"]


def stock_loader(
    dataset: Any,
    *,
    batch_size: int,
    shuffle: bool,
    drop_last: bool,
    seed: int | None,
    num_workers: int,
    prefetch_factor: int,
    persistent_workers: bool,
    pin_memory: bool,
    sampler: Any,
    rank: int,
    world_size: int,
    options: dict[str, Any],
) -> DataLoader[Any]:
    """Return a `DataLoader` over `dataset`.

    Workers compute on one thread each, and NumPy's, Python's and torch's
    generators are seeded in them.  With more than one rank, the sampler is a
    `DistributedSampler`, whose ``set_epoch`` is the caller's to call.

    Parameters
    ----------
    options : dict
        Further arguments of `DataLoader`, such as ``collate_fn``; they take
        precedence.
    """
    if world_size > 1 and sampler is None and "batch_sampler" not in options:
        if isinstance(dataset, IterableDataset):
            raise OptionError(
                "rank and world_size cannot cut an IterableDataset: let its __iter__ yield "
                "the samples of its rank"
            )
        sampler = DistributedSampler(
            dataset,
            num_replicas=world_size,
            rank=rank,
            shuffle=shuffle,
            seed=seed or 0,
            drop_last=drop_last,
        )
    arguments: dict[str, Any] = {
        "num_workers": num_workers,
        "pin_memory": pin_memory,
        "generator": None if seed is None else torch.Generator().manual_seed(seed),
    }
    if "batch_sampler" not in options:
        arguments |= {
            "batch_size": batch_size,
            "shuffle": shuffle and sampler is None,
            "sampler": sampler,
            "drop_last": drop_last,
        }
    if num_workers > 0:
        fault = shared_folder_fault()
        if fault:
            raise WorkerError(
                f"{fault}. Or use num_workers=0; loaders of packed data need none of it."
            )
        arguments |= {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "worker_init_fn": partial(_start_worker, options.pop("worker_init_fn", None)),
        }
    return DataLoader(dataset, **arguments | options)


def _start_worker(then: Callable[[int], None] | None, worker: int) -> None:
    """Set up a worker process: it is one of many, so it takes one thread.

    torch has seeded Python's and its own generator by now, and limited its
    own threads.  OpenCV is told by its environment variable, which it reads when
    it is imported; where it has been already, its threads may be the parent's,
    and a forked process that sets their number waits for them for ever.
    """
    import numpy as np

    os.environ.setdefault("OPENCV_FOR_THREADS_NUM", "1")
    torch.set_num_threads(1)
    np.random.seed(torch.initial_seed() % 2**32)
    if then is not None:
        then(worker)
