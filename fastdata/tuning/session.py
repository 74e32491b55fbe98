"""What is measured when: demand, then supply by one kind of settings after another, then training.

Session    which settings are next, and which of them is chosen
Trials     supply of settings, in turns
StepRuns   the step alone, and the step with a loader
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastdata.measuring.trials import Runner, TrialFailedError, TrialTimeoutError
from fastdata.measuring.windows import Rate, Windows, rate_of
from fastdata.measuring.workload import WorkloadInfo
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import TimeBudget, cost_of, likely_workers, plan_run, run_seconds
from fastdata.tuning.choice import CEILING, Measured, best, fed, plateau, same, sufficient
from fastdata.tuning.results import Demand
from fastdata.tuning.sweep import between, first_counts, grows, variants
from fastdata.tuning.trials import ROUNDS, Trials

__all__ = ["Session", "StepRuns"]

log = logging.getLogger("fastdata")

MOST_TURNINGS = 4
"""How often the choice may change by what is found around it."""

LAST_SHARE = 0.05
"""Of the time: with less than that left nothing more is looked for around the choice."""

STEP_WINDOWS = 7
RUN_WINDOWS = 5

DEMAND_SHARE = 0.15
"""Of the time, for the step alone."""

NEGLIGIBLE_SECONDS = 1.0
"""It is not worth a warning that everything takes so much longer."""


class Session:
    """Measures, and chooses by what was measured: `trials` of the loaders, `runs` of the step.

    `runner` makes loaders; `step_runner` has the step: the same, or one in this process.
    """

    def __init__(
        self,
        runner: Runner,
        step_runner: Runner,
        info: WorkloadInfo,
        budget: TimeBudget,
        *,
        limit_seconds: float,
        on_status: Callable[[str], None] = lambda text: None,
        **free: Any,
    ) -> None:
        self.info = info
        self._budget = budget
        self._notes: list[str] = []
        self.runs = StepRuns(
            step_runner, info, budget, limit_seconds=limit_seconds, on_status=on_status
        )
        self.trials = Trials(
            runner, info, budget, limit_seconds=limit_seconds, on_status=on_status, **free
        )

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return self.runs.rate

    @property
    def rates(self) -> list[Measured]:
        """Settings that have a rate and can be chosen, the cheapest first."""
        return self.trials.rates

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of how it was measured."""
        return [*self.runs.notes, *self._notes]

    # -- measuring ------------------------------------------------------------------------

    def measure(self, candidates: Iterable[Settings], rounds: int = ROUNDS) -> bool:
        """Measure settings in turns, as `Trials.measure`."""
        return self.trials.measure(candidates, self.rate, rounds)

    def sweep(self, most: int, limit: int, methods: Sequence[str]) -> None:
        """Try numbers of workers, then what else there is.

        Up to `most` in any case, and up to `limit` where the rate still grows.
        """
        base = self.info.base
        counts = [count for count in first_counts(most) if count or base.backend != "dali"]
        # All once; then again those that this leaves in question.
        self.measure([_with(base, count) for count in counts], rounds=1)
        while counts[-1] < limit and not self.sufficient() and grows(self._family(base)):
            counts.append(min(2 * counts[-1], limit))
            self.measure([_with(base, counts[-1])], rounds=1)
        self.measure([_with(base, count) for count in counts], rounds=ROUNDS - 1)
        while missing := between(self._family(base), self.rate):
            if not self.measure([_with(base, count) for count in missing]):
                break
        for _ in range(MOST_TURNINGS):
            if not self._look_around(methods):
                break
        if self.trials.untried:
            self._notes.append(
                f"the time was up: not tried were {'; '.join(map(str, self.trials.untried))}"
            )

    def _look_around(self, methods: Sequence[str]) -> bool:
        """Try what is near the choice; return whether that has changed it."""
        info, base, chosen = self.info, self.info.base, self.choice()
        if chosen is None or self._budget.for_trials < LAST_SHARE * self._budget.seconds:
            return False
        saving = bool(self.sufficient())
        # What costs less than enough, or gives more than the most there is so far.
        around = chosen if saving else best(self.rates)[0]
        any_method = base.backend == "cpu" and not info.calls_python
        others = variants(
            around,
            saving=saving,
            cost=self._cost,
            methods=methods if any_method else (base.worker_method,),
            cuda=info.cuda,
            persistent=saving and base.backend == "torch" and info.batches is not None,
        )
        # The same for less memory; without workers nothing is ahead.
        if not saving and chosen.num_workers and chosen.prefetch_factor > 1:
            others.append(replace(chosen, prefetch_factor=chosen.prefetch_factor // 2))
        new = [one for one in dict.fromkeys(others) if not self.trials.known(one)]
        # With the ones they are compared to, which time may have changed.
        return bool(new) and self.measure([around, chosen, *new]) and self.choice() != chosen

    def compare_dali(self) -> None:
        """Measure DALI with as many workers as are chosen: a row to look at, never the choice."""
        chosen = self.choice()
        if not self.info.allows_dali:
            self._notes.append(
                "DALI was not measured, as it does not make these batches: it is for packed data, "
                'and not for cache=, decoder= or worker_method="process"'
            )
        elif chosen is not None:
            dali = replace(chosen, backend="dali", worker_method="thread")
            self.measure([chosen, replace(dali, num_workers=max(1, chosen.num_workers))])
            self._notes.append(
                'DALI is for comparison: its pixels differ a little, so only backend="dali" uses it'
            )

    # -- choosing -----------------------------------------------------------------------

    def sufficient(self) -> list[Settings]:
        """Return the settings whose supply keeps the step busy, the cheapest first."""
        if self.rate is None:
            return []
        return [one for one in sufficient(self.rates, self.rate) if self._restarts_little(one)]

    def choice(self) -> Settings | None:
        """Return what is to be chosen by supply; None where nothing has a rate."""
        enough = self.sufficient()
        if enough:
            return enough[0]
        return plateau(self.rates, self.rate) if self.rates else None

    def confirm_choice(self) -> Settings | None:
        """Run the chosen settings with the step; where they fall short, the next ones up.

        Returns the first that reach the ceiling, else those that come nearest.
        """
        chosen = self.choice()
        if chosen is None or self.rate is None:
            return chosen
        for settings in self.sufficient() or [chosen]:
            supply = dict(self.rates)[settings].median
            if self.runs.trained and not self.runs.fits(settings, supply):
                break
            rate = self._train(settings, supply)
            if rate is not None and rate.median >= CEILING * self.rate:
                return settings
        trained = self.runs.trained
        if not trained:
            return self.choice()
        top = max(trained.values(), key=lambda rate: rate.median)
        return min((one for one, rate in trained.items() if same(rate, top)), key=self._cost)

    def _train(self, settings: Settings, supply: float) -> Rate | None:
        """Run the step with these settings; None, and a failure, where it cannot be."""
        try:
            return self.runs.train(settings, supply)
        except TrialFailedError as error:
            self.trials.failures[settings] = f"with the step: {error}"
            return None

    def _cost(self, settings: Settings) -> tuple[int, ...]:
        return cost_of(settings, self.info.batch_bytes)

    def _family(self, base: Settings) -> list[Measured]:
        """Return what was measured that differs from `base` in the number of workers only."""
        return [one for one in self.rates if replace(one[0], num_workers=1) == _with(base, 1)]

    def _restarts_little(self, settings: Settings) -> bool:
        """Return whether starting workers anew takes little of an epoch, which no step hides."""
        batches = self.info.batches
        if settings.persistent_workers or not settings.num_workers or not batches:
            return True
        assert self.rate is not None, "there is a step"
        start = self.trials.start_seconds(settings)
        return start <= (1 - CEILING) * batches / self.rate


def _with(base: Settings, count: int) -> Settings:
    return replace(base, num_workers=count)


class StepRuns:
    """Runs the step: alone, by which the time is planned, and with a loader.

    `trained` has the steps a second of the settings that were run.
    """

    def __init__(
        self,
        runner: Runner,
        info: WorkloadInfo,
        budget: TimeBudget,
        *,
        limit_seconds: float,
        on_status: Callable[[str], None],
    ) -> None:
        self.demand: Demand | None = None
        self.trained: dict[Settings, Rate] = {}
        self.notes: list[str] = []
        self._runner, self._info, self._budget = runner, info, budget
        self._limit_seconds = limit_seconds
        self._on_status = on_status

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return None if self.demand is None else self.demand.rate.median

    def measure_demand(self, what: str, most: int = 1) -> None:
        """Find out how fast the step is, and plan the time by that.

        Up to `most` workers are tried in any case.  A step that fails raises `TrialFailedError`.
        """
        self._on_status(f"how long {what} takes")
        budget = self._budget
        windows = Windows(STEP_WINDOWS, 2 * budget.window_seconds, DEMAND_SHARE * budget.seconds)
        # A step may be slow; one window there always is.
        limit = max(self._limit_seconds, budget.seconds)
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
        """Keep time for the training run; warn where there is too little of it."""
        batch_seconds = self._info.batch_seconds
        workers = likely_workers(rate, batch_seconds, most)
        if batch_seconds:
            rate = min(rate, workers / batch_seconds)
        plan = plan_run(replace(self._info.base, num_workers=workers), rate, self._budget)
        self._budget.reserve(plan.seconds)
        self._extend(plan.lacking_seconds, rate)

    def _extend(self, seconds: float, rate: float) -> None:
        """Take so much more time than was given, with a warning."""
        budget = self._budget
        budget.extend(max(0.0, seconds))
        if seconds >= NEGLIGIBLE_SECONDS:
            note = (
                f"takes about {budget.total:.0f} s, not the {budget.seconds:.0f} s that were "
                f"given: a step with its batch takes {1 / rate:.2g} s, and some have to be run"
            )
            self.notes.append(note)
            log.warning("tuning %s", note)

    def train(self, settings: Settings, supply: float) -> Rate:
        """Run the step with batches as these settings give them: `supply` of them a second.

        A run that fails raises `TrialFailedError`.
        """
        self._on_status(f"training with {settings}")
        rate, seconds = self._fed(settings, supply), self._budget.run_window_seconds
        self._extend(run_seconds(settings, rate, seconds, 1) - self._budget.left, rate)
        windows = Windows(RUN_WINDOWS, seconds, self._budget.left)
        limit = self._limit_seconds + 2 * run_seconds(settings, rate, seconds, RUN_WINDOWS)
        rates = self._runner.call("train", settings, windows, rate, seconds=limit)
        self.trained[settings] = rate_of(rates)
        return self.trained[settings]

    def fits(self, settings: Settings, supply: float) -> bool:
        """Return whether there is time for a run with these settings."""
        rate = self._fed(settings, supply)
        least = run_seconds(settings, rate, self._budget.run_window_seconds, 1)
        return least <= self._budget.left

    def _fed(self, settings: Settings, supply: float) -> float:
        assert self.rate is not None, "there is a step"
        return fed(settings, supply, self.rate)
