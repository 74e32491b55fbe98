"""The time there is: counted from when measuring begins, with a part kept for the run in the end.

What a step or a batch takes is known only after the first look, so the part that is kept is set
then, and so is by how much the whole will be longer where it cannot be shorter.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Budget"]


class Budget:
    """The time there is.

    Parameters
    ----------
    seconds : float
        That were given.
    clock : callable

    Attributes
    ----------
    seconds : float
        That were given.
    total : float
        Seconds that it will take at most: more than were given only after `extend`.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = self.total = seconds
        self._clock = clock
        self._reserved = 0.0
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._began = self._clock()

    def reserve(self, seconds: float) -> None:
        """Keep so much of what is left for the end; `for_turns` does not count it."""
        self._reserved = seconds

    def extend(self, seconds: float) -> None:
        """Have so much more."""
        self.total += seconds

    @property
    def used(self) -> float:
        """Seconds that are over."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.total - self.used)

    @property
    def for_turns(self) -> float:
        """Seconds that are left for comparing settings, at least 0."""
        return max(0.0, self.left - self._reserved)

    @property
    def window_seconds(self) -> float:
        """How long a window is: about 240 are measured."""
        return min(max(self.seconds / 240, 0.05), 1.0)
