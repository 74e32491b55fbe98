"""What is wrong with a training loop, and not only slow."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastdata.doctor.contract import Finding, Numerics, advice
from fastdata.doctor.seen import Event, Seen

_mistake = functools.partial(
    advice, kind="bug", numerics=Numerics.TRAINING, why_not="it changes the training"
)
"""Something that computes another thing than its author probably meant."""


def _position(step: list[Event], kind: str) -> int | None:
    return next((n for n, event in enumerate(step) if event.kind == kind), None)


def _depends_on_mode(model: nn.Module) -> bool:
    return any(isinstance(module, (_BatchNorm, nn.Dropout)) for module in model.modules())


@_mistake("D41", "gradients are clipped before scaler.unscale_")
def clipping_before_unscale(seen: Seen) -> Iterator[Finding]:
    """Look for clipping between scaling and unscaling."""
    yield from map(Finding, dict.fromkeys(_lines(seen)))


def _lines(seen: Seen) -> Iterator[str]:
    for step in seen.steps:
        before = ""
        for event in step:
            if event.kind == "clip" and before == "scale":
                yield event.line
            elif event.kind in ("scale", "unscale"):
                before = event.kind


@_mistake("D42", "gradients are clipped where that has no effect")
def clipping_without_effect(seen: Seen) -> Iterator[Finding]:
    """Look for clipping before the backward pass of a step, in a plain loop."""
    lines = []
    for step in seen.steps[1:] if seen.is_plain else ():
        clip, backward = _position(step, "clip"), _position(step, "backward")
        if clip is not None and backward is not None and clip < backward:
            lines.append(step[clip].line)
    yield from map(Finding, dict.fromkeys(lines))


@_mistake("D45", "gradients are never set to zero")
def gradients_never_cleared(seen: Seen) -> Iterator[Finding]:
    """Look for backward passes that add to the last step's gradients, in a plain loop."""
    firsts = [
        next((event for event in step if event.kind == "backward"), None) for step in seen.steps[1:]
    ]
    kept = all(event is not None and event.kept for event in firsts)
    cleared = any(event.kind == "zero_grad" for event in seen.events)
    if seen.is_plain and len(seen.steps) > 2 and kept and not cleared:
        yield Finding(seen.steps[0][-1].line)


@_mistake("D47", "model.train() before training")
def training_in_evaluation(seen: Seen) -> Iterator[Finding]:
    """Look for models that train in training mode first, and in evaluation mode later.

    Not if the same step also trains it in training mode, as with adversarial examples.
    """
    passes = {id(event) for event in seen.training_passes}
    trained: set[int] = set()
    for step in seen.steps if seen.is_plain else ():
        forwards = [event for event in step if id(event) in passes]
        trains = {id(event.of) for event in forwards if event.training}
        for event in forwards:
            if id(event.of) in trained - trains and _depends_on_mode(event.of):
                yield Finding(event.line)
                return
        trained |= trains


@_mistake("D48", "the forward pass is outside of autocast")
def forward_outside_autocast(seen: Seen) -> Iterator[Finding]:
    """Look for scaled losses, if no forward pass that is recorded has a part in 16 bits."""
    in_16_bits = any(event.recorded and event.autocast for event in seen.forwards)
    if any(event.kind == "scale" for event in seen.events) and not in_16_bits:
        yield from (Finding(event.line) for event in itertools.islice(seen.training_passes, 1))


@_mistake("D49", "validation is outside of autocast", kind="note")  # it may be meant
def validation_outside_autocast(seen: Seen) -> Iterator[Finding]:
    """Compare passes of training with those of validation."""
    halved = {id(event.of) for event in seen.forwards if event.training and event.autocast}
    for event in seen.forwards:
        if id(event.of) in halved and not event.training and not event.autocast:
            yield Finding(event.line)
            return
