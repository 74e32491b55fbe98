"""Advice that is tried: the script as it is, and with the advice followed, in turns.

Each is a process of its own, which began with the same weights, batches and random numbers.  One
runs some steps while the other waits, in a random order; the ratio of the two times is one number,
and the gain is the median of some.  A sign test says whether it is one, which assumes nothing of
how times are distributed.

The same program is faster in one process than in another, as memory lies otherwise there, by a
twentieth and more.  So what looks like a gain, or a harm, is measured in further processes too.
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
from fastdata.measuring.windows import CONFIDENCE, Rate, in_turns, rate_of

__all__ = [
    "BatchSize",
    "Running",
    "Trial",
    "Trials",
    "Verdict",
    "judged",
    "rate_of_pairs",
]

WINDOW_SECONDS = 0.5
LEAST_ROUNDS = 9
"""Of which each has to agree for a gain to be seen among a dozen pieces of advice."""

FRESH_PAIRS, FRESH_ROUNDS = 4, 4
"""Further processes in which a gain is measured, and their rounds."""

STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of Student's distribution, what 97.5% are below, by the number of pairs of processes."""

ACCURACY = 1.03
"""By how much a ratio may be off, as both processes are larger than the script by itself, and so
find less in the processor's caches.

Source: ``scripts/bench/doctor_check.py``, in which programs of many small operations had 2 to 5%
less of a gain by hand; on a processor that nobody else used, 0 to 2%.
"""

DOUBTFUL = 0.05
"""The sign test of the first processes' rounds from which on there is no need of others."""

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

    `gain` is the time of a step without it over that with it: the median, with its 95% interval,
    and every round's.
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

    @property
    def p_value(self) -> float:
        """Of a sign test, that there is neither gain nor harm."""
        return 1.0 if self.gain is None else sign_test(self.gain.windows)


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


def rate_of_pairs(pairs: Sequence[Sequence[float]]) -> Rate:
    """Return the median of the rounds of some pairs of processes, and its 95% interval.

    Rounds of one pair are alike, as its memory lies as it does, so what pairs differ by counts: the
    interval has what as many other pairs come to, 19 times of 20, if the logarithms of the pairs'
    medians are normally distributed.

    Source: G. J. Hahn, W. Q. Meeker, "Statistical Intervals", 1991, chapter 4: prediction interval
    for the mean of a future sample.
    """
    rate = rate_of([ratio for pair in pairs for ratio in pair])
    if len(pairs) < 2:
        return rate
    medians = [math.log(statistics.median(pair)) for pair in pairs]
    mean, count = statistics.mean(medians), len(medians)
    half = STUDENT[count] * statistics.stdev(medians) * math.sqrt(2 / count)
    low, high = min(rate.low, math.exp(mean - half)), max(rate.high, math.exp(mean + half))
    return replace(rate, low=low, high=high)


def sign_test(ratios: Sequence[float]) -> float:
    """Return the p-value that ratios are above 1 as often as below."""
    above, count = sum(ratio > 1 for ratio in ratios), len(ratios)
    tail = sum(math.comb(count, k) for k in range(min(above, count - above) + 1))
    return min(1.0, 2.0 * tail / float(2**count))


def judged(trials: Sequence[Trial], noise: Rate) -> list[Trial]:
    """Return trials with their verdicts, as Holm's correction for several has it.

    What lies within the interval of `noise`, which compares the script with itself, is none, and
    its own interval is at least as wide: nothing is measured better than that.  `ACCURACY` is added
    to it.  One that has 1 in it is none either, however often rounds agree: those of a pair of
    processes do so by themselves.

    Source: S. Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    trials = [_no_surer_than(noise, trial) for trial in trials]
    order = sorted(range(len(trials)), key=lambda n: trials[n].p_value)
    verdicts: dict[int, Verdict] = {}
    rejects = True
    for rank, number in enumerate(order):
        trial = trials[number]
        rejects = rejects and trial.p_value <= (1 - CONFIDENCE) / (len(trials) - rank)
        if trial.gain is None:
            verdicts[number] = "failed"
        elif rejects and trial.gain.low > 1.0 and trial.gain.median > noise.high:
            verdicts[number] = "gain"
        elif rejects and trial.gain.high < 1.0 and trial.gain.median < noise.low:
            verdicts[number] = "harm"
        else:
            verdicts[number] = "none"
    return [replace(trial, verdict=verdicts[n]) for n, trial in enumerate(trials)]


def _no_surer_than(noise: Rate, trial: Trial) -> Trial:
    if trial.gain is None:
        return trial
    gain = trial.gain
    low = min(gain.low, gain.median * min(noise.low, 1.0)) / ACCURACY
    high = max(gain.high, gain.median * max(noise.high, 1.0)) * ACCURACY
    return replace(trial, gain=replace(gain, low=low, high=high))


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
    rounds: int = LEAST_ROUNDS
    each_round: Callable[[], object] = lambda: None
    """Called before each round: what else is to be measured in turns with these."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _base: dict[Phase, Running] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
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
                pairs = [self._compare(base, other, self.rounds)]
                compared = self._numerics(self._dump(follow))
            if not follow or sign_test(pairs[0]) <= DOUBTFUL:
                for _ in range(FRESH_PAIRS):
                    base = self._renewed(phase)
                    with ExitStack() as stack:
                        fresh = self._running(stack, follow, phase, environment)
                        fresh.warm_up()
                        pairs.append(self._compare(base, fresh, FRESH_ROUNDS))
        except ScriptFailedError as error:
            if base.process.has_ended:
                raise
            return Trial(follow, verdict="failed", why=_last_line(str(error)))
        return Trial(
            follow,
            rate_of_pairs(pairs),
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

    def _compare(self, base: Running, other: Running, rounds: int) -> list[float]:
        """Return the ratio of the two times, of each round."""
        ratios = []
        fastest = min(base.step_seconds, other.step_seconds)
        steps = max(1, math.ceil(WINDOW_SECONDS / fastest))
        for turn in in_turns((base, other), rounds, self._order):
            self.each_round()
            took = {id(one): one.run(steps) for one in turn}
            ratios.append(took[id(base)] / took[id(other)])
        return ratios

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
