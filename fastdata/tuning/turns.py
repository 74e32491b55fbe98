"""What was measured so far: turns of settings, failures, and what there was no time for."""

from __future__ import annotations

from statistics import median

from fastdata.tuning.choice import Measured
from fastdata.tuning.fitting import cost_of, need_of
from fastdata.tuning.measuring import Supplied
from fastdata.tuning.results import Trial
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.statistics import rate_of
from fastdata.tuning.subject import Facts

__all__ = ["Turns"]

COLD_BYTES_PER_SECOND = 1e6
"""Reading from a disk so much says that data is not in memory."""


class Turns:
    """The turns of a session; for one thread.

    Parameters
    ----------
    facts : Facts
        By which settings are ordered: the cheapest first.

    Attributes
    ----------
    failures : dict
        Why settings have no rate.
    untried : dict
        Settings that there was no time for.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._supplied: dict[Settings, list[Supplied]] = {}
        self._seconds: dict[Settings, float] = {}
        self.failures: dict[Settings, str] = {}
        self.untried: dict[Settings, None] = {}

    def add(self, settings: Settings, supplied: Supplied, seconds: float) -> None:
        """Remember a turn that took so many seconds."""
        self._supplied.setdefault(settings, []).append(supplied)
        self._seconds[settings] = seconds

    def __bool__(self) -> bool:
        return bool(self._supplied)

    def __contains__(self, settings: object) -> bool:
        """Whether settings had a turn that did not fail."""
        return settings in self._supplied

    def known(self, settings: Settings) -> bool:
        """Return whether settings had a turn, failed or not."""
        return settings in self._supplied or settings in self.failures

    def seconds(self, settings: Settings) -> float | None:
        """Return what the last turn of settings took; None where there was none."""
        return self._seconds.get(settings)

    @property
    def least_seconds(self) -> float:
        """What the shortest turn took; 0 where there was none."""
        return min(self._seconds.values(), default=0.0)

    def start_seconds(self, settings: Settings) -> float:
        """Return how long settings took until their first batch, in the median."""
        return median(turn.start_seconds for turn in self._supplied[settings])

    @property
    def rates(self) -> list[Measured]:
        """Settings that have a rate, the cheapest first."""
        found = [
            (settings, rate_of([rate for turn in turns for rate in turn.rates]))
            for settings, turns in self._supplied.items()
            if settings not in self.failures
        ]
        return sorted(found, key=lambda one: cost_of(one[0], self._facts.batch_bytes))

    @property
    def reads_storage(self) -> bool:
        """Whether data was read from disks meanwhile."""
        seen = [
            turn.storage_bytes_per_second for turns in self._supplied.values() for turn in turns
        ]
        return bool(seen) and median(seen) > COLD_BYTES_PER_SECOND

    @property
    def cut_short(self) -> bool:
        """Whether the time was up before all numbers of workers had a turn."""
        tried = {settings.num_workers for settings in self._supplied}
        return any(settings.num_workers not in tried for settings in self.untried)

    def trials(self) -> tuple[Trial, ...]:
        """Return a row for all settings that were tried, the cheapest first."""
        facts, rates = self._facts, dict(self.rates)
        rows = []
        for settings in {**self._supplied, **self.failures}:
            need = need_of(settings, facts.batch_bytes, to_device=facts.to_device)
            rows.append(
                Trial(
                    settings,
                    rates.get(settings),
                    self.failures.get(settings, ""),
                    self.start_seconds(settings) if settings in self else 0.0,
                    need.memory_bytes,
                    need.shm_bytes,
                )
            )
        return tuple(sorted(rows, key=lambda row: cost_of(row.settings, facts.batch_bytes)))
