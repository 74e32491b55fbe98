"""How many bits numbers have."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo, replaced
from fastdata.doctor.sources import assigns, mentions
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

MULTIPLIES = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.MultiheadAttention


class MixedPrecision(Advice):
    id = "D01"
    title = "autocast, bfloat16"
    numerics = Numerics.PRECISION

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models that multiply in float32."""
        if any(e.kind == "forward" and e.autocast for e in seen.events):
            return
        for model in seen.trained():
            uses = (seen.uses.get(module) for module in model.modules())
            if any(
                use is not None
                and isinstance(use.module, MULTIPLIES)
                and use.dtype == torch.float32
                for use in uses
            ):
                passes = [e.line for e in seen.events if e.kind == "forward" and e.of is model]
                trains = [e.line for e in seen.training_passes if e.of is model]
                line = (trains or passes)[-1]
                change = functools.partial(self._cast, model, "cuda" if seen.on_gpu else "cpu")
                yield Finding(line, "torch.autocast(dtype=torch.bfloat16)", change)

    @staticmethod
    def _cast(model: nn.Module, device: str) -> Undo:
        forward = model.forward

        @functools.wraps(forward)
        def cast(*arguments: Any, **options: Any) -> Any:
            with torch.autocast(device, torch.bfloat16):
                output = forward(*arguments, **options)
            return output.float() if isinstance(output, torch.Tensor) else output

        return replaced(model, "forward", cast)


class MatmulPrecision(Advice):
    id = "D02"
    title = 'torch.set_float32_matmul_precision("high")'
    numerics = Numerics.PRECISION
    gpu_only = True

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for float32 products without it."""
        names = "fp32_precision", "set_float32_matmul_precision"
        if torch.get_float32_matmul_precision() != "highest":
            return
        if not seen.on_gpu and (mentions(*names) or assigns("matmul.allow_tf32")):
            return
        uses = seen.uses.values()
        if any(isinstance(u.module, MULTIPLIES) and u.dtype == torch.float32 for u in uses):
            yield Finding(seen.model_line, self.title, self._switch_on)

    @staticmethod
    def _switch_on() -> Undo:
        torch.set_float32_matmul_precision("high")
        return functools.partial(torch.set_float32_matmul_precision, "highest")


ADVICE = MixedPrecision(), MatmulPrecision()
