"""What is measured: the loader or dataset of a user or their script, a step, and a device.

All that takes time or may die is a method of `Workload`, with plain arguments and answers, so it
runs in any process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

from fastdata.errors import FastdataError
from fastdata.measuring.factories import LEAST_CACHED, WorkloadInfo, loader_factory
from fastdata.measuring.images import ChosenCrops, ImageInfo
from fastdata.measuring.loaders import EndlessBatches, batch_nbytes, dataset_of
from fastdata.measuring.page_cache import WARM_AT_LEAST, read_within, resident
from fastdata.measuring.windows import LEAST_BATCHES, Supply, Windows, steps_of_run
from fastdata.prefetch import CUDAPrefetcher
from fastdata.printable import safe_repr
from fastdata.processes.resources import available_bytes
from fastdata.steps import ReferenceStep, is_script_target, run_script
from fastdata.steps.meter import Meter
from fastdata.tuned_settings.settings import Settings

__all__ = ["Workload", "WorkloadSpec", "step_name"]

CACHED_BATCHES = 4
"""Real batches that the step is measured with, in turn."""

MOST_STEPS = 10_000
"""Of a window."""


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
            count: int | None = None
            with suppress(TypeError):
                count = len(loader)
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
        """Measure the batches that settings give, and do nothing to them.

        If workers do not persist, each rate is that of an epoch, which begins with their start,
        unless windows have several starts anyway.
        """
        self.stay_in_cache()
        meter = Meter(self.device if self.loaders.device is None else self.loaders.device)
        began, read, wave = meter.clock(), _storage_bytes_read(), settings.batches_at_once
        with self.loaders.open(settings) as loader, closing(EndlessBatches(loader)) as batches:
            take = partial(_take_steps, lambda batch: None, batches)

            def window() -> tuple[int, float]:
                meter.synchronize()
                count, took, started = 0, 0.0, meter.clock()
                while count < LEAST_BATCHES or took < windows.seconds:
                    take(wave)
                    count += wave
                    meter.synchronize()
                    took = meter.clock() - started
                return count, took

            take(1)
            meter.synchronize()
            start_seconds = meter.clock() - began
            take(settings.batches_ahead + 1)
            epochs = batches.epochs
            rates = windows.rates(window, meter, meter.clock())
            restarts = settings.num_workers and not settings.persistent_workers
            if restarts and batches.epochs == epochs:
                length = len(loader)
                rates = tuple(length / (start_seconds + length / rate) for rate in rates)
        # The system counts the reads of workers once they have ended.
        per_second = (_storage_bytes_read() - read) / (meter.clock() - began)
        return Supply(rates, start_seconds, max(0.0, per_second))

    def demand(self, windows: Windows) -> tuple[float, ...]:
        """Measure the step on batches that are on its device: steps a second of each window."""
        assert self.step is not None, "there is a step"
        if not self._batches:
            self.probe()
        if self.device.type != "cpu":
            self._batches = list(CUDAPrefetcher(self._batches, self.device))
        meter = Meter(self.device)
        work, began = partial(_take_steps, self.step, cycle(self._batches)), meter.clock()
        work(1)  # what the first time costs
        first = [meter.seconds(partial(work, 1))]
        count = 1  # if a step is a window
        if first[0] < windows.seconds:
            least = max(1, min(10, int(windows.seconds / max(first.pop(), 1e-9))))
            count = min(meter.repeats(work, windows.seconds, least=least), MOST_STEPS)
        return windows.rates(
            lambda: (count, meter.seconds(partial(work, count))), meter, began, *first
        )

    def train(self, settings: Settings, windows: Windows, rate: float) -> tuple[float, ...]:
        """Measure the step on batches as the loader gives them: steps a second, about `rate`."""
        assert self.step is not None, "there is a step"
        self.stay_in_cache()
        meter, (ahead, count) = Meter(self.device), steps_of_run(settings, rate, windows.seconds)
        with self.loaders.open(settings) as loader, closing(EndlessBatches(loader)) as batches:
            work, began = partial(_take_steps, self.step, batches), meter.clock()
            work(ahead)
            return windows.rates(lambda: (count, meter.seconds(partial(work, count))), meter, began)


def _take_steps(step: Callable[[Any], Any], batches: Iterator[Any], count: int) -> None:
    for _ in range(count):
        step(next(batches))


def _storage_bytes_read() -> int:
    """Return what this process, with children that it has waited for, has read from disks."""
    with suppress(OSError, IndexError):
        counts = Path("/proc/self/io").read_text()
        return int(counts.partition("\nread_bytes:")[2].split()[0])
    return 0


def step_name(step: Any, prefix: str = "") -> str:
    """Return the name of a step after `prefix`; or what it says of itself, without."""
    if isinstance(step, partial):
        return step_name(step.func, prefix)
    if hasattr(step, "__qualname__") or "__str__" not in vars(type(step)):
        return prefix + getattr(step, "__qualname__", type(step).__qualname__)
    return safe_repr(step, str)
