"""Equivalent loaders with other settings: the same data, order, transforms and batches each time.

a path, dataset or loader --> loader_factory --> PackedLoaderFactory or StockLoaderFactory
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
from fastdata.formats.layout import CODECS
from fastdata.loading import is_location, loader, options_of
from fastdata.measuring.crops import stored_sizes
from fastdata.measuring.downloads import StoreInfo, in_cache, store_info
from fastdata.measuring.loaders import (
    dataloader_arguments,
    inner_loader,
    stock_loader_like,
)
from fastdata.opening import open as open_dataset
from fastdata.options import OF_OPENING, LoaderOptions
from fastdata.packed_views import packed_view
from fastdata.prefetch import CUDAPrefetcher
from fastdata.remote.supply import Supply
from fastdata.splits import select_split
from fastdata.tuned_settings.key import key_of
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Key
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "LEAST_CACHED",
    "ImageInfo",
    "LoaderFactory",
    "PackedLoaderFactory",
    "StockLoaderFactory",
    "loader_factory",
]

DEFAULT_BATCH_SIZE = 256

LEAST_CACHED = 4
"""Batches whose images are in the cache, so that loaders can be compared on these."""

_DECIDE_ORDER = ("shuffle", "sampler", "batch_sampler", "weights")


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """What is known of the first image field of packed data."""

    codecs: tuple[str, ...] = ()
    """``"file"`` for files that are not packed."""
    sides: tuple[int, ...] = ()
    """The median short side; and the short side in batches, where that is fixed."""
    decoded_bytes: int = 0
    """All images in memory."""


class LoaderFactory(ABC):
    """Makes loaders of the same batches with given settings.

    Batches arrive on `device`, or stay on the host where it is None.  With `calls_python` callables
    make samples of packed data; with `allows_dali` DALI could make the batches.
    """

    device: torch.device | None
    calls_python: bool = False
    allows_dali: bool = False
    paths: Sequence[Path] = ()
    """The files that are read, where they are known."""
    notes: Sequence[str] = ()
    """What differs between the measured loaders and the one that was given."""
    supplies: Sequence[Supply] = ()
    """Of what comes out of stores, the largest dataset first."""
    store: StoreInfo | None = None
    """How much came out of a store when this was made; None where all of it is in files."""

    @property
    @abstractmethod
    def base(self) -> Settings:
        """The settings to begin with; `num_workers` of them does not count."""

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler those of its first one."""

    @property
    @abstractmethod
    def key(self) -> Key | None:
        """The key of tuned settings for this loader; None where it has none."""

    @abstractmethod
    def open(self, settings: Settings) -> contextlib.AbstractContextManager[Any]:
        """Return a context with an iterable of batches, whose workers end with it."""

    def images(self, batch: Any) -> ImageInfo:
        """Return what is known of the images, of which this is a batch."""
        return ImageInfo()

    def stay_in_cache(self) -> bool:
        """Make loaders of what is on this machine from now on; return whether that can be.

        So that loaders which are compared read the same, and none waits for downloads.
        """
        return True


def loader_factory(data: Any, options: dict[str, Any]) -> LoaderFactory:
    """Return what makes loaders of a path, a dataset or a loader.

    `options` are those of `fastdata.loader`, and an error where a loader is given, which has its
    own.  By default batches have 256 samples, are shuffled, and the incomplete one is left out.
    """
    device = data.device if isinstance(data, CUDAPrefetcher) else None
    data = inner_loader(data)
    if isinstance(data, (Loader, DataLoader)):
        if device is None and isinstance(data, DataLoader):
            device = _accelerator(options.get("device"))
        # Of a loader: where its batches arrive is given; the step's device is another thing.
        given = [name for name, value in options.items() if value is not None and name != "device"]
        if given:
            raise OptionError(
                f"{', '.join(given)}: a loader has been given, which has its own options"
            )
        if isinstance(data, DataLoader):
            return StockLoaderFactory(data, device)
        if data.options is None:
            raise OptionError("this Loader was not made by fastdata.loader: give the dataset")
        return PackedLoaderFactory(data.dataset, data.options)
    options = _with_training_defaults(data, options)
    made = loader(data, **options)
    if isinstance(made, Loader):
        made.close()
        return PackedLoaderFactory(made.dataset, made.options)
    if isinstance(made, CUDAPrefetcher):
        device, made = made.device, made.iterable
    return StockLoaderFactory(made, device, options_of(options))


def _accelerator(device: Any) -> torch.device | None:
    wanted = None if device is None else torch.device(device)
    return None if wanted is None or wanted.type == "cpu" else wanted


def _with_training_defaults(data: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are given, completed by the defaults of training."""
    given = {name: value for name, value in options.items() if value is not None}
    iterable = isinstance(data, IterableDataset)
    # One worker, which is not started: so that a stock DataLoader takes options of workers.
    given |= {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    if "batch_sampler" in given:
        return given
    length = _length_of(data, {name: given.get(name) for name in OF_OPENING})
    if not iterable and not any(name in given for name in _DECIDE_ORDER):
        given["shuffle"] = True
    if "batch_size" not in given:
        given["batch_size"] = min(DEFAULT_BATCH_SIZE, max(length, 1))
    if not iterable and "drop_last" not in given:
        given["drop_last"] = length >= given["batch_size"]
    return given


def _length_of(data: Any, of_opening: dict[str, Any]) -> int:
    if isinstance(data, IterableDataset):
        return DEFAULT_BATCH_SIZE
    if is_location(data):
        return len(open_dataset(data, **of_opening))
    split, packed = of_opening["split"], packed_view(data)
    if split is not None and packed is not None:
        return len(select_split(packed, split))
    return len(data) if hasattr(data, "__len__") else 1  # `loader` raises


class PackedLoaderFactory(LoaderFactory):
    """Makes loaders of packed data.

    Caches are left out: once they are full, no worker has anything to read.
    """

    def __init__(self, data: Any, options: LoaderOptions) -> None:
        self._data = data
        self._given = options
        self._options = dataclasses.replace(options, cache=None, cache_scope="all")
        self._probe = packed_loader(data, self._options_with(Settings(0)))
        self._data = self._probe.dataset  # with the fields that were asked for
        self.store = store_info(data)
        supplies = [one.supply for one in getattr(data, "_supplied", ())]
        self.supplies = sorted(supplies, key=lambda supply: -supply.num_samples)
        self._in_cache = self.store is None or self.store.present == 1
        self.device = options.target
        self.paths = list(getattr(data, "paths", []))
        self.calls_python = not self._probe.pipeline.direct
        self.allows_dali = (
            options.backend == "auto"
            and options.decoder == "auto"
            and options.worker_method != "process"
            and options.cache is None  # which DALI does not go with
            and not options.image_lists
            and not isinstance(data, UnpackedDataset)
        )
        if options.cache is not None:
            self.notes = [
                f"measured without cache={options.cache!r}: these workers fill it in the first "
                "epoch"
            ]

    @property
    def base(self) -> Settings:
        """What ``"auto"`` means; a method that is given stays."""
        options = self._options
        if options.backend == "dali":
            return Settings(1, "thread", 2, options.pinned, options.persistent, "dali")
        method = options.worker_method
        if method == "auto":
            backend = self._probe.backend
            assert isinstance(backend, CpuBackend), "the options have neither DALI nor a cache"
            method = choose_method(
                2,
                calls_python=self.calls_python,
                releases_lock=backend.work.releases_lock,
                context=options.multiprocessing_context,
            )
        return Settings(1, method, 2, options.pinned, options.persistent, "cpu")

    @property
    def batch_size(self) -> int:
        batches = self._options.batch_sampler
        return self._options.batch_size if batches is None else len(next(iter(batches)))

    @property
    def key(self) -> Key | None:
        """The key of a loader of this data with the options as they were given."""
        return key_of(self._data, self._given)

    def images(self, batch: Any) -> ImageInfo:
        schema = self._data.schema
        name = next(iter(schema.images), None)
        stored = None if name is None else _stored_images(self._data, name)
        if name is None or stored is None:
            return ImageInfo()
        codecs, sides, pixels = stored
        made = getattr(batch, name, None)
        shape = made.shape[2:] if isinstance(made, torch.Tensor) and made.ndim == 4 else ()
        side = int(np.median(sides)) if len(sides) else 0
        return ImageInfo(
            tuple(sorted(codecs)),
            (side, min(shape)) if len(shape) == 2 else (side,),
            pixels * schema.images[name].channels,
        )

    @contextlib.contextmanager
    def open(self, settings: Settings) -> Iterator[Any]:
        with packed_loader(self._data, self._options_with(settings)) as made:
            yield made

    def stay_in_cache(self) -> bool:
        given = self._options
        of_all = given.sampler, given.batch_sampler, given.weights
        if self._in_cache or any(one is not None for one in of_all):
            return self._in_cache
        here = np.flatnonzero(in_cache(self._data))
        if len(here) >= LEAST_CACHED * given.batch_size * self._probe.world_size:
            self._data, self._in_cache = self._data[here], True
        return self._in_cache

    def _options_with(self, settings: Settings) -> LoaderOptions:
        return dataclasses.replace(
            self._options,
            num_workers=settings.num_workers,
            worker_method=settings.worker_method,
            prefetch_factor=settings.prefetch_factor,
            pin_memory=settings.pin_memory,
            persistent_workers=settings.persistent_workers,
            backend=settings.backend if settings.backend == "dali" else "cpu",
        )


def _stored_images(data: Any, name: str) -> tuple[set[str], NDArray[np.int64], int] | None:
    """Return codecs of an image field, the shorter sides of its images, and pixels of all.

    Of files that are not packed by the sizes of some of them; None of other data.
    """
    if isinstance(data, UnpackedDataset):
        sizes = stored_sizes(data, name)
        pixels = int(sizes.prod(axis=0).mean() * len(data)) if sizes.size else 0
        return {"file"}, sizes.min(axis=0), pixels
    if not hasattr(data, "shards"):
        return None
    sizes = stored_sizes(data, name)
    codes = np.concatenate([np.asarray(shard.column(f"{name}.codec")) for shard in data.shards])
    pixels = int(sizes.prod(axis=0).sum())
    codecs = {CODECS[code] for code in np.unique(codes).tolist()}
    return codecs, sizes.min(axis=0), pixels


class StockLoaderFactory(LoaderFactory):
    """Makes stock DataLoaders from the attributes of one, whose batches are copied to `device`.

    `options` are those by which `fastdata.loader` makes it; by default as can be seen of it.
    """

    def __init__(
        self,
        like: DataLoader[Any],
        device: torch.device | None,
        options: LoaderOptions | None = None,
    ) -> None:
        self.device = device
        self._like = like
        self._options = options or _options_like(like, device)
        if type(like) is not DataLoader:
            name = type(like).__qualname__
            self.notes = [f"{name} was measured as the stock DataLoader that it is made from"]

    @property
    def base(self) -> Settings:
        """Persistent workers, with memory pinned as in the given loader."""
        pinned = bool(self._like.pin_memory) and torch.cuda.is_available()
        return Settings(1, "process", 2, pinned, True, "torch")

    @property
    def batch_size(self) -> int:
        arguments = dataloader_arguments(self._like)
        if "batch_sampler" in arguments:
            return len(next(iter(arguments["batch_sampler"])))
        return arguments["batch_size"] or 1

    @property
    def key(self) -> Key | None:
        """The key of what `fastdata.loader` makes of the same dataset."""
        return key_of(self._like.dataset, self._options)

    @contextlib.contextmanager
    def open(self, settings: Settings) -> Iterator[Any]:
        with stock_loader_like(
            self._like,
            settings.num_workers,
            pin_memory=settings.pin_memory,
            prefetch_factor=settings.prefetch_factor,
            persistent_workers=settings.persistent_workers,
        ) as made:
            yield made if self.device is None else CUDAPrefetcher(made, self.device)


def _options_like(like: DataLoader[Any], device: torch.device | None) -> LoaderOptions:
    """Return the options with which `fastdata.loader` makes such a DataLoader."""
    options: dict[str, Any] = {
        "device": device,
        "multiprocessing_context": like.multiprocessing_context,
    }
    arguments = dataloader_arguments(like)
    if "batch_sampler" in arguments:
        options["batch_sampler"] = arguments["batch_sampler"]
    else:
        options["batch_size"] = arguments["batch_size"] or 1
        options["drop_last"] = bool(arguments["drop_last"])
        if isinstance(like.sampler, RandomSampler):
            options["shuffle"] = True
        elif "sampler" in arguments and not isinstance(like.sampler, SequentialSampler):
            options["sampler"] = like.sampler
    if like.collate_fn is not default_collate:
        options["collate_fn"] = like.collate_fn
    return options_of(options)
