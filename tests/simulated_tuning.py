"""What the tests of tuning share: made-up rates, and loaders on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings

__all__ = ["CURVE", "Batches", "Clock", "Meter", "T", "rate"]


def rate(median: float, spread: float = 0.01) -> Rate:
    return Rate(median, median * (1 - spread), median * (1 + spread))


T = {n: Settings(n) for n in range(10)}
CURVE = [(T[0], rate(10)), (T[1], rate(10)), (T[2], rate(20)), (T[4], rate(38)), (T[8], rate(39))]


class Clock:
    """Time that passes when somebody lets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Meter:
    """`fastdata.steps.meter.Meter` of such a clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def synchronize(self) -> None: ...

    def seconds(self, work: Callable[[], object]) -> float:
        began = self.clock()
        work()
        return self.clock() - began

    def repeats(self, work: Callable[[int], object], seconds: float, least: int) -> int:
        return max(least, round(seconds / self.seconds(lambda: work(1))))


class Batches:
    """A loader whose first batches are in stock: they cost nothing."""

    def __init__(
        self, clock: Clock, seconds: float, stock: int, count: int = 10_000, start: float = 5.0
    ) -> None:
        self.clock, self.seconds, self.stock, self.count = clock, seconds, stock, count
        self.start = start

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Any:
        self.clock.now += self.start  # of workers
        for number in range(self.count):
            if number > self.stock:
                self.clock.now += self.seconds
            yield number
