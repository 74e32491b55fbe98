"""More workers, tried: the loop with a loader that has them, and as it is, in turns.

What handing batches over costs, what workers and step do to each other's cores and memory, and
what other processes leave of them, is in what is measured here, and in no model.  The model says
which number is worth trying, and where that falls short by much, which other one; or a tuning that
was kept says it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from fastdata.assembly import packed_loader
from fastdata.engine.loader import Loader
from fastdata.measuring.downloads import store_info
from fastdata.measuring.loaders import inner_loader, stock_loader_like
from fastdata.prefetch import CUDAPrefetcher
from fastdata.printable import safe_repr
from fastdata.profiling.batches import batches_of
from fastdata.profiling.model import Model
from fastdata.profiling.rates import Measured, compare_loaders
from fastdata.steps import Step

__all__ = ["MoreWorkers", "try_more_workers"]

MOST_TRIALS = 2

TIMEOUT_SECONDS = 60.0
"""Until a batch of a stock worker: one that hangs, as no lock outlives a fork, ends the trial."""


@dataclass(frozen=True, slots=True)
class MoreWorkers:
    """A larger number of workers, and the steps a second with it over those as it is.

    Where it was not tried, `untried` says why; the gain is the model's then, and a bound.  It is 0
    where they do not work at all.
    """

    workers: int
    speedup: float
    untried: str = ""

    def waiting(self, measured: Measured) -> float:
        """Return the share of the time, 0 to 1, that the step would wait."""
        return max(1 - self.speedup * measured.device / measured.loader, 0.0)


def try_more_workers(
    loader: Any,
    step: Step,
    model: Model,
    device: torch.device,
    *,
    seconds: float,
    progress: Callable[[str], None],
) -> tuple[MoreWorkers, ...]:
    """Return what was tried, about so many `seconds` each; nothing where the model sees no gain."""
    tried: list[MoreWorkers] = []
    now = model.period()
    while len(tried) < MOST_TRIALS and (wanted := model.wanted_workers()) is not None:
        progress(f"{wanted} workers, for a moment")
        tried.append(_tried(loader, step, model, now, wanted, device, seconds))
        if tried[-1].untried or model.supplied:
            break
        fresh = replace(model, workers=wanted, scale=1.0, contention=0.0, loop_scale=1.0)
        model = fresh.fitted(now / tried[-1].speedup)
    return tuple(tried)


def _tried(
    loader: Any,
    step: Step,
    model: Model,
    now: float,
    workers: int,
    device: torch.device,
    seconds: float,
) -> MoreWorkers:
    predicted = now / model.period(workers)
    if why := _why_not(loader):
        return MoreWorkers(workers, predicted, why)
    try:
        with (
            _with_workers(loader, None) as present,
            _with_workers(loader, workers) as other,
            batches_of(present) as batches,
            batches_of(other) as others,
        ):
            both = compare_loaders(
                {"now": (batches, now), "then": (others, model.period(workers))},
                step,
                device,
                seconds=seconds,
            )
    except Exception as error:  # whatever is wrong with workers: unpicklable data, no /dev/shm
        traceback.clear_frames(error.__traceback__)  # torch's hold the workers until a collection
        # What a worker raises has its traceback in the text, and what it was at the end.
        said = safe_repr(error, str).strip().rpartition("\n")[2]
        return MoreWorkers(workers, 0.0, f"{type(error).__name__}: {said}")
    if both is None:
        why = "that takes longer than the time that was given"
        return MoreWorkers(workers, predicted, why)
    return MoreWorkers(workers, both["now"] / both["then"])


def _why_not(loader: Any) -> str:
    """Return why no loader like this one can be made; "" where one can."""
    inner = inner_loader(loader)
    if not isinstance(inner, Loader):
        return ""
    store = store_info(inner.dataset)
    if store is not None and store.present < 1:
        return "images are downloaded meanwhile, a stock that the next trial would have"
    return "a cache would have to be filled" if inner.options.cache is not None else ""


@contextmanager
def _with_workers(loader: Any, workers: int | None) -> Iterator[Any]:
    """Give the loader itself, or with a number of workers one like it, which ends with the block.

    A subclass of `DataLoader` is made anew in any case, as the stock one.
    """
    inner = inner_loader(loader)
    if workers is None and (isinstance(inner, Loader) or type(inner) is DataLoader):
        yield loader
        return
    if workers is not None and isinstance(inner, Loader):
        with packed_loader(inner.dataset, replace(inner.options, num_workers=workers)) as made:
            yield _behind_prefetcher(loader, made)
        return
    with stock_loader_like(
        inner,
        inner.num_workers if workers is None else workers,
        pin_memory=inner.pin_memory,
        prefetch_factor=inner.prefetch_factor,
        persistent_workers=inner.persistent_workers,
        timeout=inner.timeout or TIMEOUT_SECONDS,
    ) as made:
        yield _behind_prefetcher(loader, made)


def _behind_prefetcher(loader: Any, made: Any) -> Any:
    """Return a loader behind a prefetcher like that of `loader`, where it has one."""
    if not isinstance(loader, CUDAPrefetcher):
        return made
    return CUDAPrefetcher(made, loader.device, loader.transform, depth=loader.depth)
