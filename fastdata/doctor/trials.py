"""Advice that is tried: the script as it is, and with the advice followed, in turns.

Each is a process of its own, which began with the same weights, batches and random numbers.  One
runs some steps while the other waits.  A pair of processes yields one number: the median gain of
its rounds.  The same program is faster in one process than in another, as memory lies otherwise
there, so `fastdata.measuring.statistics` judges the numbers of several pairs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

from fastdata.doctor.advice import advice_by_id
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Dump, Ran, Request, Run, Watched
from fastdata.doctor.numerics import Compared, compare_dumps
from fastdata.doctor.processes import ScriptFailedError, ScriptProcess
from fastdata.doctor.script import Script
from fastdata.doctor.watching import EventKind
from fastdata.measuring.statistics import LEAST_STARTS, Estimate, judge
from fastdata.measuring.turns import ROUNDS, gains_of, plan
from fastdata.measuring.windows import Rate

__all__ = [
    "BatchSize",
    "Running",
    "Trial",
    "Trials",
    "Verdict",
    "judged",
]

WINDOW_SECONDS = 0.5
PAIRS = LEAST_STARTS["start"]
"""Pairs of processes for a gain; the first one may show that there is none."""

MOST_WARM_UPS = 6
STABLE = 0.1
"""Windows that differ by less are warm."""

START_SECONDS = 600.0
"""Until a script has made its first steps: data are downloaded, models are made."""

MOST_STEP_SECONDS = 120.0

Verdict: TypeAlias = Literal["gain", "none", "harm", "failed"]


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of following some advice.

    `gain` is the time of a step without it over that with it: the mean of all pairs of processes,
    with its 95% interval, and each pair's own.
    """

    follow: tuple[str, ...]
    gain: Rate | None = None
    verdict: Verdict = "none"
    why: str = ""
    """Why there is no gain, where it has failed."""
    numerics: Numerics | None = None
    numerics_error: float | None = None
    """How far gradients are from those in float64, relative to these."""
    warm_up_seconds: float = 0.0
    """That the first step took longer than the others: compiling, mostly."""
    peak_bytes: int = 0
    base_peak_bytes: int = 0
    """Of the script as it is."""
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchSize:
    """How fast a script is with batches of so many samples, and how much memory it takes.

    The most that the process had resident; on a GPU, that torch had allocated there.
    """

    samples: int
    samples_per_second: float = 0.0
    peak_bytes: int = 0
    reserved_bytes: int = 0
    """Of a GPU, by torch: what is more than the peak is cut into pieces that are too small."""
    retries: int = 0
    """How often torch had to give its unused memory of a GPU back to find a piece."""
    why: str = ""
    """Why there are no figures: it does not fit into memory, or failed."""


def judged(trials: Sequence[Trial], noise: Rate) -> list[Trial]:
    """Return trials with their verdicts and intervals, judged together.

    `noise` compares the script with itself, and is one more row.
    """
    rows = {n: _numbers(trial.gain) for n, trial in enumerate(trials) if trial.gain is not None}
    found = judge({}, {**rows, -1: _numbers(noise)})
    verdicts: dict[str, Verdict] = {"gain": "gain", "slower": "harm"}
    return [
        replace(
            trial,
            verdict=verdicts.get(found[n].verdict, "none"),
            gain=_rate(found[n].gain, rows[n]),
        )
        if n in rows
        else replace(trial, verdict="failed")
        for n, trial in enumerate(trials)
    ]


def _numbers(rate: Rate) -> list[float]:
    return [math.log(gain) for gain in rate.windows]


def _rate(gain: Estimate, numbers: Sequence[float]) -> Rate:
    return Rate(gain.value, gain.low, gain.high, tuple(math.exp(number) for number in numbers))


@dataclass
class Running:
    """A process that waits at a step, and what is known of it."""

    process: ScriptProcess
    first_seconds: float = 0.0
    """Of its first step, where that has been made."""
    step_seconds: float = 0.0
    warm_up_seconds: float = 0.0
    last: Ran | None = None

    def at_most(self, part: EventKind | None) -> float | None:
        """Return how many times as fast a step is that does a part of it in no time.

        None where that part was not timed, or another processor does the work.
        """
        if part is None or self.last is None or self.last.reserved_bytes:
            return None
        share = self.last.part_seconds.get(part, 0.0) / self.last.seconds
        return 1 / (1 - share) if 0 < share < 1 else None

    @property
    def peak_bytes(self) -> int:
        """The most memory that it has taken: resident, or of a GPU."""
        return (self.last.reserved_bytes or self.last.peak_bytes) if self.last else 0

    def run(self, steps: int) -> float:
        """Run steps, and return the seconds that one took."""
        limit = START_SECONDS + steps * MOST_STEP_SECONDS
        ran = self.process.ask(Run(steps), limit)
        self.last = ran
        return ran.seconds / steps

    def warm_up(self) -> None:
        """Run until a step takes as long as the one before."""
        first = before = self.run(1)
        for _ in range(MOST_WARM_UPS):
            steps = max(1, round(WINDOW_SECONDS / 2 / before))
            now = self.run(steps)
            stable = abs(now - before) < STABLE * before
            before = now
            if stable:
                break
        self.step_seconds = before
        self.warm_up_seconds = max(0.0, first - before, self.first_seconds - before)


@dataclass
class Trials:
    """Runs trials of a script; a context, which ends the processes that stay between trials."""

    script: Script
    scratch: Path
    rounds: int = ROUNDS
    each_round: Callable[[], object] = lambda: None
    """Called before each round: what else is to be measured in turns with these."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _base: dict[Phase, Running] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _tried: dict[Phase, dict[tuple[str, ...], list[float]]] = field(default_factory=dict)
    """The numbers of all rows so far, which tell how much pairs of processes differ."""
    _count: int = 0
    _order: random.Random = field(default_factory=lambda: random.Random(0))

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def watch(self) -> Watched:
        """Run the script until its steps were seen.

        A validation is seen too, if it comes soon.  If the script sets variables that torch reads
        as it is imported, they are set from the beginning from now on: torch comes before scripts.
        """
        with self._start(watch_only=True) as process:
            watched = process.watched_to_end(START_SECONDS)
        if self._environment or not watched.environment:
            return watched
        self._environment = watched.environment
        return self.watch()

    def base(self, phase: Phase) -> Running:
        """Return the script as it is, running; its first step's gradients are kept."""
        if phase not in self._base:
            running = self._running(self._stack, (), phase)
            running.warm_up()
            self._base[phase] = running
        return self._base[phase]

    def _renewed(self, phase: Phase) -> Running:
        """Return the script as it is, in another process."""
        self._base.pop(phase).process.close()
        return self.base(phase)

    def noise(self, phase: Phase) -> Trial:
        """Compare the script with itself."""
        return self.trial((), phase)

    def trial(
        self,
        follow: tuple[str, ...],
        phase: Phase = "train",
        environment: tuple[tuple[str, str], ...] = (),
    ) -> Trial:
        """Compare the script with one that follows some advice.

        If that one fails, or is ended, the trial has the reason.
        """
        base = self.base(phase)
        try:
            with ExitStack() as stack:
                other = self._running(stack, follow, phase, environment)
                other.warm_up()
                numbers = [self._compare(base, other)]
                compared = self._numerics(self._dump(follow))
            tried = {**self._tried.get(phase, {}), follow: numbers}
            if not follow or judge({}, tried)[follow].is_open:
                for _ in range(PAIRS - 1):
                    base = self._renewed(phase)
                    with ExitStack() as stack:
                        fresh = self._running(stack, follow, phase, environment)
                        fresh.warm_up()
                        numbers.append(self._compare(base, fresh))
        except ScriptFailedError as error:
            if base.process.has_ended:
                raise
            return Trial(follow, verdict="failed", why=_last_line(str(error)))
        self._tried[phase] = tried
        return Trial(
            follow,
            _rate(judge({}, tried)[follow].gain, numbers),
            numerics=_at_least_promised(compared.numerics, follow),
            numerics_error=compared.error,
            warm_up_seconds=other.warm_up_seconds,
            peak_bytes=other.peak_bytes,
            base_peak_bytes=base.peak_bytes,
            step_seconds=other.step_seconds,
        )

    def batch_size(self, factor: float) -> BatchSize:
        """Run the script with batches of `factor` times as many samples."""
        base = self.base("train")
        samples = int(base.last.samples * factor) if base.last else 0
        try:
            with ExitStack() as stack:
                other = self._running(stack, (), "train", batch_factor=factor)
                other.warm_up()
                steps = max(1, math.ceil(WINDOW_SECONDS / other.step_seconds))
                seconds = statistics.median(other.run(steps) for _ in range(3))
                assert other.last is not None, "it ran three times"
                ran = other.last
                return BatchSize(
                    ran.samples,
                    ran.samples / seconds,
                    ran.peak_bytes,
                    ran.reserved_bytes,
                    ran.retries,
                )
        except ScriptFailedError as error:
            return BatchSize(samples, why=_last_line(str(error)))

    # -- processes -----------------------------------------------------------------------------

    def _start(
        self, *, environment: tuple[tuple[str, str], ...] = (), **request: object
    ) -> ScriptProcess:
        self._count += 1
        scratch = str(self.scratch / f"run-{self._count}")
        made = Request(self.script, scratch, **request)  # type: ignore[arg-type]
        return ScriptProcess(made, {**self._environment, **dict(environment)})

    def _running(
        self,
        stack: ExitStack,
        follow: tuple[str, ...],
        phase: Phase,
        environment: tuple[tuple[str, str], ...] = (),
        *,
        in_float64: bool = False,
        batch_factor: float = 1.0,
    ) -> Running:
        process = stack.enter_context(
            self._start(
                environment=environment,
                follow=follow,
                phase=phase,
                in_float64=in_float64,
                batch_factor=batch_factor,
            )
        )
        process.watched(START_SECONDS)
        first = 0.0
        if phase == "train" and batch_factor == 1.0:
            path = str(self._dump(follow, in_float64=in_float64))
            first = process.ask(Dump(path), START_SECONDS).seconds  # of compiling, too
        return Running(process, first_seconds=first)

    def _dump(self, follow: tuple[str, ...], *, in_float64: bool = False) -> Path:
        name = "float64" if in_float64 else "+".join(follow) or "base"
        if name == "base" and (self.scratch / "base.pt").exists():
            name = "again"
        return self.scratch / f"{name}.pt"

    # -- measuring -----------------------------------------------------------------------------

    def _compare(self, base: Running, other: Running) -> float:
        """Return the logarithm of the gain of one pair of processes."""
        fastest = min(base.step_seconds, other.step_seconds)
        steps = max(1, math.ceil(WINDOW_SECONDS / fastest))
        blocks = list(plan(["other"], "base", self._order, self.rounds))
        seconds = []
        for block in blocks:
            if block == "base":
                self.each_round()
            seconds.append((base if block == "base" else other).run(steps))
        return gains_of(blocks, seconds, "base")["other"]

    def _numerics(self, other: Path) -> Compared:
        if "train" not in self._base:
            return Compared()
        exact = self._dump((), in_float64=True)
        if not exact.exists():
            try:
                with ExitStack() as stack:
                    self._running(stack, (), "train", in_float64=True)
            except ScriptFailedError as error:
                exact.with_suffix(".txt").write_text(_last_line(str(error)))
                exact.touch()
        return compare_dumps(self.scratch / "base.pt", other, exact)


def _at_least_promised(measured: Numerics | None, follow: tuple[str, ...]) -> Numerics | None:
    """Return the class of numerics; of what lowers the precision, that at least, if at all."""
    promised = max((advice_by_id(id).numerics for id in follow), default=Numerics.EQUAL)
    if measured in (None, Numerics.EQUAL) or promised < Numerics.PRECISION:
        return measured
    return max(measured, promised)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), text).strip()
