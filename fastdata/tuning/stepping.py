"""What needs the step: its own rate, by which the time is planned, and the run in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from fastdata.tuning.budget import Budget
from fastdata.tuning.choice import fed
from fastdata.tuning.measuring import Windows
from fastdata.tuning.plan import likely_workers, plan_of, run_seconds
from fastdata.tuning.results import Demand, Rate
from fastdata.tuning.runner import Runner, TrialTimeoutError
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.statistics import rate_of
from fastdata.tuning.subject import Facts

__all__ = ["StepRuns"]

log = logging.getLogger("fastdata")

STEP_WINDOWS = 7
RUN_WINDOWS = 5

DEMAND_SHARE = 0.15
"""Of the time, for the step alone."""

NEGLIGIBLE_SECONDS = 1.0
"""Nobody wants to be told that it all will take so much longer."""


class StepRuns:
    """Runs the step, without and with a loader.

    Parameters
    ----------
    runner : Runner
        Has the step.
    facts : Facts
    budget : Budget
    trial_seconds : float
    say : callable
        Told in words what is being done.

    Attributes
    ----------
    demand : Demand or None
        None until it was measured.
    trained : dict
        Steps a second of settings that were run.
    notes : list of str
    """

    def __init__(
        self,
        runner: Runner,
        facts: Facts,
        budget: Budget,
        *,
        trial_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self.demand: Demand | None = None
        self.trained: dict[Settings, Rate] = {}
        self.notes: list[str] = []
        self._runner, self._facts, self._budget = runner, facts, budget
        self._trial_seconds = trial_seconds
        self._say = say

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return None if self.demand is None else self.demand.rate.median

    def measure(self, what: str, most: int) -> None:
        """Find out how fast the step is, and plan the time by that.

        Parameters
        ----------
        what : str
            What people call the step.
        most : int
            Workers that are tried in any case.

        Raises
        ------
        TrialFailedError
            If it fails.
        """
        self._say(f"how long {what} takes")
        budget = self._budget
        windows = Windows(STEP_WINDOWS, 2 * budget.window_seconds, DEMAND_SHARE * budget.seconds)
        # A step may be slow; one window there always is.
        limit = max(self._trial_seconds, budget.seconds)
        try:
            rates = self._runner.call("demand", windows, seconds=limit)
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
        """Keep time for the run with the step; say so where there is too little of it."""
        workers = likely_workers(rate, self._facts.batch_seconds, most)
        likely = replace(self._facts.base, num_workers=workers)
        if self._facts.batch_seconds:
            rate = min(rate, workers / self._facts.batch_seconds)
        plan = plan_of(
            likely,
            rate,
            given=self._budget.seconds,
            used=self._budget.used,
            window_seconds=self._window_seconds,
        )
        self._budget.reserve(plan.run_seconds)
        self._lacks(plan.lacking_seconds, rate)

    def _lacks(self, seconds: float, rate: float) -> None:
        """Take so much more time than was given, and say so."""
        budget = self._budget
        budget.extend(max(0.0, seconds))
        if seconds >= NEGLIGIBLE_SECONDS:
            note = (
                f"takes about {budget.total:.0f} s, not the {budget.seconds:.0f} s that were "
                f"given: a step with its batch takes {1 / rate:.2g} s, and some have to be run"
            )
            self.notes.append(note)
            log.warning("tuning %s", note)

    def run(self, settings: Settings, supply: float) -> Rate:
        """Run the step with batches as these settings give them, while there is time.

        Parameters
        ----------
        settings : Settings
        supply : float
            Batches a second that they give.

        Raises
        ------
        TrialFailedError
            If that fails.
        """
        self._say(f"training with {settings}")
        expected, seconds = self._fed(settings, supply), self._window_seconds
        self._lacks(run_seconds(settings, expected, seconds, 1) - self._budget.left, expected)
        windows = Windows(RUN_WINDOWS, seconds, self._budget.left)
        limit = self._trial_seconds + 2 * run_seconds(settings, expected, seconds, RUN_WINDOWS)
        found = self._runner.call("train", settings, windows, expected, seconds=limit)
        self.trained[settings] = rate_of(found)
        return self.trained[settings]

    def fits(self, settings: Settings, supply: float) -> bool:
        """Return whether there is time for a run with these settings."""
        rate = self._fed(settings, supply)
        return run_seconds(settings, rate, self._window_seconds, 1) <= self._budget.left

    def _fed(self, settings: Settings, supply: float) -> float:
        assert self.rate is not None, "there is a step"
        return fed(settings, supply, self.rate)

    @property
    def _window_seconds(self) -> float:
        return min(max(self._budget.seconds / 60, 0.2), 2.0)
