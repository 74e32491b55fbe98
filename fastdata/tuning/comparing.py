"""Settings compared by their supply: turns in random order, within the time and the memory.

Settings that are compared are measured in turns, in random order within a round, so that
whatever the machine does meanwhile meets all of them.  Each turn makes a loader anew.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace

from fastdata.engine.memory import available_bytes
from fastdata.tuning.budget import Budget
from fastdata.tuning.choice import ruled_out
from fastdata.tuning.fitting import need_of, refusal
from fastdata.tuning.measuring import Windows
from fastdata.tuning.plan import primed_seconds, turn_seconds
from fastdata.tuning.runner import Runner, TrialFailedError
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.subject import Facts
from fastdata.tuning.turns import Turns

__all__ = ["ROUNDS", "Comparison"]

ROUNDS = 3
WINDOWS_A_TURN = 3
"""Three of three: nine windows, whose interval leaves out the best and the worst."""

WARM_SHARE = 0.1
"""Of the time, for reading the data once."""


class Comparison:
    """Has settings measured, where there is time and memory for them.

    Parameters
    ----------
    runner : Runner
        Makes loaders.
    facts : Facts
    budget : Budget
    trial_seconds : float
        After which a turn is given up.
    say : callable
        Told in words what is being done.
    memory_bytes, shm_bytes : callable
        Free bytes of memory and of ``/dev/shm``.

    Attributes
    ----------
    turns : Turns
        What was measured.
    """

    def __init__(
        self,
        runner: Runner,
        facts: Facts,
        budget: Budget,
        *,
        trial_seconds: float,
        say: Callable[[str], None],
        memory_bytes: Callable[[], int] = available_bytes,
        shm_bytes: Callable[[], int] | None = None,
    ) -> None:
        self.turns = Turns(facts)
        self._runner, self._facts, self._budget = runner, facts, budget
        self._trial_seconds = trial_seconds
        self._say = say
        self._memory_bytes = memory_bytes
        self._shm_bytes = shm_bytes or _free_shm
        self._random = random.Random(0)

    def warm(self, workers: int) -> str:
        """Have data read that is not in memory; return "warm", "cold", or "" where nobody knows.

        With so many workers, or as many as there is memory for.
        """
        self._say("reading the data once")
        seconds = WARM_SHARE * self._budget.seconds
        reader = replace(self._facts.base, num_workers=workers, pin_memory=False)
        while self._refusal(reader) and reader.num_workers > 1:
            reader = replace(reader, num_workers=reader.num_workers // 2)
        # A batch that takes longer than there is time says nothing.
        possible = not self._refusal(reader) and self._facts.batch_seconds <= seconds
        try:
            found: str = self._runner.call(
                "warm", reader if possible else None, seconds, seconds=self._trial_seconds
            )
        except TrialFailedError:  # the trials say what is wrong
            return ""
        return found

    def measure(
        self, candidates: Iterable[Settings], demand: float | None, rounds: int = ROUNDS
    ) -> bool:
        """Measure settings in turns; return whether any of them has a rate.

        One that has been measured has no further turn where it cannot be chosen any more.

        Parameters
        ----------
        candidates : iterable of Settings
        demand : float or None
            Batches a second that are wanted; None: the most there is.
        rounds : int
        """
        turns = self.turns
        wanted = [one for one in dict.fromkeys(candidates) if one not in turns.failures]
        for turn in range(rounds):
            self._random.shuffle(wanted)
            out = ruled_out(turns.rates, demand)
            due = [one for one in wanted if one not in turns.failures and one not in out]
            if not turn and sum(map(self._expected, due)) > self._budget.for_turns:
                due.sort(key=self._expected)  # where not all have a turn, as many as can be
            for settings in due:
                if turns and self._expected(settings) > self._budget.for_turns:
                    if not turn and not turns.known(settings):
                        turns.untried[settings] = None
                    continue
                self._turn(settings)
        return any(one in turns and one not in turns.failures for one in wanted)

    def _expected(self, settings: Settings) -> float:
        """Return about how long a turn will take."""
        known = self.turns.seconds(settings)
        if known is not None:
            return known
        # No turn is shorter than the shortest so far: each makes a loader, and has windows.
        return max(turn_seconds(settings, self._facts.batch_seconds), self.turns.least_seconds)

    def _turn(self, settings: Settings) -> None:
        self._say(str(settings))
        self.turns.untried.pop(settings, None)
        if why := self._refusal(settings):
            self.turns.failures[settings] = why
            return
        budget, began = self._budget, self._budget.used
        # However slow batches are, there is an answer before it is given up.
        most = min(self._trial_seconds / 2, budget.for_turns)
        most -= primed_seconds(settings, self._facts.batch_seconds)
        windows = Windows(WINDOWS_A_TURN, budget.window_seconds, most)
        try:
            found = self._runner.call("supply", settings, windows, seconds=self._trial_seconds)
        except TrialFailedError as error:
            self.turns.failures[settings] = str(error)
        else:
            self.turns.add(settings, found, budget.used - began)

    def _refusal(self, settings: Settings) -> str:
        """Return why settings would not fit into memory; "" where they do."""
        need = need_of(settings, self._facts.batch_bytes, to_device=self._facts.to_device)
        return refusal(need, available_bytes=self._memory_bytes(), shm_bytes=self._shm_bytes())


def _free_shm() -> int:
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:  # there is none
        return 1 << 62
