"""`fastdata.profile`: what a training loop waits for, measured.

1  rates      the real loader, a cached host batch, cached device batches: in turns
2  timeline   a few steps more, in which workers report what they do
3  stages     the loader's own parts, one by one
4  stalls     one step under torch's modes
5  trials     a model fitted to 1 and 3 says how many workers are worth trying: the loop with them
6  report     what else the model predicts; the verdict, and fixes
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm

from fastdata.bounds import check_float, check_int
from fastdata.engine.loader import Loader
from fastdata.errors import OptionError
from fastdata.loading import is_dataset
from fastdata.loading import loader as make_loader
from fastdata.measuring.factories import loader_factory
from fastdata.measuring.loaders import end_workers, inner_loader
from fastdata.measuring.stalls import Stall, find_stalls
from fastdata.measuring.workload import step_name
from fastdata.prefetch import CUDAPrefetcher
from fastdata.printable import safe_repr
from fastdata.profiling.batches import (
    CachedBatches,
    batches_of,
    measure_copying,
    measure_prefetcher_transform,
)
from fastdata.profiling.conclusion import Measurements, conclude, model_of
from fastdata.profiling.downloads import DownloadWatch
from fastdata.profiling.model import LoaderCosts
from fastdata.profiling.packed import measure_packed
from fastdata.profiling.rates import measure_rates
from fastdata.profiling.report import Event, ProfileReport
from fastdata.profiling.stock import measure_stock
from fastdata.profiling.tracing import trace
from fastdata.profiling.trying import MoreWorkers, try_more_workers
from fastdata.steps import Step
from fastdata.tuned_settings import store
from fastdata.tuned_settings.store import Entry

__all__ = ["profile"]

RATES_SHARE, TIMELINE_SHARE, TRIAL_SHARE = 0.5, 0.06, 0.2
STAGES_SHARE = 1 - RATES_SHARE - TIMELINE_SHARE - TRIAL_SHARE
"""Of the time."""


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
        A dataset, packed or torch's, is loaded by `fastdata.loader`, shuffled.  A loader's next
        batches are used up; a `fastdata.Loader` afterwards begins where it would have.
    step : callable, optional
        Called with each batch, as the loader makes it, in the thread that calls this.  **It is
        really run**, as often as fits: give it a model that may be trained on.  Without one,
        loading is measured alone, with nothing to compare it with.
    steps : int, optional
        Steps with the real loader; by default as many as fit in `seconds`.
    seconds : float
        For everything together, about; some batches are measured however long they take.
    device : torch.device or str, optional
        Where the step computes; by default where batches arrive, or ``step.device``, or the
        current GPU where CUDA is in use, else the CPU.
    batch_size : int
        Of the loader that is made for a dataset.
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
    functions of image libraries and ``open`` are replaced, for the whole process, by ones that
    take the time (and put back afterwards, whatever happens).  ``docs/profile.md`` describes
    measuring and model.

    Examples
    --------
    >>> report = fastdata.profile(loader, train_step)          # doctest: +SKIP
    >>> report.verdict                                         # doctest: +SKIP
    'input-bound: the step waits 38% of the time; decoding is the bottleneck; ...'
    """
    _check(steps, seconds, step)
    with (
        _random_state_preserved(),
        _loader_for(loader, batch_size) as (loader, notes),
        tqdm(
            disable=None if progress is None else not progress,
            bar_format="{desc} [{elapsed}]",
            leave=False,
        ) as bar,
    ):
        place, note = _device_of(loader, step, device)
        if note:
            notes.append(note)

        def show(what: str) -> None:
            bar.set_description_str(what)
            bar.update()

        return _profile(loader, step, place, steps, seconds, notes, show)


def _profile(
    loader: Any,
    step: Step | None,
    device: torch.device,
    steps: int | None,
    seconds: float,
    notes: list[str],
    show: Callable[[str], None],
) -> ProfileReport:
    """Measure everything; `notes` are completed, and `show` gets what is being measured."""
    run = _no_step if step is None else step  # a step may be an empty container
    show("first batches")
    watch = DownloadWatch.of(loader)
    with batches_of(loader) as batches:
        cached = CachedBatches.take(batches, device)
        rates = measure_rates(
            batches,
            run,
            cached,
            device,
            seconds=RATES_SHARE * seconds,
            steps=steps,
            progress=show,
            download=watch,
        )
    events: tuple[Event, ...] = ()
    if watch is None:  # batches of a timeline of their own would not be fetched ahead
        show("timeline")
        events = trace(loader, run, primed=batches.primed, seconds=TIMELINE_SHARE * seconds)
    show("stages")
    cached_only = watch is not None
    costs = _loader_costs(inner_loader(loader), STAGES_SHARE * seconds, cached_only)
    copy_costs, copy_bytes_per_second = measure_copying(loader, cached, device)
    if costs.costs:
        copy_costs += measure_prefetcher_transform(loader, device)
    stalls: tuple[Stall, ...] = ()
    if step is not None:
        show("stalls of the step")
        stalls = _stalls(step, cached, device, notes)
    measurements = Measurements(
        loader=loader,
        step=None if step is None else step_name(step),
        device=device,
        batches=batches,
        cached=cached,
        rates=rates,
        costs=costs,
        copy_costs=copy_costs,
        copy_bytes_per_second=copy_bytes_per_second,
        stalls=stalls,
        timeline=events or tuple(rates.timeline),
        kept=_kept_tuning(loader),
        watch=watch,
    )
    model = model_of(measurements)
    tried: tuple[MoreWorkers, ...] = ()
    if measurements.measured.is_input_bound:
        tried = try_more_workers(
            loader, run, model, device, seconds=TRIAL_SHARE * seconds, progress=show
        )
    return conclude(measurements, model, tried, notes)


def _kept_tuning(loader: Any) -> Entry | None:
    """Return what is kept of a tuning of this loader's data and options."""
    inner = inner_loader(loader)
    if not isinstance(inner, (Loader, DataLoader)) or not store.is_used():
        return None
    try:
        key = loader_factory(loader, {}).key
    except Exception:  # a user's `repr` or `digest` may raise anything
        return None
    return None if key is None else store.find(key)


def _loader_costs(loader: Any, seconds: float, cached: bool) -> LoaderCosts:
    """Measure the stages of a loader, without the prefetcher that it may be in.

    With `cached` on what is in the cache, of a dataset out of a store.
    """
    if isinstance(loader, Loader):
        return measure_packed(loader, seconds, cached=cached)
    if not isinstance(loader, DataLoader):
        note = f"of {type(loader).__name__} only waiting, copying and the step are known"
        return LoaderCosts(notes=(note,))
    costs = measure_stock(loader, seconds)
    if type(loader) is DataLoader:
        return costs
    note = (
        "stages are those of a DataLoader with the dataset, sampler and collate_fn of this "
        f"{type(loader).__name__}"
    )
    return replace(costs, notes=(note, *costs.notes))


def _stalls(
    step: Step, cached: CachedBatches, device: torch.device, notes: list[str]
) -> tuple[Stall, ...]:
    # The batch as the step gets it: where the step copies it to the device itself, that is no
    # stall, as it is the batch.
    batch = cached.device[0] if cached.loader_copies else cached.host[0]
    try:
        return find_stalls(step, batch, device)
    except Exception as error:
        # The step has run many times; under torch's modes some compiled steps do not.
        notes.append(
            "the step cannot be looked into for what makes the device wait: "
            f"{type(error).__name__}: {safe_repr(error, str)}"
        )
        return ()


def _check(steps: Any, seconds: Any, step: Any) -> None:
    if steps is not None:
        check_int("steps", steps)
    check_float("seconds", seconds)
    if step is not None and not callable(step):
        raise OptionError(f"step is called with a batch, but {safe_repr(step)} is no callable")


def _no_step(batch: Any) -> None:
    """Do nothing."""


@contextmanager
def _loader_for(data: Any, batch_size: int) -> Iterator[tuple[Any, list[str]]]:
    """Yield a loader of whatever was given, and notes; one that is made here is closed."""
    if isinstance(data, (Loader, DataLoader, CUDAPrefetcher)) or not is_dataset(data):
        if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
            raise OptionError(
                "profile takes a loader, a dataset or an iterable of batches, not "
                f"{type(data).__name__}"
            )
        yield data, []
        return
    shuffle = not isinstance(data, torch.utils.data.IterableDataset)
    loader: Any = make_loader(data, batch_size=batch_size, shuffle=shuffle)
    note = (
        f"a loader was made: batch_size={batch_size}, shuffle={shuffle}, "
        f"num_workers={loader.num_workers}"
    )
    try:
        yield loader, [note]
    finally:
        end_workers(loader)


@contextmanager
def _random_state_preserved() -> Iterator[None]:
    """Leave the global random generators as they are."""
    before, numpys = random.getstate(), np.random.get_state()
    devices = range(torch.cuda.device_count()) if _cuda_in_use() else ()
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numpys)


def _cuda_in_use() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _device_of(
    loader: Any, step: Step | None, device: torch.device | str | None
) -> tuple[torch.device, str]:
    """Return where the step computes, and a note where that is a guess."""
    if device is None and isinstance(loader, CUDAPrefetcher):
        device = loader.device
    if device is None and isinstance(loader, Loader):
        device = getattr(loader.backend, "device", None)
    if device is None:
        device = getattr(step, "device", None)
    if isinstance(device, (torch.device, str)):
        return torch.device(device), ""
    if step is not None and _cuda_in_use():
        current = torch.device("cuda", torch.cuda.current_device())
        return current, f"device: the step is taken to compute on {current}, as CUDA is in use"
    return torch.device("cpu"), ""
