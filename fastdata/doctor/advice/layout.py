"""In which order the values of images lie in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo
from fastdata.doctor.sources import assigns
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

CONVOLUTIONS = nn.Conv2d, nn.ConvTranspose2d


class ChannelsLast(Advice):
    id = "D03"
    title = "channels_last"
    numerics = Numerics.ROUNDING

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for convolutions whose inputs are not in that order."""
        others = [
            module
            for module, use in seen.uses.items()
            if isinstance(module, CONVOLUTIONS) and len(use.shape) == 4 and not use.channels_last
        ]
        for model in seen.trained():
            inside = {id(module) for module in model.modules()}
            if any(id(module) in inside for module in others):
                change = functools.partial(self._convert, model, seen.optimizers)
                what = "model.to(memory_format=channels_last)"
                yield Finding(seen.line_of(model), what, change)

    @staticmethod
    def _convert(model: nn.Module, optimizers: Sequence[Optimizer]) -> Undo:
        _arrange(model, optimizers, torch.channels_last)

        def convert(_: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
            return tuple(
                one.contiguous(memory_format=torch.channels_last)
                if isinstance(one, torch.Tensor) and one.ndim == 4
                else one
                for one in arguments
            )

        hook = model.register_forward_pre_hook(convert)

        def undo() -> None:
            hook.remove()
            _arrange(model, optimizers, torch.contiguous_format)

        return undo


def _arrange(
    model: nn.Module, optimizers: Sequence[Optimizer], memory_format: torch.memory_format
) -> None:
    """Put weights, gradients and what optimisers keep of them into one order of memory."""
    model.to(memory_format=memory_format)  # type: ignore[call-overload]
    for parameter in model.parameters():
        if parameter.ndim != 4:
            continue
        if parameter.grad is not None:
            parameter.grad = parameter.grad.contiguous(memory_format=memory_format)
        for optimizer in optimizers:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    state[name] = value.contiguous(memory_format=memory_format)


class Autotuner(Advice):
    id = "D04"
    title = "torch.backends.cudnn.benchmark = True"
    numerics = Numerics.ROUNDING
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for convolutions without it."""
        has = any(isinstance(module, CONVOLUTIONS) for module in seen.uses)
        is_on = torch.backends.cudnn.benchmark or (not seen.on_gpu and assigns("cudnn.benchmark"))
        if has and not is_on:
            yield Finding(seen.model_line, self.title, self._switch_on)

    @staticmethod
    def _switch_on() -> Undo:
        torch.backends.cudnn.benchmark = True
        return functools.partial(setattr, torch.backends.cudnn, "benchmark", False)


ADVICE = ChannelsLast(), Autotuner()
