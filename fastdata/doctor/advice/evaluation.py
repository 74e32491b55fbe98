"""Validation that works as if it trained."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d


class ValidationRecordsGradients(Advice):
    """Without ``no_grad`` every operation of a validation is kept for a backward pass."""

    id = "D10"
    title = "torch.inference_mode() in validation"
    phase = "evaluate"
    source = "https://docs.pytorch.org/docs/stable/notes/autograd.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for forward passes in evaluation mode that are recorded."""
        trains = {id(event) for event in seen.training_passes}
        found: dict[str, nn.Module] = {
            e.line: e.of
            for e in seen.events
            if e.kind == "forward" and e.recorded and not e.training and id(e) not in trains
        }
        for line, model in found.items():
            if any(p.requires_grad for p in model.parameters()):
                change = functools.partial(self._record_nothing, model)
                partly = any(event.line == line for event in seen.training_passes)
                yield Finding(line, self.title, change, partly=partly)

    @staticmethod
    def _record_nothing(model: nn.Module) -> None:
        forward = model.forward

        @functools.wraps(forward)
        def unrecorded(*arguments: Any, **options: Any) -> Any:
            if model.training:
                return forward(*arguments, **options)
            with torch.no_grad():
                return forward(*arguments, **options)

        model.forward = unrecorded


class FoldedNormalisation(Advice):
    """A convolution and the normalisation after it are one convolution, once weights stay."""

    id = "D16"
    title = "normalisations folded into convolutions, in a copy for validation"
    numerics = Numerics.ROUNDING
    phase = "evaluate"
    source = "https://docs.pytorch.org/tutorials/intermediate/torch_compile_conv_bn_fuser.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for convolutions whose output a normalisation takes, in a validation."""
        known: set[int] = set()  # a model may be a part of another, which is called too
        for model in seen.models:
            pairs = [pair for pair in self._pairs(model, seen) if id(pair[0]) not in known]
            known |= {id(layer) for layer, _ in pairs}
            if pairs:
                what = f"{type(model).__name__}: {len(pairs)} of them folded"
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
    def _fold(model: nn.Module, pairs: list[tuple[_Convolution, _BatchNorm]]) -> None:
        folded: dict[int, nn.Module] = {}
        for layer, norm in pairs:
            folded[id(layer)], folded[id(norm)] = fuse_conv_bn_eval(layer, norm), nn.Identity()
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if id(child) in folded:
                    setattr(module, name, folded[id(child)])


ADVICE = ValidationRecordsGradients(), FoldedNormalisation()
