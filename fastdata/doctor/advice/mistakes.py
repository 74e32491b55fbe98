"""What is wrong with a training loop, and not only slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastdata.doctor.contract import Advice, Finding, Kind, Numerics
from fastdata.doctor.watching import Event, Seen

__all__ = ["ADVICE"]


class Mistake(Advice):
    """Something that computes another thing than its author probably meant."""

    kind: ClassVar[Kind] = "bug"
    numerics = Numerics.TRAINING

    def found(self, line: str, what: str) -> Finding:
        """Return a finding, which is never tried."""
        return Finding(line, what, why_not="it changes what is trained")


def _position(step: list[Event], kind: str) -> int | None:
    return next((n for n, event in enumerate(step) if event.kind == kind), None)


def _depends_on_mode(model: nn.Module) -> bool:
    return any(isinstance(module, (_BatchNorm, nn.Dropout)) for module in model.modules())


class ClippingBeforeUnscale(Mistake):
    id = "D41"
    title = "gradients are clipped before scaler.unscale_"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for clipping between scaling and unscaling."""
        for line in dict.fromkeys(self._lines(seen)):
            yield self.found(line, self.title)

    @staticmethod
    def _lines(seen: Seen) -> Iterator[str]:
        for step in seen.steps:
            before = ""
            for event in step:
                if event.kind == "clip" and before == "scale":
                    yield event.line
                elif event.kind in ("scale", "unscale"):
                    before = event.kind


class ClippingWithoutEffect(Mistake):
    id = "D42"
    title = "gradients are clipped where that has no effect"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for clipping before the backward pass of a step, in a plain loop."""
        lines = []
        for step in seen.steps[1:] if seen.is_plain else ():
            clip, backward = _position(step, "clip"), _position(step, "backward")
            if clip is not None and backward is not None and clip < backward:
                lines.append(step[clip].line)
        for line in dict.fromkeys(lines):
            yield self.found(line, self.title)


class GradientsNeverCleared(Mistake):
    id = "D45"
    title = "gradients are never set to zero"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for backward passes that add to the last step's gradients, in a plain loop."""
        firsts = [
            next((event for event in step if event.kind == "backward"), None)
            for step in seen.steps[1:]
        ]
        kept = all(event is not None and event.kept for event in firsts)
        cleared = any(event.kind == "zero_grad" for event in seen.events)
        if seen.is_plain and len(seen.steps) > 2 and kept and not cleared:
            yield self.found(seen.steps[0][-1].line, self.title)


class TrainingInEvaluation(Mistake):
    id = "D47"
    title = "model.train() before training"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for backward passes in evaluation mode of what was trained in training mode before.

        Not if the same step also trains it in training mode, as with adversarial examples.
        """
        passes = {id(event) for event in seen.training_passes}
        trained: set[int] = set()
        for step in seen.steps if seen.is_plain else ():
            forwards = [event for event in step if id(event) in passes]
            trains = {id(event.of) for event in forwards if event.training}
            for event in forwards:
                if id(event.of) in trained - trains and _depends_on_mode(event.of):
                    yield self.found(event.line, self.title)
                    return
            trained |= trains


class ForwardOutsideAutocast(Mistake):
    id = "D48"
    title = "the forward pass is outside of autocast"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for scaled losses, if no forward pass that is recorded has a part in 16 bits."""
        passes = [event for event in seen.events if event.kind == "forward" and event.recorded]
        if any(event.kind == "scale" for event in seen.events) and not any(
            event.autocast for event in passes
        ):
            for event in seen.training_passes:
                yield self.found(event.line, self.title)
                return


class ValidationOutsideAutocast(Mistake):
    id = "D49"
    title = "validation is outside of autocast"
    kind: ClassVar[Kind] = "note"  # it may be meant

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Compare passes of training with those of validation."""
        forwards = [event for event in seen.events if event.kind == "forward"]
        halved = {id(event.of) for event in forwards if event.training and event.autocast}
        for event in forwards:
            if id(event.of) in halved and not event.training and not event.autocast:
                yield self.found(event.line, self.title)
                return


ADVICE = (
    ClippingBeforeUnscale(),
    ClippingWithoutEffect(),
    GradientsNeverCleared(),
    TrainingInEvaluation(),
    ForwardOutsideAutocast(),
    ValidationOutsideAutocast(),
)
