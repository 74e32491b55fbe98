"""The stock DataLoader with the settings one would look up, for any torch dataset."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from fastdata.errors import OptionError, WorkerError

__all__ = ["stock_loader"]

_SHARED_FOLDER = Path("/dev/shm")
_PROBE_BYTES = 1 << 16


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
        _check_shared_folder()
        arguments |= {
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
            "worker_init_fn": partial(_start_worker, options.pop("worker_init_fn", None)),
        }
    return DataLoader(dataset, **arguments | options)


def _check_shared_folder() -> None:
    """Raise `WorkerError` if the folder cannot be used in which stock workers leave batches.

    What torch raises says nothing of it.
    """
    if not os.path.isdir("/proc/self"):
        return  # not Linux: nothing of the kind
    try:
        with tempfile.TemporaryFile(dir=_SHARED_FOLDER) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        fault = "is missing" if missing else f"cannot be written to ({error.strerror})"
        raise WorkerError(
            f"worker processes need {_SHARED_FOLDER}, which {fault}. Mount it or make it larger: "
            f"`mount -t tmpfs tmpfs {_SHARED_FOLDER}`, "
            f"`mount -o remount,rw,size=4G {_SHARED_FOLDER}`, or `docker run --shm-size=4g`. "
            "Or use num_workers=0; loaders of packed data need none of it."
        ) from error


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
