"""Equivalent loaders with other settings: the same data, order, transforms and batches each time.

a path, dataset or loader --> loader_factory --> PackedLoaderFactory or StockLoaderFactory
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastdata.assembly import packed_loader
from fastdata.engine.backend import CpuBackend
from fastdata.engine.loader import Loader
from fastdata.engine.workers import choose_method
from fastdata.errors import OptionError
from fastdata.loading import is_location, loader, options_of
from fastdata.measuring.downloads import StoreInfo, in_cache, store_info
from fastdata.measuring.images import ImageInfo
from fastdata.measuring.loaders import dataloader_arguments, inner_loader, stock_loader_like
from fastdata.opening import open as open_dataset
from fastdata.options import OF_STORES, LoaderOptions
from fastdata.packed_views import packed_view
from fastdata.prefetch import CUDAPrefetcher
from fastdata.splits import select_split
from fastdata.tuned_settings.key import key_of
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Key
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = ["LEAST_CACHED", "LoaderFactory", "WorkloadInfo", "loader_factory"]

DEFAULT_BATCH_SIZE = 256

LEAST_CACHED = 4
"""Batches whose images are in the cache, so that loaders can be compared on these."""


@dataclass(frozen=True, slots=True)
class WorkloadInfo:
    """Facts about a loader; the first batches complete them."""

    base: Settings  # to begin with, for any number of workers
    batch_size: int = 0
    batch_bytes: int = 0
    batches: int | None = None  # in an epoch, if that is known
    batch_seconds: float = 0.0  # for one batch in the calling thread
    to_device: bool = False  # whether batches go on to a device
    cuda: bool = False
    allows_dali: bool = False  # whether DALI could make the batches, if it is installed
    step: str = ""  # its name
    images: ImageInfo = field(default_factory=ImageInfo)
    device_free_bytes: int = 0
    notes: tuple[str, ...] = ()
    transforms: str = ""  # chosen for the dataset, in words
    store: StoreInfo | None = None  # before any measurement; None if all data is in files
    key: Key | None = None  # None if the settings cannot be stored
    calls_python: bool = False  # callables make samples, and only processes can seed them


class LoaderFactory(ABC):
    """Makes loaders of the same batches with given settings.

    Batches arrive on `device`, or stay on the host if it is None.  `paths` are the files that are
    read, if they are known.
    """

    paths: Sequence[Path] = ()

    def __init__(
        self, dataset: Any, options: LoaderOptions, device: torch.device | None, info: WorkloadInfo
    ) -> None:
        self.dataset, self._given, self.device = dataset, options, device
        moved = device is not None and device.type != "cpu"
        self.info = dataclasses.replace(info, to_device=moved)

    @property
    def batch_size(self) -> int:
        """Samples in a batch; of a batch sampler those of its first one."""
        batches = self._given.batch_sampler
        return self._given.batch_size if batches is None else len(next(iter(batches)))

    @property
    def key(self) -> Key | None:
        """The key of tuned settings for this data and the given options; None without one."""
        return key_of(self.dataset, self._given)

    @abstractmethod
    def open(self, settings: Settings) -> contextlib.AbstractContextManager[Any]:
        """Return a context with an iterable of batches, whose workers end with it."""

    def stay_in_cache(self) -> bool:
        """Make loaders of local data from now on; return whether there is enough."""
        return True


def loader_factory(data: Any, options: dict[str, Any]) -> LoaderFactory:
    """Return what makes loaders of a path, a dataset or a loader, which has its own options."""
    device = data.device if isinstance(data, CUDAPrefetcher) else None
    data = inner_loader(data)
    if not isinstance(data, (Loader, DataLoader)):
        data, options = _with_training_defaults(data, options)
        made = loader(data, **options)
        if isinstance(made, Loader):
            made.close()
            return PackedLoaderFactory(made.dataset, made.options)
        device = made.device if isinstance(made, CUDAPrefetcher) else None
        return StockLoaderFactory(inner_loader(made), device, options_of(options))
    # A loader decides where its batches arrive; the step's device is another thing.
    given = [name for name, value in options.items() if value is not None and name != "device"]
    if given:
        raise OptionError(f"{', '.join(given)}: a loader has been given, which has its own options")
    if isinstance(data, DataLoader):
        wanted = torch.device(options.get("device") or "cpu")
        if device is None and wanted.type != "cpu":
            device = wanted
        return StockLoaderFactory(data, device, _options_like(data, device))
    if data.options is None:
        raise OptionError("this Loader was not made by fastdata.loader: give the dataset")
    return PackedLoaderFactory(data.dataset, data.options)


def _with_training_defaults(data: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the data, opened, and the given options, completed by the defaults of training."""
    given = {name: value for name, value in options.items() if value is not None}
    # One worker, which is not started: so that a stock DataLoader takes options of workers.
    given |= {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    if is_location(data):
        data = open_dataset(data, **{name: given.pop(name) for name in OF_STORES if name in given})
    if "batch_sampler" in given:
        return data, given
    if isinstance(data, IterableDataset):
        return data, {"batch_size": DEFAULT_BATCH_SIZE} | given
    packed = packed_view(data) if "split" in given else None
    chosen = data if packed is None else select_split(packed, given["split"])
    length = len(chosen) if hasattr(chosen, "__len__") else 1  # `loader` raises
    if not given.keys() & {"shuffle", "sampler", "weights"}:
        given["shuffle"] = True
    given.setdefault("batch_size", min(DEFAULT_BATCH_SIZE, max(length, 1)))
    given.setdefault("drop_last", length >= given["batch_size"])
    return data, given


class PackedLoaderFactory(LoaderFactory):
    """Makes loaders of packed data, without caches: once they are full, nothing is read."""

    def __init__(self, data: Any, options: LoaderOptions) -> None:
        self._options = dataclasses.replace(options, cache=None, cache_scope="all")
        probe = packed_loader(data, self._options_with(Settings(0)))
        method, calls_python = options.worker_method, not probe.pipeline.direct
        if method == "auto":
            assert isinstance(probe.backend, CpuBackend), "it has neither DALI nor a cache"
            method = choose_method(
                2,
                calls_python=calls_python,
                releases_lock=probe.backend.work.releases_lock,
                context=options.multiprocessing_context,
            )
        base = Settings(1, method, 2, options.pinned, options.persistent)
        if options.backend == "dali":
            base = dataclasses.replace(base, worker_method="thread", backend="dali")
        allows_dali = (
            (options.backend, options.decoder, options.cache) == ("auto", "auto", None)
            and options.worker_method != "process"
            and not options.image_lists
            and not isinstance(data, UnpackedDataset)
        )
        note = f"measured without cache={options.cache!r}: these workers fill it in the first epoch"
        info = WorkloadInfo(
            base,
            allows_dali=allows_dali,
            notes=() if options.cache is None else (note,),
            store=store_info(data),
            calls_python=calls_python,
        )
        # The dataset of the probe has the fields that were asked for.
        super().__init__(probe.dataset, options, options.target, info)
        self.paths = list(getattr(data, "paths", []))
        self._world_size = probe.world_size
        self._in_cache = info.store is None or info.store.present == 1

    def open(self, settings: Settings) -> Loader:
        return packed_loader(self.dataset, self._options_with(settings))

    def stay_in_cache(self) -> bool:
        given = self._options
        of_all = given.sampler, given.batch_sampler, given.weights
        if self._in_cache or any(one is not None for one in of_all):
            return self._in_cache
        here = np.flatnonzero(in_cache(self.dataset))
        if len(here) >= LEAST_CACHED * given.batch_size * self._world_size:
            self.dataset, self._in_cache = self.dataset[here], True
        return self._in_cache

    def _options_with(self, settings: Settings) -> LoaderOptions:
        backend = "dali" if settings.backend == "dali" else "cpu"
        given = dataclasses.asdict(settings) | {"backend": backend}
        return dataclasses.replace(self._options, **given)


class StockLoaderFactory(LoaderFactory):
    """Makes stock DataLoaders like one that `fastdata.loader` makes with `options`."""

    def __init__(
        self, like: DataLoader[Any], device: torch.device | None, options: LoaderOptions
    ) -> None:
        pinned = bool(like.pin_memory) and torch.cuda.is_available()
        base, name = Settings(1, "process", 2, pinned, True, "torch"), type(like).__qualname__
        note = f"{name} was measured as the stock DataLoader that it is made from"
        notes = () if type(like) is DataLoader else (note,)
        super().__init__(like.dataset, options, device, WorkloadInfo(base, notes=notes))
        self._like = like

    @contextlib.contextmanager
    def open(self, settings: Settings) -> Iterator[Any]:
        names = "pin_memory", "prefetch_factor", "persistent_workers"
        options = {name: getattr(settings, name) for name in names}
        with stock_loader_like(self._like, settings.num_workers, **options) as made:
            yield made if self.device is None else CUDAPrefetcher(made, self.device)


def _options_like(like: DataLoader[Any], device: torch.device | None) -> LoaderOptions:
    """Return the options that make `fastdata.loader` return such a DataLoader."""
    options = {"device": device, "multiprocessing_context": like.multiprocessing_context}
    arguments = dataloader_arguments(like)
    if "batch_sampler" in arguments:
        options["batch_sampler"] = like.batch_sampler
    else:
        options |= {"batch_size": like.batch_size or 1, "drop_last": bool(like.drop_last)}
        if isinstance(like.sampler, RandomSampler):
            options["shuffle"] = True
        elif "sampler" in arguments and not isinstance(like.sampler, SequentialSampler):
            options["sampler"] = like.sampler
    if like.collate_fn is not default_collate:
        options["collate_fn"] = like.collate_fn
    return options_of(options)
