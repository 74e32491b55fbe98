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
from fastdata.measuring.loaders import (
    LoaderInfo,
    batch_nbytes,
    dali_is_installed,
    inner_loader,
    loader_info,
)
from fastdata.prefetch.tree import leaves
from fastdata.profiling.batches import CachedBatches
from fastdata.profiling.lines import short_line
from fastdata.profiling.model import Model
from fastdata.profiling.rates import Measured
from fastdata.profiling.report import Fix, Stall
from fastdata.profiling.stalls import BLOCKING_COPY

__all__ = ["Conditions", "conditions_of", "fixes_for"]

LEAST_GAIN = 1.05
"""A smaller gain is not worth a line."""

LEAST_GAIN_OF_WORKERS = 1.1
"""The model predicts no better than this how workers slow each other down."""


Change: TypeAlias = tuple[str, dict[str, float]]
"""A text, and how many times as long stages then take."""


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
    plain: bool = True
    """Whether packed data come from fastdata's own workers, without a cache."""
    float_bytes: float = 0.0
    """Share of a batch's bytes that have floating dtypes."""
    start_seconds: float = 0.0
    """Until the first batch of an epoch."""
    has_dali: bool = False
    """Whether it is installed."""


def conditions_of(
    loader: Any, cached: CachedBatches, measured: Measured, start_seconds: float
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
        raw = all(inner.dataset.images(n, first, decoder).all_raw for n in names)
    return Conditions(
        loader_info(loader),
        measured,
        loader_copies=cached.loader_copies,
        pinned=measured.on_gpu and any(t.is_pinned() for t in tensors),
        raw=raw,
        plain=isinstance(backend, CpuBackend) and not isinstance(backend, RamCacheBackend),
        float_bytes=floats / cached.nbytes if cached.nbytes else 0.0,
        start_seconds=start_seconds,
        has_dali=dali_is_installed(),
    )


def fixes_for(
    model: Model, conditions: Conditions, stalls: Sequence[Stall], lines: Mapping[str, str]
) -> tuple[Fix, ...]:
    """Return fixes, the largest gain first; those of stalls, whose gain is unknown, last.

    `lines` are the user's, by stage.
    """
    fixes = [fix for fix in _candidates(model, conditions, lines) if fix.speedup >= LEAST_GAIN]
    fixes.sort(key=lambda fix: -fix.speedup)
    return (*fixes, *map(_fix_of_stall, stalls))


def _candidates(model: Model, conditions: Conditions, lines: Mapping[str, str]) -> Iterator[Fix]:
    """Yield all fixes that apply, however small their gain."""
    now = model.period()

    def fix(
        text: str, workers: int | None = None, factors: Mapping[str, float] | None = None
    ) -> Fix:
        then = model.period(workers, factors=factors)
        return Fix(text, now / then if then > 0 else float("inf"))

    measured, info = conditions.measured, conditions.loader
    if measured.is_input_bound and (wanted := _wanted_workers(model)) is not None:
        added = fix(_workers_text(model, wanted), wanted)
        if added.speedup >= LEAST_GAIN_OF_WORKERS:
            yield added
    if measured.is_input_bound or measured.shares_cores:
        for text, factors in _changes(conditions, lines):
            yield fix(text, factors=factors)
    epoch = (info.batches_per_epoch or 0) * now
    if info.kind == "stock" and model.workers and not info.persistent and epoch:
        start = conditions.start_seconds
        yield Fix(
            f"persistent_workers=True: each epoch begins with {start:.2g} s until its first batch",
            (epoch + start) / epoch,
        )


def _wanted_workers(model: Model) -> int | None:
    """Return how many workers are worth trying; None where no more than there are."""
    if not any(cost.parallel for cost in model.costs):
        return None
    wanted = model.workers_to_saturate() or model.best_workers()
    return wanted if wanted > model.workers else None


def _workers_text(model: Model, wanted: int) -> str:
    text = f"num_workers={wanted} (now {model.workers})"
    if model.workers_to_saturate():
        text += ": the step would hardly wait"
    elif wanted < model.most_workers:
        text += ": more than that would not help"
    else:
        text += ": what more of them than four a core bring, fastdata tune-workers can measure"
    if not model.workers:
        text += "; batches are then made beside the step, not between"
    return text


def _changes(conditions: Conditions, lines: Mapping[str, str]) -> Iterator[Change]:
    kind = conditions.loader.kind
    if kind == "stock":
        yield (
            "pack the dataset once (fastdata.pack) and load it with fastdata.loader: at most "
            "this, if reading and decoding then took no time",
            {"read": 0, "decode": 0},
        )
    if kind == "packed" and conditions.plain:
        yield from _changes_of_packed(conditions)
    for name, text in (
        ("augment", "a faster transform"),
        ("collate", "a faster collate function"),
        ("decode", "a faster decoder"),
    ):
        if lines.get(name):
            yield f"{text}: {short_line(lines[name])}; at most this", {name: 0}
    if not conditions.measured.on_gpu:
        return
    if not conditions.loader_copies:
        how = "device=" if kind == "packed" else "fastdata.CUDAPrefetcher(loader)"
        yield f"{how}: batches are copied while the one before is computed with", {"copy": 0}
        if not conditions.pinned:
            yield "pin_memory=True, and copies with non_blocking=True; at most", {"copy": 0}
    # A loader that copies packed data sends uint8 already.
    copied_by_packed = kind == "packed" and conditions.loader_copies
    if conditions.float_bytes > 0.5 and not copied_by_packed:
        yield (
            "send uint8 over the bus and convert on the device: a quarter of the bytes",
            {"copy": 1 - 0.75 * conditions.float_bytes},
        )


def _changes_of_packed(conditions: Conditions) -> Iterator[Change]:
    if not conditions.raw:
        yield (
            'codec="raw" when packing, where the disk has room: nothing is decoded; at most this',
            {"decode": 0},
        )
        yield (
            "pack at a smaller size (size= and resize=): with half the pixels decoding takes half",
            {"decode": 0.5},
        )
    yield 'cache="ram": the packed bytes are read once, and stay in memory', {"read": 0}
    if not conditions.loader.calls_python:
        yield (
            'cache="device", if the decoded images fit there: workers have nothing left to do '
            "after the first epoch; at most this",
            {"read": 0, "decode": 0, "hand over": 0},
        )
    if conditions.measured.on_gpu and conditions.has_dali:
        yield 'backend="dali": the GPU decodes; at most this', {"decode": 0}
    if conditions.loader.calls_python:
        yield (
            "fastdata.transforms in place of callables, which are called once a sample; at most "
            "this",
            {"augment": 0},
        )


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
