"""What is measured: the loader or dataset of a user or their script, a step, and a device.

A `WorkloadSpec` describes it and can be sent to another process; a `Workload` has it made.  All
that takes time or may die is a method of `Workload`, with plain arguments and answers, so it runs
in any process.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch

from fastdata.errors import FastdataError
from fastdata.measuring.factories import LEAST_CACHED, WorkloadInfo, loader_factory
from fastdata.measuring.images import ChosenCrops, ImageInfo
from fastdata.measuring.loaders import EndlessBatches, batch_nbytes, dataset_of
from fastdata.measuring.page_cache import WARM_AT_LEAST, read_within, resident
from fastdata.measuring.windows import (
    Supply,
    Windows,
    measure_demand,
    measure_supply,
    measure_training,
    storage_bytes_read,
)
from fastdata.prefetch import CUDAPrefetcher
from fastdata.printable import safe_repr
from fastdata.processes.resources import available_bytes
from fastdata.steps import ReferenceStep, is_script_target, run_script
from fastdata.steps.meter import Meter
from fastdata.tuned_settings.settings import Settings

__all__ = ["Workload", "WorkloadSpec", "step_name"]

CACHED_BATCHES = 4
"""Real batches that the step is measured with, in turn."""


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to measure: data or a script's function, options of `fastdata.loader`, and a step.

    A `transform` may also be `ChosenCrops`, and a step the name of a reference model.  The step is
    called with batches that are on `device`.
    """

    data: Any
    options: dict[str, Any] = field(default_factory=dict)
    step: Callable[[Any], Any] | str | None = None
    device: str | None = None


class Workload:
    """Makes loaders and measures them and the step; for one thread."""

    def __init__(self, spec: WorkloadSpec) -> None:
        data, step = spec.data, spec.step
        if is_script_target(data):
            data, own = run_script(data)
            step = own if step is None else step
        options, crops = spec.options, spec.options.get("transform")
        notes: tuple[str, ...] = ()
        transforms = ""
        if isinstance(crops, ChosenCrops):
            data = dataset_of(data)
            transform, notes = crops.transforms_for(data)
            transforms = ", ".join(map(repr, transform)) or "images as they are stored"
            options = {**options, "transform": list(transform) or None}
        self.loaders = loader_factory(data, options)
        info = self.loaders.info
        self._info = replace(info, transforms=transforms, notes=(*notes, *info.notes))
        default = "cuda" if step is not None and torch.cuda.is_available() else "cpu"
        self.device = torch.device(spec.device or self.loaders.device or default)
        self.step = ReferenceStep(step, self.device) if isinstance(step, str) else step
        self._batches: list[Any] = []

    def probe(self) -> WorkloadInfo:
        """Make a few batches in this process, and keep them; return what there is to know."""
        loaders, base, notes, key = self.loaders, self._info.base, self._info.notes, None
        # Before any batch: a dataset that opens its file with the first sample is another then.
        try:
            key = loaders.key
        except FastdataError:  # the dataset is not sound
            raise
        except Exception as error:  # a user's `repr` or `digest` may raise anything
            why = f"{type(error).__name__}: {error}"
            notes += (f"the settings cannot be kept, as naming the data failed ({why})",)
        if base.backend != "dali":  # which has threads of its own
            base = Settings(0, base.worker_method, base.prefetch_factor, backend=base.backend)
        with loaders.open(base) as loader:
            batches = EndlessBatches(loader)
            self._batches = [next(batches)]
            started = time.perf_counter()
            self._batches += islice(batches, 1)
            took = time.perf_counter() - started
            # More if they are quickly had, so that the step sees different ones.
            if took < 0.5 and self.step is not None:
                self._batches += islice(batches, CACHED_BATCHES - 2)
            batches.close()
            try:
                count: int | None = len(loader)
            except TypeError:
                count = None
        cuda = torch.cuda.is_available()
        return replace(
            self._info,
            batch_size=loaders.batch_size,
            batch_bytes=batch_nbytes(self._batches[0]),
            batches=count,
            batch_seconds=took,
            cuda=cuda,
            step="" if self.step is None else step_name(self.step, "the step "),
            images=ImageInfo.of(loaders.dataset, self._batches[0]),
            device_free_bytes=torch.cuda.mem_get_info()[0] if cuda else 0,
            notes=notes,
            key=key,
        )

    def warm(self, settings: Settings | None, seconds: float) -> str:
        """Read data that is not in memory; return "warm", "cold", or "" if that is unknown.

        If files are not known, an epoch is read with `settings`, unless these are None.  Some
        batches out of a store may take up to three times as long.
        """
        paths, store = self.loaders.paths, self._info.store
        is_here = store is None or store.present == 1
        if is_here and paths and (share := resident(paths)) is not None:
            if share < WARM_AT_LEAST:
                read_within(paths, seconds, available_bytes() // 2)
                share = resident(paths) or 0.0
            return "warm" if share >= WARM_AT_LEAST else "cold"
        if settings is None:
            return ""
        end = time.monotonic() + seconds
        with self.loaders.open(settings) as loader:
            for number, _ in enumerate(loader):
                over = time.monotonic() - end
                if over > 0 and is_here:
                    return ""  # unknown: reading from disks during the trials shows it
                if over > 2 * seconds or (over > 0 and number > LEAST_CACHED):
                    break
        return "warm"

    def stay_in_cache(self) -> bool:
        """Measure local data from now on, without downloads; return whether there is enough."""
        return self.loaders.stay_in_cache()

    def supply(self, settings: Settings, windows: Windows) -> Supply:
        """Measure the batches that settings give."""
        self.stay_in_cache()
        began, read = time.perf_counter(), storage_bytes_read()
        arrives = self.device if self.loaders.device is None else self.loaders.device
        with self.loaders.open(settings) as loader:
            restarts = settings.num_workers and not settings.persistent_workers
            supply = measure_supply(
                loader,
                settings,
                windows,
                began=began,
                meter=Meter(arrives),
                batches_of_epoch=len(loader) if restarts else None,
            )
        # The system counts the reads of workers once they have ended.
        rate = (storage_bytes_read() - read) / (time.perf_counter() - began)
        return replace(supply, storage_bytes_per_second=max(0.0, rate))

    def demand(self, windows: Windows) -> tuple[float, ...]:
        """Measure the step on batches that are on its device: steps a second of each window."""
        assert self.step is not None, "there is a step"
        if not self._batches:
            self.probe()
        if self.device.type != "cpu":
            self._batches = list(CUDAPrefetcher(self._batches, self.device))
        return measure_demand(self.step, self._batches, windows, meter=Meter(self.device))

    def train(self, settings: Settings, windows: Windows, rate: float) -> tuple[float, ...]:
        """Measure the step on batches as the loader gives them: steps a second."""
        assert self.step is not None, "there is a step"
        self.stay_in_cache()
        with self.loaders.open(settings) as loader:
            return measure_training(
                loader, self.step, settings, windows, meter=Meter(self.device), rate=rate
            )


def step_name(step: Any, prefix: str = "") -> str:
    """Return the name of a step after `prefix`; or what it says of itself, without."""
    if isinstance(step, functools.partial):
        return step_name(step.func, prefix)
    if hasattr(step, "__qualname__") or "__str__" not in vars(type(step)):
        return prefix + getattr(step, "__qualname__", type(step).__qualname__)
    return safe_repr(step, str)
