"""What a model computes that it need not."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo, replaced
from fastdata.doctor.watching import ModuleUse, Seen

__all__ = ["ADVICE"]


LINEAR = nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear
ACTIVATIONS = nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh, nn.ELU


class BiasBeforeNorm(Advice):
    id = "D08"
    title = "bias=False before a batch normalisation"
    numerics = Numerics.ROUNDING

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
    def _drop(layer: Any, optimizers: list[Optimizer]) -> Undo:
        bias, undo = layer.bias, ExitStack()
        undo.callback(layer.register_parameter, "bias", bias)
        layer.register_parameter("bias", None)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                if any(p is bias for p in group["params"]):
                    undo.callback(group.update, params=group["params"])
                    group["params"] = [p for p in group["params"] if p is not bias]
        return undo.close


class InPlaceActivation(Advice):
    id = "D15"
    title = "inplace=True"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for activations after layers whose backward pass needs no output of theirs."""
        modules = [
            use.module
            for use in seen.uses.values()
            if isinstance(use.module, ACTIVATIONS) and self._may(use, seen)
        ]
        for module in modules:
            change = functools.partial(replaced, module, "inplace", True)
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
