"""What a loop does in each step, except the model: optimisers, waits, copies, metrics."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from fastdata.doctor.contract import Finding, Numerics, Undo, advice, at
from fastdata.doctor.seen import EventKind, Seen
from fastdata.doctor.sources import blocking_copies, has_own_schedule, mentions
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

_note = functools.partial(
    advice, kind="note", numerics=Numerics.TRAINING, why_not="it changes the training"
)


@advice("D06", "fused=True", numerics=Numerics.ROUNDING, part="step")
def fused_optimizer(seen: Seen) -> Iterator[Finding]:
    """Look for optimisers that can be fused, and are not."""
    for optimizer in seen.optimizers:
        if not optimizer.defaults.get("fused", True) and _fits(optimizer):
            what = f"{type(optimizer).__name__}(fused=True)"
            yield Finding(seen.line_of(optimizer), what, functools.partial(_fuse, optimizer))


def _fits(optimizer: Optimizer) -> bool:
    return not any(
        group.get("differentiable")
        or any(p.is_sparse or not p.is_floating_point() for p in group["params"])
        for group in optimizer.param_groups
    )


def _fuse(optimizer: Optimizer) -> Undo:
    groups = [optimizer.defaults, *optimizer.param_groups]
    before = [(group.get("fused"), group.get("foreach")) for group in groups]
    counts = {p: state["step"] for p, state in optimizer.state.items() if "step" in state}

    def undo() -> None:
        for group, (fused, foreach) in zip(groups, before, strict=True):
            group["fused"], group["foreach"] = fused, foreach
        for parameter, count in counts.items():
            state = optimizer.state[parameter]
            state["step"] = state["step"].to(torch.as_tensor(count).device)

    optimizer._need_device_dtype_check_for_fused = True  # type: ignore[attr-defined]
    for group in groups:
        group["fused"], group["foreach"] = True, False
    for parameter, count in counts.items():  # float32, and where the parameter is
        count = torch.as_tensor(count, dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter]["step"] = count
    return undo


def _forced(seen: Seen, kind: EventKind, option: str) -> Iterator[Finding]:
    """Return where an option of calls, which is False, is to be True."""

    def change() -> Undo:
        seen.forced[kind] = {option: True}
        return functools.partial(seen.forced.pop, kind)

    events = seen.of_kind(kind)
    return at((one.line for one in events if one.options.get(option) is False), change=change)


gradients_set_to_none = advice("D07", "zero_grad(set_to_none=True)")(
    lambda seen: _forced(seen, "zero_grad", "set_to_none")
)

foreach_clipping = advice(
    "D13", "clip_grad_norm_(foreach=True)", numerics=Numerics.ROUNDING, part="clip"
)(lambda seen: _forced(seen, "clip", "foreach"))


@_note("D33", "AdamW in place of Adam with weight_decay")
def decoupled_decay(seen: Seen) -> Iterator[Finding]:
    for optimizer in seen.optimizers:
        decays = any(group.get("weight_decay") for group in optimizer.param_groups)
        decoupled = optimizer.defaults.get("decoupled_weight_decay")
        if type(optimizer) is torch.optim.Adam and decays and not decoupled:
            yield Finding(seen.line_of(optimizer))


@_note("D54", "a schedule of the learning rate, with a warm-up")
def constant_learning_rate(seen: Seen) -> Iterator[Finding]:
    """Look for optimisers without a schedule, in scripts that set no rate of their own."""
    for optimizer in seen.optimizers if not has_own_schedule() else ():
        if all("initial_lr" not in group for group in optimizer.param_groups):
            yield Finding(seen.line_of(optimizer))


@advice("D11", "values that are read in each step", gpu_only=True, why_not=_READS)
def synchronisations(seen: Seen) -> Iterator[Finding]:
    # Anomaly detection reads every gradient, and DDP which parameters were used; they are
    # advice of their own.
    checks = seen.called("detect_anomaly", "set_detect_anomaly") or any(
        getattr(model, "find_unused_parameters", False) for model in seen.models
    )
    known = {event.line for event in seen.of_kind("backward")} if checks else ()
    for stall in seen.stalls:
        if stall.kind == "synchronisation" and stall.where not in known:
            yield Finding(stall.where, stall.operation)
    yield from at(seen.called("synchronize"), "torch.cuda.synchronize()")


@advice("D12", "tensors that are made on the host in each step", gpu_only=True)
def host_tensors(seen: Seen) -> Iterator[Finding]:
    for stall in seen.stalls:
        if stall.kind == "host tensor" and stall.count > 1:  # in two steps
            what, why = _MADE.get(stall.operation, (f"{stall.operation}(device=...)", _THERE))
            yield Finding(stall.where, what, why_not=why)


@advice("D21", _ASYNC, gpu_only=True, why_not=_LOADING)
def copies_that_block(seen: Seen) -> Iterator[Finding]:
    copies = seen.copies or []
    yield from at(copy.line for copy in copies if copy.pinned and not copy.non_blocking)
    if not seen.on_gpu and seen.copies is not None:
        steps = {event.line for event in seen.of_kind("backward", "step")}
        reached = {copy.line.partition(" ")[0] for copy in copies}
        what = "" if mentions("pin_memory") else f"{_ASYNC} and pin_memory=True"
        yield from at(blocking_copies(steps, reached), what)


@advice("D22", "DataLoader(pin_memory=True)", gpu_only=True, why_not=_LOADING)
def unpinned_batches(seen: Seen) -> Iterator[Finding]:
    if seen.on_gpu or not mentions("pin_memory"):
        copies = (copy for copy in seen.copies or () if isinstance(copy.loader, DataLoader))
        unpinned = (copy.loader for copy in copies if copy.non_blocking and not copy.pinned)
        yield from at(map(seen.line_of, unpinned))


@advice(
    "D14",
    "metrics that are computed in each step",
    why_not="only its author knows when it is needed",
)
def metrics_in_each_step(seen: Seen) -> Iterator[Finding]:
    """Look for lines that compute something of outputs for long, and train nothing with it."""
    for metric in seen.metrics if not seen.on_gpu else ():
        if LEAST_SHARE <= metric.share < 1:
            name = f"{metric.function}() takes" if metric.function else "takes"
            bound = 1 / (1 - metric.share)
            what = f"{name} {metric.share:.0%} of a step: at most {bound:.1f}x"
            yield Finding(metric.line, what)
