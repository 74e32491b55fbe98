"""Advice on optimisers, gradients and learning rates."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch.optim import Optimizer

from fastdata.doctor.contract import Finding, Numerics, Undo, advice
from fastdata.doctor.seen import EventKind, Seen
from fastdata.doctor.sources import has_own_schedule

_note = functools.partial(
    advice, kind="note", numerics=Numerics.TRAINING, why_not="it changes the training"
)


@advice("D06", "fused=True", numerics=Numerics.ROUNDING, part="step")
def fused_optimizer(seen: Seen) -> Iterator[Finding]:
    """Look for optimisers that can be fused, and are not."""
    for optimizer in seen.optimizers:
        if optimizer.defaults.get("fused", True) or not _fits(optimizer):
            continue
        name = type(optimizer).__name__
        change = functools.partial(_fuse, optimizer)
        yield Finding(seen.line_of(optimizer), f"{name}(fused=True)", change)


def _fits(optimizer: Optimizer) -> bool:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return all(p.is_floating_point() and not p.is_sparse for p in parameters) and not any(
        group.get("differentiable") for group in optimizer.param_groups
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


@advice("D07", "zero_grad(set_to_none=True)")
def gradients_set_to_none(seen: Seen) -> Iterator[Finding]:
    """Look for gradients that are made zero."""
    lines = [e.line for e in seen.events if e.kind == "zero_grad" and not e.set_to_none]
    return _forced(seen, "zero_grad", "set_to_none", lines)


@advice("D13", "clip_grad_norm_(foreach=True)", numerics=Numerics.ROUNDING, part="clip")
def foreach_clipping(seen: Seen) -> Iterator[Finding]:
    """Look for clipping that asks for it."""
    lines = [e.line for e in seen.events if e.kind == "clip" and e.one_by_one]
    return _forced(seen, "clip", "foreach", lines)


def _forced(seen: Seen, kind: EventKind, option: str, lines: list[str]) -> Iterator[Finding]:
    def change() -> Undo:
        seen.forced[kind] = {option: True}
        return functools.partial(seen.forced.pop, kind)

    return (Finding(line, change=change) for line in dict.fromkeys(lines))


@_note("D33", "AdamW in place of Adam with weight_decay")
def decoupled_decay(seen: Seen) -> Iterator[Finding]:
    """Look for Adam with a decay."""
    for optimizer in seen.optimizers:
        decays = any(group.get("weight_decay") for group in optimizer.param_groups)
        decoupled = optimizer.defaults.get("decoupled_weight_decay")
        if type(optimizer) is torch.optim.Adam and decays and not decoupled:
            yield Finding(seen.line_of(optimizer))


@_note("D54", "a schedule of the learning rate, with a warm-up")
def constant_learning_rate(seen: Seen) -> Iterator[Finding]:
    """Look for optimisers without a schedule, in scripts that set no rate of their own."""
    if has_own_schedule():
        return
    for optimizer in seen.optimizers:
        if all("initial_lr" not in group for group in optimizer.param_groups):
            yield Finding(seen.line_of(optimizer))
