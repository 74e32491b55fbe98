"""Gains with 95% intervals, from one number per process: how sure a comparison can be.

A process compares each row (a piece of advice, a setting) with the baseline and yields one number
per row: the logarithm of baseline time over row time.  Windows inside a process are not
independent, so intervals are Student's t over processes.

Two or three processes say little about one row's spread.  Rows are therefore pooled: a row uses
the larger of its own variance and the pooled one, with the degrees of freedom of all rows.  Rows of
unequal spread must not share: a test of equal variances decides, and if it fails, each row has
only its own degrees of freedom.  `tests/test_statistics.py` checks coverage, false gains and power
by simulation.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypeAlias, TypeVar

import numpy as np

__all__ = [
    "WORTH",
    "Estimate",
    "Judgement",
    "Verdict",
    "joint",
    "judge",
    "product",
    "smallest_gain",
    "student_inside",
    "student_quantile",
]

ERROR = 0.05
"""Share of intervals that may miss, and of reports that may have a false verdict."""

WORTH = 1.03
"""Smaller gains are reported as no difference, and rows that cannot reach it are not tried.

Switching inside a process and fresh processes agree within 1.3%, so less cannot be trusted.
"""

LEAST_STARTS = {"live": 2, "start": 3}
"""Processes before a verdict: for rows that are switched inside one, and for fresh processes."""

UNEQUAL = 0.1
"""Level of the test of equal variances; below 0.08 too many wide rows pass as narrow ones."""

DRAWS = 20_000
"""Simulated sets of variances for that test."""

Verdict: TypeAlias = Literal["gain", "slower", "no difference", "cannot be told"]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A ratio of two speeds with its 95% interval; `starts` is the number of processes."""

    value: float
    low: float
    high: float
    starts: int

    def __str__(self) -> str:
        """Return the ratio and its interval, if it has one: ``1.44x (1.39-1.49)``."""
        ends = (f"{n:.2f}" if n < 1000 else f"{n:.0e}" for n in (self.value, self.low, self.high))
        value, low, high = ends
        return f"{value}x ({low}-{high})" if math.isfinite(self.high) else f"{value}x"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The gain of a row, and what may be said about it."""

    gain: Estimate
    verdict: Verdict

    @property
    def is_open(self) -> bool:
        """Whether another process can still turn this into a gain."""
        return self.verdict == "cannot be told" and self.gain.high >= WORTH


def judge(
    live: Mapping[K, Sequence[float]], start: Mapping[K, Sequence[float]] | None = None
) -> dict[K, Judgement]:
    """Return the gain and the verdict of each row, judged together.

    Parameters
    ----------
    live, start
        Each row's numbers, one per process: natural logarithms of baseline time over row time.
        `live` rows were switched inside the process, `start` rows ran in a fresh one; the two are
        pooled apart.

    Returns
    -------
    dict
        A judgement for each key.  A gain or a slowdown passes Holm's correction for all rows (S.
        Holm, "A simple sequentially rejective multiple test procedure", 1979) and has enough
        processes.  "No difference" means that the interval lies within a factor of `WORTH`, or that
        a certain difference is below it.
    """
    gains: dict[K, Estimate] = {}
    errors: dict[K, float] = {}
    too_few: set[K] = set()
    for kind, rows in (("live", live), ("start", start or {})):
        for key, (variance, degrees) in _variances(rows).items():
            mean, starts = statistics.fmean(rows[key]), len(rows[key])
            error = math.sqrt(variance / starts)
            half = error * student_quantile(1 - ERROR, degrees) if degrees else math.inf
            gains[key] = Estimate(math.exp(mean), _exp(mean - half), _exp(mean + half), starts)
            errors[key] = _p_value(mean, error, degrees)
            if starts < LEAST_STARTS[kind]:
                too_few.add(key)
    certain = _holm(errors) - too_few
    return {key: Judgement(gain, _verdict(gain, key in certain)) for key, gain in gains.items()}


def smallest_gain(rows: Mapping[K, Sequence[float]]) -> float:
    """Return the smallest gain that a typical row can show in a report: 1.03 or more."""
    found = _variances(rows)
    if not any(degrees for _, degrees in found.values()):
        return math.inf
    needed = [
        math.sqrt(variance / len(rows[key])) * student_quantile(1 - ERROR / len(rows), degrees)
        for key, (variance, degrees) in found.items()
    ]
    return max(WORTH, _exp(statistics.median(needed)))


def joint(one: Estimate, other: Estimate) -> Estimate:
    """Return one estimate of `judge` over another: they agree if its interval contains 1."""
    return _combined(one.value / other.value, one, other)


def product(one: Estimate, other: Estimate) -> Estimate:
    """Return the product of two estimates of `judge`, as of a gain on top of another one."""
    return _combined(one.value * other.value, one, other)


def _combined(value: float, one: Estimate, other: Estimate) -> Estimate:
    """Add the errors of two estimates, as the root of their squares; they share no process."""
    half = math.hypot(math.log(one.high / one.value), math.log(other.high / other.value))
    starts = min(one.starts, other.starts)
    return Estimate(value, value * math.exp(-half), value * _exp(half), starts)


def _exp(power: float) -> float:
    return math.exp(power) if power < 700 else math.inf


def _verdict(gain: Estimate, is_certain: bool) -> Verdict:
    low, high = (gain.value, gain.value) if is_certain else (gain.low, gain.high)
    if low > 1 / WORTH and high < WORTH:
        return "no difference"
    if is_certain:
        return "gain" if gain.value > 1 else "slower"
    return "cannot be told"


def _variances(rows: Mapping[K, Sequence[float]]) -> dict[K, tuple[float, int]]:
    """Return each row's variance between processes, and its degrees of freedom."""
    degrees = {key: len(row) - 1 for key, row in rows.items()}
    own = {key: float(np.var(row, ddof=min(1, degrees[key]))) for key, row in rows.items()}
    total = sum(degrees.values())
    if not total:
        return dict.fromkeys(rows, (math.inf, 0))
    pooled = sum(degrees[key] * own[key] for key in rows) / total
    if _are_equal([(own[key], degrees[key]) for key in rows if degrees[key]]):
        return {key: (max(own[key], pooled), total) for key in rows}
    found = {key: (own[key], degrees[key]) for key in rows}
    widest = max(pair for pair in found.values() if pair[1])
    for key, (variance, count) in found.items():
        if not count:
            found[key] = widest
        elif count == 1:  # two numbers may lie close together by chance
            found[key] = max(variance, pooled), 1
    return found


def _are_equal(variances: Sequence[tuple[float, int]]) -> bool:
    """Return whether variances, each with its degrees of freedom, may be of one distribution."""
    values, degrees = zip(*sorted(variances, key=lambda pair: pair[1]), strict=True)
    return not any(values) or bool(_concentration(np.array(values)) <= _largest(degrees))


def _concentration(variances: np.ndarray) -> np.ndarray:
    """Return the sum of squared shares: 1/N if N variances are the same, 1 if one has it all."""
    shares: np.ndarray = (variances**2).sum(-1) / variances.sum(-1) ** 2
    return shares


@cache
def _largest(degrees: tuple[int, ...]) -> float:
    """Return the 90% quantile of the concentration if all variances are equal."""
    drawn = np.random.default_rng(0).chisquare(degrees, (DRAWS, len(degrees)))
    return float(np.quantile(_concentration(drawn / degrees), 1 - UNEQUAL))


def _p_value(mean: float, error: float, degrees: int) -> float:
    """Return the probability of such a mean, or one further from zero, without a difference."""
    if not degrees or not mean:
        return 1.0
    return 1 - student_inside(abs(mean) / error, degrees) if error else 0.0


def _holm(errors: Mapping[K, float]) -> set[K]:
    """Return the rows that differ from the baseline, given the p-value of each."""
    found: set[K] = set()
    for rank, key in enumerate(sorted(errors, key=lambda key: errors[key])):
        if errors[key] > ERROR / (len(errors) - rank):
            break
        found.add(key)
    return found


def student_inside(t: float, degrees: int) -> float:
    """Return the probability that Student's t lies between -`t` and `t`.

    Source: M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4: a
    finite series for whole degrees of freedom.
    """
    angle = math.atan(t / math.sqrt(degrees))
    cosine, is_odd = math.cos(angle), degrees % 2
    term = cosine if is_odd else 1.0
    total = term if degrees > 1 else 0.0
    for n in range(3 if is_odd else 2, degrees - 1, 2):
        term *= cosine * cosine * (n - 1) / n
        total += term
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if is_odd else total


@cache
def student_quantile(probability: float, degrees: int) -> float:
    """Return the inverse of `student_inside`: 12.706 for 0.95 and one degree of freedom."""
    low, high = 0.0, math.pi / 2  # angles: t itself has no upper bound
    for _ in range(60):
        t = math.sqrt(degrees) * math.tan(middle := (low + high) / 2)
        low, high = (middle, high) if student_inside(t, degrees) < probability else (low, middle)
    return math.sqrt(degrees) * math.tan(low)
