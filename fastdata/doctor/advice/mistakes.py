"""What is wrong with a training loop, and not only slow."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import Event, Seen

__all__ = ["ADVICE"]

_AMP = "https://docs.pytorch.org/docs/stable/notes/amp_examples.html"


class Mistake(Advice):
    """Something that computes another thing than its author probably meant."""

    kind = "bug"
    numerics = Numerics.TRAINING
    source = _AMP

    def found(self, line: str, what: str, of: nn.Module | None = None) -> Finding:
        """Return a finding, which nobody measures."""
        return Finding(line, what, why_not="it changes what is trained", of=of)


def _position(step: list[Event], kind: str) -> int | None:
    return next((n for n, event in enumerate(step) if event.kind == kind), None)


def _depends_on_mode(model: nn.Module) -> bool:
    return any(isinstance(module, (_BatchNorm, nn.Dropout)) for module in model.modules())


class ClippingBeforeUnscale(Mistake):
    """Gradients of a scaled loss are clipped by their scaled norm."""

    id = "D41"
    title = "gradients are clipped before scaler.unscale_"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for clipping of scaled gradients."""
        for line in dict.fromkeys(self._lines(seen)):
            yield self.found(line, self.title)

    @staticmethod
    def _lines(seen: Seen) -> Iterator[str]:
        for step in seen.steps:
            clip, unscale = _position(step, "clip"), _position(step, "unscale")
            if clip is None or _position(step, "scale") is None:
                continue
            if unscale is None or clip < unscale:
                yield step[clip].line


class ClippingWithoutEffect(Mistake):
    """Gradients that are clipped after the optimiser's step, or before the backward pass."""

    id = "D42"
    title = "gradients are clipped where that has no effect"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for clipping before the backward pass of a step."""
        lines = []
        for step in seen.steps[1:]:
            clip, backward = _position(step, "clip"), _position(step, "backward")
            if clip is not None and backward is not None and clip < backward:
                lines.append(step[clip].line)
        for line in dict.fromkeys(lines):
            yield self.found(line, self.title)


class SteppedTwice(Mistake):
    """An optimiser that makes two steps with the same gradients."""

    id = "D43"
    title = "the optimiser steps twice with the same gradients"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for steps without a backward pass since the one before."""
        for number, step in enumerate(seen.steps[1:], 1):
            again = step[-1].of is seen.steps[number - 1][-1].of
            if again and _position(step, "backward") is None:
                yield self.found(step[-1].line, self.title)
                return


class ScheduleBeforeStep(Mistake):
    """A schedule that steps before the optimiser skips its first learning rate."""

    id = "D44"
    title = "the schedule steps before the optimiser"
    source = "https://docs.pytorch.org/docs/stable/optim.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look at the first step."""
        first = seen.steps[0] if seen.steps else []
        schedule = _position(first, "schedule")
        if schedule is not None:
            yield self.found(first[schedule].line, self.title)


class GradientsNeverCleared(Mistake):
    """Gradients are added up from the beginning on."""

    id = "D45"
    title = "gradients are never set to zero"
    source = "https://docs.pytorch.org/docs/stable/optim.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for steps after which gradients stay."""
        cleared = any(e.kind == "zero_grad" for e in seen.events)
        stays = [e for step in seen.steps[1:] for e in step if e.kind == "forward" and e.gradients]
        if not cleared and stays and len(seen.steps) > 2:
            yield self.found(seen.steps[0][-1].line, self.title)


class ValidationTrains(Mistake):
    """Dropout is active, and statistics of batches are learnt, while a model is validated."""

    id = "D46"
    title = "model.eval() before validation"
    source = "https://docs.pytorch.org/docs/stable/notes/autograd.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for passes in training mode that are not recorded."""
        for event in seen.events:
            unrecorded = event.kind == "forward" and event.training and not event.recorded
            if unrecorded and _depends_on_mode(event.of):
                yield self.found(event.line, self.title, event.of)
                return


class TrainingInEvaluation(Mistake):
    """After a validation ``model.train()`` is missing: dropout and statistics stay off."""

    id = "D47"
    title = "model.train() before training"
    source = "https://docs.pytorch.org/docs/stable/notes/autograd.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for backward passes of a model in evaluation mode."""
        for event in seen.training_passes:
            if not event.training and _depends_on_mode(event.of):
                yield self.found(event.line, self.title, event.of)
                return


class ForwardOutsideAutocast(Mistake):
    """A loss is scaled for half precision, and the model computes in float32."""

    id = "D48"
    title = "the forward pass is outside of autocast"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for scaled losses of models that ran without autocast."""
        if not any(event.kind == "scale" for event in seen.events):
            return
        for event in seen.training_passes:
            if not event.autocast:
                yield self.found(event.line, self.title)
                return


class ValidationOutsideAutocast(Mistake):
    """Training computes in half precision, and validation does not."""

    id = "D49"
    title = "validation is outside of autocast"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Compare passes of training with those of validation."""
        forwards = [e for e in seen.events if e.kind == "forward"]
        if any(e.training and e.autocast for e in forwards):
            for event in forwards:
                if not event.training and not event.autocast:
                    yield self.found(event.line, self.title)
                    return


ADVICE = (
    ClippingBeforeUnscale(),
    ClippingWithoutEffect(),
    SteppedTwice(),
    ScheduleBeforeStep(),
    GradientsNeverCleared(),
    ValidationTrains(),
    TrainingInEvaluation(),
    ForwardOutsideAutocast(),
    ValidationOutsideAutocast(),
)
