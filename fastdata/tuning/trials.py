"""Settings compared by their supply of batches: trials in turns, within the time and the memory.

Settings that are compared are measured in turns, in random order within a round, so that
whatever the machine does meanwhile happens to all of them.  Each trial makes a loader anew.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median

from fastdata.engine.memory import available_bytes
from fastdata.measuring.trials import Runner, TrialFailedError
from fastdata.measuring.windows import Supply, Windows, rate_of
from fastdata.measuring.workload import WorkloadInfo
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import (
    TimeBudget,
    cost_of,
    memory_estimate,
    refusal,
    seconds_until_windows,
    trial_seconds,
)
from fastdata.tuning.choice import Measured, ruled_out
from fastdata.tuning.results import Trial

__all__ = ["ROUNDS", "Trials"]

ROUNDS = 3
WINDOWS_A_TRIAL = 3
"""Three of three: nine windows, whose interval leaves out the best and the worst."""

WARM_SHARE = 0.1
"""Of the time, for reading the data once."""

COLD_BYTES_PER_SECOND = 1e6
"""Reading from a disk so much says that data is not in memory."""


class Trials:
    """Measures settings, where there is time and memory for them; for one thread.

    `failures` says why settings have no rate, and `untried` which ones there was no time for.
    """

    def __init__(
        self,
        runner: Runner,
        info: WorkloadInfo,
        budget: TimeBudget,
        *,
        limit_seconds: float,
        on_status: Callable[[str], None],
        memory_bytes: Callable[[], int] = available_bytes,
        shm_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.failures: dict[Settings, str] = {}
        self.untried: dict[Settings, None] = {}
        self._supplies: dict[Settings, list[Supply]] = {}
        self._seconds: dict[Settings, float] = {}
        self._runner, self._info, self._budget = runner, info, budget
        self._limit_seconds = limit_seconds
        self._on_status = on_status
        self._memory_bytes = memory_bytes
        self._shm_bytes = shm_bytes or _free_shm
        self._random = random.Random(0)

    # -- measuring ------------------------------------------------------------------------

    def warm(self, workers: int) -> str:
        """Read data that is not in memory; return "warm", "cold", or "" where that is unknown.

        With so many workers, or as many as there is memory for.
        """
        self._on_status("reading the data once")
        seconds = WARM_SHARE * self._budget.seconds
        reader = replace(self._info.base, num_workers=workers, pin_memory=False)
        while self._refusal(reader) and reader.num_workers > 1:
            reader = replace(reader, num_workers=reader.num_workers // 2)
        # A batch that takes longer than there is time says nothing.
        possible = not self._refusal(reader) and self._info.batch_seconds <= seconds
        try:
            state: str = self._runner.call(
                "warm", reader if possible else None, seconds, seconds=self._limit_seconds
            )
        except TrialFailedError:  # the trials show what is wrong
            return ""
        return state

    def measure(
        self, candidates: Iterable[Settings], demand: float | None, rounds: int = ROUNDS
    ) -> bool:
        """Measure settings in turns; return whether any of them has a rate.

        One that has been measured has no further turn where it cannot be chosen any more, as
        `demand` batches a second are wanted, or the most there is.
        """
        wanted = [one for one in dict.fromkeys(candidates) if one not in self.failures]
        for number in range(rounds):
            self._random.shuffle(wanted)
            out = ruled_out(self.rates, demand)
            due = [one for one in wanted if one not in self.failures and one not in out]
            if not number and sum(map(self._expected_seconds, due)) > self._budget.for_trials:
                due.sort(key=self._expected_seconds)  # where not all have a turn, the most
            for settings in due:
                late = self._expected_seconds(settings) > self._budget.for_trials
                if not (self._supplies and late):
                    self._measure(settings)
                elif not number and not self.known(settings):
                    self.untried[settings] = None
        return any(one in self._supplies and one not in self.failures for one in wanted)

    def _expected_seconds(self, settings: Settings) -> float:
        """Return about how long a trial will take."""
        if settings in self._seconds:
            return self._seconds[settings]
        # None is shorter than the shortest so far: each makes a loader, and has windows.
        shortest = min(self._seconds.values(), default=0.0)
        return max(trial_seconds(settings, self._info.batch_seconds), shortest)

    def _measure(self, settings: Settings) -> None:
        self._on_status(str(settings))
        self.untried.pop(settings, None)
        if why := self._refusal(settings):
            self.failures[settings] = why
            return
        budget, began = self._budget, self._budget.used
        # However slow batches are, there is an answer before it is given up.
        most = min(self._limit_seconds / 2, budget.for_trials)
        most -= seconds_until_windows(settings, self._info.batch_seconds)
        windows = Windows(WINDOWS_A_TRIAL, budget.window_seconds, most)
        try:
            supply = self._runner.call("supply", settings, windows, seconds=self._limit_seconds)
        except TrialFailedError as error:
            self.failures[settings] = str(error)
            return
        self._supplies.setdefault(settings, []).append(supply)
        self._seconds[settings] = budget.used - began

    def _refusal(self, settings: Settings) -> str:
        """Return why settings would not fit into memory; "" where they do."""
        info = self._info
        estimate = memory_estimate(settings, info.batch_bytes, to_device=info.to_device)
        return refusal(estimate, available_bytes=self._memory_bytes(), shm_bytes=self._shm_bytes())

    # -- what was measured ------------------------------------------------------------------

    def known(self, settings: Settings) -> bool:
        """Return whether settings had a trial, failed or not."""
        return settings in self._supplies or settings in self.failures

    def start_seconds(self, settings: Settings) -> float:
        """Return how long settings took until their first batch, in the median."""
        return median(supply.start_seconds for supply in self._supplies[settings])

    @property
    def rates(self) -> list[Measured]:
        """Settings that have a rate, the cheapest first.

        Without those of another backend: pixels would be others, so they are shown and not
        chosen.
        """
        return [one for one in self._all_rates() if one[0].backend == self._info.base.backend]

    def _all_rates(self) -> list[Measured]:
        rates = [
            (settings, rate_of([rate for supply in supplies for rate in supply.rates]))
            for settings, supplies in self._supplies.items()
            if settings not in self.failures
        ]
        return sorted(rates, key=lambda one: cost_of(one[0], self._info.batch_bytes))

    @property
    def reads_storage(self) -> bool:
        """Whether data was read from disks meanwhile."""
        rates = [
            supply.storage_bytes_per_second
            for supplies in self._supplies.values()
            for supply in supplies
        ]
        return bool(rates) and median(rates) > COLD_BYTES_PER_SECOND

    @property
    def cut_short(self) -> bool:
        """Whether the time was up before all numbers of workers had a trial."""
        tried = {settings.num_workers for settings in self._supplies}
        return any(settings.num_workers not in tried for settings in self.untried)

    def rows(self) -> tuple[Trial, ...]:
        """Return a row for all settings that were tried, the cheapest first."""
        info, rates = self._info, dict(self._all_rates())
        rows = []
        for settings in {**self._supplies, **self.failures}:
            estimate = memory_estimate(settings, info.batch_bytes, to_device=info.to_device)
            rows.append(
                Trial(
                    settings,
                    rates.get(settings),
                    self.failures.get(settings, ""),
                    self.start_seconds(settings) if settings in self._supplies else 0.0,
                    estimate.memory_bytes,
                    estimate.shm_bytes,
                )
            )
        return tuple(sorted(rows, key=lambda row: cost_of(row.settings, info.batch_bytes)))


def _free_shm() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:  # there is none
        return 1 << 62
