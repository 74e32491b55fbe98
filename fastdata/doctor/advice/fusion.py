"""Many small operations as few large ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from fastdata.doctor.contract import Advice, Finding, Numerics
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]


class Compile(Advice):
    """``torch.compile`` makes kernels of many operations, in place of one for each."""

    id = "D05"
    title = "torch.compile"
    numerics = Numerics.ROUNDING
    source = "https://docs.pytorch.org/docs/stable/torch.compiler.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for models that are not compiled."""
        if seen.is_compiled:
            return
        for model in seen.trained():
            change = functools.partial(model.compile)
            yield Finding(seen.line_of(model), f"{type(model).__name__}.compile()", change)


ADVICE = (Compile(),)
