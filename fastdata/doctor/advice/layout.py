"""In which order the values of images lie in memory."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import nn

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

_BENCHMARK = r"cudnn\.benchmark\s*=(?!=|\s*False)"

CONVOLUTIONS = nn.Conv2d, nn.ConvTranspose2d


class ChannelsLast(Advice):
    """Convolutions are often faster where the channels of a pixel lie side by side."""

    id = "D03"
    title = "channels_last"
    numerics = Numerics.ROUNDING
    source = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"

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
                change = functools.partial(self._convert, model)
                what = "model.to(memory_format=channels_last)"
                yield Finding(seen.line_of(model), what, change)

    @staticmethod
    def _convert(model: nn.Module) -> None:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def convert(_: nn.Module, arguments: tuple[object, ...]) -> tuple[object, ...]:
            return tuple(
                one.contiguous(memory_format=torch.channels_last)
                if isinstance(one, torch.Tensor) and one.ndim == 4
                else one
                for one in arguments
            )

        model.register_forward_pre_hook(convert)


class Autotuner(Advice):
    """cuDNN tries its algorithms for each shape once, and keeps the fastest."""

    id = "D04"
    title = "torch.backends.cudnn.benchmark = True"
    numerics = Numerics.ROUNDING
    gpu_only = True
    source = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for convolutions without it."""
        has = any(isinstance(module, CONVOLUTIONS) for module in seen.uses)
        if has and not torch.backends.cudnn.benchmark and not seen.sets_on_gpu(_BENCHMARK):
            yield Finding(seen.model_line, self.title, self._switch_on)

    @staticmethod
    def _switch_on() -> None:
        torch.backends.cudnn.benchmark = True


ADVICE = ChannelsLast(), Autotuner()
