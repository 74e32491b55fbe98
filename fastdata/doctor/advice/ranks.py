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

from fastdata.doctor.contract import Advice, Finding, Kind, Numerics, advice, at
from fastdata.doctor.messages import RankFacts
from fastdata.doctor.seen import Seen
from fastdata.doctor.sources import calls

__all__ = ["RanksCompared"]

_wrong = functools.partial(Finding, why_not="ranks are compared, and nothing is tried")
_ddp = functools.partial(advice, why_not="it needs several ranks, and the script is tried with one")


def _wrapped(seen: Seen) -> list[DistributedDataParallel]:
    return [model for model in seen.models if isinstance(model, DistributedDataParallel)]


_INSTEAD = "DistributedDataParallel in place of DataParallel"


@_ddp("D25", _INSTEAD, numerics=Numerics.ROUNDING, gpu_only=True)
def data_parallel_threads(seen: Seen) -> Iterator[Finding]:
    """Look for models inside of one; without a GPU also for lines that were not reached."""
    lines = [seen.line_of(model) for model in seen.models if isinstance(model, DataParallel)]
    return at(lines if lines or seen.on_gpu else calls("DataParallel"))


@_ddp("D26", "find_unused_parameters=False")
def unused_parameters(seen: Seen) -> Iterator[Finding]:
    """Look for models whose parameters all had gradients."""
    for model in _wrapped(seen):
        used = all(p.grad is not None for p in model.parameters() if p.requires_grad)
        if model.find_unused_parameters and used:
            yield Finding(seen.line_of(model))


bucket_views = _ddp("D27", "gradient_as_bucket_view=True")(
    lambda seen: at(seen.line_of(m) for m in _wrapped(seen) if not m.gradient_as_bucket_view)
)


@_ddp("D28", "no_sync() except for the last batch of a step", numerics=Numerics.ROUNDING)
def reduced_too_often(seen: Seen) -> Iterator[Finding]:
    """Look for steps with several backward passes that all exchange gradients."""
    for step in seen.steps if _wrapped(seen) else ():
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
    is_first_same = len({rank.first_sample for rank in ranks}) == 1
    if ranks[0].batches and len({rank.batches for rank in ranks}) == 1:
        yield _wrong(ranks[0].loader, "the same batches on each rank")
    elif is_first_same and all(_has_all(rank, len(ranks)) for rank in ranks):
        yield _wrong(ranks[0].loader, "all samples on each rank")


def _has_all(rank: RankFacts, ranks: int) -> bool:
    """Return whether a rank goes through its whole dataset, except an incomplete batch."""
    batches = rank.epoch_batches or 0
    share = math.ceil(rank.samples / ranks) + rank.batch_samples  # with others to fill a batch
    is_whole = 0 < rank.samples < rank.batch_samples * (batches + 1)
    return bool(rank.first_sample) and is_whole and rank.batch_samples * batches > share


@_compared("D51", "validation on some ranks only", kind="speed")
def validation_on_one_rank(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare which ranks validate."""
    count = sum(rank.validates for rank in ranks)
    if 0 < count < len(ranks) and all(rank.complete for rank in ranks):
        yield _wrong("", f"validation on {count} of {len(ranks)} ranks")


@_compared("D52", "ranks have other weights")
def other_weights(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare weights after the same number of steps; those in shards are other ones."""
    weights = {rank.weights for rank in ranks}
    if len(weights) > 1 and "" not in weights and not any(rank.sharded for rank in ranks):
        yield _wrong(ranks[0].step, f"ranks have other weights after {ranks[0].steps} steps")


@_compared("D53", "ranks have other numbers of batches")
def other_lengths(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    """Compare lengths of the loaders that are trained with."""
    lengths = [rank.epoch_batches for rank in ranks]
    if None not in lengths and len(set(lengths)) > 1 and not any(rank.joins for rank in ranks):
        counts = ", ".join(f"{length:,}" for length in lengths)
        yield _wrong(ranks[0].loader, f"ranks have other numbers of batches: {counts}")
