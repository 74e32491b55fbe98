"""Loaders like a given one, with other settings: the same data, order, transforms and batches."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastdata.assembly import LoaderOptions, packed_loader
from fastdata.engine.packed import Loader
from fastdata.engine.workers import choose_method
from fastdata.errors import OptionError
from fastdata.formats.layout import CODECS
from fastdata.loading import is_location, loader, options_of
from fastdata.prefetch import CUDAPrefetcher
from fastdata.tuning.key import Key, key_of
from fastdata.tuning.settings import Settings

__all__ = ["DEFAULT_BATCH_SIZE", "PackedSource", "Source", "StockSource", "dataset_of", "source_of"]

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


class PackedSource:
    """Loaders of packed data.

    Parameters
    ----------
    data : PackedData
    options : LoaderOptions
        What is in `Settings` is replaced.  Caches are left out: once they are full, no worker
        has anything to read.
    """

    def __init__(self, data: Any, options: LoaderOptions) -> None:
        self._data = data
        self._asked = options
        self._cache = options.cache
        self._options = dataclasses.replace(options, cache=None, cache_scope="all")
        self.device = options.target

    @property
    def base(self) -> Settings:
        """What ``"auto"`` means; a method that was asked for stays."""
        options = self._options
        if options.backend == "dali":
            return Settings(1, "thread", 2, options.pinned, options.persistent, "dali")
        method = options.worker_method
        if method == "auto":
            work = self._probe().backend._work
            method = choose_method(
                2,
                calls_python=not work.pipeline.direct,
                releases_lock=work.releases_lock,
                context=options.multiprocessing_context,
            )
        return Settings(1, method, 2, options.pinned, options.persistent, "cpu")

    def _probe(self) -> Any:
        return packed_loader(self._data, self._with(Settings(0)))

    def _with(self, settings: Settings) -> LoaderOptions:
        return dataclasses.replace(
            self._options,
            num_workers=settings.num_workers,
            worker_method=settings.worker_method,
            prefetch_factor=settings.prefetch_factor,
            pin_memory=settings.pin_memory,
            persistent_workers=settings.persistent_workers,
            backend=settings.backend if settings.backend == "dali" else "cpu",
        )

    @property
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler's the first one's."""
        batches = self._options.batch_sampler
        return self._options.batch_size if batches is None else len(next(iter(batches)))

    @property
    def paths(self) -> list[Path]:
        """The shards."""
        return list(getattr(self._data, "paths", []))

    @property
    def notes(self) -> list[str]:
        """Return what is measured otherwise than asked for."""
        if self._cache is None:
            return []
        return [f"measured without cache={self._cache!r}: these workers fill it in the first epoch"]

    @property
    def key(self) -> Key | None:
        """Of a loader of this data with these options."""
        return key_of(self._data, self._asked)

    @property
    def dali(self) -> bool:
        """Whether DALI could make these batches."""
        options = self._options
        possible = options.decoder == "auto" and options.worker_method != "process"
        return (
            options.backend == "auto"
            and possible
            and self._cache is None  # which DALI does not go with
            and importlib.util.find_spec("nvidia") is not None
            and importlib.util.find_spec("nvidia.dali") is not None
        )

    def images(self, batch: Any) -> dict[str, Any]:
        """Return what is known of the images, as `fastdata.tuning.subject.Facts` has it."""
        schema, shards = self._data.schema, getattr(self._data, "shards", None)
        name = next(iter(schema.images), None)
        if name is None or shards is None:
            return {}
        field = schema.images[name]
        codecs, sides, decoded = set(), [], 0
        for shard in shards:
            heights, widths, kinds = (
                np.asarray(shard.column(f"{name}.{column}"))
                for column in ("height", "width", "codec")
            )
            codecs |= set(np.unique(kinds).tolist())
            sides.append(np.minimum(heights, widths))
            decoded += int((heights.astype(np.int64) * widths).sum()) * field.channels
        made = getattr(batch, name, None)
        shape = made.shape[2:] if isinstance(made, torch.Tensor) and made.ndim == 4 else ()
        stored = int(np.median(np.concatenate(sides))) if sides else 0
        return {
            "codecs": tuple(sorted(CODECS[code] for code in codecs)),
            "image_sides": (stored, min(shape)) if len(shape) == 2 else (stored,),
            "decoded_bytes": decoded,
        }

    @contextlib.contextmanager
    def opened(self, settings: Settings) -> Iterator[Any]:
        """Make a loader, and close it in the end."""
        with packed_loader(self._data, self._with(settings)) as made:
            yield made


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


_PARAMETERS = inspect.signature(DataLoader.__init__).parameters


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
        from fastdata.dataset import open as open_dataset

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
