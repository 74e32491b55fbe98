"""Advice that is tried: a script as it is, and with advice followed, in turns.

Advice that changes the running script is switched on and off inside one process.  Advice in the
environment needs pairs of fresh processes.  A process, or a pair, yields one number for each row,
and `fastdata.measuring.statistics` judges the numbers of all rows.

All processes have the same thresholds of malloc (`KEPT`).  Without them, processes of the same
script differ by 7 to 30%: one gives blocks of memory back to the system, and another keeps them.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from fastdata.doctor.advice.processor import KEPT
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Ran, Request, Watched
from fastdata.doctor.numerics import compare_dumps
from fastdata.doctor.processes import ScriptFailedError, ScriptProcess
from fastdata.doctor.results import Environment, Follow
from fastdata.doctor.rows import ITSELF, Rows, TriedRow
from fastdata.doctor.running import (
    MOST_STEP_SECONDS,
    START_SECONDS,
    TIME_IS_UP,
    WINDOW_SECONDS,
    Running,
    TrialsEndedError,
    ends_at,
)
from fastdata.doctor.script import Script, error_line
from fastdata.measuring.cores import CoresOfOthers
from fastdata.measuring.noise import Clock, clock_for, noise_of, too_noisy
from fastdata.measuring.statistics import LEAST_STARTS
from fastdata.measuring.turns import ROUNDS, ROWS_PER_BASELINE, plan, ratios_of
from fastdata.processes.resources import available_cores

__all__ = ["THREADS", "Trials"]

UNTIMED_STEPS = 2
"""Steps after each switch; one where the timed steps of a block are one or two."""

TURNS_SECONDS = 30.0
"""All rounds of a process together take at most this long, unless they are few."""

FEW_ROUNDS, LEAST_ROUNDS = 5, 3
"""Rounds of a process if steps take long, and if the time is short."""

NOISE_SECONDS = 5.0
"""For a first comparison of the script with itself."""

MOST_STARTS = 4
"""Processes for rows whose verdict stays open, and for gains that are not `SHARP`."""

PAIRS_SHARE = 0.4
"""Share of the time left that pairs of processes may take before rows are switched."""

FIRST_STEP_SHARE = 0.3
"""Share of the time left that the first step of a row may take, as for compiling."""

COMPILED, COMPILING_SECONDS = {"D05", "D23"}, 30.0
"""Advice whose first step compiles the model: it is not begun with less time than this."""

THREADS = "D17"
"""Processor time does not show what more threads gain."""

WATCH_SHARE = 0.4
"""Share of the time after which a script is not watched any longer."""


class _RowFailedError(Exception):
    """The script fails while a row is followed."""

    def __init__(self, row: TriedRow, why: str) -> None:
        super().__init__(why)
        self.row, self.why = row, why


@dataclass
class Trials:
    """Runs trials of a script; a context, which ends the processes that stay between trials.

    After `deadline` nothing is begun, and at `until` everything ends: both by `time.monotonic`.
    """

    script: Script
    scratch: Path
    deadline: float = math.inf
    until: float = math.inf
    progress: Callable[[str], object] = lambda _: None
    unprotected: bool = False
    watched: Watched = field(default_factory=Watched)
    clock: Clock = "wall"
    _base: dict[Phase, Running] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _count: int = 0
    _start_seconds: float = 0.0
    """How long a process took to its first steps, at most."""
    _order: random.Random = field(default_factory=lambda: random.Random(0))
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.rows: dict[Phase, Rows] = {
            phase: Rows(self.scratch) for phase in ("train", "evaluate")
        }

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def seconds_left(self) -> float:
        """Seconds until nothing is begun any more."""
        return self.deadline - time.monotonic()

    def watch(self) -> Watched:
        """Run the script until its steps were seen.

        A validation is seen too, if it comes soon.  If the script sets variables that torch reads
        as it is imported, they are set from the beginning from now on: torch comes before scripts.
        """
        seconds = WATCH_SHARE * self.seconds_left
        with self._start(pinned=False, watch_only=True, seconds=seconds) as process:
            self.watched = process.watched_to_end(min(START_SECONDS, self._most_seconds))
        if self._environment or not self.watched.environment:
            return self.watched
        self._environment = self.watched.environment
        return self.watch()

    def base(self, phase: Phase) -> Running:
        """Return the script as it is, running.

        Each process begins with a dump: it keeps the first state, which is the same in all.
        """
        if phase not in self._base:
            running = self._running(self._stack, phase)
            if phase == "train":
                rows = self.rows[phase]
                first, again = rows.dump_of(ITSELF), rows.dump_of(ITSELF, "again")
                if not first.exists():
                    running.dump(first)
                    running.dump(again, seed=1)
                    rows.is_random = compare_dumps(first, again, first).numerics != Numerics.EQUAL
                running.dump(again)
                rows.repeatable &= compare_dumps(first, again, first).numerics == Numerics.EQUAL
            running.warm_up()
            self._base[phase] = running
        return self._base[phase]

    def compare(self, rows: Mapping[Follow, Environment], phase: Phase = "train") -> None:
        """Compare the script that follows advice with the script as it is, for each row.

        `rows` have their environment, the most wanted first.  `self.rows` has the results, also if
        this ends by an error or an interruption.  Some rows are left out if the time is short.

        Raises `ScriptFailedError` if the script fails without advice, and `TrialsEndedError` if the
        time is up or the machine is too noisy.
        """
        known, itself = self.rows[phase], self.rows[phase].itself
        made, base = known.add(rows), self.base(phase)
        if not itself.step_seconds:
            itself.step_seconds, itself.peak_bytes = base.step_seconds, base.peak_bytes
            self._check_noise(base, itself)
        switched = [row for row in made if not row.environment]
        pairs = [row for row in made if row.environment]
        first = self._seconds_of_pairs(pairs) < PAIRS_SHARE * self.seconds_left or not switched
        for start in range(MOST_STARTS):
            switched = known.still_open(switched, start, "live")
            pairs = known.still_open(pairs, start, "start")
            if not switched and not pairs:
                break
            if start and not self._renew(phase):
                break
            if first:
                self._run_pairs(pairs, phase)
            if switched:
                switched = self._run_switched(switched, phase, start, pairs if first else [])
            if not first:
                self._run_pairs(pairs, phase)
            if start + 1 >= LEAST_STARTS["live"]:
                self._look_at_numerics(phase)

    # -- advice that is switched ----------------------------------------------------------------

    def _run_switched(
        self, rows: list[TriedRow], phase: Phase, start: int, pairs: Sequence[TriedRow]
    ) -> list[TriedRow]:
        """Switch rows on and off in one process; return the rows that ran."""
        more = max(0, LEAST_STARTS["live"] - start - 1)
        reserved = more * self._start_seconds + self._seconds_of_pairs(pairs, start + 1)
        if FIRST_STEP_SHARE * self.seconds_left < COMPILING_SECONDS:
            rows = [row for row in rows if row.step_seconds or not COMPILED & {*row.follow}]
        while rows:
            try:
                self._first_steps(rows, phase)
                seconds = (self.seconds_left - reserved) / (1 + more)
                rows, rounds = self._that_fit(rows, seconds)
                self._run_turns(rows, phase, rounds, time.monotonic() + seconds)
                break
            except _RowFailedError as error:
                error.row.why = error.why
                rows = [row for row in rows if not row.why]
                if not self._renew(phase):
                    break
        return rows

    def _first_steps(self, rows: Sequence[TriedRow], phase: Phase) -> None:
        """Follow each row for some steps; note its numbers, its memory, and the time of a step."""
        base = self.base(phase)
        for row in rows:
            if row.step_seconds or row.why:
                continue
            self.progress(f"first steps with {row}")
            took = 0.0
            with self._blame(row):
                limit = FIRST_STEP_SHARE * min(self.seconds_left, START_SECONDS / FIRST_STEP_SHARE)
                if phase == "train":
                    row.dump = self.rows[phase].dump_of(row.follow)
                    took = base.dump(row.dump, row.follow, max(MOST_STEP_SECONDS / 10, limit))
                base.switch(row.follow, forget_peak=True)
                took = max(took, base.warm_up())
            row.step_seconds, row.peak_bytes = base.step_seconds, base.peak_bytes
            row.warm_up_seconds = max(0.0, took - row.step_seconds)

    def _that_fit(self, rows: Sequence[TriedRow], seconds: float) -> tuple[list[TriedRow], int]:
        """Return the rows and the rounds that fit into the time, the most wanted rows first."""
        kept = list(rows)
        while kept:
            rounds = min(self._rounds(kept), int(seconds / self._seconds_of_round(kept)))
            if rounds >= LEAST_ROUNDS or (len(kept) == 1 and rounds):
                return kept, rounds
            kept.pop()
        raise TrialsEndedError(TIME_IS_UP)

    def _run_turns(self, rows: Sequence[TriedRow], phase: Phase, rounds: int, until: float) -> None:
        """Give each row the number of one process; fewer rounds if switching is slow."""
        base, itself = self.base(phase), self.rows[phase].itself
        order = list(plan([itself, *rows], None, self._order, rounds))
        ran: list[Ran] = []
        others = CoresOfOthers()
        try:
            a_round, began = len(order) // rounds, time.monotonic()
            for number, row in enumerate(order):
                done, block = divmod(number, a_round)
                now = time.monotonic()
                if done >= LEAST_ROUNDS and block == 1 and now + (now - began) / done > until:
                    break
                self.progress(f"block {number + 1} of {len(order)}: {row or itself}")
                ran.append(self._block(base, row or itself))
        except BaseException:  # its complete rounds count
            with contextlib.suppress(TrialsEndedError):
                self._add(order, ran, others)
            raise
        self._add(order, ran, others)

    def _add(
        self, order: Sequence[TriedRow | None], ran: Sequence[Ran], others: CoresOfOthers
    ) -> None:
        """Add the numbers of one process to its rows; of one that ended early if it has enough."""
        ratios = self._ratios(order, ran, others)
        for row, numbers in ratios.items():
            unknown = self.clock == "cpu" and THREADS in row.follow
            if not unknown and (len(numbers) >= LEAST_ROUNDS or len(ran) == len(order)):
                row.numbers.append(statistics.median(numbers))

    def _ratios(
        self,
        order: Sequence[TriedRow | None],
        ran: Sequence[Ran],
        others: CoresOfOthers,
        rounds: int = 0,
    ) -> dict[TriedRow, list[float]]:
        """Return the ratios of each row; end trials where so many `rounds` would say nothing."""
        others.end()
        clock = clock_for(
            others.cores,
            available_cores(),
            threads=self.watched.threads,
            on_gpu=self.watched.device == "cuda",
        )
        seconds = [one.step_seconds(clock or "wall") for one in ran]
        ratios = {row: every for row, every in ratios_of(order, seconds, None).items() if row}
        of_itself = next((every for row, every in ratios.items() if row.follow == ITSELF), [])
        noise = noise_of(of_itself, rounds) if len(of_itself) >= LEAST_ROUNDS else 0.0
        if why := too_noisy(noise, clock, others.cores, available_cores()):
            raise TrialsEndedError(why)
        if clock == "cpu":
            self.clock = clock
        return ratios

    def _block(self, base: Running, row: TriedRow) -> Ran:
        with self._blame(row):
            base.switch(row.follow)
            base.run(self._untimed_steps(row.step_seconds))
            return base.run(self._timed_steps(row.step_seconds))

    def _check_noise(self, base: Running, itself: TriedRow) -> None:
        """End trials where the script differs from itself too much for any verdict."""
        self.progress("looking how busy the machine is")
        rounds = self._rounds([], NOISE_SECONDS, LEAST_ROUNDS)
        order = [None, itself] * rounds + [None]
        others = CoresOfOthers()
        ran = [self._block(base, itself) for _ in order]
        self._ratios(order, ran, others, self._rounds([]))

    # -- advice in the environment --------------------------------------------------------------

    def _run_pairs(self, rows: Sequence[TriedRow], phase: Phase) -> None:
        """Start a process with the environment of each row, and compare it with the base."""
        for row in rows:
            if self._seconds_of_pairs([row], LEAST_STARTS["start"] - 1) > self.seconds_left:
                return
            self.progress(f"a process with {row}")
            try:
                with ExitStack() as stack:
                    self._run_pair(row, phase, self._running(stack, phase, row))
            except ScriptFailedError as error:
                if self.base(phase).process.has_ended:
                    raise
                row.why = error_line(str(error))

    def _run_pair(self, row: TriedRow, phase: Phase, other: Running) -> None:
        """Give a row the number of one pair of processes."""
        base, itself = self.base(phase), self.rows[phase].itself
        base.switch(ITSELF)
        other.warm_up()
        row.step_seconds, row.peak_bytes = other.step_seconds, other.peak_bytes
        order = list(plan([row], None, self._order, self._rounds([])))
        others = CoresOfOthers()
        ran = []
        for one in order:
            running, of_row = (base, itself) if one is None else (other, row)
            running.run(1)
            ran.append(running.run(self._timed_steps(of_row.step_seconds)))
        gain = statistics.median(self._ratios(order, ran, others)[row])
        row.numbers.append(-gain if row.is_allocator else gain)
        if row.is_allocator:
            row.step_seconds, row.peak_bytes = itself.step_seconds, itself.peak_bytes

    # -- what both have -------------------------------------------------------------------------

    def _seconds_of_round(self, rows: Sequence[TriedRow]) -> float:
        """Return how long a round takes: rows, the script itself, and the baseline blocks."""
        step = max((row.step_seconds for row in rows), default=0.0) or self.watched.step_seconds
        block = (self._timed_steps(step) + self._untimed_steps(step)) * step
        return max(WINDOW_SECONDS["cpu"], block) * (len(rows) + 2 + len(rows) // ROWS_PER_BASELINE)

    def _rounds(
        self, rows: Sequence[TriedRow], seconds: float = TURNS_SECONDS, least: int = FEW_ROUNDS
    ) -> int:
        """Return how many rounds a process has if no time is short."""
        return min(ROUNDS, max(least, int(seconds / self._seconds_of_round(rows))))

    def _timed_steps(self, step_seconds: float) -> int:
        """Return the timed steps of a block."""
        window = WINDOW_SECONDS[self.watched.device]
        return max(1, math.ceil(window / step_seconds)) if step_seconds else 1

    def _untimed_steps(self, step_seconds: float) -> int:
        return UNTIMED_STEPS if self._timed_steps(step_seconds) > 2 else 1

    def _seconds_of_pairs(self, rows: Sequence[TriedRow], starts: int = 0) -> float:
        """Estimate the time of all remaining pairs."""
        more = max(0, LEAST_STARTS["start"] - starts)
        one = 2 * self._start_seconds + (self._rounds([]) + 1) * self._seconds_of_round([])
        return more * one * len(rows)

    @property
    def _most_seconds(self) -> float:
        return self.until - time.monotonic()

    @contextlib.contextmanager
    def _blame(self, row: TriedRow) -> Iterator[None]:
        """Say that it is this row that the script fails with."""
        try:
            yield
        except ScriptFailedError as error:
            if row.follow == ITSELF:
                raise
            why = error_line(str(error))
            late = "; --seconds gives more" if "made no step within" in why else ""
            raise _RowFailedError(row, why + late) from error

    # -- processes ------------------------------------------------------------------------------

    def _start(
        self, *, pinned: bool = True, environment: Environment = (), **request: object
    ) -> ScriptProcess:
        self._count += 1
        scratch = str(self.scratch / f"run-{self._count}")
        request["unprotected"] = self.unprotected
        made = Request(self.script, scratch, **request)  # type: ignore[arg-type]
        kept = [pair for pair in KEPT if pinned and pair[0] not in os.environ]
        return ScriptProcess(made, {**dict(kept), **self._environment, **dict(environment)})

    def _running(
        self, stack: ExitStack, phase: Phase, row: TriedRow | None = None, **request: object
    ) -> Running:
        began = time.monotonic()
        pinned = row is None or not row.is_allocator
        environment = row.environment if row is not None and pinned else ()
        process = stack.enter_context(
            self._start(pinned=pinned, environment=environment, phase=phase, **request)
        )
        with ends_at(self.until):
            process.watched(min(START_SECONDS, self._most_seconds))
        self._start_seconds = max(self._start_seconds, time.monotonic() - began)
        return Running(process, self.until)

    def _renew(self, phase: Phase) -> bool:
        """Have the script as it is in another process from now on, if there is time for one."""
        if self._start_seconds > self.seconds_left:
            return False
        self._base.pop(phase).process.close()
        self.base(phase)
        return True

    def _look_at_numerics(self, phase: Phase) -> None:
        """Have a step in float64 if a gain needs it."""
        rows = self.rows[phase]
        if self._start_seconds > self.seconds_left or not rows.needs_exact:
            return
        self.progress("a step in float64")
        rows.exact.touch()  # an empty file says that it is not known
        with contextlib.suppress(ScriptFailedError), ExitStack() as stack:
            self._running(stack, phase, in_float64=True).dump(rows.exact)
