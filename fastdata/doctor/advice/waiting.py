"""What makes a step wait: values that are read, tensors of the host, copies, metrics."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import DataLoader

from fastdata.doctor.contract import Finding, advice
from fastdata.doctor.seen import Seen
from fastdata.doctor.sources import blocking_copies, mentions
from fastdata.measuring.stalls import COPIED_ARRAY

LEAST_SHARE = 0.1
"""The smallest share of a step that is reported as a metric."""

_READS = "it has to be read later, or less often, which only the script's author can decide"
_LOADING = "loading takes no part in a trial: fastdata profile measures it"
_ASYNC = ".to(device, non_blocking=True)"
_THERE = "the script has to make it there"
_MADE = {
    COPIED_ARRAY: ("torch.as_tensor(array), which shares memory", "if the array stays as it is"),
    "torch.tensor": ("torch.tensor of Python values, which is copied", _THERE),
}
"""What to do about other tensors than those of a function that takes ``device=``."""


@advice("D11", "values that are read in each step", gpu_only=True, why_not=_READS)
def synchronisations(seen: Seen) -> Iterator[Finding]:
    """Look at the stalls of a step."""
    # Anomaly detection reads every gradient, and DDP which parameters were used; they are
    # advice of their own.
    checks = seen.called("detect_anomaly", "set_detect_anomaly") or any(
        getattr(model, "find_unused_parameters", False) for model in seen.models
    )
    backward = {event.line for event in seen.events if event.kind == "backward"}
    for stall in seen.stalls:
        if stall.kind == "synchronisation" and not (checks and stall.where in backward):
            yield Finding(stall.where, stall.operation)
    for line in seen.called("synchronize"):
        yield Finding(line, "torch.cuda.synchronize()")


@advice("D12", "tensors that are made on the host in each step", gpu_only=True)
def host_tensors(seen: Seen) -> Iterator[Finding]:
    """Look at the stalls of a step."""
    for stall in seen.stalls:
        if stall.kind == "host tensor" and stall.count > 1:  # in two steps
            what, why = _MADE.get(stall.operation, (f"{stall.operation}(device=...)", _THERE))
            yield Finding(stall.where, what, why_not=why)


@advice("D21", _ASYNC, gpu_only=True, why_not=_LOADING)
def copies_that_block(seen: Seen) -> Iterator[Finding]:
    """Look at the copies of a step."""
    blocking = [c.line for c in seen.copies if c.pinned and not c.non_blocking]
    yield from map(Finding, dict.fromkeys(blocking))
    if seen.on_gpu or seen.moving_lines is None:
        return
    what = "" if mentions("pin_memory") else f"{_ASYNC} and pin_memory=True"
    steps = {event.line for event in seen.events if event.kind in ("backward", "step")}
    reached = {line.partition(" ")[0] for line in seen.moving_lines}
    for line in dict.fromkeys(blocking_copies(steps, reached)):
        yield Finding(line, what)


@advice("D22", "DataLoader(pin_memory=True)", gpu_only=True, why_not=_LOADING)
def unpinned_batches(seen: Seen) -> Iterator[Finding]:
    """Look at the copies of a step, and at their loaders."""
    if not seen.on_gpu and mentions("pin_memory"):
        return
    unpinned = [c.loader for c in seen.copies if c.non_blocking and not c.pinned]
    loaders = [loader for loader in unpinned if isinstance(loader, DataLoader)]
    yield from map(Finding, dict.fromkeys(map(seen.line_of, loaders)))


@advice(
    "D14",
    "metrics that are computed in each step",
    why_not="only its author knows when it is needed",
)
def metrics_in_each_step(seen: Seen) -> Iterator[Finding]:
    """Look for lines that compute something of outputs for long, and train nothing with it."""
    for metric in seen.metrics:
        if LEAST_SHARE <= metric.share < 1 and not seen.on_gpu:
            name = f"{metric.function}() takes" if metric.function else "takes"
            bound = 1 / (1 - metric.share)
            what = f"{name} {metric.share:.0%} of a step: at most {bound:.1f}x"
            yield Finding(metric.line, what)
