"""What is wrong with a training loop, and not only slow."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastdata.doctor.contract import Finding, Numerics, advice, at
from fastdata.doctor.seen import Seen

_mistake = functools.partial(
    advice, kind="bug", numerics=Numerics.TRAINING, why_not="it changes the training"
)
"""Something that computes another thing than its author probably meant."""


@_mistake("D41", "gradients are clipped before scaler.unscale_")
def clipping_before_unscale(seen: Seen) -> Iterator[Finding]:
    """Look for clipping between scaling and unscaling."""
    lines = []
    for step in seen.steps:
        before = ""
        for event in step:
            if event.kind == "clip" and before == "scale":
                lines.append(event.line)
            elif event.kind in ("scale", "unscale"):
                before = event.kind
    return at(lines)


@_mistake("D42", "gradients are clipped where that has no effect")
def clipping_without_effect(seen: Seen) -> Iterator[Finding]:
    """Look for clipping before the backward pass of a step, in a plain loop."""
    steps = seen.steps[1:] if seen.is_plain else []
    firsts = (next((e for e in step if e.kind in ("clip", "backward")), None) for step in steps)
    return at(event.line for event in firsts if event is not None and event.kind == "clip")


@_mistake("D45", "gradients are never set to zero")
def gradients_never_cleared(seen: Seen) -> Iterator[Finding]:
    """Look for backward passes that add to the last step's gradients, in a plain loop."""
    steps = seen.steps if seen.is_plain and not any(seen.of_kind("zero_grad")) else []
    firsts = [next(event for event in step if event.kind == "backward") for step in steps[1:]]
    if len(firsts) > 1 and all(event.kept for event in firsts):
        yield Finding(steps[0][-1].line)


@_mistake("D47", "model.train() before training")
def training_in_evaluation(seen: Seen) -> Iterator[Finding]:
    """Look for models that train in training mode first, and in evaluation mode later.

    Not if the same step also trains it in training mode, as with adversarial examples.
    """
    passes = set(seen.training_passes)
    trained: set[nn.Module] = set()
    for step in seen.steps if seen.is_plain else ():
        forwards = [event for event in step if event in passes]
        trains = {event.of for event in forwards if event.training}
        for event in forwards:
            if event.of in trained - trains and _depends_on_mode(event.of):
                yield Finding(event.line)
                return
        trained |= trains


def _depends_on_mode(model: nn.Module) -> bool:
    return any(isinstance(module, (_BatchNorm, nn.Dropout)) for module in model.modules())


@_mistake("D48", "the forward pass is outside of autocast")
def forward_outside_autocast(seen: Seen) -> Iterator[Finding]:
    """Look for scaled losses, if no forward pass that is recorded has a part in 16 bits."""
    halved = any(event.recorded and event.autocast for event in seen.of_kind("forward"))
    scaled = any(seen.of_kind("scale")) and not halved
    return at(event.line for event in islice(seen.training_passes, int(scaled)))


@_mistake("D49", "validation is outside of autocast", kind="note")  # it may be meant
def validation_outside_autocast(seen: Seen) -> Iterator[Finding]:
    """Compare passes of training with those of validation."""
    forwards = list(seen.of_kind("forward"))
    halved = {event.of for event in forwards if event.training and event.autocast}
    others = (e for e in forwards if e.of in halved and not e.training and not e.autocast)
    return at(event.line for event in islice(others, 1))
