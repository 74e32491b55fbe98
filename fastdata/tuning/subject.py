"""What is measured, where it is measured: loaders, the step, and batches for it.

A `Recipe` says what to make and can be sent to another process; a `Subject` has made it.
Everything that takes time or may die is a method of `Subject`, with plain arguments and answers,
so that it runs in any process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from fastdata.engine.memory import available_bytes
from fastdata.prefetch import CUDAPrefetcher
from fastdata.steps import ReferenceStep, run_script
from fastdata.steps.meter import Meter
from fastdata.tuning.batches import Endless, batch_nbytes
from fastdata.tuning.key import Key
from fastdata.tuning.measuring import (
    Supplied,
    Windows,
    demand,
    storage_bytes,
    supply,
    trained,
)
from fastdata.tuning.packed_source import PackedSource
from fastdata.tuning.page_cache import WARM_AT_LEAST, read_within, resident
from fastdata.tuning.scripts import names_function
from fastdata.tuning.settings import Settings
from fastdata.tuning.source import Source, source_of

__all__ = ["Facts", "Recipe", "Subject", "called"]

CACHED_BATCHES = 4
"""Real batches that the step is measured with, in turn."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to measure.

    Attributes
    ----------
    data : Any
        What `fastdata.tune_workers` takes.
    options : dict
        Of `fastdata.loader`, where `data` is no loader.
    step : callable, str or None
        A step, or the name of a reference model; a script may have its own.
    device : str or None
        Where batches are when the step gets them.
    """

    data: Any
    options: dict[str, Any] = field(default_factory=dict)
    step: Callable[[Any], Any] | str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to tune.

    Attributes
    ----------
    base : Settings
    batch_size, batch_bytes : int
    batches : int or None
        Of an epoch, where that is known.
    batch_seconds : float
        That making one takes in the calling thread.
    to_device, cuda, dali : bool
        Whether batches go on to a device; whether there is CUDA; whether DALI could make them.
    step : str
        What a script's own step is called; "" without one.
    codecs : tuple of str
        Of packed images.
    image_sides : tuple of int
        Of packed images, the median short side, and the short side in batches.
    decoded_bytes : int
        All packed images in memory.
    device_free_bytes : int
        Memory of the device that is free; 0 without one.
    notes : tuple of str
    key : Key or None
        Under what the result is kept.
    calls_python : bool
        Whether callables make samples: batches of worker threads are then others than those of
        processes, as only processes can seed what the callables draw from.
    """

    base: Settings
    batch_size: int
    batch_bytes: int
    batches: int | None
    batch_seconds: float = 0.0
    to_device: bool = False
    cuda: bool = False
    dali: bool = False
    step: str = ""
    codecs: tuple[str, ...] = ()
    image_sides: tuple[int, ...] = ()
    decoded_bytes: int = 0
    device_free_bytes: int = 0
    notes: tuple[str, ...] = ()
    key: Key | None = None
    calls_python: bool = False


class Subject:
    """Makes loaders and measures them; for one thread.

    Parameters
    ----------
    recipe : Recipe

    Raises
    ------
    OptionError, FastdataError
        If there are no such loaders to be had.
    """

    def __init__(self, recipe: Recipe) -> None:
        data, step = recipe.data, recipe.step
        if names_function(data):
            data, own = run_script(data)
            step = own if step is None else step
        self.source: Source = source_of(data, recipe.options)
        given = recipe.device or self.source.device
        self.device = torch.device(
            given or ("cuda" if step is not None and torch.cuda.is_available() else "cpu")
        )
        self._step = ReferenceStep(step, self.device) if isinstance(step, str) else step
        self._kept: list[Any] = []

    @property
    def _meter(self) -> Meter:
        return Meter(self.device if self.source.device is None else self.source.device)

    def look(self) -> Facts:
        """Make a few batches in this process, and keep them; return what there is to tune."""
        source = self.source
        # Before any batch: a dataset that opens its file with the first sample is another then.
        key = source.key
        settings = _without_workers(source.base)
        with source.opened(settings) as loader:
            batches = Endless(loader)
            self._kept = [next(batches)]
            started = time.perf_counter()
            self._kept += islice(batches, 1)
            took = time.perf_counter() - started
            # More where they are quickly had, so that the step sees different ones.
            if took < 0.5 and self._step is not None:
                self._kept += islice(batches, CACHED_BATCHES - 2)
            batches.close()
            try:
                count: int | None = len(loader)
            except TypeError:
                count = None
        on_gpu = torch.cuda.is_available()
        return Facts(
            base=source.base,
            batch_size=source.batch_size,
            batch_bytes=batch_nbytes(self._kept[0]),
            batches=count,
            batch_seconds=took,
            to_device=source.device is not None and source.device.type != "cpu",
            cuda=on_gpu,
            dali=isinstance(source, PackedSource) and source.dali,
            step="" if self._step is None else called(self._step),
            device_free_bytes=torch.cuda.mem_get_info()[0] if on_gpu else 0,
            notes=tuple(source.notes),
            key=key,
            calls_python=isinstance(source, PackedSource) and source.calls_python,
            **(source.images(self._kept[0]) if isinstance(source, PackedSource) else {}),
        )

    def warm(self, settings: Settings | None, seconds: float) -> str:
        """Have data read that is not in memory; return "warm", "cold", or "" if nobody knows.

        Parameters
        ----------
        settings : Settings or None
            By which an epoch is read, where files are not known; None: it is not.
        seconds : float
        """
        paths = self.source.paths
        share = resident(paths) if paths else None
        if share is not None:
            if share < WARM_AT_LEAST:
                read_within(paths, seconds, available_bytes() // 2)
                share = resident(paths) or 0.0
            return "warm" if share >= WARM_AT_LEAST else "cold"
        if settings is None:
            return ""
        end = time.monotonic() + seconds
        with self.source.opened(settings) as loader:
            epoch = iter(loader)
            for _ in epoch:
                if time.monotonic() > end:
                    return ""  # nobody knows: reading from disks during the trials tells
        return "warm"

    def supply(self, settings: Settings, windows: Windows) -> Supplied:
        """Measure the batches that settings give."""
        began, read = time.perf_counter(), storage_bytes()
        with self.source.opened(settings) as loader:
            count = None
            if settings.num_workers and not settings.persistent_workers:
                count = len(loader)
            found = supply(
                loader,
                settings,
                windows,
                began=began,
                meter=self._meter,
                batches_of_epoch=count,
            )
        # Of workers the system counts it once they have ended.
        rate = (storage_bytes() - read) / (time.perf_counter() - began)
        return replace(found, storage_bytes_per_second=max(0.0, rate))

    def demand(self, windows: Windows) -> tuple[float, ...]:
        """Measure the step on batches that are on its device."""
        assert self._step is not None, "there is a step"
        if not self._kept:
            self.look()
        if self.device.type != "cpu":
            self._kept = list(CUDAPrefetcher(self._kept, self.device))
        return demand(self._step, self._kept, windows, meter=Meter(self.device))

    def train(self, settings: Settings, windows: Windows, rate: float) -> tuple[float, ...]:
        """Measure the step on batches as the loader gives them."""
        assert self._step is not None, "there is a step"
        with self.source.opened(settings) as loader:
            return trained(
                loader, self._step, settings, windows, meter=Meter(self.device), rate=rate
            )


def _without_workers(base: Settings) -> Settings:
    """Return settings that make batches in the calling thread, or as nearly as there are."""
    if base.backend == "dali":  # has threads of its own
        return base
    return Settings(0, base.worker_method, base.prefetch_factor, backend=base.backend)


def called(step: Any) -> str:
    """Return what to call a step."""
    if not isinstance(step, type) and "__str__" in vars(type(step)):
        return str(step)
    return f"the step {getattr(step, '__qualname__', type(step).__qualname__)}"
