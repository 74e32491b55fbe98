"""The options that `fastdata.loader` is given, checked together."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from multiprocessing.context import BaseContext
from typing import Any, Literal, get_args

import torch
from numpy.typing import ArrayLike
from torch.utils.data import DataLoader

from fastdata.bounds import check_int
from fastdata.codecs.decoders import DecoderName
from fastdata.distributed import rank_and_world_size
from fastdata.engine.work import OnCorrupt
from fastdata.engine.workers import DEFAULT_PREFETCH
from fastdata.errors import OptionError, did_you_mean
from fastdata.prefetch.streams import streams_of
from fastdata.processes.resources import default_workers
from fastdata.processes.starting import context_of
from fastdata.sampling import BlockShuffle
from fastdata.transforms.pipeline import Transform

__all__ = ["OF_OPENING", "OF_STORES", "LoaderOptions"]

OF_STORES = "storage_options", "cache_dir", "cache_bytes", "streams"
"""Options of `fastdata.loader` that `fastdata.open` takes for URLs."""

OF_OPENING = "split", *OF_STORES
"""Options of `fastdata.loader` that `fastdata.open` takes."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoaderOptions:
    """The options of a loader, checked; `fastdata.loader` describes the parameters.

    `OptionError` if a value cannot be used, or two cannot together.
    """

    batch_size: int
    shuffle: bool | Literal["block", "lanes"] | BlockShuffle | None
    drop_last: bool
    seed: int | None
    transform: Transform | Sequence[Transform] | None
    num_workers: int | Literal["auto"]
    worker_method: Literal["auto", "thread", "process"]
    prefetch_factor: int | Literal["auto"] | None
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
    batch_format: Literal["tuple", "dict"] | None
    names: Mapping[str, str] | None
    memory_format: torch.memory_format
    fields: Sequence[str] | None = None
    image_lists: bool = False
    max_pixels: int | None = None
    dataloader_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # DataLoader has None for its usual value, or people write it.
        usual = {"shuffle": False, "prefetch_factor": "auto"}
        usual |= {"persistent_workers": "auto", "pin_memory": "auto"}
        for name, value in usual.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._check_names()
        self._check_fields()
        _check_choice("worker_method", self.worker_method, ("auto", "thread", "process"))
        _check_choice("backend", self.backend, ("auto", "cpu", "dali"))
        _check_choice("cache", self.cache, (None, "ram", "device"))
        _check_choice("cache_scope", self.cache_scope, ("all", "rank"))
        _check_choice("on_corrupt", self.on_corrupt, get_args(OnCorrupt))
        _check_choice("batch_format", self.batch_format, (None, "tuple", "dict"))
        formats = (torch.contiguous_format, torch.channels_last)
        _check_choice("memory_format", self.memory_format, formats)
        context_of(self.multiprocessing_context)
        for name in ("drop_last", "even", "image_lists"):
            _check_choice(name, getattr(self, name), (True, False))
        for name in ("pin_memory", "persistent_workers"):
            _check_choice(name, getattr(self, name), ("auto", True, False))
        self._check_numbers()
        self._check_order()
        self._check_cache()
        _ = self.target

    @cached_property
    def target(self) -> torch.device | None:
        """Where batches arrive, with the index it has; None where they stay as they are made."""
        return None if self.device is None else streams_of(self.device).device

    @cached_property
    def workers(self) -> int:
        """The number of workers, by rule of thumb where it is "auto"."""
        return default_workers() if self.num_workers == "auto" else self.num_workers

    @property
    def batches_ahead(self) -> int:
        """The number of batches that are made ahead."""
        factor = self.prefetch_factor
        return factor if isinstance(factor, int) else DEFAULT_PREFETCH

    @property
    def persistent(self) -> bool:
        """Whether workers outlive an epoch."""
        return bool(self.persistent_workers)  # "auto": yes

    @property
    def pinned(self) -> bool:
        """Whether to use page-locked memory."""
        return bool(self.pin_memory) and torch.cuda.is_available()

    def rank_and_world_size(self, *, decided: bool = False, final: bool = True) -> tuple[int, int]:
        """Return rank and world size; 0 of 1 where something else decides on them.

        `final` is that of `rank_and_world_size`.
        """
        if not (decided or self.sampler is not None or self.batch_sampler is not None):
            return rank_and_world_size(self.rank, self.world_size, final=final)
        if self.rank or (self.world_size or 1) > 1:
            raise OptionError(
                "a sampler decides the order: let it yield the samples of its rank, and leave "
                "out rank and world_size"
            )
        return 0, 1

    def _check_numbers(self) -> None:
        """Make all numbers ints; raise `OptionError` for one out of its bounds."""
        numbers: dict[str, tuple[Any, str]] = {
            "batch_size": (..., ""),
            "num_workers": ("auto", '"auto" or '),
            "prefetch_factor": ("auto", '"auto" or '),
        }
        numbers |= dict.fromkeys(("seed", "max_pixels", "rank", "world_size"), (None, "None or "))
        for name, (other, also) in numbers.items():
            value = getattr(self, name)
            if value is not other and not (isinstance(value, str) and value == other):
                object.__setattr__(self, name, check_int(name, value, also=also))

    def _check_names(self) -> None:
        """Raise `OptionError` for an option that neither fastdata nor `DataLoader` has."""
        of_torch = inspect.signature(DataLoader).parameters
        for name in self.dataloader_options:
            if name not in of_torch:
                own = {one.name for one in fields(self)} - {"dataloader_options"}
                near = did_you_mean(name, [*sorted(own), *OF_OPENING, *of_torch])
                raise OptionError(f"fastdata.loader has no option {name!r}.{near}")

    def _check_fields(self) -> None:
        """Make `fields` a tuple; raise `OptionError` unless it has names, each once."""
        given: Any = self.fields
        if given is None:
            return
        names = (given,) if isinstance(given, str) else given
        names = tuple(names) if isinstance(names, Sequence) else ()
        if not names or not all(isinstance(name, str) for name in names):
            hint = "; give kinds of fields to fastdata.open" if isinstance(given, Mapping) else ""
            raise OptionError(
                f'fields is a list of names, such as ("image", "label"), not {given!r}{hint}'
            )
        if len(set(names)) < len(names):
            raise OptionError(f"fields has a name twice: {', '.join(names)}")
        object.__setattr__(self, "fields", names)

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
        """Raise `OptionError` for options that a cache or DALI does not support."""
        if self.image_lists and self.backend == "dali":
            raise OptionError(
                'image_lists: DALI makes images of one size; leave one out, or use backend="cpu"'
            )
        if self.image_lists and self.cache == "device":
            raise OptionError(
                'image_lists: cache="device" makes images of one size; leave one out, or '
                'use cache="ram"'
            )
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
                "files; leave one out"
            )


def _check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or value == choice for choice in choices):
        accepted = ", ".join(map(repr, choices))
        raise OptionError(f"{name} is one of {accepted}, not {value!r}")
