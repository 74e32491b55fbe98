"""`fastdata.profile`: what a training loop waits for, measured.

1  rates      the real loader, a cached host batch, cached device batches: in turns
2  stages     the loader's own parts, one by one
3  stalls     one step under torch's modes
4  model      fitted to 1 and 2: what would be if
5  verdict    and fixes
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from fastdata.cache.ram import RamCacheBackend
from fastdata.engine.cores import available_cores
from fastdata.engine.cpu import CpuBackend
from fastdata.engine.packed import Loader
from fastdata.errors import OptionError
from fastdata.prefetch import CUDAPrefetcher
from fastdata.prefetch.tree import leaves
from fastdata.profiling.batches import Batches, move, nbytes_of
from fastdata.profiling.fixes import Facts, fixes_for
from fastdata.profiling.model import Cost, Model
from fastdata.profiling.packed import measure_packed
from fastdata.profiling.parts import Parts
from fastdata.profiling.rates import Rates, measure_rates
from fastdata.profiling.report import ProfileReport, Stall
from fastdata.profiling.source import Ended, Source, inner_loader
from fastdata.profiling.stalls import find_stalls
from fastdata.profiling.stock import measure_stock
from fastdata.profiling.subject import (
    called,
    described,
    device_of,
    loader_of,
    machine_of,
    random_state_kept,
    standing,
)
from fastdata.profiling.verdict import (
    Measured,
    bottleneck_of,
    is_input_bound,
    shares_cores,
    stages_of,
    verdict_of,
)
from fastdata.steps import Step
from fastdata.steps.meter import Meter

__all__ = ["profile"]

RATES_SHARE = 0.6
"""Of the time, for windows; the rest is for stages."""

SHORT_PASS = 16
"""Batches: of passes that are shorter, little is steady."""


def profile(
    loader: Any,
    step: Step | None = None,
    *,
    steps: int | None = None,
    seconds: float = 30.0,
    device: torch.device | str | None = None,
    batch_size: int = 32,
    progress: bool | None = None,
) -> ProfileReport:
    """Measure where the time of a training loop goes, and what would be gained by mending it.

    Parameters
    ----------
    loader : Loader, DataLoader, CUDAPrefetcher, dataset or any iterable of batches
        A dataset, packed or torch's, is loaded by `fastdata.loader`, shuffled.  Of a loader the
        next batches are used up; a `fastdata.Loader` afterwards begins where it would have.
    step : callable, optional
        Called with each batch, as the loader makes it, in the thread that calls this.  **It is
        really run**, as often as fits: give it a model that may be trained on.  Without one,
        what loading takes is measured, with nothing to compare it with.
    steps : int, optional
        With the real loader, in place of as many as fit in `seconds`.
    seconds : float
        For all of it, about; some batches are measured however long they take.
    device : torch.device or str, optional
        Where the step computes; by default where batches arrive, or ``step.device``, or the
        current GPU where CUDA is in use, else the CPU.
    batch_size : int
        For a dataset.
    progress : bool, optional
        A progress bar on standard error; by default where that is a terminal.

    Returns
    -------
    ProfileReport

    Raises
    ------
    OptionError
        If the loader has no batches, or is nothing to iterate over.
    Exception
        Whatever the loader or the step raises, as it is.

    Notes
    -----
    For one thread at a time: while stages of a `DataLoader` without workers are measured,
    functions of image libraries and ``open`` are replaced by ones that take the time (put back
    afterwards, whatever happens), and they are everybody's.  ``docs/profile.md`` describes
    measuring and model.

    Examples
    --------
    >>> report = fastdata.profile(loader, train_step)          # doctest: +SKIP
    >>> report.verdict                                         # doctest: +SKIP
    'input-bound: the step waits 38% of the time; decoding is the bottleneck; ...'
    """
    _check(steps, seconds, step)
    with (
        random_state_kept(),
        loader_of(loader, batch_size) as (given, notes),
        _bar(progress) as bar,
    ):
        return _Profile(given, step, device, bar, notes).run(steps, seconds)


class _Profile:
    """One run of `profile`."""

    def __init__(
        self,
        loader: Any,
        step: Step | None,
        device: torch.device | str | None,
        bar: Any,
        notes: list[str],
    ) -> None:
        self._loader = loader
        self._inner = inner_loader(loader)
        self._step = step
        self._device, said = device_of(loader, step, device)
        self._bar = bar
        self._notes = notes + said

    def run(self, steps: int | None, seconds: float) -> ProfileReport:
        """Measure everything."""
        step = self._step or _nothing
        self._say("first batches")
        with standing(self._inner), closing(Source(self._loader)) as source:
            batches = Batches.of(source, self._device)
            rates = measure_rates(
                source,
                step,
                batches,
                self._device,
                seconds=RATES_SHARE * seconds,
                steps=steps,
                progress=self._say,
            )
        self._say("stages")
        parts = self._parts((1 - RATES_SHARE) * seconds)
        copying, copy_rate = self._copying(batches, rates)
        if parts.costs:
            copying += self._transforming()
        self._say("stalls of the step")
        stalls = self._stalls(batches)
        return self._report(source, batches, rates, parts, copying, copy_rate, stalls)

    def _parts(self, seconds: float) -> Parts:
        inner = self._inner
        if isinstance(inner, Loader):
            return measure_packed(inner, seconds)
        if isinstance(inner, DataLoader):
            if type(inner) is not DataLoader:
                self._notes.append(
                    f"stages are those of a DataLoader with the dataset, sampler and collate_fn of "
                    f"this {type(inner).__name__}"
                )
            return measure_stock(inner, seconds)
        note = f"of {type(inner).__name__} only waiting, copying and the step are known"
        return Parts(notes=(note,))

    def _copying(self, batches: Batches, rates: Rates) -> tuple[list[Cost], float]:
        """Return what pinning and copying a batch take, and bytes a second of the copy."""
        device = self._device
        if device.type == "cpu":
            return [], 0.0
        meter, batch = Meter(device), batches.host[0]
        move(batch, device)
        took = statistics.median(meter.seconds(lambda: move(batch, device)) for _ in range(10))
        costs = [Cost("copy", took, False, overlapped=batches.arrive)]
        inner = self._inner
        if device.type == "cuda" and isinstance(inner, DataLoader) and inner.pin_memory:
            # Not page-locked; and the memory that is page-locked for the first is used again.
            plain = [leaf.clone() for leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]
            pinning = []
            for _ in range(6):
                began = time.perf_counter()
                for leaf in plain:
                    leaf.pin_memory()
                pinning.append(time.perf_counter() - began)
            costs.append(Cost("pin", statistics.median(pinning[1:]), False, overlapped=True))
        return costs, batches.nbytes / took if took else 0.0

    def _transforming(self) -> list[Cost]:
        """Return what a prefetcher's own transform takes of a batch, beside the step."""
        loader = self._loader
        transform = loader._transform if isinstance(loader, CUDAPrefetcher) else None
        if transform is None:
            return []
        meter, took = Meter(self._device), []
        with standing(self._inner), closing(Source(self._inner)) as source, suppress(Ended):
            for _ in range(4):
                batch = move(source.next(), self._device)
                took.append(meter.seconds(partial(transform, batch)))
        if len(took) < 2:
            return []
        return [Cost("augment", statistics.median(took[1:]), False, overlapped=True)]

    def _stalls(self, batches: Batches) -> tuple[Stall, ...]:
        if self._step is None:
            return ()
        # As the step gets it: where it brings batches to the device itself, those are no
        # surprise, as they are the batch's.
        batch = batches.device[0] if batches.arrive else batches.host[0]
        try:
            return find_stalls(self._step, batch, self._device)
        except Exception as error:
            # It has run many times; under torch's modes some compiled steps do not.
            self._notes.append(
                "the step cannot be looked into for what makes the device wait: "
                f"{type(error).__name__}: {error}"
            )
            return ()

    def _report(
        self,
        source: Source,
        batches: Batches,
        rates: Rates,
        parts: Parts,
        copying: list[Cost],
        copy_rate: float,
        stalls: tuple[Stall, ...],
    ) -> ProfileReport:
        wait = statistics.fmean(rates.waits)
        interval = statistics.fmean(rates.intervals)
        measured = Measured(
            rates.median("loader"),
            rates.median("host"),
            rates.median("device"),
            wait / interval if interval > 0 else 0.0,
            has_step=self._step is not None,
            on_gpu=self._device.type == "cuda",
        )
        costs = (*(parts.costs or (Cost("load", wait, False),)), *copying)
        cores = available_cores()
        model = Model(
            costs,
            measured.device if measured.has_step else 0.0,
            max(source.workers, self._in_thread()) if parts.costs else 0,
            cores,
            statistics.median(rates.device_cpu) if measured.has_step else 0.0,
        ).fitted(measured.loader, statistics.median(rates.busy) if rates.busy else 0.0)
        input_bound = is_input_bound(measured)
        stages = stages_of(model, measured, parts.where)
        bottleneck = bottleneck_of(stages, stalls, input_bound=input_bound)
        facts = self._facts(source, batches, measured, input_bound)
        self._notes += parts.notes
        if parts.overhead > 0.05:
            self._notes.append(
                f"taking times made {parts.overhead:.0%} of what the stages seemed to take; it is "
                "taken off"
            )
        self._remark(source, rates, measured, input_bound, stalls)
        ready = [count for count in rates.ready if not math.isnan(count)]
        p50, p99 = np.quantile(rates.intervals, [0.5, 0.99]).tolist()
        return ProfileReport(
            verdict=verdict_of(model, measured, stages, bottleneck, stalls),
            bottleneck=bottleneck,
            input_bound=input_bound,
            steps_per_second=_rate(measured.loader),
            steps_per_second_host=_rate(measured.host),
            steps_per_second_device=_rate(measured.device),
            batch_size=batches.size,
            waiting=measured.waiting,
            stages=stages,
            stalls=stalls,
            fixes=fixes_for(model, facts, stalls, parts.where),
            batch_seconds_p50=p50,
            batch_seconds_p99=p99,
            ready_batches=statistics.fmean(ready) if ready else math.nan,
            wait_seconds=wait,
            copy_bytes_per_second=copy_rate,
            workers=source.workers,
            workers_to_saturate=(
                model.workers_to_saturate()
                if measured.has_step and any(cost.parallel for cost in costs)
                else None
            ),
            cores=cores,
            cores_to_saturate=model.cores_to_saturate(),
            overhead=rates.marks_seconds / measured.loader if measured.loader > 0 else 0.0,
            steps=rates.steps,
            timeline=tuple(rates.timeline),
            step=called(self._step) if self._step is not None else "no step",
            loader=described(self._loader),
            machine=machine_of(self._device),
            notes=tuple(self._notes),
        )

    def _in_thread(self) -> int:
        """Return 1 where a prefetcher's thread makes batches beside the step, as a worker does."""
        return int(isinstance(self._loader, CUDAPrefetcher) and self._loader.device.type == "cpu")

    def _facts(
        self, source: Source, batches: Batches, measured: Measured, input_bound: bool
    ) -> Facts:
        inner = self._inner
        tensors = [leaf for leaf in leaves(batches.host[0]) if isinstance(leaf, torch.Tensor)]
        floats = sum(nbytes_of(t) for t in tensors if t.is_floating_point())
        on_gpu = self._device.type == "cuda"
        kind: Any = "iterable"
        raw = callables = False
        if isinstance(inner, Loader):
            kind = "packed"
            callables = not inner.pipeline.direct
            if isinstance(inner.backend, CpuBackend):
                work = inner.backend.work
                first = np.zeros(1, np.int64)
                names = inner.dataset.schema.images
                raw = all(inner.dataset.images(n, first, work.decoder).all_raw for n in names)
        elif isinstance(inner, DataLoader):
            kind = "stock"
        backend = getattr(inner, "backend", None)
        try:
            length = len(inner)
        except (TypeError, NotImplementedError):
            length = None
        return Facts(
            kind,
            input_bound=input_bound,
            shares_cores=shares_cores(measured),
            on_gpu=on_gpu,
            arrives=batches.arrive,
            pinned=on_gpu and any(t.is_pinned() for t in tensors),
            raw=raw,
            callables=callables,
            plain=isinstance(backend, CpuBackend) and not isinstance(backend, RamCacheBackend),
            float_bytes=floats / batches.nbytes if batches.nbytes else 0.0,
            start_seconds=source.start_seconds,
            epoch_batches=length,
            persistent=bool(getattr(inner, "persistent_workers", True)),
            dali=importlib.util.find_spec("nvidia") is not None
            and importlib.util.find_spec("nvidia.dali") is not None,
        )

    def _remark(
        self,
        source: Source,
        rates: Rates,
        measured: Measured,
        input_bound: bool,
        stalls: tuple[Stall, ...],
    ) -> None:
        """Add what to know when reading the report."""
        if rates.ended:
            self._notes.append(
                f"the iterable ended after {rates.steps} measured steps: give one that can be "
                "iterated over again for more"
            )
        if source.passes > 2 and not source.joins and source.workers:
            self._notes.append(
                f"{source.passes - 1} passes ended while measuring; beginning the next one "
                f"is left out of all rates ({source.start_seconds:.2g} s for the first)"
            )
        if measured.has_step and not input_bound and measured.waiting > 0.05:
            self._notes.append(
                f"beside the loader the step takes longer, by {measured.waiting:.0%} of the time, "
                "but hardly ever waits for a batch: they share cores"
            )
        if self._device.type == "cpu" and stalls:
            self._notes.append(
                "the step was measured on the CPU, where nothing waits for a value: the places "
                "listed would make a GPU wait"
            )

    def _say(self, what: str) -> None:
        self._bar.set_description_str(what)
        self._bar.update()


def _check(steps: Any, seconds: Any, step: Any) -> None:
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise OptionError(f"steps is an int from 1 up, not {steps!r}")
    if not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
        raise OptionError(f"seconds is a number above 0, not {seconds!r}")
    if step is not None and not callable(step):
        raise OptionError(f"step is called with a batch, but {step!r} is no callable")


def _nothing(batch: Any) -> None:
    """The step of who has none."""


def _rate(seconds: float) -> float:
    return 1 / seconds if seconds > 0 else math.inf


@contextmanager
def _bar(progress: bool | None) -> Any:
    disable = None if progress is None else not progress
    with tqdm(disable=disable, bar_format="{desc} [{elapsed}]", leave=False) as bar:
        yield bar
