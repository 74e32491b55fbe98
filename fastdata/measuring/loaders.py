"""Equivalent loaders with other settings: the same data, order, transforms and batches each time.

a path, dataset or loader --> loader_factory --> PackedLoaderFactory or StockLoaderFactory
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastdata.assembly import packed_loader
from fastdata.dataset import open as open_dataset
from fastdata.engine.packed import Loader
from fastdata.engine.workers import choose_method
from fastdata.errors import OptionError
from fastdata.formats.layout import CODECS
from fastdata.loading import is_location, loader, options_of
from fastdata.options import LoaderOptions
from fastdata.prefetch import CUDAPrefetcher
from fastdata.tuned_settings.key import Key, key_of
from fastdata.tuned_settings.settings import Settings
from fastdata.unpacked.dataset import UnpackedDataset

__all__ = [
    "DEFAULT_BATCH_SIZE",
    "ImageInfo",
    "LoaderFactory",
    "LoaderInfo",
    "PackedLoaderFactory",
    "StockLoaderFactory",
    "dali_is_installed",
    "dataloader_arguments",
    "dataset_of",
    "inner_loader",
    "loader_factory",
    "loader_info",
    "worker_arguments",
]

DEFAULT_BATCH_SIZE = 256

_DECIDE_ORDER = ("shuffle", "sampler", "batch_sampler", "weights")

_PARAMETERS = inspect.signature(DataLoader.__init__).parameters


# -- what is known of a loader --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """What can be told of a loader without taking a batch."""

    kind: Literal["packed", "stock", "iterable"]
    """A `fastdata.Loader`, a `DataLoader`, anything else."""
    workers: int = 0
    batches_ahead: int = 0
    """That may be made before they are asked for: by workers, a thread that pins memory, and a
    copy to a device."""
    batches_at_once: int = 1
    """Workers of a stock `DataLoader` each make a whole batch, and deliver in waves of so many."""
    batches_per_epoch: int | None = None
    persistent: bool = True
    """Whether workers outlive an epoch."""
    calls_python: bool = False
    """Of packed data: whether callables make samples."""


def loader_info(loader: Any) -> LoaderInfo:
    """Return what can be told of a loader, without the prefetcher that it may be in."""
    loader = inner_loader(loader)
    try:
        length: int | None = len(loader)
    except Exception:  # a user's own may raise anything
        length = None
    if isinstance(loader, Loader):
        backend = loader.backend
        return LoaderInfo(
            "packed",
            loader.num_workers,
            getattr(getattr(backend, "workers", None), "ahead", 2)
            + (getattr(backend, "device", None) is not None),
            batches_per_epoch=length,
            persistent=backend.persistent,
            calls_python=not loader.pipeline.direct,
        )
    if isinstance(loader, DataLoader):
        workers = loader.num_workers
        pinned = loader.pin_memory and torch.cuda.is_available()
        return LoaderInfo(
            "stock",
            workers,
            workers * (loader.prefetch_factor or 0) + bool(pinned),
            max(workers, 1),
            length,
            loader.persistent_workers,
        )
    return LoaderInfo("iterable", batches_per_epoch=length)


def inner_loader(loader: Any) -> Any:
    """Return the loader whose batches a prefetcher brings to a device; any other as it is."""
    return loader.iterable if isinstance(loader, CUDAPrefetcher) else loader


def dataset_of(data: Any) -> Any:
    """Return the dataset of a loader, opened if it is a path; anything else as it is."""
    data = inner_loader(data)
    if isinstance(data, (Loader, DataLoader)):
        return data.dataset
    return open_dataset(data) if is_location(data) else data


def dali_is_installed() -> bool:
    """Return whether NVIDIA DALI can be imported; it is not."""
    return (
        importlib.util.find_spec("nvidia") is not None
        and importlib.util.find_spec("nvidia.dali") is not None
    )


# -- factories ------------------------------------------------------------------------------


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

    Batches arrive on `device`, or stay on the host where it is None.  `calls_python` says whether
    callables make samples of packed data, and `allows_dali` whether DALI could make the batches.
    """

    device: torch.device | None
    calls_python: bool = False
    allows_dali: bool = False
    paths: Sequence[Path] = ()
    """The files that are read, where they are known."""
    notes: Sequence[str] = ()
    """What is measured otherwise than asked for."""

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
        # A loader knows where its batches arrive; the step's device is another thing.
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
    if not iterable and not any(name in given for name in _DECIDE_ORDER):
        given["shuffle"] = True
    if "batch_size" not in given:
        given["batch_size"] = min(DEFAULT_BATCH_SIZE, max(_length_of(data), 1))
    if not iterable and "drop_last" not in given:
        given["drop_last"] = _length_of(data) >= given["batch_size"]
    return given


def _length_of(data: Any) -> int:
    if isinstance(data, IterableDataset):
        return DEFAULT_BATCH_SIZE
    if not is_location(data):
        return len(data) if hasattr(data, "__len__") else 1  # `loader` says what it is not
    return len(dataset_of(data))


class PackedLoaderFactory(LoaderFactory):
    """Makes loaders of packed data.

    Caches are left out: once they are full, no worker has anything to read.
    """

    def __init__(self, data: Any, options: LoaderOptions) -> None:
        self._data = data
        self._given = options
        self._options = dataclasses.replace(options, cache=None, cache_scope="all")
        self._probe = packed_loader(data, self._options_with(Settings(0)))
        self.device = options.target
        self.paths = list(getattr(data, "paths", []))
        self.calls_python = not self._probe.pipeline.direct
        self.allows_dali = (
            options.backend == "auto"
            and options.decoder == "auto"
            and options.worker_method != "process"
            and options.cache is None  # which DALI does not go with
            and not isinstance(data, UnpackedDataset)
        )
        if options.cache is not None:
            self.notes = [
                f"measured without cache={options.cache!r}: these workers fill it in the first "
                "epoch"
            ]

    @property
    def base(self) -> Settings:
        """What ``"auto"`` means; a method that was asked for stays."""
        options = self._options
        if options.backend == "dali":
            return Settings(1, "thread", 2, options.pinned, options.persistent, "dali")
        method = options.worker_method
        if method == "auto":
            work = self._probe.backend.work
            method = choose_method(
                2,
                calls_python=self.calls_python,
                releases_lock=work.releases_lock,
                context=options.multiprocessing_context,
            )
        return Settings(1, method, 2, options.pinned, options.persistent, "cpu")

    @property
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler those of its first one."""
        batches = self._options.batch_sampler
        return self._options.batch_size if batches is None else len(next(iter(batches)))

    @property
    def key(self) -> Key | None:
        """The key of a loader of this data with the options as they were given."""
        return key_of(self._data, self._given)

    def images(self, batch: Any) -> ImageInfo:
        """Return what is known of the images, of which this is a batch."""
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
        """Make a loader, and close it in the end."""
        with packed_loader(self._data, self._options_with(settings)) as made:
            yield made

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
        sizes = data.some_sizes(name)
        pixels = int(sizes.prod(axis=0).mean() * len(data)) if sizes.size else 0
        return {"file"}, sizes.min(axis=0), pixels
    if not hasattr(data, "shards"):
        return None
    codecs: set[str] = set()
    sides, pixels = [np.empty(0, np.int64)], 0
    for shard in data.shards:
        heights, widths, kinds = (
            np.asarray(shard.column(f"{name}.{column}")) for column in ("height", "width", "codec")
        )
        codecs |= {CODECS[code] for code in np.unique(kinds).tolist()}
        sides.append(np.minimum(heights, widths).astype(np.int64))
        pixels += int((heights.astype(np.int64) * widths).sum())
    return codecs, np.concatenate(sides), pixels


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
        """Persistent workers, pinned as asked for."""
        pinned = bool(self._like.pin_memory) and torch.cuda.is_available()
        return Settings(1, "process", 2, pinned, True, "torch")

    @property
    def batch_size(self) -> int:
        """Samples a batch; of a batch sampler those of its first one."""
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
        """Make a loader; its workers end with it."""
        arguments = dataloader_arguments(self._like) | {
            "num_workers": settings.num_workers,
            "pin_memory": settings.pin_memory,
        }
        if settings.num_workers:
            arguments |= worker_arguments(self._like) | {
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


def dataloader_arguments(
    like: DataLoader[Any], *, as_batch_sampler: bool = False
) -> dict[str, Any]:
    """Return the arguments that make a `DataLoader` like another, but for its workers.

    Batches are given by ``batch_size``, ``sampler`` and ``drop_last``, unless the other has a
    batch sampler of its own; with `as_batch_sampler` always by ``batch_sampler``, also where
    `DataLoader` made that itself.
    """
    arguments: dict[str, Any] = {
        "dataset": like.dataset,
        "collate_fn": like.collate_fn,
        "worker_init_fn": like.worker_init_fn,
        "generator": like.generator,
    }
    if getattr(like, "in_order", True) is False and "in_order" in _PARAMETERS:
        arguments["in_order"] = False
    if isinstance(like.dataset, IterableDataset):
        return arguments | {"batch_size": like.batch_size, "drop_last": like.drop_last}
    own = like.batch_size is None or type(like.batch_sampler) is not BatchSampler
    if like.batch_sampler is not None and (own or as_batch_sampler):
        return arguments | {"batch_sampler": like.batch_sampler}
    return arguments | {
        "batch_size": like.batch_size,
        "sampler": like.sampler,
        "drop_last": like.drop_last,
    }


def worker_arguments(like: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of a `DataLoader` that only one with workers takes."""
    given = {
        "timeout": like.timeout,
        "multiprocessing_context": like.multiprocessing_context,
    }
    return {name: value for name, value in given.items() if value}


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
