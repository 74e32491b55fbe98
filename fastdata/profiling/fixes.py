"""Changes that would make this loader faster, with the gain that the model predicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from fastdata.cache.ram import RamCacheBackend
from fastdata.engine.backend import CpuBackend
from fastdata.engine.loader import Loader
from fastdata.measuring.lines import short_line
from fastdata.measuring.loaders import (
    batch_nbytes,
    dali_is_installed,
    inner_loader,
)
from fastdata.measuring.stalls import BLOCKING_COPY, Stall
from fastdata.prefetch.tree import leaves
from fastdata.processes.resources import format_bytes
from fastdata.profiling.batches import CachedBatches
from fastdata.profiling.loaders import LoaderInfo, loader_info
from fastdata.profiling.model import ENOUGH, LEAST_GAIN_OF_WORKERS, Model
from fastdata.profiling.rates import Measured
from fastdata.profiling.report import Download, Fix
from fastdata.profiling.trying import MoreWorkers

__all__ = ["Conditions", "best_of", "conditions_of", "fixes_for"]

LEAST_GAIN = 1.05
"""A smaller gain is not worth a line."""


Change: TypeAlias = tuple[str, dict[str, float], bool]
"""A text, how many times as long stages then take, and whether that is a bound."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """What decides which fixes apply."""

    loader: LoaderInfo
    measured: Measured
    loader_copies: bool = False
    """Whether batches come on the device, copied ahead."""
    pinned: bool = False
    raw: bool = False
    """Whether packed images are stored as pixels."""
    fetched: bool = False
    """Whether packed data come out of a store."""
    download: Download | None = None
    """How they came, where not all of them were in the cache."""
    plain: bool = True
    """Whether packed data come from fastdata's own workers, without a cache."""
    float_bytes: float = 0.0
    """Share of a batch's bytes that have floating dtypes."""
    start_seconds: float = 0.0
    """Until the first batch of an epoch."""
    has_dali: bool = False
    """Whether it is installed."""


def conditions_of(
    loader: Any,
    cached: CachedBatches,
    measured: Measured,
    start_seconds: float,
    download: Download | None = None,
) -> Conditions:
    """Return what decides which fixes apply to a loader, of which these are some batches."""
    inner = inner_loader(loader)
    tensors = [leaf for leaf in leaves(cached.host[0]) if isinstance(leaf, torch.Tensor)]
    floats = batch_nbytes([t for t in tensors if t.is_floating_point()])
    backend = getattr(inner, "backend", None)
    raw = False
    if isinstance(inner, Loader) and isinstance(backend, CpuBackend):
        decoder, first = backend.work.decoder, np.zeros(1, np.int64)
        names = inner.dataset.schema.images
        raw = all(inner.dataset._images(n, first, decoder).all_raw for n in names)
    return Conditions(
        loader_info(loader),
        measured,
        loader_copies=cached.loader_copies,
        pinned=measured.on_gpu and any(t.is_pinned() for t in tensors),
        raw=raw,
        fetched=bool(getattr(getattr(inner, "dataset", None), "_supplied", ())),
        download=download,
        plain=isinstance(backend, CpuBackend) and not isinstance(backend, RamCacheBackend),
        float_bytes=floats / cached.nbytes if cached.nbytes else 0.0,
        start_seconds=start_seconds,
        has_dali=dali_is_installed(),
    )


def fixes_for(
    model: Model,
    conditions: Conditions,
    stalls: Sequence[Stall],
    lines: Mapping[str, str],
    tried: Sequence[MoreWorkers] = (),
) -> tuple[Fix, ...]:
    """Return fixes, the largest gain first, then bounds; those of stalls, of unknown gain, last.

    `lines` are the user's, by stage, and `tried` numbers of workers.
    """
    fixes = [*_candidates(model, conditions, lines)]
    if (more := best_of(tried)) is not None:
        fixes.append(_fix_of_workers(model, conditions, more))
    fixes = [fix for fix in fixes if fix.speedup >= LEAST_GAIN]
    fixes.sort(key=lambda fix: (fix.at_most, -fix.speedup))
    without = model.period(factors={"augment": 0.0})
    if conditions.loader.calls_python and model.period() >= LEAST_GAIN * without:
        # Not only the callables take less time then, and nobody knows how much less.
        fixes.append(
            Fix(
                "fastdata.transforms in place of callables, which are called once a sample: "
                "whole batches are then decoded and changed by compiled code"
            )
        )
    return (*fixes, *map(_fix_of_stall, stalls))


def best_of(tried: Sequence[MoreWorkers]) -> MoreWorkers | None:
    """Return the number of workers with the largest gain; None where that is not worth it."""
    best = max(tried, key=lambda one: one.speedup, default=None)
    return best if best is not None and best.speedup >= LEAST_GAIN_OF_WORKERS else None


def _fix_of_workers(model: Model, conditions: Conditions, more: MoreWorkers) -> Fix:
    now = conditions.loader.workers
    text = f"num_workers={more.workers} (now {now})"
    if more.untried:
        text += f": not tried, as {more.untried}; in this model nothing else slows them down"
    else:
        text += ", tried for a moment"
        if more.waiting(conditions.measured) <= ENOUGH:
            text += ": the step hardly waits"
    if more.workers == model.most_workers:
        text += "; what more of them than four a core bring, fastdata tune-workers can measure"
    if not now:
        text += "; batches are then made beside the step, not between"
    return Fix(text, more.speedup, bool(more.untried))


def _candidates(model: Model, conditions: Conditions, lines: Mapping[str, str]) -> Iterator[Fix]:
    """Yield all other fixes that apply, however small their gain."""
    now = model.period()
    measured, info = conditions.measured, conditions.loader
    if measured.is_input_bound or measured.shares_cores:
        for text, factors, at_most in _changes(conditions, lines):
            then = model.period(factors=factors)
            yield Fix(text, now / then if then > 0 else float("inf"), at_most)
    epoch = (info.batches_per_epoch or 0) * now
    if info.kind == "stock" and model.workers and not info.persistent and epoch:
        start = conditions.start_seconds
        # The first batch of an epoch is waited for in any case: nobody makes it before.
        least = min(sum(cost.seconds for cost in model.costs if cost.parallel), start)
        yield Fix(
            f"persistent_workers=True: each epoch begins with {start:.2g} s until its first batch",
            (epoch + start) / (epoch + least),
        )


def _changes(conditions: Conditions, lines: Mapping[str, str]) -> Iterator[Change]:
    kind = conditions.loader.kind
    if kind == "stock":
        yield (
            "pack the dataset once (fastdata.pack) and load it with fastdata.loader: so much if "
            "reading and decoding then took no time",
            {"read": 0, "decode": 0},
            True,
        )
    if conditions.download is not None:
        yield from _changes_of_download(conditions.download, conditions.measured.loader)
    if kind == "packed" and conditions.plain:
        yield from _changes_of_packed(conditions)
    for name, text in (
        ("augment", "a faster transform"),
        ("collate", "a faster collate function"),
        ("decode", "a faster decoder"),
    ):
        if lines.get(name):
            yield f"{text}: {short_line(lines[name])}", {name: 0}, True
    if not conditions.measured.on_gpu:
        return
    if not conditions.loader_copies:
        how = "device=" if kind == "packed" else "fastdata.CUDAPrefetcher(loader)"
        text = f"{how}: batches are copied while the one before is computed with"
        yield text, {"copy": 0}, False
        if not conditions.pinned:
            yield "pin_memory=True, and copies with non_blocking=True", {"copy": 0}, True
    # A loader that copies packed data sends uint8 already.
    copied_by_packed = kind == "packed" and conditions.loader_copies
    if conditions.float_bytes > 0.5 and not copied_by_packed:
        yield (
            "send uint8 over the bus and convert on the device: a quarter of the bytes",
            {"copy": 1 - 0.75 * conditions.float_bytes},
            False,
        )


def _changes_of_download(download: Download, period: float) -> Iterator[Change]:
    """Yield what makes a loop wait less for images out of a store, all of it with bounds.

    While the loop waits the network is busy, perhaps all of the `period` of a batch.
    """
    came = f"{download.bytes_per_second / 1e6:.3g} MB/s"
    if not download.fits:
        yield (
            f"a larger cache_bytes (now {format_bytes(download.cache_bytes)}): with room for all, "
            f"{format_bytes(download.total_bytes)}, nothing is downloaded after the first epoch",
            {"download": 0},
            True,
        )
    yield (
        f"a nearer region or endpoint, or a faster network: {came} came",
        {"download": 0},
        True,
    )
    if not download.wait_seconds:
        return
    # With half the time for fetching.
    half = {"download": max(0.0, 1 - period / (2 * download.wait_seconds))}
    yield (
        f"streams={2 * download.streams} (now {download.streams}): twice as much comes at most, "
        "and no more than now where the network as a whole is what limits; fastdata tune-workers "
        "measures it",
        half,
        True,
    )
    yield (
        "pack at a smaller size (size= and resize=) or a lower quality: with half the bytes a "
        f"sample, now {download.sample_bytes / 1e3:.3g} kB, fetching takes half",
        half,
        True,
    )


def _changes_of_packed(conditions: Conditions) -> Iterator[Change]:
    if not conditions.raw:
        yield (
            'codec="raw" when packing, where the disk has room: nothing is decoded',
            {"decode": 0},
            True,
        )
        yield (
            "pack at a smaller size (size= and resize=): with half the pixels decoding takes half",
            {"decode": 0.5},
            False,
        )
    if not conditions.fetched:
        yield 'cache="ram": the packed bytes are read once, and stay in memory', {"read": 0}, False
    if not conditions.loader.calls_python:
        yield (
            'cache="device", if the decoded images fit there: workers have nothing left to do '
            "after the first epoch",
            {"read": 0, "decode": 0, "hand over": 0},
            True,
        )
    if conditions.measured.on_gpu and conditions.has_dali:
        yield 'backend="dali": the GPU decodes', {"decode": 0}, True


def _fix_of_stall(stall: Stall) -> Fix:
    if stall.kind == "host tensor":
        return Fix(
            f"device= in {stall.operation} at {stall.where}: {stall.nbytes:,} bytes a step are "
            "made on the host and copied"
        )
    if stall.operation == BLOCKING_COPY:
        return Fix(
            f"{stall.operation} at {stall.where}: from page-locked memory (pin_memory=True) and "
            "with it the host goes on while the batch is copied"
        )
    return Fix(
        f"{stall.operation} at {stall.where}: keep it on the device, or ask for it once in many "
        "steps"
    )
