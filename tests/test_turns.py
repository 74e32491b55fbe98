"""The order of blocks in a process, the numbers of its rows, and when a machine is too noisy."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from itertools import pairwise

import pytest

from fastdata.measuring.noise import clock_for, noise_of, too_noisy
from fastdata.measuring.turns import plan, ratios_of

BASE = "base"


def gains_of(blocks: Sequence[str], seconds: Sequence[float]) -> dict[str, float]:
    ratios = ratios_of(blocks, seconds, BASE)
    return {row: statistics.median(every) for row, every in ratios.items()}


@pytest.mark.parametrize(("count", "baselines"), [(1, 6), (5, 6), (6, 11), (10, 11), (11, 16)])
def test_every_round_runs_each_row_between_baseline_blocks(count: int, baselines: int) -> None:
    rows = [f"row {n}" for n in range(count)]
    blocks = list(plan(rows, BASE, random.Random(0), 5))
    assert (blocks[0], blocks[-1], blocks.count(BASE)) == (BASE, BASE, baselines)
    inside = [block for block in blocks if block != BASE]
    rounds = [inside[n : n + count] for n in range(0, len(inside), count)]
    assert len(rounds) == 5
    assert all(sorted(one) == sorted(rows) for one in rounds)
    at = [n for n, block in enumerate(blocks) if block == BASE]
    assert all(2 <= after - before <= 6 for before, after in pairwise(at))


def test_rounds_are_in_random_orders_that_a_seed_repeats() -> None:
    orders = {tuple(plan("abcdefgh", BASE, random.Random(seed))) for seed in range(20)}
    assert len(orders) == 20
    assert tuple(plan("abcdefgh", BASE, random.Random(3))) in orders
    [first, *others] = [
        [block for block in plan("abcdefgh", BASE, random.Random(0), 20) if block != BASE][
            n : n + 8
        ]
        for n in range(0, 160, 8)
    ]
    assert sum(one != first for one in others) > 15


def test_a_steady_drift_cancels() -> None:
    speeds = {BASE: 1.0, "a": 1.25, "b": 0.8, "c": 1.0, "d": 1.0, "e": 1.0, "f": 2.0}
    blocks = list(plan("abcdef", BASE, random.Random(0)))
    seconds = [1.05**n / speeds[block] for n, block in enumerate(blocks)]
    found = gains_of(blocks, seconds)
    assert found == pytest.approx({row: math.log(speeds[row]) for row in "abcdef"})


def test_two_disturbed_blocks_of_five_do_not_count() -> None:
    blocks = list(plan("ab", BASE, random.Random(0), 5))
    seconds = [0.5 if block == "a" else 1.0 for block in blocks]
    for n in [n for n, block in enumerate(blocks) if block == "a"][1:3]:
        seconds[n] = 40.0
    assert gains_of(blocks, seconds) == pytest.approx({"a": math.log(2), "b": 0.0})


def test_a_process_that_is_cut_short_yields_what_has_baselines_around_it() -> None:
    blocks = [BASE, "a", "b", BASE, "b", "a", BASE]
    assert gains_of(blocks, []) == {}
    assert gains_of(blocks, [1.0, 0.5, 1.0]) == {}
    cut = gains_of(blocks, [1.0, 0.5, 1.0, 1.0, 9.0])
    assert cut == pytest.approx({"a": math.log(2), "b": 0.0})


@pytest.mark.parametrize(
    ("others", "threads", "on_gpu", "clock"),
    [
        (0.0, 2, False, "wall"),
        (0.2, 2, False, "wall"),  # a tenth of two cores
        (0.21, 2, False, None),
        (0.21, 1, False, "cpu"),
        (1.9, 1, False, "cpu"),
        (1.9, 1, True, None),  # CPU time does not contain what a GPU does
    ],
)
def test_a_busy_machine_leaves_cpu_time_or_no_verdict(
    others: float, threads: int, on_gpu: bool, clock: str | None
) -> None:
    assert clock_for(others, 2, threads=threads, on_gpu=on_gpu) == clock


def test_trials_end_if_the_machine_is_too_noisy() -> None:
    busy = "too noisy to measure: other programs use 1.9 of your 2 cores"
    assert too_noisy(0.0, None, 1.9, 2) == busy
    assert too_noisy(0.21, "cpu", 1.9, 2) == (
        "too noisy to measure: the same step differs from itself by 21%"
    )
    assert too_noisy(0.20, "cpu", 1.9, 2) == ""
    assert too_noisy(0.05, "wall", 0.1, 1) == ""


def test_noise_is_the_half_width_that_one_disturbed_round_does_not_raise() -> None:
    draw = random.Random(0)
    quiet = [noise_of([draw.gauss(0, 0.02) for _ in range(5)]) for _ in range(2000)]
    loud = [noise_of([draw.gauss(0, 0.5) for _ in range(5)]) for _ in range(2000)]
    assert 0.015 < sorted(quiet)[1000] < 0.03
    assert sum(one > 0.2 for one in quiet) == 0
    assert sum(one > 0.2 for one in loud) / 2000 > 0.85
    assert noise_of([0.01, -0.01, 0.0, 0.005, 5.0]) < 0.05
    three = [0.1, -0.1, 0.0]
    less = math.log1p(noise_of(three, 20)) / math.log1p(noise_of(three))
    assert less == pytest.approx((2.093 / math.sqrt(20)) / (4.303 / math.sqrt(3)), rel=1e-3)
