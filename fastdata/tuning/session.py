"""What is measured when: demand, then one round of settings after another, while there is time.

Settings that are compared are measured in turns, in random order within a round, so that
whatever the machine does meanwhile meets all of them.  Each turn makes a loader anew.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median

from fastdata.engine.memory import available_bytes
from fastdata.tuning.choice import (
    CEILING,
    Measured,
    best,
    fed,
    plateau,
    ruled_out,
    same,
    sufficient,
)
from fastdata.tuning.fitting import ahead_of, need_of, refusal
from fastdata.tuning.measuring import LEAST_BATCHES, Supplied, Windows
from fastdata.tuning.results import Demand, Rate, Trial
from fastdata.tuning.runner import Runner, TrialFailedError
from fastdata.tuning.settings import Settings
from fastdata.tuning.statistics import rate_of
from fastdata.tuning.subject import Facts
from fastdata.tuning.sweep import between, first_counts, grows, variants

__all__ = ["Budget", "Session"]

ROUNDS = 3
WINDOWS_A_TURN = 3
"""Three of three: nine windows, whose interval leaves out the best and the worst."""

MOST_TURNINGS = 4
"""How often the choice may change by what is found around it."""

STEP_WINDOWS = 7
TRAINING_WINDOWS = 5

COLD_BYTES_PER_SECOND = 1e6
"""Reading from a disk so much says that data is not in memory."""


class Budget:
    """The time there is.

    Parameters
    ----------
    seconds : float
    clock : callable
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._began = self._clock()

    @property
    def used(self) -> float:
        """Seconds that are over."""
        return self._clock() - self._began

    def count_at_most(self, share: float) -> None:
        """Count no more than a share as used, where something took longer than it should."""
        self._began = max(self._began, self._clock() - share * self.seconds)

    def over(self, share: float = 1.0) -> bool:
        """Return whether a share of the time is over."""
        return self.used >= share * self.seconds

    @property
    def window_seconds(self) -> float:
        """How long a window is: about 240 are measured."""
        return min(max(self.seconds / 240, 0.05), 1.0)


class Session:
    """Measures, and remembers what was measured.

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
    shm_bytes : callable
        Free bytes of ``/dev/shm``.

    Attributes
    ----------
    demand : Demand or None
    notes : list of str
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
        memory_bytes: Callable[[], int] = available_bytes,
        shm_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.facts = facts
        self.demand: Demand | None = None
        self.notes: list[str] = []
        self.trained: dict[Settings, Rate] = {}
        self._runner, self._steps = runner, steps
        self._budget = budget
        self._trial_seconds = trial_seconds
        self._say = say
        self._memory_bytes = memory_bytes
        self._shm_bytes = shm_bytes or _free_shm
        self._random = random.Random(0)
        self._turns: dict[Settings, list[Supplied]] = {}
        self._failures: dict[Settings, str] = {}
        self._untried: dict[Settings, None] = {}

    # -- what is known ------------------------------------------------------------------

    @property
    def rate(self) -> float | None:
        """Batches a second that the step takes; None without one."""
        return None if self.demand is None else self.demand.rate.median

    @property
    def rates(self) -> list[Measured]:
        """Settings that have a rate, the cheapest first."""
        found = [
            (settings, rate_of([rate for turn in turns for rate in turn.rates]))
            for settings, turns in self._turns.items()
            if settings not in self._failures
        ]
        return sorted(found, key=lambda one: one[0].cost)

    @property
    def reads_storage(self) -> bool:
        """Whether data was read from disks in the measured turns."""
        seen = [turn.storage_bytes_per_second for turns in self._turns.values() for turn in turns]
        return bool(seen) and median(seen) > COLD_BYTES_PER_SECOND

    @property
    def cut_short(self) -> bool:
        """Whether the time was up before all numbers of workers had a turn."""
        tried = {settings.num_workers for settings in self._turns}
        return any(settings.num_workers not in tried for settings in self._untried)

    def trials(self) -> tuple[Trial, ...]:
        """Return a row for all settings that were tried, in the order of their cost."""
        rates = dict(self.rates)
        rows = []
        for settings in {**self._turns, **self._failures}:
            need = need_of(settings, self.facts.batch_bytes, to_device=self.facts.to_device)
            starts = [turn.start_seconds for turn in self._turns.get(settings, [])]
            rows.append(
                Trial(
                    settings,
                    rates.get(settings),
                    self._failures.get(settings, ""),
                    median(starts) if starts else 0.0,
                    need.memory_bytes,
                    need.shm_bytes,
                )
            )
        return tuple(sorted(rows, key=lambda row: row.settings.cost))

    # -- measuring ----------------------------------------------------------------------

    def measure_demand(self, what: str) -> None:
        """Find out how fast the step is.

        Raises
        ------
        TrialFailedError
            If it fails.
        """
        self._say(f"how long {what} takes")
        seconds = 0.15 * self._budget.seconds
        windows = Windows(STEP_WINDOWS, 2 * self._budget.window_seconds)
        # A step may be slow; one window there always is.
        limit = max(self._trial_seconds, self._budget.seconds)
        rates = self._steps.call("demand", windows, seconds, seconds=limit)
        if len(rates) < 3:
            self.notes.append(
                f"the step was measured {len(rates)} times only, as it is so slow: give it more "
                "seconds"
            )
        self.demand = Demand(rate_of(rates), what)
        self._budget.count_at_most(0.3)  # a slow step leaves the settings their time

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
        facts, base = self.facts, self.facts.base
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
            found = self.choice()
            if found is None or self._budget.over(0.8):
                break
            saving = self._enough()
            # What costs less than enough, or gives more than the most there is so far.
            around = found if saving else best(self.rates)[0]
            others = variants(
                around,
                saving=saving,
                methods=methods if base.backend == "cpu" else (base.worker_method,),
                cuda=facts.cuda,
                dali=facts.dali,
                persistent=saving and base.backend == "torch" and facts.batches is not None,
            )
            new = [one for one in others if one not in self._turns and one not in self._failures]
            # With the one they are compared to, which time may have changed.
            if not new or not self.measure([around, *new]) or self.choice() == found:
                break
        if self._untried:
            self.notes.append(
                f"the time was up: not tried were {'; '.join(map(str, self._untried))}"
            )

    def measure(self, candidates: Iterable[Settings], rounds: int = ROUNDS) -> bool:
        """Measure settings in turns; return whether any of them has a rate.

        One that has been measured has no further turn where it cannot be chosen any more.
        """
        wanted = [one for one in dict.fromkeys(candidates) if one not in self._failures]
        for turn in range(rounds):
            self._random.shuffle(wanted)
            out = ruled_out(self.rates, self.rate)
            for settings in wanted:
                if settings in self._failures or settings in out:
                    continue
                if self._budget.over(0.85) and self._turns:
                    if not turn and settings not in self._turns:
                        self._untried[settings] = None
                    continue
                self._turn(settings)
        return any(one in self._turns and one not in self._failures for one in wanted)

    def _turn(self, settings: Settings) -> None:
        self._say(str(settings))
        self._untried.pop(settings, None)
        need = need_of(settings, self.facts.batch_bytes, to_device=self.facts.to_device)
        why = refusal(need, available_bytes=self._memory_bytes(), shm_bytes=self._shm_bytes())
        if why:
            self._failures[settings] = why
            return
        windows = Windows(WINDOWS_A_TURN, self._budget.window_seconds)
        try:
            found = self._runner.call("supply", settings, windows, seconds=self._trial_seconds)
        except TrialFailedError as error:
            self._failures[settings] = str(error)
        else:
            self._turns.setdefault(settings, []).append(found)

    def train(self, settings: Settings) -> Rate | None:
        """Run the step with batches as these settings give them; None if that fails."""
        assert self.rate is not None, "there is a step"
        self._say(f"training with {settings}")
        seconds = min(max(self._budget.seconds / 60, 0.2), 2.0)
        expected = fed(settings, dict(self.rates)[settings].median, self.rate)
        # Of a stock loader with many workers, whose batches come in waves, several of each.
        waves = max(LEAST_BATCHES, seconds * expected) + settings.num_workers
        count = ahead_of(settings) + 3 + TRAINING_WINDOWS * waves
        limit = self._trial_seconds + 2 * count / expected
        windows = Windows(TRAINING_WINDOWS, seconds)
        try:
            rates = self._steps.call("train", settings, windows, expected, seconds=limit)
        except TrialFailedError as error:
            self._failures[settings] = f"with the step: {error}"
            return None
        self.trained[settings] = rate_of(rates)
        return self.trained[settings]

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
            if self.trained and self._budget.over():
                break
            rate = self.train(settings)
            if rate is not None and rate.median >= CEILING * self.rate:
                return settings
        if not self.trained:
            return self.choice()
        top = max(self.trained.values(), key=lambda rate: rate.median)
        alike = [one for one, rate in self.trained.items() if same(rate, top)]
        return min(alike, key=lambda one: one.cost)

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
        start = median(turn.start_seconds for turn in self._turns[settings])
        return start <= (1 - CEILING) * batches / self.rate


def _with(base: Settings, count: int) -> Settings:
    return replace(base, num_workers=count)


def _free_shm() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:  # there is none
        return 1 << 62
