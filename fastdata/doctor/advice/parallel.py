"""Training by several processes, or on several devices."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DataParallel, DistributedDataParallel

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.sources import calls
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_RANKS = "it needs several ranks, and the script is tried with one"


def _wrapped(seen: Seen) -> Iterator[DistributedDataParallel]:
    for model in seen.models:
        if isinstance(model, DistributedDataParallel):
            yield model


class DataParallelThreads(Advice):
    id = "D25"
    title = "DistributedDataParallel in place of DataParallel"
    numerics = Numerics.ROUNDING
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models inside of one; without a GPU also for lines that were not reached."""
        lines = [seen.line_of(model) for model in seen.models if isinstance(model, DataParallel)]
        if not lines and not seen.on_gpu:
            lines = list(calls("DataParallel"))
        for line in dict.fromkeys(lines):
            yield Finding(line, self.title, why_not=_RANKS)


class UnusedParameters(Advice):
    id = "D26"
    title = "find_unused_parameters=False"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models whose parameters all had gradients."""
        for model in _wrapped(seen):
            used = all(p.grad is not None for p in model.parameters() if p.requires_grad)
            if model.find_unused_parameters and used:
                yield Finding(seen.line_of(model), self.title, why_not=_RANKS)


class BucketViews(Advice):
    id = "D27"
    title = "gradient_as_bucket_view=True"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models whose gradients are copied."""
        for model in _wrapped(seen):
            if not model.gradient_as_bucket_view:
                yield Finding(seen.line_of(model), self.title, why_not=_RANKS)


class ReducedTooOften(Advice):
    id = "D28"
    title = "no_sync() except for the last batch of a step"
    numerics = Numerics.ROUNDING

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for steps with several backward passes, all of which exchange gradients."""
        if not any(_wrapped(seen)):
            return
        for step in seen.steps:
            backwards = [event for event in step if event.kind == "backward"]
            if len(backwards) > 1 and all(event.synchronises for event in backwards):
                yield Finding(backwards[0].line, self.title, why_not=_RANKS)
                return


class StatisticsOfRanks(Advice):
    id = "D29"
    title = "SyncBatchNorm, as ranks have few samples"
    kind = "note"
    numerics = Numerics.TRAINING

    FEW = 16

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for small batches of normalisations under DDP."""
        for model in _wrapped(seen):
            for module in model.modules():
                use = seen.uses.get(module)
                plain = isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
                if plain and use is not None and 0 < use.shape[0] < self.FEW:
                    what = f"{self.title} ({use.shape[0]})"
                    yield Finding(seen.line_of(module), what, why_not=_RANKS)
                    return


ADVICE = (
    DataParallelThreads(),
    UnusedParameters(),
    BucketViews(),
    ReducedTooOften(),
    StatisticsOfRanks(),
)
