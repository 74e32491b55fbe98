"""Stock DataLoaders like a given one, with other settings: made again from its attributes."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastdata.loading import options_of
from fastdata.options import LoaderOptions
from fastdata.prefetch import CUDAPrefetcher
from fastdata.tuning.key import Key, key_of
from fastdata.tuning.settings import Settings

__all__ = ["StockSource"]

_PARAMETERS = inspect.signature(DataLoader.__init__).parameters


class StockSource:
    """Stock DataLoaders, made from the attributes of one.

    Parameters
    ----------
    like : DataLoader
    device : torch.device, optional
        Where batches are copied to.
    options : LoaderOptions, optional
        By which `fastdata.loader` makes it; by default as can be seen of `like`.
    """

    def __init__(
        self,
        like: DataLoader[Any],
        device: torch.device | None,
        options: LoaderOptions | None = None,
    ) -> None:
        self.device = device
        self._data = like.dataset
        self._asked = options or _options_like(like, device)
        self._arguments = _arguments_of(like)
        self._for_workers = {
            name: value
            for name, value in (
                ("timeout", like.timeout),
                ("multiprocessing_context", like.multiprocessing_context),
            )
            if value
        }
        self._pinned = bool(like.pin_memory) and torch.cuda.is_available()
        self._subclass = "" if type(like) is DataLoader else type(like).__qualname__

    @property
    def base(self) -> Settings:
        """Persistent workers, pinned as asked for."""
        return Settings(1, "process", 2, self._pinned, True, "torch")

    @property
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler's the first one's."""
        batches = self._arguments.get("batch_sampler")
        if batches is not None:
            return len(next(iter(batches)))
        return self._arguments["batch_size"] or 1

    @property
    def paths(self) -> list[Path]:
        """Nobody knows what a user's dataset reads."""
        return []

    @property
    def notes(self) -> list[str]:
        """Return what is measured otherwise than asked for."""
        if not self._subclass:
            return []
        return [f"{self._subclass} was measured as the stock DataLoader that it is made from"]

    @property
    def key(self) -> Key | None:
        """Of what `fastdata.loader` makes of the same dataset."""
        return key_of(self._data, self._asked)

    @contextlib.contextmanager
    def opened(self, settings: Settings) -> Iterator[Any]:
        """Make a loader; its workers end with it."""
        arguments: dict[str, Any] = {
            **self._arguments,
            "num_workers": settings.num_workers,
            "pin_memory": settings.pin_memory,
        }
        if settings.num_workers:
            arguments |= {
                **self._for_workers,
                "prefetch_factor": settings.prefetch_factor,
                "persistent_workers": settings.persistent_workers,
            }
        with warnings.catch_warnings():
            # That these are more than there are cores is what is to be found out about.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            made: DataLoader[Any] = DataLoader(**arguments)
            try:
                yield made if self.device is None else CUDAPrefetcher(made, self.device)
            finally:
                # Persistent workers would live as long as anything that knows the loader.
                stop = getattr(getattr(made, "_iterator", None), "_shutdown_workers", None)
                if stop is not None:
                    stop()


def _arguments_of(like: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a DataLoader that do not concern its workers' number."""
    found: dict[str, Any] = {
        "dataset": like.dataset,
        "collate_fn": like.collate_fn,
        "worker_init_fn": like.worker_init_fn,
        "generator": like.generator,
    }
    if getattr(like, "in_order", True) is False and "in_order" in _PARAMETERS:
        found["in_order"] = False
    if isinstance(like.dataset, IterableDataset):
        return found | {"batch_size": like.batch_size, "drop_last": like.drop_last}
    if like.batch_sampler is not None and (
        like.batch_size is None or type(like.batch_sampler) is not BatchSampler
    ):
        return found | {"batch_sampler": like.batch_sampler}
    return found | {
        "batch_size": like.batch_size,
        "sampler": like.sampler,
        "drop_last": like.drop_last,
    }


def _options_like(like: DataLoader[Any], device: torch.device | None) -> LoaderOptions:
    """Return the options with which `fastdata.loader` makes such a DataLoader."""
    given: dict[str, Any] = {
        "device": device,
        "multiprocessing_context": like.multiprocessing_context,
    }
    found = _arguments_of(like)
    if "batch_sampler" in found:
        given["batch_sampler"] = found["batch_sampler"]
    else:
        given |= {"batch_size": found["batch_size"] or 1, "drop_last": bool(found["drop_last"])}
        if isinstance(like.sampler, RandomSampler):
            given["shuffle"] = True
        elif "sampler" in found and not isinstance(like.sampler, SequentialSampler):
            given["sampler"] = like.sampler
    if like.collate_fn is not default_collate:
        given["collate_fn"] = like.collate_fn
    return options_of(given)
