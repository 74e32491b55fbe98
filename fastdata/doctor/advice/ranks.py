"""Advice on several devices and processes, and mistakes between ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fastdata.doctor.contract import Advice, Finding, Kind, Numerics, advice
from fastdata.doctor.messages import RankFacts
from fastdata.doctor.seen import Seen
from fastdata.doctor.sources import calls

__all__ = ["RanksCompared"]

_COMPARED = "ranks are compared, and nothing is tried"
_ddp = functools.partial(advice, why_not="it needs several ranks, and the script is tried with one")


def _wrapped(seen: Seen) -> Iterator[DistributedDataParallel]:
    for model in seen.models:
        if isinstance(model, DistributedDataParallel):
            yield model


@_ddp(
    "D25",
    "DistributedDataParallel in place of DataParallel",
    numerics=Numerics.ROUNDING,
    gpu_only=True,
)
def data_parallel_threads(seen: Seen) -> Iterator[Finding]:
    """Look for models inside of one; without a GPU also for lines that were not reached."""
    lines = [seen.line_of(model) for model in seen.models if isinstance(model, DataParallel)]
    if not lines and not seen.on_gpu:
        lines = list(calls("DataParallel"))
    yield from map(Finding, dict.fromkeys(lines))


@_ddp("D26", "find_unused_parameters=False")
def unused_parameters(seen: Seen) -> Iterator[Finding]:
    """Look for models whose parameters all had gradients."""
    for model in _wrapped(seen):
        used = all(p.grad is not None for p in model.parameters() if p.requires_grad)
        if model.find_unused_parameters and used:
            yield Finding(seen.line_of(model))


@_ddp("D27", "gradient_as_bucket_view=True")
def bucket_views(seen: Seen) -> Iterator[Finding]:
    """Look for models whose gradients are copied."""
    for model in _wrapped(seen):
        if not model.gradient_as_bucket_view:
            yield Finding(seen.line_of(model))


@_ddp("D28", "no_sync() except for the last batch of a step", numerics=Numerics.ROUNDING)
def reduced_too_often(seen: Seen) -> Iterator[Finding]:
    """Look for steps with several backward passes that all exchange gradients."""
    if not any(_wrapped(seen)):
        return
    for step in seen.steps:
        backwards = [event for event in step if event.kind == "backward"]
        if len(backwards) > 1 and all(event.synchronises for event in backwards):
            yield Finding(backwards[0].line)
            return


_FEW = 16
"""Ranks with fewer samples should share their statistics."""


@_ddp("D29", "SyncBatchNorm, as ranks have few samples", kind="note", numerics=Numerics.TRAINING)
def statistics_of_ranks(seen: Seen) -> Iterator[Finding]:
    """Look for small batches of normalisations under DDP."""
    for model in _wrapped(seen):
        for module in model.modules():
            use = seen.uses.get(module)
            plain = isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
            if plain and use is not None and 0 < use.shape[0] < _FEW:
                what = f"SyncBatchNorm, as ranks have few samples ({use.shape[0]})"
                yield Finding(seen.line_of(module), what)
                return


@dataclass(frozen=True, slots=True)
class RanksCompared(Advice):
    """Something that only shows when ranks are compared, as ``--ranks`` does."""

    compare: Callable[[Sequence[RankFacts]], Iterator[Finding]] = field(kw_only=True)
    """Yields findings from the facts of all ranks."""


def _compared(id: str, title: str, kind: Kind = "bug") -> Callable[[Any], RanksCompared]:
    """Return a decorator of functions that compare ranks; one rank shows nothing."""
    return lambda compare: RanksCompared(
        id, title, lambda seen: iter(()), kind, Numerics.TRAINING, compare=compare
    )


@_compared("D50", "every rank trains with the same samples")
def same_samples(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare first batches, and how many samples loaders have with those of the data."""
    same = ranks[0].batches and all(rank.batches == ranks[0].batches for rank in ranks)
    first = {rank.first_sample for rank in ranks}
    whole = len(first) == 1 and all(_has_all(rank, len(ranks)) for rank in ranks)
    if same or whole:
        what = "the same batches on each rank" if same else "all samples on each rank"
        yield Finding(ranks[0].loader, what, why_not=_COMPARED)


def _has_all(rank: RankFacts, ranks: int) -> bool:
    """Return whether a rank goes through its whole dataset, except an incomplete batch."""
    if not rank.first_sample:
        return False
    batches = rank.epoch_batches or 0
    share = math.ceil(rank.samples / ranks) + rank.batch_samples  # with others to fill a batch
    return 0 < rank.samples < rank.batch_samples * (batches + 1) and (
        rank.batch_samples * batches > share
    )


@_compared("D51", "validation on some ranks only", kind="speed")
def validation_on_one_rank(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare which ranks validate."""
    count = sum(rank.validates for rank in ranks)
    if 0 < count < len(ranks) and all(rank.complete for rank in ranks):
        what = f"validation on {count} of {len(ranks)} ranks"
        yield Finding("", what, why_not=_COMPARED)


@_compared("D52", "ranks have other weights")
def other_weights(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare weights after the same number of steps; those in shards are other ones."""
    weights = {rank.weights for rank in ranks}
    if len(weights) > 1 and "" not in weights and not any(rank.sharded for rank in ranks):
        yield Finding(
            ranks[0].step,
            f"ranks have other weights after {ranks[0].steps} steps",
            why_not=_COMPARED,
        )


@_compared("D53", "ranks have other numbers of batches")
def other_lengths(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare lengths of the loaders that are trained with."""
    lengths = [rank.epoch_batches for rank in ranks]
    if None not in lengths and len(set(lengths)) > 1 and not any(rank.joins for rank in ranks):
        counts = ", ".join(f"{length:,}" for length in lengths)
        yield Finding(
            ranks[0].loader, f"ranks have other numbers of batches: {counts}", why_not=_COMPARED
        )
