"""Trials of settings by their supply of batches, and runs of the step, within time and memory.

Settings that are compared are measured in turns, in random order within a round, so that
whatever the machine does meanwhile happens to all of them.  Each trial makes a loader anew.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from statistics import median

from fastdata.measuring.factories import WorkloadInfo
from fastdata.measuring.windows import Rate, Supply, Windows, in_turns, rate_of
from fastdata.processes.resources import available_bytes
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import (
    TimeBudget,
    cost_of,
    likely_workers,
    memory_estimate,
    refusal,
    run_seconds,
    seconds_until_windows,
    trial_seconds,
)
from fastdata.tuning.choice import Measured, fed, ruled_out
from fastdata.tuning.report import Demand, Trial
from fastdata.tuning.runner import Runner, TrialFailedError, TrialTimeoutError

__all__ = ["ROUNDS", "RUN_WINDOWS", "StepRuns", "Trials"]

log = logging.getLogger("fastdata")

ROUNDS = 3
WINDOWS_A_TRIAL = 3
"""Three of three: nine windows, whose interval leaves out the best and the worst."""

WARM_SHARE = 0.1
"""Of the time, for reading the data once."""

COLD_BYTES_PER_SECOND = 1e6
"""Data that is read from a disk so fast, or faster, was not in memory."""

STEP_WINDOWS = 7
RUN_WINDOWS = 5

DEMAND_SHARE = 0.15
"""Of the time, for the step alone."""

NEGLIGIBLE_SECONDS = 1.0
"""It is not worth a warning that everything takes so much longer."""


def _free_shm() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:  # there is none
        return 1 << 62


@dataclass
class Trials:
    """Measures settings, where there is time and memory for them; for one thread.

    `failures` has the reasons of settings without a rate, and `untried` those without a turn.
    """

    runner: Runner
    info: WorkloadInfo
    budget: TimeBudget
    limit_seconds: float
    on_status: Callable[[str], None]
    memory_bytes: Callable[[], int] = available_bytes
    shm_bytes: Callable[[], int] = _free_shm
    failures: dict[Settings, str] = field(default_factory=dict, init=False)
    untried: dict[Settings, None] = field(default_factory=dict, init=False)
    _supplies: dict[Settings, list[Supply]] = field(default_factory=dict, init=False)
    _seconds: dict[Settings, float] = field(default_factory=dict, init=False)
    _order: random.Random = field(default_factory=lambda: random.Random(0), init=False)

    # -- measuring ------------------------------------------------------------------------

    def warm(self, workers: int) -> str:
        """Read data that is not in memory; return "warm", "cold", or "" where that is unknown.

        With so many workers, or as many as there is memory for.
        """
        self.on_status("reading the data once")
        seconds = WARM_SHARE * self.budget.seconds
        reader = replace(self.info.base, num_workers=workers, pin_memory=False)
        while self._refusal(reader) and reader.num_workers > 1:
            reader = replace(reader, num_workers=reader.num_workers // 2)
        # A batch that takes longer than there is time says nothing, unless it was downloaded.
        is_short = self.info.batch_seconds <= seconds or self.comes_from_store
        possible = not self._refusal(reader) and is_short
        try:
            state: str = self.runner.call(
                "warm", reader if possible else None, seconds, seconds=self.limit_seconds
            )
        except TrialFailedError:  # the trials show what is wrong
            return ""
        return state

    @property
    def comes_from_store(self) -> bool:
        """Whether some of the data was in a store, and not in the cache, to begin with."""
        return self.info.store is not None and self.info.store.present < 1

    def stay_in_cache(self) -> bool:
        """Measure what is on this machine; return whether there is enough of it.

        What a batch takes is then looked at anew: the first ones were waited for.
        """
        if not self.comes_from_store:
            return True
        limit = self.limit_seconds
        stays: bool = self.runner.call("stay_in_cache", seconds=limit)
        if stays:
            seconds = self.runner.call("probe", seconds=limit).batch_seconds
            self.info = replace(self.info, batch_seconds=seconds)
        return stays

    def measure(
        self, candidates: Iterable[Settings], demand: float | None, rounds: int = ROUNDS
    ) -> bool:
        """Measure settings in turns; return whether any of them has a rate.

        One that has been measured has no further turn where it cannot be chosen any more, as
        `demand` batches a second are wanted, or the most there is.
        """
        wanted = [one for one in dict.fromkeys(candidates) if one not in self.failures]
        for number, order in enumerate(in_turns(wanted, rounds, self._order)):
            out = ruled_out(self.rates, demand)
            due = [one for one in order if one not in self.failures and one not in out]
            if not number and sum(map(self._expected_seconds, due)) > self.budget.for_trials:
                due.sort(key=self._expected_seconds)  # where not all have a turn, the most
            for settings in due:
                late = self._expected_seconds(settings) > self.budget.for_trials
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
        return max(trial_seconds(settings, self.info.batch_seconds), shortest)

    def _measure(self, settings: Settings) -> None:
        self.on_status(str(settings))
        self.untried.pop(settings, None)
        if why := self._refusal(settings):
            self.failures[settings] = why
            return
        budget, began = self.budget, self.budget.used
        # However slow batches are, there is an answer before it is given up.
        most = min(self.limit_seconds / 2, budget.for_trials)
        most -= seconds_until_windows(settings, self.info.batch_seconds)
        windows = Windows(WINDOWS_A_TRIAL, budget.window_seconds, most)
        try:
            supply = self.runner.call("supply", settings, windows, seconds=self.limit_seconds)
        except TrialFailedError as error:
            self.failures[settings] = str(error)
            return
        self._supplies.setdefault(settings, []).append(supply)
        self._seconds[settings] = budget.used - began

    def _refusal(self, settings: Settings) -> str:
        """Return why settings would not fit into memory; "" where they do."""
        info = self.info
        estimate = memory_estimate(settings, info.batch_bytes, to_device=info.to_device)
        return refusal(estimate, available_bytes=self.memory_bytes(), shm_bytes=self.shm_bytes())

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
        return [one for one in self._all_rates() if one[0].backend == self.info.base.backend]

    def _all_rates(self) -> list[Measured]:
        rates = [
            (settings, rate_of([rate for supply in supplies for rate in supply.rates]))
            for settings, supplies in self._supplies.items()
            if settings not in self.failures
        ]
        return sorted(rates, key=lambda one: cost_of(one[0], self.info.batch_bytes))

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
        info, rates = self.info, dict(self._all_rates())
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


@dataclass
class StepRuns:
    """Runs the step: alone, by which the time is planned, and with a loader.

    `trained` has the steps a second of the settings that were run.
    """

    runner: Runner
    info: WorkloadInfo
    budget: TimeBudget
    limit_seconds: float
    on_status: Callable[[str], None]
    demand: Demand | None = field(default=None, init=False)
    trained: dict[Settings, Rate] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return None if self.demand is None else self.demand.rate.median

    def measure_demand(self, what: str, most: int = 1) -> None:
        """Find out how fast the step is, and plan the time by that.

        Up to `most` workers are tried in any case.  A step that fails raises `TrialFailedError`.
        """
        self.on_status(f"how long {what} takes")
        budget = self.budget
        windows = Windows(STEP_WINDOWS, 2 * budget.window_seconds, DEMAND_SHARE * budget.seconds)
        # A step may be slow; one window there always is.
        limit = max(self.limit_seconds, budget.seconds)
        try:
            rates = self.runner.call("demand", windows, seconds=limit)
        except TrialTimeoutError as error:
            raise TrialTimeoutError(
                f"the step {error}. For a slow one give more seconds or a smaller batch, or say "
                "how long it takes: step_ms=, --step-ms"
            ) from error
        if len(rates) < 3:
            often = "once" if len(rates) == 1 else f"{len(rates)} times"
            self.notes.append(
                f"the step was measured {often} only, as it is so slow: give it more seconds"
            )
        self.demand = Demand(rate_of(rates), what)
        self._plan(self.demand.rate.median, most)

    def _plan(self, rate: float, most: int) -> None:
        """Keep time for the training run; warn where there is too little of it."""
        batch_seconds = self.info.batch_seconds
        workers = likely_workers(rate, batch_seconds, most)
        if batch_seconds:
            rate = min(rate, workers / batch_seconds)
        settings = replace(self.info.base, num_workers=workers)
        self._extend(self.budget.reserve_run(settings, rate), rate)

    def _extend(self, seconds: float, rate: float) -> None:
        """Take so much more time than was given, with a warning."""
        budget = self.budget
        budget.extend(max(0.0, seconds))
        if seconds >= NEGLIGIBLE_SECONDS:
            note = (
                f"takes about {budget.total:.0f} s, not the {budget.seconds:.0f} s that were "
                f"given: a step with its batch takes {1 / rate:.2g} s, and some have to be run"
            )
            self.notes.append(note)
            log.warning("tuning %s", note)

    def train(self, settings: Settings, supply: float, count: int = RUN_WINDOWS) -> Rate:
        """Run the step with batches as these settings give them: `supply` of them a second.

        A run that fails raises `TrialFailedError`.
        """
        self.on_status(f"training with {settings}")
        rate, seconds = self._fed(settings, supply), self.budget.run_window_seconds
        self._extend(run_seconds(settings, rate, seconds, 1) - self.budget.left, rate)
        windows = Windows(count, seconds, self.budget.left)
        limit = self.limit_seconds + 2 * run_seconds(settings, rate, seconds, count)
        rates = self.runner.call("train", settings, windows, rate, seconds=limit)
        self.trained[settings] = rate_of(rates)
        return self.trained[settings]

    def fits(self, settings: Settings, supply: float, count: int = 1) -> bool:
        """Return whether there is time for a run of so many windows with these settings."""
        rate = self._fed(settings, supply)
        least = run_seconds(settings, rate, self.budget.run_window_seconds, count)
        return least <= self.budget.left

    def _fed(self, settings: Settings, supply: float) -> float:
        assert self.rate is not None, "there is a step"
        return fed(settings, supply, self.rate)
