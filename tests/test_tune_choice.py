"""The rules of tuning, on figures that are made up: intervals, choice, sweep, memory, sessions."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from simulated_tuning import CURVE, Batches, Clock, Meter, T, rate

from fastdata.measuring import workload
from fastdata.measuring.windows import Rate, Windows, rate_of
from fastdata.measuring.workload import Workload
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import (
    PROCESS_BYTES,
    MemoryEstimate,
    cost_of,
    memory_estimate,
    refusal,
)
from fastdata.tuning.choice import fed, plateau, suffices, sufficient
from fastdata.tuning.session import between, first_counts, grows, variants

# -- statistics ---------------------------------------------------------------------------


def test_the_interval_of_few_windows_is_all_of_them() -> None:
    found = rate_of([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high) == (2.0, 1.0, 3.0)
    assert found.windows == (3.0, 1.0, 2.0)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 8, 9, 12, 17, 25, 60])
def test_intervals_hold_the_median_as_often_as_they_say(count: int) -> None:
    found = rate_of(range(count))
    left_out = int(found.low)
    assert found.high == count - 1 - left_out
    outside = [2 * sum(math.comb(count, i) for i in range(k + 1)) / 2**count for k in range(count)]
    assert left_out == 0 or outside[left_out] <= 0.05
    assert 2 * (left_out + 1) >= count or outside[left_out + 1] > 0.05


def test_one_slow_window_of_nine_moves_nothing() -> None:
    calm, disturbed = [10.0 + i / 100 for i in range(9)], [0.1, *(10.0 + i / 100 for i in range(8))]
    assert rate_of(disturbed).low == pytest.approx(rate_of(calm).low, rel=0.01)


def test_a_rate_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="needs a window"):
        rate_of([])


# -- choice -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("demand", "workers"),
    [
        (0.2, 0),  # 50 times as fast: nothing needs to overlap
        (0.4, 1),  # 1 / (1/0.4 + 1/10) is 96% of it
        (8.9, 1),
        (9.1, 2),  # 1.1 x 9.1 is more than the lower end, 9.9
        (17.9, 2),
        (18.1, 4),
        (34, 4),
        (35, 8),
    ],
)
def test_the_smallest_that_gives_a_tenth_more_is_chosen(demand: float, workers: int) -> None:
    assert sufficient(CURVE, demand)[0] == T[workers]


def test_none_is_enough_for_a_step_that_is_faster_than_the_best() -> None:
    assert sufficient(CURVE, 36) == []
    assert plateau(CURVE, 36) == T[4]  # 38 of 39: the same for less
    assert plateau(CURVE, 1000) == T[4]


def test_what_is_wide_does_not_suffice() -> None:
    assert suffices(T[2], Rate(20, 11.1, 25), 10)
    assert not suffices(T[2], Rate(20, 10.9, 25), 10)


def test_without_workers_nothing_overlaps() -> None:
    assert fed(T[0], 10, 10) == pytest.approx(5)
    assert fed(T[1], 10, 8) == 8


def test_the_plateau_without_a_step_has_workers() -> None:
    assert plateau([(T[0], rate(10)), (T[1], rate(9.9))]) == T[1]
    assert plateau([(T[0], rate(10))]) == T[0]


def test_ties_go_to_fewer_workers_but_not_what_is_far_off() -> None:
    assert plateau([(T[1], Rate(9.3, 8.9, 9.9)), (T[2], Rate(10, 9.8, 10.4))]) == T[1]
    assert plateau([(T[1], Rate(9.3, 9.2, 9.4)), (T[2], Rate(10, 9.8, 10.4))]) == T[2]
    assert plateau([(T[1], Rate(7.0, 3, 12)), (T[2], Rate(10, 9.8, 10.4))]) == T[2]


def test_the_order_of_cost_is_workers_then_memory() -> None:
    small, large = 1 << 20, 100 << 20  # of a batch: a worker process is 64 of the one, or less
    threads, fewer_ahead = Settings(2, "thread", 4), Settings(2, "process", 2)
    assert cost_of(threads, small) < cost_of(fewer_ahead, small) < cost_of(Settings(3), small)
    assert cost_of(fewer_ahead, large) < cost_of(threads, large) < cost_of(Settings(3), large)
    for batch_bytes in small, large:
        assert cost_of(Settings(2, "thread", 1), batch_bytes) < cost_of(threads, batch_bytes)
        assert cost_of(Settings(2), batch_bytes) < cost_of(Settings(2, "process"), batch_bytes)
        stock = Settings(2, "process", backend="torch")
        assert cost_of(replace(stock, persistent_workers=False), 1) < cost_of(stock, 1)


def test_of_what_suffices_the_first_is_the_cheapest() -> None:
    rates = [(Settings(2), rate(9)), (Settings(2, "process"), rate(20)), (Settings(3), rate(30))]
    assert sufficient(rates, 10) == [Settings(2, "process"), Settings(3)]


# -- what is tried ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2, 3]), (6, [0, 1, 2, 4, 6]), (8, [0, 1, 2, 4, 8])],
)
def test_first_counts(most: int, counts: list[int]) -> None:
    assert first_counts(most) == counts


def test_growth_is_more_than_noise() -> None:
    assert grows([(T[2], rate(10)), (T[4], rate(20))])
    assert not grows([(T[2], rate(10)), (T[4], rate(10.5))])
    assert not grows([(T[2], rate(10, 0.4)), (T[4], rate(15, 0.4))])
    assert not grows([(T[1], rate(10))])


@pytest.mark.parametrize(
    ("demand", "missing"),
    [(30, [3]), (35, [5, 6, 7]), (10, []), (None, [3])],
)
def test_every_integer_around_the_knee(demand: float | None, missing: list[int]) -> None:
    assert between(CURVE, demand) == missing


def test_of_many_between_the_middle_is_tried() -> None:
    rates = [(Settings(n), rate(n)) for n in (1, 2, 4, 8, 16)]
    assert between(rates, 11) == [12]
    assert between([*rates, (Settings(12), rate(12))], 11) == [13, 14, 15]


def test_variants_that_save_cost_less_and_others_differ() -> None:
    base = Settings(3, "process", 2, pin_memory=True, backend="cpu")
    cost = partial(cost_of, batch_bytes=1 << 20)
    options: dict[str, Any] = {
        "methods": ["thread", "process"], "cuda": True, "cost": cost
    }  # fmt: skip
    saving = variants(base, saving=True, **options)
    assert saving
    assert all(cost(one) < cost(base) for one in saving)
    assert {
        replace(base, worker_method="thread"),
        replace(base, prefetch_factor=1),
        replace(base, pin_memory=False),
        replace(base, num_workers=2, prefetch_factor=4),
    } <= set(saving)
    more = variants(base, saving=False, **options)
    assert {replace(base, prefetch_factor=n) for n in (1, 4)} <= set(more)
    assert base not in more
    assert variants(Settings(0), saving=True, **options) == []


# -- memory -------------------------------------------------------------------------------


def test_needs_of_settings() -> None:
    assert Settings(0).batches_ahead == 0
    assert Settings(8, prefetch_factor=2).batches_ahead == 2
    assert Settings(8, "process", 2, backend="torch").batches_ahead == 16
    assert memory_estimate(Settings(0), 100) == MemoryEstimate(200, 0)
    assert memory_estimate(Settings(4), 100) == MemoryEstimate(400, 0)
    assert memory_estimate(Settings(4, "process"), 100) == MemoryEstimate(
        400 + 4 * PROCESS_BYTES, 0
    )
    assert memory_estimate(Settings(4, "process", backend="torch"), 100) == MemoryEstimate(
        1000 + 4 * PROCESS_BYTES, 1000
    )


def test_what_does_not_fit_is_said_with_figures() -> None:
    free = {"available_bytes": 10 << 30, "shm_bytes": 64 << 20}
    assert refusal(MemoryEstimate(1 << 30, 0), **free) == ""
    assert "takes about 21.5GB of memory" in refusal(MemoryEstimate(20 << 30, 0), **free)
    assert "67.1MB free (docker run --shm-size" in refusal(MemoryEstimate(1 << 30, 1 << 30), **free)


# -- windows, on a clock that is not the machine's ------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(workload, "Meter", lambda device: Meter(clock))
    return clock


def workload_of(batches: Batches, step: Any = None) -> Workload:
    """Return a workload whose loaders all give these batches."""
    made = Workload.__new__(Workload)
    made.device, made.step = torch.device("cpu"), step
    opened: Any = SimpleNamespace(
        open=lambda settings: nullcontext(batches), device=None, stay_in_cache=lambda: True
    )
    made.loaders = opened
    return made


def test_start_and_stock_are_thrown_away(clock: Clock) -> None:
    settings = Settings(2, prefetch_factor=4)
    found = workload_of(Batches(clock, 0.1, stock=4)).supply(settings, Windows(3, 1.0))
    assert found.rates == pytest.approx((10, 10, 10))
    assert found.start_seconds == 5.0


def test_workers_that_do_not_persist_cost_each_epoch_their_start(clock: Clock) -> None:
    settings = Settings(2, "process", 1, persistent_workers=False, backend="torch")
    batches = Batches(clock, 0.1, stock=0, count=100)
    found = workload_of(batches).supply(settings, Windows(2, 1.0))
    assert found.rates == pytest.approx((100 / 15, 100 / 15))


def test_training_takes_the_longer_of_step_and_batch_and_never_the_stock(clock: Clock) -> None:
    def step(batch: Any) -> None:
        clock.now += 0.05

    training = workload_of(Batches(clock, 0.1, stock=4), step)
    found = training.train(Settings(2, prefetch_factor=4), Windows(2, 1.0), rate=20)
    assert found == pytest.approx((1 / 0.15, 1 / 0.15))  # this loader does nothing ahead
