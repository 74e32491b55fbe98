"""What is measured when: demand, then one kind of settings after another, then the run in the end.

StepRuns      the step alone, the step with a loader
Comparison    supply of settings, in turns
Session       which settings are next, and which of them is chosen
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastdata.tuning.budget import Budget
from fastdata.tuning.choice import CEILING, Measured, best, plateau, same, sufficient
from fastdata.tuning.comparing import ROUNDS, Comparison
from fastdata.tuning.fitting import cost_of
from fastdata.tuning.results import Demand, Rate
from fastdata.tuning.runner import Runner, TrialFailedError
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.stepping import StepRuns
from fastdata.tuning.subject import Facts
from fastdata.tuning.sweep import between, first_counts, grows, variants
from fastdata.tuning.turns import Turns

__all__ = ["Session"]

MOST_TURNINGS = 4
"""How often the choice may change by what is found around it."""

LAST_SHARE = 0.05
"""Of the time: with less than that left nothing more is looked for around the choice."""


class Session:
    """Measures, and chooses by what was measured.

    Parameters
    ----------
    runner : Runner
        Makes loaders.
    steps : Runner
        Has the step: the same, or this process.
    facts : Facts
    budget : Budget
    trial_seconds : float
        After which a turn is given up.
    say : callable, optional
        Told in words what is being done.
    **free
        `memory_bytes` and `shm_bytes` of `Comparison`.

    Attributes
    ----------
    turns : Turns
        What was measured.
    """

    def __init__(
        self,
        runner: Runner,
        steps: Runner,
        facts: Facts,
        budget: Budget,
        *,
        trial_seconds: float,
        say: Callable[[str], None] = lambda text: None,
        **free: Any,
    ) -> None:
        self.facts = facts
        self._budget = budget
        self._notes: list[str] = []
        self._steps = StepRuns(steps, facts, budget, trial_seconds=trial_seconds, say=say)
        self._compared = Comparison(
            runner, facts, budget, trial_seconds=trial_seconds, say=say, **free
        )
        self.turns: Turns = self._compared.turns

    @property
    def demand(self) -> Demand | None:
        """How fast the step is; None without one."""
        return self._steps.demand

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return self._steps.rate

    @property
    def rates(self) -> list[Measured]:
        """Settings that have a rate, the cheapest first."""
        return self.turns.rates

    @property
    def trained(self) -> dict[Settings, Rate]:
        """Steps a second of settings that were run with the step."""
        return self._steps.trained

    @property
    def notes(self) -> list[str]:
        """What a reader has to know of how it was measured."""
        return [*self._steps.notes, *self._notes]

    # -- measuring ------------------------------------------------------------------------

    def warm(self, workers: int) -> str:
        """Have the data read once, as `Comparison.warm`."""
        return self._compared.warm(workers)

    def measure_demand(self, what: str, most: int = 1) -> None:
        """Find out how fast the step is, as `StepRuns.measure`."""
        self._steps.measure(what, most)

    def measure(self, candidates: Iterable[Settings], rounds: int = ROUNDS) -> bool:
        """Measure settings in turns, as `Comparison.measure`."""
        return self._compared.measure(candidates, self.rate, rounds)

    def sweep(self, most: int, limit: int, methods: Sequence[str]) -> None:
        """Try numbers of workers, then what else there is.

        Parameters
        ----------
        most : int
            Workers that are tried in any case.
        limit : int
            Workers that are tried where the rate still grows.
        methods : sequence of {"thread", "process"}
        """
        base = self.facts.base
        counts = [count for count in first_counts(most) if count or base.backend != "dali"]
        # All once; then again those that this leaves in question.
        self.measure([_with(base, count) for count in counts], rounds=1)
        while counts[-1] < limit and not self._enough() and grows(self._family(base)):
            counts.append(min(2 * counts[-1], limit))
            self.measure([_with(base, counts[-1])], rounds=1)
        self.measure([_with(base, count) for count in counts], rounds=ROUNDS - 1)
        while missing := between(self._family(base), self.rate):
            if not self.measure([_with(base, count) for count in missing]):
                break
        for _ in range(MOST_TURNINGS):
            if not self._looked_around(methods):
                break
        if self.turns.untried:
            self._notes.append(
                f"the time was up: not tried were {'; '.join(map(str, self.turns.untried))}"
            )

    def _looked_around(self, methods: Sequence[str]) -> bool:
        """Try what is near the choice; return whether that has changed it."""
        facts, base, found = self.facts, self.facts.base, self.choice()
        if found is None or self._budget.for_turns < LAST_SHARE * self._budget.seconds:
            return False
        saving = self._enough()
        # What costs less than enough, or gives more than the most there is so far.
        around = found if saving else best(self.rates)[0]
        any_method = base.backend == "cpu" and not facts.calls_python
        others = variants(
            around,
            saving=saving,
            cost=self._cost,
            methods=methods if any_method else (base.worker_method,),
            cuda=facts.cuda,
            dali=facts.dali,
            persistent=saving and base.backend == "torch" and facts.batches is not None,
        )
        # The same for less memory; without workers nothing is ahead.
        if not saving and found.num_workers and found.prefetch_factor > 1:
            others.append(replace(found, prefetch_factor=found.prefetch_factor // 2))
        new = [one for one in dict.fromkeys(others) if not self.turns.known(one)]
        # With the ones they are compared to, which time may have changed.
        return bool(new) and self.measure([around, found, *new]) and self.choice() != found

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

    def settle(self) -> Settings | None:
        """Run the chosen settings with the step; where they fall short, the next ones up.

        Returns
        -------
        Settings or None
            The first that reach the ceiling, else those that come nearest.
        """
        chosen = self.choice()
        if chosen is None or self.rate is None:
            return chosen
        for settings in self.sufficient() or [chosen]:
            supply = dict(self.rates)[settings].median
            if self.trained and not self._steps.fits(settings, supply):
                break
            rate = self._run(settings, supply)
            if rate is not None and rate.median >= CEILING * self.rate:
                return settings
        if not self.trained:
            return self.choice()
        top = max(self.trained.values(), key=lambda rate: rate.median)
        alike = [one for one, rate in self.trained.items() if same(rate, top)]
        return min(alike, key=self._cost)

    def _run(self, settings: Settings, supply: float) -> Rate | None:
        """Run the step with these settings; None, and a failure, where it cannot be."""
        try:
            return self._steps.run(settings, supply)
        except TrialFailedError as error:
            self.turns.failures[settings] = f"with the step: {error}"
            return None

    def _cost(self, settings: Settings) -> tuple[int, ...]:
        return cost_of(settings, self.facts.batch_bytes)

    def _enough(self) -> bool:
        return bool(self.sufficient())

    def _family(self, base: Settings) -> list[Measured]:
        """Return what was measured that differs from `base` in the number of workers only."""
        return [one for one in self.rates if replace(one[0], num_workers=1) == _with(base, 1)]

    def _restarts_little(self, settings: Settings) -> bool:
        """Return whether starting workers anew takes little of an epoch, which no step hides."""
        batches = self.facts.batches
        if settings.persistent_workers or not settings.num_workers or not batches:
            return True
        assert self.rate is not None, "there is a step"
        start = self.turns.start_seconds(settings)
        return start <= (1 - CEILING) * batches / self.rate


def _with(base: Settings, count: int) -> Settings:
    return replace(base, num_workers=count)
