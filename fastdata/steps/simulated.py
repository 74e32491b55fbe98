"""A training step of known length, which takes no core: as one on a GPU, seen from the CPU."""

from __future__ import annotations

import time
from typing import Any

from fastdata.errors import OptionError

__all__ = ["SleepStep"]


class SleepStep:
    """Sleeps, whatever batch it gets.  Picklable; for any number of threads.

    Parameters
    ----------
    seconds : float
        Above 0.
    """

    def __init__(self, seconds: float) -> None:
        if not 0 < seconds < 3600:
            raise OptionError(f"a step takes more than 0 seconds and less than 3600, not {seconds}")
        self.seconds = seconds

    def __call__(self, batch: Any) -> None:
        """Sleep."""
        time.sleep(self.seconds)

    def __str__(self) -> str:
        return f"a simulated step of {self.seconds * 1e3:g} ms"
