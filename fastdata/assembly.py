"""A loader put together of its parts, as its options say.

LoaderOptions --> order of batches    sampling
              --> BatchWork           data, transforms, decoder
              --> Backend             who makes batches
              --> Loader              of these, for packed data
              --> a stock DataLoader, in a CUDAPrefetcher perhaps, for any other
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader, IterableDataset

from fastdata.cache.backend import DeviceCacheBackend
from fastdata.cache.ram import RamCacheBackend
from fastdata.codecs.decoders import DecoderName, jpeg_decoder
from fastdata.distributed import rank_and_world_size
from fastdata.engine.cores import default_workers
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.job import Backend, BatchOrder
from fastdata.engine.packed import Loader
from fastdata.engine.stock import stock_loader
from fastdata.engine.tasks import PackedData
from fastdata.engine.work import BatchWork, OnCorrupt
from fastdata.engine.workers import WorkerOptions, choose_method
from fastdata.errors import OptionError
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.streams import streams_of
from fastdata.sampling import (
    Batches,
    BlockShuffle,
    Order,
    PartOrder,
    SampledBatches,
    SamplerOrder,
    Weighted,
    order_of,
    part_of_rank,
)
from fastdata.transforms.pipeline import Pipeline, Transform
from fastdata.transforms.pixel import ToDtype
from fastdata.tuning.kept import settle

__all__ = ["LoaderOptions", "foreign_loader", "packed_loader"]

_FOR_WORKERS = ("multiprocessing_context", "timeout")

DEFAULT_PREFETCH = 2
"""Batches made ahead where nothing says otherwise, as in a stock `DataLoader`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderOptions:
    """What a loader was asked for, checked; `fastdata.loader` describes the parameters.

    Raises
    ------
    OptionError
        If a value cannot be used, or two cannot together.
    """

    batch_size: int
    shuffle: bool | Literal["block"] | BlockShuffle
    drop_last: bool
    seed: int
    transform: Transform | Sequence[Transform] | None
    num_workers: int | Literal["auto"]
    worker_method: Literal["auto", "thread", "process"]
    prefetch_factor: int | Literal["auto"]
    persistent_workers: bool | Literal["auto"]
    multiprocessing_context: str | BaseContext | None
    pin_memory: bool | Literal["auto"]
    device: torch.device | str | None
    dtype: torch.dtype | None
    backend: Literal["auto", "cpu", "dali"]
    cache: Literal["ram", "device"] | None
    cache_scope: Literal["all", "rank"]
    decoder: DecoderName
    on_corrupt: OnCorrupt
    sampler: Iterable[int] | None
    batch_sampler: Iterable[Sequence[int]] | None
    weights: ArrayLike | None
    rank: int | None
    world_size: int | None
    even: bool
    others: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_choice("worker_method", self.worker_method, ("auto", "thread", "process"))
        _check_choice("backend", self.backend, ("auto", "cpu", "dali"))
        _check_choice("cache", self.cache, (None, "ram", "device"))
        _check_choice("cache_scope", self.cache_scope, ("all", "rank"))
        _check_choice("on_corrupt", self.on_corrupt, get_args(OnCorrupt))
        for name in ("pin_memory", "persistent_workers"):
            _check_choice(name, getattr(self, name), ("auto", True, False))
        if self.num_workers != "auto":
            _check_int("num_workers", self.num_workers, 0, '"auto" or ')
        if self.prefetch_factor != "auto":
            _check_int("prefetch_factor", self.prefetch_factor, 1, '"auto" or ')
        _check_int("batch_size", self.batch_size, 1)
        self._check_order()
        self._check_cache()
        _ = self.target

    @cached_property
    def target(self) -> torch.device | None:
        """Where batches arrive, with the index it has; None where they stay as they are made."""
        return None if self.device is None else streams_of(self.device).device

    @cached_property
    def workers(self) -> int:
        """How many workers."""
        return default_workers() if self.num_workers == "auto" else self.num_workers

    @property
    def prefetched(self) -> int:
        """How many batches are made ahead."""
        return DEFAULT_PREFETCH if self.prefetch_factor == "auto" else self.prefetch_factor

    @property
    def persistent(self) -> bool:
        """Whether workers outlive an epoch."""
        return bool(self.persistent_workers)  # "auto": yes

    @property
    def pinned(self) -> bool:
        """Whether to use page-locked memory."""
        return bool(self.pin_memory) and torch.cuda.is_available()

    def share(self, *, decided: bool = False) -> tuple[int, int]:
        """Return rank and world size; 0 of 1 where who made the order has decided on that."""
        if not (decided or self.sampler is not None or self.batch_sampler is not None):
            return rank_and_world_size(self.rank, self.world_size)
        if self.rank or (self.world_size or 1) > 1:
            raise OptionError(
                "a sampler decides the order: let it yield the samples of its rank, and leave "
                "out rank and world_size"
            )
        return 0, 1

    def _check_order(self) -> None:
        """Raise `OptionError` unless one thing decides the order."""
        deciding = {
            "shuffle": bool(self.shuffle),
            "sampler": self.sampler is not None,
            "batch_sampler": self.batch_sampler is not None,
            "weights": self.weights is not None,
        }
        chosen = [name for name, given in deciding.items() if given]
        if len(chosen) > 1:
            raise OptionError(
                f"{' and '.join(chosen)}: one of them decides the order; leave out the rest"
            )
        if self.batch_sampler is not None and (self.batch_size != 1 or self.drop_last):
            raise OptionError(
                "a batch_sampler decides the batches: leave out batch_size and drop_last"
            )

    def _check_cache(self) -> None:
        """Raise `OptionError` for what does not go together with a cache, or DALI."""
        orders = self.sampler, self.batch_sampler, self.weights
        if self.cache_scope == "rank" and self.cache is None:
            raise OptionError(
                'cache_scope="rank" says what cache= holds on each rank: give cache too'
            )
        if self.cache_scope == "rank" and any(order is not None for order in orders):
            raise OptionError(
                'with cache_scope="rank" each rank has samples of its own, among which shuffle= '
                "decides; leave out sampler, batch_sampler and weights, or give "
                'cache_scope="all"'
            )
        if self.backend == "dali" and self.decoder != "auto":
            raise OptionError(
                f'decoder is {self.decoder!r}, but with backend="dali" DALI decodes; leave one '
                "of them out"
            )
        if self.backend == "dali" and self.cache is not None:
            raise OptionError(
                f'cache is {self.cache!r}, which is for backend="cpu": DALI reads the packed '
                "files; leave one of them out"
            )


def packed_loader(data: PackedData, options: LoaderOptions) -> Loader:
    """Return the loader of packed data."""
    if options.others:
        names = ", ".join(options.others)
        raise OptionError(f"{names}: not an option of a loader of packed data")
    rank, world_size = options.share()
    part = None
    if options.cache_scope == "rank":
        part = part_of_rank(len(data), options.seed, rank, world_size, even=options.even)
    target = options.target
    work = BatchWork(
        data,
        _pipeline(options, data),
        jpeg_decoder(options.decoder),
        seed=options.seed,
        on_corrupt=options.on_corrupt,
        pixels=target is None or target.type == "cpu",
        part=part,
    )
    batches: BatchOrder
    if options.batch_sampler is not None:
        batches = SampledBatches(options.batch_sampler, len(data))
    else:
        order = _order(options, len(data))
        if part is not None:
            inner = order_of(options.shuffle, len(part), options.seed)
            order = PartOrder(part, inner, len(data), world_size)
            rank, world_size = 0, 1  # of its own samples all are for this rank
        batches = Batches(
            order,
            batch_size=options.batch_size,
            drop_last=options.drop_last,
            rank=rank,
            world_size=world_size,
            even=options.even,
        )
    loader = Loader(batches, _backend(options, work, part))
    loader.options = options
    return loader


def _backend(options: LoaderOptions, work: BatchWork, part: Any) -> Backend:
    """Return who makes the batches, as tuned where that is asked for."""
    options = settle(work.dataset, options)
    by, target, pinned = _by(options, work), options.target, options.pinned
    if options.backend == "dali":
        from fastdata.backends.dali import DaliBackend

        return DaliBackend(work, by, device=target, pin_memory=pinned)
    if options.cache == "device":
        here = torch.device("cpu") if target is None else target
        return DeviceCacheBackend(work, by, device=here, pin_memory=pinned, part=part)
    if options.cache == "ram":
        return RamCacheBackend(work, by, device=target, pin_memory=pinned, part=part)
    return CpuBackend(work, by, device=target, pin_memory=pinned)


def _by(options: LoaderOptions, work: BatchWork) -> WorkerOptions:
    """Return which workers there are."""
    method = options.worker_method
    if method == "auto" and options.backend == "dali":
        method = "thread"
    elif method == "auto":
        method = choose_method(
            options.workers,
            calls_python=not work.pipeline.direct,
            releases_lock=work.releases_lock,
            context=options.multiprocessing_context,
        )
    return WorkerOptions(
        options.workers,
        method,
        options.prefetched,
        options.persistent,
        options.multiprocessing_context,
    )


def _pipeline(options: LoaderOptions, dataset: PackedData) -> Pipeline:
    """Return the checked transforms, `dtype` being one more at the end."""
    pipeline = Pipeline(options.transform, dataset.schema)
    if options.dtype is None:
        return pipeline
    return Pipeline((*pipeline.transforms, ToDtype(options.dtype)), dataset.schema)


def _order(options: LoaderOptions, count: int) -> Order:
    """Return where each sample of an epoch stands, over all ranks."""
    if options.sampler is not None:
        return SamplerOrder(options.sampler, count)
    if options.weights is not None:
        weighted = Weighted(options.weights, options.seed)
        if weighted.count != count:
            raise OptionError(
                f"weights has {weighted.count} numbers, but the dataset has {count} samples"
            )
        return weighted
    return order_of(options.shuffle, count, options.seed)


def foreign_loader(data: Any, options: LoaderOptions) -> DataLoader[Any] | CUDAPrefetcher:
    """Return the loader of a dataset that is not packed."""
    for_packed = {
        "transform": options.transform is not None,
        "dtype": options.dtype is not None,
        "worker_method": options.worker_method == "thread",
        "backend": options.backend == "dali",
        "cache": options.cache is not None,
        "decoder": options.decoder != "auto",
        "on_corrupt": options.on_corrupt != "raise",
        "weights": options.weights is not None,
        "even": not options.even,
        "shuffle": not isinstance(options.shuffle, bool),
    }
    for name, given in for_packed.items():
        if given:
            raise OptionError(
                f"{name} is for packed data, but {type(data).__name__} is a dataset that makes "
                f"samples itself: let it do this, or pack it first (fastdata.pack)"
            )
    # The __iter__ of an iterable dataset knows its rank, if it is to have one.
    asked = options.rank is not None or options.world_size is not None
    rank, world_size = options.share(decided=isinstance(data, IterableDataset) and not asked)
    others = dict(options.others)
    if options.batch_sampler is not None:
        others["batch_sampler"] = options.batch_sampler
    if options.multiprocessing_context is not None:
        others["multiprocessing_context"] = options.multiprocessing_context
    if options.num_workers == "auto":
        options = settle(data, options)
        if not options.workers:  # as tuned: then what is for workers is refused
            others = {k: v for k, v in others.items() if k not in _FOR_WORKERS}
    loader = stock_loader(
        data,
        batch_size=options.batch_size,
        shuffle=bool(options.shuffle),
        drop_last=options.drop_last,
        seed=options.seed,
        num_workers=options.workers,
        prefetch_factor=options.prefetched,
        persistent_workers=options.persistent,
        pin_memory=options.pinned,
        sampler=options.sampler,
        rank=rank,
        world_size=world_size,
        options=others,
    )
    target = options.target
    if target is None or target.type == "cpu":
        return loader
    return CUDAPrefetcher(loader, target)


def _check_int(name: str, value: Any, least: int, also: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise OptionError(f"{name} is {also}an int from {least} up, not {value!r}")


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        accepted = ", ".join(map(repr, choices))
        raise OptionError(f"{name} is one of {accepted}, not {value!r}")
