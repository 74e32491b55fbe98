"""What is measured when: demand, then supply by one kind of settings after another, then training.

A `Session` decides which settings are next, and which of them is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from fastdata.measuring.factories import WorkloadInfo
from fastdata.measuring.windows import Rate
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import cost_of
from fastdata.tuning.choice import CEILING, Measured, best, curve, plateau, same, sufficient
from fastdata.tuning.runner import TrialFailedError
from fastdata.tuning.trials import ROUNDS, RUN_WINDOWS, StepRuns, Trials

__all__ = ["Session", "between", "first_counts", "grows", "variants"]

GROWTH = 1.1
"""Twice the workers have to give so much more, or there is no use in still more."""

MOST_BETWEEN = 3
"""Numbers between two that are all tried; of more, the middle one."""

MOST_TURNINGS = 4
"""How often the choice may change by what is found around it."""

CURVE_WINDOWS = 2
"""Of a run that is no more than a point of a curve."""

LAST_SHARE = 0.05
"""Of the time: with less than that left nothing more is looked for around the choice."""


@dataclass
class Session:
    """Measures, and chooses by what was measured: `trials` of the loaders, `runs` of the step."""

    trials: Trials
    runs: StepRuns
    _notes: list[str] = field(default_factory=list, init=False)

    @property
    def info(self) -> WorkloadInfo:
        """What is known of the data."""
        return self.trials.info

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

    def stay_in_cache(self) -> bool:
        """Measure what is on this machine from now on, as `Trials.stay_in_cache`."""
        stays = self.trials.stay_in_cache()
        self.runs.info = self.trials.info
        return stays

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
        tried = self._try_counts(base, counts, limit)
        families = [base]
        # What does not grow says nothing of where workers of another kind are at their best.
        knee = plateau(self._family(base)).num_workers if self._family(base) else 0
        if not self.sufficient() and knee < tried[-1].num_workers:
            families += [replace(base, worker_method=one) for one in self._other_methods(methods)]
        for other in families[1:]:
            more = [n for n in counts if n >= max(knee, 1)] or [knee]  # more than there are cores
            tried += self._try_counts(other, more, limit)
        self.measure(tried, rounds=ROUNDS - 1)
        for family in families:
            while missing := between(self._family(family), self.rate):
                if not self.measure([_with(family, count) for count in missing]):
                    break
        for _ in range(MOST_TURNINGS):
            if not self._look_around(methods):
                break
        if self.trials.untried:
            self._notes.append(
                f"the time was up: not tried were {'; '.join(map(str, self.trials.untried))}"
            )

    def _try_counts(self, base: Settings, counts: Sequence[int], limit: int) -> list[Settings]:
        """Give numbers of workers a turn, and more up to `limit` while that helps; return all."""
        tried = [_with(base, count) for count in counts]
        self.measure(tried, rounds=1)
        while tried[-1].num_workers < limit and not self.sufficient() and grows(self._family(base)):
            tried.append(_with(base, min(2 * tried[-1].num_workers, limit)))
            self.measure(tried[-1:], rounds=1)
        return tried

    def _other_methods(self, methods: Sequence[str]) -> list[Any]:
        """Return the other kinds of workers that make the same batches."""
        base = self.info.base
        if base.backend != "cpu" or self.info.calls_python:
            return []
        return [method for method in methods if method != base.worker_method]

    def _look_around(self, methods: Sequence[str]) -> bool:
        """Try what is near the choice; return whether that has changed it."""
        info, base, chosen = self.info, self.info.base, self.choice()
        budget = self.trials.budget
        if chosen is None or budget.for_trials < LAST_SHARE * budget.seconds:
            return False
        saving = bool(self.sufficient())
        # What costs less than enough, or gives more than the most there is so far.
        around = chosen if saving else best(self.rates)[0]
        others = variants(
            around,
            saving=saving,
            cost=self._cost,
            methods=(base.worker_method, *self._other_methods(methods)),
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

    def train_curve(self, chosen: Settings | None) -> None:
        """Run the step with other numbers of the chosen kind of workers, as far as time is left."""
        if chosen is None or self.rate is None:
            return
        trained = {one.num_workers for one in self.runs.trained}
        for settings, rate in curve(self.rates, chosen):
            fits = self.runs.fits(settings, rate.median, CURVE_WINDOWS)
            if settings.num_workers not in trained and fits:
                self._train(settings, rate.median, CURVE_WINDOWS)

    def _train(self, settings: Settings, supply: float, windows: int = RUN_WINDOWS) -> Rate | None:
        """Run the step with these settings; None, and a failure, where it cannot be."""
        try:
            return self.runs.train(settings, supply, windows)
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


# -- which settings are tried: numbers of workers, then what else there is at the knee (pure) ------


def first_counts(most: int) -> list[int]:
    """Return 0, 1, 2, 4, ... up to `most`, which is one of them."""
    counts = [0, *takewhile(lambda count: count < most, (1 << power for power in range(31)))]
    return counts if most in counts else [*counts, most]


def grows(rates: Sequence[Measured]) -> bool:
    """Return whether the largest number of workers gave more than the next, beyond noise."""
    ordered = sorted(rates, key=lambda one: one[0].num_workers)
    if len(ordered) < 2:
        return False
    (_, before), (_, last) = ordered[-2:]
    return last.median >= GROWTH * before.median and last.low > before.high


def between(rates: Sequence[Measured], demand: float | None) -> list[int]:
    """Return the numbers of workers to try around the knee; none where it is known.

    `rates` are of settings that differ only in their numbers of workers; `demand` is the batches
    a second that are wanted, None for the most there is.
    """
    if not rates:
        return []
    ordered = sorted(rates, key=lambda one: one[0].num_workers)
    enough = [] if demand is None else sufficient(ordered, demand)
    knee = (enough[0] if enough else plateau(rates)).num_workers
    counts = [settings.num_workers for settings, _ in rates]
    below = max((count for count in counts if count < knee), default=knee)
    missing = list(range(below + 1, knee))
    if len(missing) <= MOST_BETWEEN:
        return missing
    return [missing[len(missing) // 2]]


def variants(
    base: Settings,
    *,
    saving: bool,
    cost: Callable[[Settings], tuple[int, ...]],
    methods: Sequence[str] = ("thread",),
    cuda: bool = False,
    persistent: bool = False,
) -> list[Settings]:
    """Return settings that differ from `base` in one thing, or in that and one worker less.

    With `saving`, `base` is enough, and only what costs less is returned; otherwise what may give
    more, or as much for less memory.  Workers are of `methods`; memory is pinned where there is
    `cuda`, and with `persistent` it is found out what starting workers anew costs.
    """
    if not base.num_workers:
        return []
    found: list[Settings] = []
    fewer = base.num_workers - 1
    others = [method for method in methods if method != base.worker_method]
    for method in others:
        other = replace(base, worker_method=method)  # type: ignore[arg-type]
        found.append(other)
        if saving and fewer:
            found.append(replace(other, num_workers=fewer))
    more = replace(base, prefetch_factor=2 * base.prefetch_factor)
    if base.prefetch_factor > 1:
        found.append(replace(base, prefetch_factor=base.prefetch_factor // 2))
    if not saving:
        found.append(more)
    elif fewer:
        found += [replace(base, num_workers=fewer), replace(more, num_workers=fewer)]
    if cuda:
        found.append(replace(base, pin_memory=not base.pin_memory))
    if persistent and base.persistent_workers:
        found.append(replace(base, persistent_workers=False))
    if saving:
        found = [settings for settings in found if cost(settings) < cost(base)]
    return list(dict.fromkeys(found))
