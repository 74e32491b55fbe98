"""Many small operations as few large ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from fastdata.doctor.contract import Advice, Finding, Numerics, Undo
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]


class Compile(Advice):
    id = "D05"
    title = "torch.compile"
    numerics = Numerics.ROUNDING
    options: ClassVar[dict[str, Any]] = {}

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models that are not compiled."""
        if seen.is_compiled:
            return
        given = "".join(f', {name}="{value}"' for name, value in self.options.items())
        for model in seen.trained():
            change = functools.partial(self._compile, model, [])
            yield Finding(
                seen.line_of(model), f"torch.compile({type(model).__name__}{given})", change
            )

    def _compile(self, model: nn.Module, compiled: list[Any]) -> Undo:
        """Compile a model the first time, and use that again later.

        A function of ours calls it: torch compiles no frame that begins in its own modules, so
        `model.compile()` leaves an `nn.Sequential` as it is.
        """
        if not compiled:

            def call(*arguments: Any, **options: Any) -> Any:
                return model._call_impl(*arguments, **options)  # type: ignore[no-untyped-call]

            compiled.append(torch.compile(call, **self.options))
        model._compiled_call_impl = compiled[0]
        return functools.partial(setattr, model, "_compiled_call_impl", None)


class RecordedLaunches(Compile):
    id = "D23"
    title = 'torch.compile(mode="reduce-overhead")'
    gpu_only = True
    options: ClassVar[dict[str, Any]] = {"mode": "reduce-overhead"}


class AttentionByHand(Advice):
    id = "D58"
    title = "scaled_dot_product_attention"
    numerics = Numerics.ROUNDING

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for a softmax between two products."""
        for line in seen.attention:
            yield Finding(line, f"F.{self.title}", why_not="the script has to call it")


ADVICE = Compile(), RecordedLaunches(), AttentionByHand()
