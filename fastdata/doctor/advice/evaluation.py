"""Validation that works as if it trained."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo, replaced
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_TRAINING = "only passes in evaluation mode are measured"

_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


class ValidationRecordsGradients(Advice):
    id = "D10"
    title = "torch.inference_mode() in validation"
    phase = "evaluate"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for forward passes of a validation that are recorded."""
        learns = {id(event) for event in seen.training_passes}
        trained = {id(event.of) for event in seen.training_passes}
        loaders = {
            id(event.epoch.loader) for event in seen.events if event.epoch and event.epoch.trains
        }
        found: dict[str, Finding] = {}
        for event in seen.events:
            if event.kind != "forward" or not event.recorded or id(event) in learns:
                continue
            epoch = event.epoch
            if not any(p.requires_grad for p in event.of.parameters()):
                continue
            if epoch is None:
                validates = not event.training and id(event.of) in trained
            else:
                other = bool(loaders) and id(epoch.loader) not in loaders
                validates = not epoch.trains and (other or not event.training)
            if validates and not event.training:
                change = functools.partial(self._record_nothing, event.of)
                found[event.line] = Finding(event.line, self.title, change)
            elif validates:
                what = f"{self.title}, and model.eval(): it is in training mode there"
                found.setdefault(event.line, Finding(event.line, what, why_not=_TRAINING))
        yield from found.values()

    @staticmethod
    def _record_nothing(model: nn.Module) -> Undo:
        forward = model.forward

        @functools.wraps(forward)
        def unrecorded(*arguments: Any, **options: Any) -> Any:
            if model.training:
                return forward(*arguments, **options)
            with torch.no_grad():
                return forward(*arguments, **options)

        return replaced(model, "forward", unrecorded)


class FoldedNormalisation(Advice):
    id = "D16"
    title = "fold normalisations into convolutions, in a copy for validation"
    numerics = Numerics.ROUNDING
    phase = "evaluate"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for convolutions whose output a normalisation takes, in a validation."""
        known: set[int] = set()  # a model may be a part of another, which is called too
        for model in seen.models:
            pairs = [pair for pair in self._pairs(model, seen) if id(pair[0]) not in known]
            known |= {id(layer) for layer, _ in pairs}
            if pairs:
                what = (
                    f"fold {len(pairs)} normalisations of {type(model).__name__} into convolutions"
                )
                change = functools.partial(self._fold, model, pairs)
                yield Finding(seen.line_of(model), what, change)

    @staticmethod
    def _pairs(model: nn.Module, seen: Seen) -> Iterator[tuple[_Convolution, _BatchNorm]]:
        uses = seen.uses_in_validation
        for module in model.modules():
            layer = uses[module].made_by if module in uses else None
            if not isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
                continue
            if isinstance(module, _BatchNorm) and uses[layer].users == 1:
                yield layer, module

    @staticmethod
    def _fold(model: nn.Module, pairs: list[tuple[_Convolution, _BatchNorm]]) -> Undo:
        folded: dict[int, nn.Module] = {}
        for layer, norm in pairs:
            folded[id(layer)], folded[id(norm)] = fuse_conv_bn_eval(layer, norm), nn.Identity()
        undo = ExitStack()
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if id(child) in folded:
                    setattr(module, name, folded[id(child)])
                    undo.callback(setattr, module, name, child)
        return undo.close


ADVICE = ValidationRecordsGradients(), FoldedNormalisation()
