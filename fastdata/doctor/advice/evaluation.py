"""Validation that works as if it trained."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import prune
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d

_LARGE = 2**18
"""Weights of linear layers: with fewer, to quantise what they are given takes longer."""


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
        _replace(model, folded)


class Quantised(Advice):
    """Weights of 8 bits are read, and multiplied, in a fraction of the time on a processor."""

    id = "D56"
    title = "linear layers quantised to 8 bits, in a copy for validation"
    numerics = Numerics.PRECISION
    phase = "evaluate"
    source = "https://docs.pytorch.org/tutorials/recipes/recipes/dynamic_quantization.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for linear layers with many weights, in a validation on a processor."""
        known: set[int] = set()
        for model in seen.models if not seen.on_gpu else ():
            layers = [one for one in self._layers(model, seen) if id(one) not in known]
            known.update(map(id, layers))
            if sum(layer.weight.numel() for layer in layers) >= _LARGE:
                what = f"{type(model).__name__}: {len(layers)} linear layers in 8 bits"
                yield Finding(
                    seen.line_of(model), what, functools.partial(self._quantise, model, layers)
                )

    @staticmethod
    def _layers(model: nn.Module, seen: Seen) -> Iterator[nn.Linear]:
        for module in model.modules():
            if module is model or module not in seen.uses_in_validation:
                continue
            # No subclass, and nothing that makes its weights anew, as masks do.
            if type(module) is nn.Linear and not module._forward_pre_hooks:
                yield module

    @staticmethod
    def _quantise(model: nn.Module, layers: list[nn.Linear]) -> None:
        with warnings.catch_warnings():  # it moves to torchao, another package
            warnings.simplefilter("ignore")
            quantise: Any = torch.ao.quantization.quantize_dynamic
            small = {
                id(layer): quantise(nn.Sequential(layer), {nn.Linear}, torch.qint8)[0]
                for layer in layers
            }
        _replace(model, small)


class PrunedByMasks(Advice):
    """While weights are pruned by a mask, each forward pass multiplies them by it."""

    id = "D57"
    title = "masks of pruned weights made permanent, in a copy for validation"
    phase = "evaluate"
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.prune.remove.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for masks of ``torch.nn.utils.prune`` in a model that validates."""
        known: set[int] = set()
        for model in seen.models:
            pruned = [
                (module, hook._tensor_name)
                for module in model.modules()
                if module in seen.uses_in_validation and id(module) not in known
                for hook in module._forward_pre_hooks.values()
                if isinstance(hook, prune.BasePruningMethod)
            ]
            known.update(id(module) for module, _ in pruned)
            if pruned:
                what = f"{type(model).__name__}: {len(pruned)} masks"
                yield Finding(seen.line_of(model), what, functools.partial(self._remove, pruned))

    @staticmethod
    def _remove(pruned: list[tuple[nn.Module, str]]) -> None:
        for module, name in pruned:
            prune.remove(module, name)  # type: ignore[no-untyped-call]


def _replace(model: nn.Module, layers: dict[int, nn.Module]) -> None:
    """Put other layers into a model, by the identity of those that they replace."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if id(child) in layers:
                setattr(module, name, layers[id(child)])


ADVICE = ValidationRecordsGradients(), FoldedNormalisation(), Quantised(), PrunedByMasks()
