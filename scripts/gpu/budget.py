"""How much time is left, and whose it is."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """Time that may be spent; nothing is cut short when it ends, but nothing more is begun.

    Parameters
    ----------
    seconds : float
        From now on.
    clock : callable
        Returns the time in seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds

    @property
    def remaining(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - self._clock())

    def share(self, fraction: float) -> Budget:
        """Return a budget of a part of what is left."""
        return Budget(self.remaining * fraction, self._clock)
