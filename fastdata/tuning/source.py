"""Where measured loaders come from: the same data, order, transforms and batches each time.

a path, dataset or loader --> source_of --> PackedSource or StockSource --> loaders
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from fastdata.engine.packed import Loader
from fastdata.errors import OptionError
from fastdata.loading import is_location, loader, options_of
from fastdata.prefetch import CUDAPrefetcher
from fastdata.tuning.key import Key
from fastdata.tuning.packed_source import PackedSource
from fastdata.tuning.settings import Settings
from fastdata.tuning.stock_source import StockSource

__all__ = ["DEFAULT_BATCH_SIZE", "Source", "dataset_of", "source_of"]

DEFAULT_BATCH_SIZE = 256
_DECIDING = ("shuffle", "sampler", "batch_sampler", "weights")


class Source(Protocol):
    """Makes loaders."""

    device: torch.device | None
    """Where their batches arrive; None where they stay on the host."""

    @property
    def base(self) -> Settings:
        """Settings to begin with; its `num_workers` does not count."""

    @property
    def batch_size(self) -> int: ...

    @property
    def paths(self) -> list[Path]:
        """Files it reads, where they are known."""

    @property
    def notes(self) -> list[str]: ...

    @property
    def key(self) -> Key | None:
        """Under what a result is kept; None where that cannot be told."""

    def opened(self, settings: Settings) -> contextlib.AbstractContextManager[Any]:
        """Return a context with an iterable of batches, whose workers end with it."""


def source_of(data: Any, options: dict[str, Any]) -> Source:
    """Return what makes loaders of `data`.

    Parameters
    ----------
    data : path, Dataset, Loader, torch Dataset, DataLoader or CUDAPrefetcher
    options : dict
        Of `fastdata.loader`, for a dataset.  By default batches have 256 samples, are
        shuffled, and the incomplete one is left out.

    Raises
    ------
    OptionError
        If it is something else, or options are given for a loader, which has its own.
    """
    device = None
    if isinstance(data, CUDAPrefetcher):
        device, data = data.device, data.iterable
    if isinstance(data, (Loader, DataLoader)):
        if device is None and isinstance(data, DataLoader):
            device = _target(options.get("device"))
        # Where its batches arrive a loader knows; the step's device is another thing.
        options = {name: value for name, value in options.items() if name != "device"}
        if any(value is not None for value in options.values()):
            names = ", ".join(name for name, value in options.items() if value is not None)
            raise OptionError(f"{names}: a loader has been given, which has its own options")
        if isinstance(data, DataLoader):
            return StockSource(data, device)
        if data.options is None:
            raise OptionError("this Loader was not made by fastdata.loader: give the dataset")
        return PackedSource(data.dataset, data.options)
    given = _completed(data, options)
    made = loader(data, **given)
    if isinstance(made, Loader):
        made.close()
        return PackedSource(made.dataset, made.options)
    if isinstance(made, CUDAPrefetcher):
        device, made = made.device, made.iterable
    return StockSource(made, device, options_of(given))


def dataset_of(data: Any) -> Any:
    """Return the dataset of a loader, opened if it is a path; else what was given."""
    if isinstance(data, CUDAPrefetcher):
        data = data.iterable
    if isinstance(data, (Loader, DataLoader)):
        return data.dataset
    if is_location(data):
        from fastdata.opening import open as open_dataset

        return open_dataset(data)
    return data


def _target(device: Any) -> torch.device | None:
    found = None if device is None else torch.device(device)
    return None if found is None or found.type == "cpu" else found


def _completed(data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return options with the defaults of training."""
    found = {name: value for name, value in options.items() if value is not None}
    iterable = isinstance(data, IterableDataset)
    # One worker, which is not started: so that a stock DataLoader takes options of workers.
    found |= {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    if "batch_sampler" in found:
        return found
    if not iterable and not any(name in found for name in _DECIDING):
        found["shuffle"] = True
    if "batch_size" not in found:
        found["batch_size"] = min(DEFAULT_BATCH_SIZE, max(_count(data), 1))
    if not iterable and "drop_last" not in found:
        found["drop_last"] = _count(data) >= found["batch_size"]
    return found


def _count(data: Any) -> int:
    if isinstance(data, IterableDataset):
        return DEFAULT_BATCH_SIZE
    if not is_location(data):
        return len(data) if hasattr(data, "__len__") else 1  # `loader` says what it is not
    return len(dataset_of(data))
