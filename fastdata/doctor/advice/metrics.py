"""What is computed to be looked at."""

from __future__ import annotations

from collections.abc import Iterator

from fastdata.doctor.contract import Advice, Finding
from fastdata.doctor.watching import Seen

__all__ = ["ADVICE"]

LEAST_SHARE = 0.1
"""Share of a step from which on a metric is reported."""


class MetricsInEachStep(Advice):
    id = "D14"
    title = "metrics that are computed in each step"

    def find(self, seen: Seen) -> Iterator[Finding]:
        """Look for lines that compute something of outputs for long, and train nothing with it."""
        for metric in seen.metrics:
            if LEAST_SHARE <= metric.share < 1 and not seen.on_gpu:
                name = f"{metric.function}() takes" if metric.function else "takes"
                bound = 1 / (1 - metric.share)
                what = f"{name} {metric.share:.0%} of a step: at most {bound:.1f}x"
                yield Finding(metric.line, what, why_not="only its author knows when it is needed")


ADVICE = (MetricsInEachStep(),)
