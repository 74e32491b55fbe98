"""Batches for training: ``fastdata.loader``, the one-line replacement of DataLoader.

`loader` looks at what it is given.  A packed dataset gets a `Loader`, which
works by the batch: order, geometry and memory are planned for a whole batch
at once, and threads decode into it.  Any other torch dataset gets a stock
`torch.utils.data.DataLoader` with the settings that suit this machine.

The module is not called ``loader``: importing it would put a module where the
package has the function.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch.utils.data import DataLoader

from fastdata.engine.batches import is_packed
from fastdata.engine.cores import default_workers
from fastdata.engine.packed import Loader, LoaderStats
from fastdata.engine.stock import stock_loader
from fastdata.errors import OptionError
from fastdata.transforms.pipeline import Transform

__all__ = ["Loader", "LoaderStats", "loader"]


def loader(
    data: Any,
    *,
    batch_size: int = 1,
    shuffle: bool = False,
    drop_last: bool = False,
    seed: int = 0,
    transform: Transform | Sequence[Transform] | None = None,
    num_workers: int | Literal["auto"] = "auto",
    worker_method: Literal["auto", "thread"] = "auto",
    prefetch_factor: int = 2,
    persistent_workers: bool = True,
    pin_memory: bool | Literal["auto"] = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    backend: Literal["auto", "cpu"] = "auto",
    sampler: Iterable[int] | None = None,
    rank: int = 0,
    world_size: int = 1,
    **options: Any,
) -> Loader | DataLoader[Any]:
    """Return an iterable of batches over `data`.

    Parameters
    ----------
    data : path, list of paths, Dataset or torch Dataset
        What ``fastdata.open`` takes, or what it returned: the result is a
        `Loader`.  Any other dataset with ``__getitem__`` (or an
        `IterableDataset`): the result is a stock `DataLoader`, and
        `transform`, `device` and `dtype` are not accepted.
    batch_size : int
        Samples a batch (on this rank).
    shuffle : bool
        Whether each epoch has an order of its own, drawn from `seed`.
    drop_last : bool
        Whether an incomplete last batch is left out.
    seed : int
        Of order and random transforms.
    transform : transform or sequence of transforms, optional
        Of `fastdata.transforms`, or any callable on one sample's image, which
        is slower (see `fastdata.transforms.callables`).
    num_workers : int or "auto"
        Threads that decode (worker processes of a stock DataLoader); 0 works
        in the calling thread.  "auto": one a core that this process may use,
        divided by ``LOCAL_WORLD_SIZE``, at most 16.  Batches are the same,
        bit for bit, whatever the number.
    worker_method : {"auto", "thread"}
        How a `Loader` works in parallel.
    prefetch_factor : int
        Batches made ahead of the one that is waited for (of a stock
        DataLoader: for each worker).
    persistent_workers : bool
        Whether the processes of a stock DataLoader outlive an epoch.  Threads
        cost nothing to start and end with their iterator.
    pin_memory : bool or "auto"
        Whether images are put into pinned memory, for fast copies to a GPU.
        "auto": where there is CUDA; without it there is none to pin for.
    device : torch.device or str, optional
        Where batches arrive.  uint8 images are copied and the last pixel
        transforms (`Normalize`, `ToDtype`) run there.
    dtype : torch.dtype, optional
        A floating dtype for images, as by ``ToDtype(dtype)`` after all
        transforms: uint8 values become 0 to 1.
    backend : {"auto", "cpu"}
        What decodes.
    sampler : iterable of int, optional
        Indices of an epoch, in place of `shuffle`, with a length; an
        instance of a torch sampler, say.
    rank, world_size : int
        Which share of each epoch this process takes, of how many.  All ranks
        get the same number of batches: with `drop_last`, what does not divide
        is left out, otherwise the first samples of the epoch are repeated.
    **options
        Further arguments of a stock `DataLoader`: ``collate_fn``, ``timeout``...

    Returns
    -------
    Loader or torch.utils.data.DataLoader

    Raises
    ------
    OptionError
        If an option has a value that cannot be used.
    DatasetNotFoundError, FormatError, ShardCorruptError
        If `data` is a path and there is no sound dataset.

    Examples
    --------
    >>> from fastdata import transforms as T
    >>> train = fastdata.loader(                              # doctest: +SKIP
    ...     "train.lmdb", batch_size=256, shuffle=True, drop_last=True,
    ...     transform=[T.RandomResizedCrop(224), T.RandomHorizontalFlip()],
    ... )
    >>> for images, labels in train: ...                      # doctest: +SKIP
    """
    _check_choice("worker_method", worker_method, ("auto", "thread"))
    _check_choice("backend", backend, ("auto", "cpu"))
    workers = _workers(num_workers)
    _check_int("prefetch_factor", prefetch_factor, 1)
    _check_int("batch_size", batch_size, 1)
    _check_choice("pin_memory", pin_memory, ("auto", True, False))
    pinned = bool(pin_memory) and torch.cuda.is_available()
    if sampler is not None and shuffle:
        raise OptionError("a sampler decides the order: leave out shuffle=True, or the sampler")

    if _is_location(data):
        from fastdata.dataset import open as open_dataset

        data = open_dataset(data)
    if is_packed(data):
        if options:
            names = ", ".join(options)
            raise OptionError(f"{names}: not an option of a loader of packed data")
        return Loader(
            data,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            seed=seed,
            transform=transform,
            num_workers=workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pinned,
            device=device,
            dtype=dtype,
            sampler=sampler,
            rank=rank,
            world_size=world_size,
        )
    if not (hasattr(data, "__getitem__") or isinstance(data, torch.utils.data.IterableDataset)):
        raise OptionError(
            f"a loader takes a path, a fastdata dataset or a torch Dataset, not "
            f"{type(data).__name__}"
        )
    for name, value in (("transform", transform), ("device", device), ("dtype", dtype)):
        if value is not None:
            raise OptionError(
                f"{name} is for packed data, but {type(data).__name__} is a dataset that makes "
                f"samples itself: let it do this, or pack it first (fastdata.pack)"
            )
    return stock_loader(
        data,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        num_workers=workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        pin_memory=pinned,
        sampler=sampler,
        rank=rank,
        world_size=world_size,
        options=options,
    )


def _is_location(data: Any) -> bool:
    """Return whether `data` is a path or a list of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return (
        isinstance(data, (list, tuple))
        and len(data) > 0
        and all(isinstance(path, (str, os.PathLike)) for path in data)
    )


def _workers(num_workers: Any) -> int:
    if num_workers == "auto":
        return default_workers()
    _check_int("num_workers", num_workers, 0, '"auto" or ')
    return int(num_workers)


def _check_int(name: str, value: Any, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is {also}an int from {least} up, not {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        accepted = ", ".join(map(repr, choices))
        raise OptionError(f"{name} is one of {accepted}, not {value!r}")
