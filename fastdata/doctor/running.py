"""A process of a script that waits at a step, and runs steps with advice switched on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastdata.doctor.messages import Ran, Run
from fastdata.doctor.processes import ScriptFailedError, ScriptProcess
from fastdata.doctor.results import Follow
from fastdata.doctor.seen import EventKind

__all__ = [
    "START_SECONDS",
    "TIME_IS_UP",
    "WINDOW_SECONDS",
    "Running",
    "TrialsEndedError",
    "ends_at",
]

WINDOW_SECONDS = {"cpu": 0.05, "cuda": 0.2}
"""How long the timed steps of a block take, by device.  At its end a GPU finishes its work."""

WARM_UP_SECONDS = 0.25
MOST_WARM_UPS = 6
STABLE = 0.1
"""Windows that differ by less are warm."""

START_SECONDS = 600.0
"""Limit of a script's start: it may download data."""

MOST_STEP_SECONDS = 120.0

TIME_IS_UP = "the time is up; --seconds gives more"


class TrialsEndedError(Exception):
    """Trials cannot go on; the message says why."""


@dataclass
class Running:
    """A process that waits at a step; all ends at the time `until`, by `time.monotonic`."""

    process: ScriptProcess
    until: float
    step_seconds: float = 0.0
    last: Ran | None = None
    _follow: Follow = ()
    _forgets_peak: bool = False

    def at_most(self, part: EventKind | None) -> float | None:
        """Return the gain of a step in which a part takes no time: an upper bound.

        None if that part was not timed, or a GPU does the work.
        """
        if part is None or self.last is None or self.last.reserved_bytes:
            return None
        share = self.last.part_seconds.get(part, 0.0) / self.last.seconds
        return 1 / (1 - share) if 0 < share < 1 else None

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has taken: resident, or of a GPU."""
        return (self.last.reserved_bytes or self.last.peak_bytes) if self.last else 0

    def run(self, steps: int) -> Ran:
        """Run some steps."""
        command, self._forgets_peak = Run(steps, self._follow, self._forgets_peak), False
        self.last = self._ask(command, START_SECONDS + steps * MOST_STEP_SECONDS)
        return self.last

    def dump(
        self, path: Path, follow: Follow = (), seconds: float = START_SECONDS, seed: int = 0
    ) -> float:
        """Write the numbers of one step from the first state; return its seconds."""
        self._follow = follow
        return self._ask(Run(1, follow, dump=str(path), seed=seed), seconds).seconds

    def switch(self, follow: Follow, *, forget_peak: bool = False) -> None:
        """Follow this advice, and no other, from the next step on."""
        self._follow, self._forgets_peak = follow, forget_peak

    def warm_up(self) -> float:
        """Run until a step takes as long as the one before; return the seconds of the first."""
        first = before = self.run(1).seconds
        for _ in range(MOST_WARM_UPS):
            now = self.run(max(1, round(WARM_UP_SECONDS / before))).step_seconds("wall")
            stable = abs(now - before) < STABLE * before
            before = now
            if stable:
                break
        self.step_seconds = before
        return first

    def _ask(self, command: Run, seconds: float) -> Ran:
        with ends_at(self.until):
            return self.process.ask(command, min(seconds, self.until - time.monotonic()))


@contextlib.contextmanager
def ends_at(until: float) -> Iterator[None]:
    """Turn the failure of a script that was stopped at `until` into the end of the trials."""
    try:
        yield
    except ScriptFailedError:
        if time.monotonic() >= until:
            raise TrialsEndedError(TIME_IS_UP) from None
        raise
