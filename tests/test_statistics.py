"""Intervals and verdicts of measured gains: tables, rules, and simulated processes."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from functools import cache

import numpy as np
import pytest

from fastdata.measuring import statistics
from fastdata.measuring.statistics import (
    WORTH,
    Estimate,
    joint,
    judge,
    smallest_gain,
    student_inside,
    student_quantile,
)
from fastdata.measuring.turns import plan, ratios_of

# -- Student's t -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("degrees", "of_95", "of_99"),
    [  # R. A. Fisher, F. Yates, "Statistical Tables", table III
        (1, 12.706, 63.657),
        (2, 4.303, 9.925),
        (3, 3.182, 5.841),
        (4, 2.776, 4.604),
        (5, 2.571, 4.032),
        (9, 2.262, 3.250),
        (10, 2.228, 3.169),
        (30, 2.042, 2.750),
        (120, 1.980, 2.617),
    ],
)
def test_quantiles_are_those_of_published_tables(degrees: int, of_95: float, of_99: float) -> None:
    assert student_quantile(0.95, degrees) == pytest.approx(of_95, abs=5e-4)
    assert student_quantile(0.99, degrees) == pytest.approx(of_99, abs=5e-4)


def test_quantiles_and_probabilities_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for degrees in (*range(1, 40), 99, 100):
        for inside in (0.01, 0.5, 0.95, 0.995, 0.9999):
            expected = stats.t.ppf((1 + inside) / 2, degrees)
            assert student_quantile(inside, degrees) == pytest.approx(expected, rel=1e-9)
            assert student_inside(expected, degrees) == pytest.approx(inside, rel=1e-12)


# -- rules -----------------------------------------------------------------------------------

QUIET = {f"quiet {n}": (0.001 * (-1) ** n, -0.002 * (-1) ** n) for n in range(8)}


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ((0.10, 0.11), "gain"),
        ((-0.10, -0.11), "slower"),
        ((0.001, -0.001), "no difference"),
        ((0.015, 0.016), "no difference"),  # certain, and too small to act on
        ((0.10, -0.08), "cannot be told"),
        ((0.10,), "cannot be told"),  # one process
    ],
)
def test_a_row_is_judged_by_its_interval(numbers: tuple[float, ...], verdict: str) -> None:
    found = judge({**QUIET, "row": numbers})["row"]
    assert found.verdict == verdict
    assert found.gain.low < found.gain.value < found.gain.high
    assert found.gain.value == pytest.approx(math.exp(np.mean(numbers)))
    assert found.gain.starts == len(numbers)


def test_fresh_processes_give_no_gain_before_the_third() -> None:
    rows = {name: (0.3 + 0.01 * n, 0.31, 0.3) for n, name in enumerate("abcd")}
    two = {name: row[:2] for name, row in rows.items()}
    assert {one.verdict for one in judge({}, two).values()} == {"cannot be told"}
    assert all(one.is_open for one in judge({}, two).values())
    assert {one.verdict for one in judge({}, rows).values()} == {"gain"}
    assert {one.verdict for one in judge(two).values()} == {"gain"}  # switched inside


def test_fresh_processes_and_switched_rows_do_not_share_a_spread() -> None:
    fresh = {"a": (0.3, 0.1, -0.2), "b": (-0.3, 0.1, 0.2)}
    alone, beside = judge(QUIET), judge(QUIET, fresh)
    assert [beside[name].gain for name in QUIET] == [alone[name].gain for name in QUIET]
    assert beside["a"].gain == judge({}, fresh)["a"].gain


def test_one_row_alone_has_its_own_degrees_of_freedom() -> None:
    [found] = judge({"row": (0.09, 0.10, 0.11)}).values()
    half = 4.303 * 0.01 / math.sqrt(3)
    assert math.log(found.gain.high / found.gain.value) == pytest.approx(half, rel=1e-3)


def test_rows_of_one_process_each_have_no_interval() -> None:
    [one, other] = judge({"a": (0.5,), "b": (0.0,)}).values()
    assert (one.gain.low, one.gain.high, one.verdict) == (0.0, math.inf, "cannot be told")
    assert other.is_open
    assert smallest_gain({"a": (0.5,)}) == math.inf


def spread(mean: float, by: float, turn: int = 0) -> tuple[float, ...]:
    """Return five numbers with this mean and standard deviation."""
    numbers = [mean + by * n for n in (-1, -1, 0, 1, 1)]
    return (*numbers[turn:], *numbers[:turn])


def test_more_rows_need_more_certainty() -> None:
    others = {n: spread(0.0, 0.037, n % 5) for n in range(40)}
    few = judge({0: others[0], 1: others[1], "row": spread(0.05, 0.037)})["row"]
    many = judge({**others, "row": spread(0.05, 0.037)})["row"]
    assert (few.verdict, many.verdict) == ("gain", "cannot be told")
    assert few.gain.low > 1
    assert many.gain.low > 1


def test_a_row_that_cannot_reach_three_percent_is_closed() -> None:
    rows = {n: spread(0.0, 0.02, n % 5) for n in range(8)}
    slow = judge({**rows, "row": spread(-0.018, 0.02)})["row"]
    assert (slow.verdict, slow.is_open) == ("cannot be told", False)
    assert slow.gain.high < WORTH
    unsure = judge({**rows, "row": spread(0.018, 0.02)})["row"]
    assert (unsure.verdict, unsure.is_open) == ("cannot be told", True)


def test_a_wide_row_does_not_hide_in_the_pool() -> None:
    rows = {n: tuple(0.01 * math.sin(3 * n + k) for k in range(4)) for n in range(9)}
    alone = {n: one.gain for n, one in judge(rows).items()}
    beside = judge({**rows, "wide": (0.4, -0.4, 0.3, -0.2)})
    assert beside["wide"].gain.low < 0.6
    for n in rows:  # a little wider, as each has three degrees of freedom now
        assert beside[n].gain.high < alone[n].high * 1.02


def test_one_process_among_rows_of_unequal_spread_is_as_unsure_as_the_widest() -> None:
    rows = {**QUIET, "wide": (0.4, -0.4), "one": (0.2,)}
    found = judge(rows)
    assert found["one"].gain.high / found["one"].gain.value == pytest.approx(
        (found["wide"].gain.high / found["wide"].gain.value) ** math.sqrt(2)
    )


def test_a_spread_beyond_all_measure_is_no_error() -> None:
    rows = {"a": (-40.0, 40.0), "b": (0.0, 0.1)}
    assert judge(rows)["a"].gain.high > 1e100
    assert smallest_gain({"a": (-90.0, 90.0)}) == math.inf


def test_estimates_that_differ_do_not_agree() -> None:
    one, other = Estimate(1.30, 1.26, 1.3413, 3), Estimate(1.22, 1.18, 1.2614, 5)
    apart = joint(one, other)
    half = math.hypot(math.log(1.3413 / 1.30), math.log(1.2614 / 1.22))
    assert apart.value == pytest.approx(1.30 / 1.22)
    assert (apart.low, apart.high) == pytest.approx(
        (apart.value * math.exp(-half), apart.value * math.exp(half))
    )
    assert apart.low > 1
    assert joint(one, one).low < 1 < joint(one, one).high
    assert joint(one, Estimate(1.0, 0.0, math.inf, 1)).low == 0.0


# -- simulation ------------------------------------------------------------------------------

ROWS = 10
WINDOWS = 0.02
"""Spread of windows; `alike` is how much of a window's deviation the next one has."""

Simulated = dict[str, np.ndarray]


def numbers(
    runs: int, starts: int, *, between: float, alike: float, wide: int = 0, rows: int = ROWS
) -> np.ndarray:
    """Return the numbers of some runs, (runs, rows, starts), of rows without a difference.

    `between` is the spread between processes.  Half of its variance is the baseline's, and so
    common to all rows.  The first `wide` rows have six times the spread of the others.
    """
    draw = np.random.default_rng(0)
    names = list(range(rows))
    blocks = list(plan(names, -1, random.Random(0), 5))  # the fewest, if time is not short
    count = runs * starts
    times = draw.standard_normal((count, len(blocks)))
    for n in range(1, len(blocks)):
        times[:, n] *= math.sqrt(1 - alike**2)
        times[:, n] += alike * times[:, n - 1]
    times *= WINDOWS
    at = np.array(blocks)
    there = np.flatnonzero(at == -1)
    places = np.flatnonzero(at != -1)
    after = np.searchsorted(there, places)
    before, after = there[after - 1], there[after]
    share = (places - before) / (after - before)
    ratios = (1 - share) * times[:, before] + share * times[:, after] - times[:, places]
    found = np.stack([np.median(ratios[:, at[places] == row], axis=1) for row in names], axis=1)
    first = ratios_of(blocks, np.exp(times[0]).tolist(), -1)
    np.testing.assert_allclose(found[0], [np.median(first[row]) for row in names])
    own, common = draw.standard_normal((count, rows)), draw.standard_normal((count, 1))
    found += between * math.sqrt(0.5) * (own + common)
    found = found.reshape(runs, starts, rows).transpose(0, 2, 1)
    found[:, :wide] *= 6
    return found


@cache
def simulated(
    runs: int, starts: int, between: float, alike: float, wide: int = 0, gain: float = 0.0
) -> Simulated:
    """Judge runs in which the last row has a gain; return value, low, high, and is_gain."""
    drawn = numbers(runs, starts, between=between, alike=alike, wide=wide)
    drawn[:, -1] += math.log1p(gain)
    judged = [list(judge(dict(enumerate(run.tolist()))).values()) for run in drawn]
    return {
        "low": np.array([[row.gain.low for row in run] for run in judged]),
        "high": np.array([[row.gain.high for row in run] for run in judged]),
        "gain": np.array([[row.verdict == "gain" for row in run] for run in judged]),
    }


def covered(found: Mapping[str, np.ndarray], rows: slice) -> float:
    """Return the share of intervals that contain the truth, without a difference."""
    return float(((found["low"] <= 1) & (found["high"] >= 1))[:, rows].mean())


NOISES = [(0.005, 0.9), (0.01, 0.9), (0.0075, 0.5), (0.005, 0.0)]
"""The spread between processes, and how alike windows are."""


@pytest.mark.parametrize("starts", [2, 3])
@pytest.mark.parametrize(("between", "alike"), NOISES)
def test_intervals_have_the_truth_nineteen_times_of_twenty(
    between: float, alike: float, starts: int
) -> None:
    found = simulated(1500, starts, between, alike)
    assert 0.93 <= covered(found, slice(None)) <= 0.97
    assert found["gain"].any(axis=1).mean() <= 0.05


@pytest.mark.parametrize("starts", [2, 3])
@pytest.mark.parametrize(("between", "alike"), NOISES[1::2])
def test_two_wide_rows_of_ten_keep_their_intervals(
    between: float, alike: float, starts: int
) -> None:
    found = simulated(4000, starts, between, alike, wide=2)
    assert covered(found, slice(2)) >= 0.90
    assert covered(found, slice(2, None)) >= 0.93
    assert found["gain"].any(axis=1).mean() <= 0.06


@pytest.mark.parametrize(("between", "alike"), NOISES[:2])
def test_two_processes_find_a_gain_of_five_percent(between: float, alike: float) -> None:
    found = simulated(1500, 2, between, alike, gain=0.05)
    assert found["gain"][:, -1].mean() >= 0.80
    half = np.median(np.sqrt(found["high"] / found["low"])[:, -1]) - 1
    assert half <= 0.02


def test_a_third_process_finds_it_if_windows_are_not_alike() -> None:
    found = simulated(1500, 3, 0.005, 0.0, gain=0.05)
    assert found["gain"][:, -1].mean() >= 0.80


@pytest.mark.parametrize(("wide", "least"), [(0, 0.95), (2, 0.65)])
def test_further_processes_for_open_rows_find_gains_and_no_false_ones(
    wide: int, least: float
) -> None:
    drawn = numbers(1500, 4, between=0.01, alike=0.9, wide=wide)
    drawn[:, -1] += math.log1p(0.05)
    found = []
    for run in drawn:
        rows = {row: run[row, :2].tolist() for row in range(ROWS)}
        for start in (2, 3):
            still = [row for row, judged in judge(rows).items() if judged.is_open]
            for row in still:
                rows[row].append(float(run[row, start]))
        found.append([judged.verdict == "gain" for judged in judge(rows).values()])
    assert np.mean([run[-1] for run in found]) >= least
    assert np.mean([any(run[:-1]) for run in found]) <= 0.05


def test_pooling_alone_would_not_keep_the_intervals_of_wide_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "_are_equal", lambda _: True)
    drawn = numbers(500, 2, between=0.01, alike=0.9, wide=2)
    judged = [judge(dict(enumerate(run.tolist()))) for run in drawn]
    inside = [run[row].gain.low <= 1 <= run[row].gain.high for run in judged for row in (0, 1)]
    assert np.mean(inside) < 0.85


def test_the_smallest_gain_is_found_half_of_the_time() -> None:
    drawn = numbers(1000, 2, between=0.02, alike=0.9)
    found = []
    for run in drawn:
        smallest = smallest_gain(dict(enumerate(run.tolist())))
        run[-1] += math.log(smallest)
        found.append(judge(dict(enumerate(run.tolist())))[ROWS - 1].verdict == "gain")
    assert 0.4 < np.mean(found) < 0.6


def test_two_reports_of_the_same_gain_agree_nineteen_times_of_twenty() -> None:
    drawn = numbers(2000, 2, between=0.01, alike=0.9, rows=4)
    inside = []
    for one, other in zip(drawn[::2], drawn[1::2], strict=True):
        mine, yours = (judge(dict(enumerate(run.tolist()))) for run in (one, other))
        for row in mine:
            apart = joint(mine[row].gain, yours[row].gain)
            inside.append(apart.low <= 1 <= apart.high)
    assert 0.93 <= np.mean(inside) <= 0.985
