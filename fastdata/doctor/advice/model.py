"""What a model computes that it need not."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import ModuleUse, Seen

__all__ = ["ADVICE"]

_GUIDE = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"

LINEAR = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear
ACTIVATIONS = nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.ELU


class BiasBeforeNorm(Advice):
    """Batch normalisation subtracts the mean, and with it any bias that was added before."""

    id = "D08"
    title = "bias=False before a batch normalisation"
    numerics = Numerics.ROUNDING
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for layers whose output a batch normalisation takes, and nothing else."""
        layers = [
            layer
            for use in seen.uses.values()
            for layer in [use.made_by]
            if (
                isinstance(use.module, _BatchNorm)
                and isinstance(layer, LINEAR)
                and layer.bias is not None
                and layer in seen.uses
                and seen.uses[layer].users == 1
            )
        ]
        for layer in layers:
            change = functools.partial(self._drop, layer, seen.optimizers)
            yield Finding(seen.line_of(layer), f"{type(layer).__name__}(bias=False)", change)

    @staticmethod
    def _drop(layer: nn.Module, optimizers: list[Optimizer]) -> None:
        bias = layer.bias
        layer.register_parameter("bias", None)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if p is not bias]
            if isinstance(bias, torch.Tensor):
                optimizer.state.pop(bias, None)


class InPlaceActivation(Advice):
    """An activation in place writes no second copy of what it is given."""

    id = "D15"
    title = "inplace=True"
    source = _GUIDE

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for activations after layers whose backward pass needs no output of theirs."""
        modules = [
            use.module
            for use in seen.uses.values()
            if isinstance(use.module, ACTIVATIONS) and self._may(use, seen)
        ]
        for module in modules:
            change = functools.partial(setattr, module, "inplace", True)
            what = f"{type(module).__name__}(inplace=True)"
            yield Finding(seen.line_of(module), what, change)

    @staticmethod
    def _may(use: ModuleUse, seen: Seen) -> bool:
        if getattr(use.module, "inplace", True) or not isinstance(
            use.made_by, (*LINEAR, _BatchNorm)
        ):
            return False
        return use.made_by in seen.uses and seen.uses[use.made_by].users == 1


ADVICE = BiasBeforeNorm(), InPlaceActivation()
