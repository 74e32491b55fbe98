"""What is computed to be looked at."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.outputs import Computed
from fastdata.doctor.watching import Seen
from fastdata.measuring.lines import user_line

__all__ = ["ADVICE"]

EVERY = 50
"""Steps of which a metric is computed in one."""

LEAST_SHARE = 0.1
"""Of the time of a step, that is worth being told of where it cannot be tried."""


class MetricsInEachStep(Advice):
    """Metrics of training that are computed in each step, but hardly looked at so often."""

    id = "D14"
    title = "metrics every 50 steps"
    period = EVERY
    source = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for what is computed of outputs, and that no gradient flows to."""
        shares: dict[str, float] = {}
        for place in seen.metrics:
            if place.targets:
                what = f"{place.targets[0][1]}(...) every {EVERY} steps"
                yield Finding(place.line, what, functools.partial(self._skip, place))
            else:
                shares[place.line] = shares.get(place.line, 0.0) + place.share
        for line, share in shares.items():
            if share >= LEAST_SHARE and not seen.on_gpu:
                what = f"{share:.0%} of a step on metrics"
                yield Finding(line, what, why_not="it is no function that could be left out")

    @staticmethod
    def _skip(place: Computed) -> None:
        for owner, name in place.targets:
            setattr(owner, name, _every(getattr(owner, name), place.line))


def _every(function: Callable[..., Any], line: str) -> Callable[..., Any]:
    """Return a function that returns its last result in most calls of a line."""
    is_method = isinstance(function, FunctionType) and "." in function.__qualname__
    counts: dict[int, int] = {}
    last: dict[int, Any] = {}

    @functools.wraps(function)
    def skipping(*arguments: Any, **options: Any) -> Any:
        if user_line(sys._getframe(1)) != line:
            return function(*arguments, **options)
        key = id(arguments[0]) if is_method and arguments else 0
        counts[key] = counts.get(key, -1) + 1
        if counts[key] % EVERY == 0:
            last[key] = function(*arguments, **options)
        return last[key]

    return skipping


ADVICE = (MetricsInEachStep(),)
