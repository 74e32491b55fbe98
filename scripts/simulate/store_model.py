"""An object store as a model: when the first byte of an answer comes, and what is refused.

A request that is one too many in its second is answered by 503, and made again as obstore makes it:
after pauses with decorrelated jitter ("Exponential backoff and jitter", AWS Architecture Blog,
2015), until it is answered.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

__all__ = ["ModelStore", "StoreModel"]

FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.1, 15.0, 2.0
"""Seconds, seconds, and a factor: obstore's defaults."""

_DRAWN = 1 << 12
_QUANTILE_99 = 2.3263478740408408
"""Of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class StoreModel:
    """What a store does.

    Seconds until the first byte are lognormal, with a median and a 99th percentile; a stream has
    `stream_rate` bytes a second.  `request_rate` is the requests a second of one prefix, 0 for any
    number: S3 documents 5,500 GETs.  Objects lie under `prefixes`, evenly.
    """

    first_byte_p50: float = 0.030
    first_byte_p99: float = 0.200
    stream_rate: float = 85e6
    request_rate: float = 5500.0
    prefixes: int = 1


class ModelStore:
    """A store in use: it counts, and draws from `random`."""

    def __init__(self, model: StoreModel, random: np.random.Generator) -> None:
        self.model = model
        self._random = random
        self._latencies: list[float] = []
        self._jitters: list[float] = []
        self._tokens = [model.request_rate] * model.prefixes
        self._filled_at = [0.0] * model.prefixes
        self.asked: Counter[int] = Counter()
        """Requests of each second, those refused too."""
        self.refused = 0

    @property
    def most_asked(self) -> int:
        """Requests of the second with most of them."""
        return max(self.asked.values(), default=0)

    def first_byte(self) -> float:
        """Draw the seconds until an answer begins."""
        if not self._latencies:
            median = self.model.first_byte_p50
            normal = self._random.standard_normal(_DRAWN)
            if median > 0:
                spread = math.log(self.model.first_byte_p99 / median) / _QUANTILE_99
                normal = median * np.exp(spread * normal)
            else:
                normal = np.zeros(_DRAWN)
            self._latencies = normal.tolist()
        return self._latencies.pop()

    def takes(self, now: float, block: int) -> bool:
        """Return whether a request is answered; False for a 503."""
        self.asked[int(now)] += 1
        rate = self.model.request_rate
        if not rate:
            return True
        prefix = block % self.model.prefixes
        tokens = self._tokens[prefix] + (now - self._filled_at[prefix]) * rate
        tokens = min(tokens, rate)  # what was not asked for in the last second is lost
        self._filled_at[prefix] = now
        self._tokens[prefix] = tokens - 1 if tokens >= 1 else tokens
        if tokens < 1:
            self.refused += 1
        return tokens >= 1

    def pause_after(self, pause: float) -> float:
        """Draw the pause after one of `pause` seconds."""
        if not self._jitters:
            self._jitters = self._random.random(_DRAWN).tolist()
        longest = pause * GROWTH
        return min(LONGEST_PAUSE, FIRST_PAUSE + self._jitters.pop() * (longest - FIRST_PAUSE))
