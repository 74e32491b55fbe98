"""Advice on several devices and processes."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fastdata.doctor.contract import Finding, Numerics, advice, at
from fastdata.doctor.seen import Seen
from fastdata.doctor.sources import calls

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
