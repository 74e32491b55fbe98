"""Many small operations as few large ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import ClassVar

from torch import nn

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]


class Compile(Advice):
    """``torch.compile`` makes kernels of many operations, in place of one for each."""

    id = "D05"
    title = "torch.compile"
    numerics = Numerics.ROUNDING
    source = "https://docs.pytorch.org/docs/stable/torch.compiler.html"
    options: ClassVar[dict[str, str]] = {}

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models that are not compiled."""
        if seen.is_compiled:
            return
        given = ", ".join(f'{name}="{value}"' for name, value in self.options.items())
        for model in seen.trained():
            change = functools.partial(self._compile, model)
            yield Finding(seen.line_of(model), f"{type(model).__name__}.compile({given})", change)

    def _compile(self, model: nn.Module) -> Undo:
        model.compile(**self.options)
        return functools.partial(setattr, model, "_compiled_call_impl", None)


class RecordedLaunches(Compile):
    """CUDA graphs launch the kernels of a whole pass at once, where each launch takes longer."""

    id = "D23"
    title = 'torch.compile(mode="reduce-overhead")'
    gpu_only = True
    source = "https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"
    options: ClassVar[dict[str, str]] = {"mode": "reduce-overhead"}


class AttentionByHand(Advice):
    """A fused kernel computes attention without writing its weights to memory."""

    id = "D58"
    title = "scaled_dot_product_attention"
    numerics = Numerics.ROUNDING
    source = (
        "https://docs.pytorch.org/docs/stable/generated/"
        "torch.nn.functional.scaled_dot_product_attention.html"
    )

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for a softmax between two products."""
        for line in seen.attention:
            yield Finding(line, f"F.{self.title}", why_not="the script has to call it")


ADVICE = Compile(), RecordedLaunches(), AttentionByHand()
