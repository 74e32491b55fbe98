"""The arithmetic of a profile, against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fastdata.measuring.stalls import Stall
from fastdata.profiling.conclusion import (
    bottleneck_of,
    enough_workers,
    restarts_of,
    stages_of,
    verdict_of,
)
from fastdata.profiling.fixes import Conditions, fixes_for
from fastdata.profiling.loaders import LoaderInfo
from fastdata.profiling.model import Cost, Model
from fastdata.profiling.rates import Measured
from fastdata.profiling.recorder import Times
from fastdata.profiling.trying import MoreWorkers

READ, DECODE = Cost("read", 0.010, True, 0.0), Cost("decode", 0.030, True, 0.030)
COLLATE = Cost("collate", 0.002, False, 0.002)
HAND_OVER = Cost("hand over", 0.001, False, 0.001)
COPY = Cost("copy", 0.004, False)


def model(*costs: Cost, step: float = 0.010, workers: int = 2, cores: int = 8) -> Model:
    return Model(costs, step, workers, cores)


@pytest.mark.parametrize(
    ("made", "seconds"),
    [
        (model(READ, DECODE), 0.020),  # 40 ms by two
        (model(READ, DECODE, workers=5), 0.010),  # 8 ms by five, beside a step of 10
        (model(READ, DECODE, workers=8, cores=2), 0.015),  # 30 ms that need a core, on two
        (model(READ, DECODE, workers=0), 0.050),  # one after the other
        (model(READ, DECODE, COLLATE, workers=8), 0.012),  # the loop: collate and step
        (model(COPY, step=0.020), 0.024),
        (model(replace(COPY, overlapped=True), step=0.020), 0.020),
        (model(replace(COPY, overlapped=True, seconds=0.05), step=0.020), 0.050),
    ],
)
def test_period_is_the_longest_term(made: Model, seconds: float) -> None:
    assert made.period() == pytest.approx(seconds)


def test_a_stage_that_is_free_takes_its_share_of_the_time() -> None:
    made = model(READ, DECODE)
    assert made.period(factors={"decode": 0}) == pytest.approx(0.010)  # the step
    assert made.period(factors={"read": 0}) == pytest.approx(0.015)
    assert made.period(factors={"step": 0}) == pytest.approx(0.020)
    assert made.period(factors={"decode": 0.5}) == pytest.approx(0.0125)


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("seconds", [0.060, 0.045, 0.020])
def test_a_fitted_model_gives_the_time_that_was_measured(workers: int, seconds: float) -> None:
    made = model(READ, DECODE, workers=workers).fitted(seconds)
    assert made.period() == pytest.approx(seconds)


def test_a_fed_step_says_only_that_workers_keep_up() -> None:
    made = model(READ, DECODE, workers=8).fitted(0.010)
    assert (made.scale, made.contention) == (1.0, 0.0)


def test_contention_is_not_divided_by_workers() -> None:
    # 40 ms by two take 30, not 20: 10 are lost, and stay lost with four.
    made = model(READ, DECODE).fitted(0.030)
    assert made.period(4) == pytest.approx(0.020)
    # Without decoding there is a quarter of the work, and of what is lost.
    assert made.period(factors={"decode": 0}, workers=2) == pytest.approx(0.010)


def test_workers_that_have_little_to_do_are_not_blamed() -> None:
    # 1 ms of work, 2 of the loop's beside a step of 10: 14 are the loop's doing.
    made = model(replace(READ, seconds=0.001), COLLATE, workers=1).fitted(0.014)
    assert made.period() == pytest.approx(0.014)
    assert made.period(workers=4) == pytest.approx(0.014)
    assert [cost.name for cost in made.binding()] == ["collate"]
    assert made.period(factors={"collate": 0}) == pytest.approx(0.010)


TINY = Cost("hand over", 0.0003, False, 0.0003)
SHORT = replace(READ, seconds=0.001)


@pytest.mark.parametrize(
    ("made", "busy", "load"),
    [
        (model(SHORT, TINY, workers=1), 0.0, 0.0197),  # waited for
        (model(SHORT, TINY, workers=1), 0.018, 0.0177),  # busy for most of it
        (model(SHORT, workers=1), 0.0, 0.020),  # nothing is known of the loop
        (model(SHORT, TINY, workers=0), 0.0, 0.0187),
    ],
)
def test_what_no_stage_explains_is_blamed_on_none_of_them(
    made: Model, busy: float, load: float
) -> None:
    fitted = made.fitted(0.030, loop=busy)
    assert fitted.period() == pytest.approx(0.030)
    measured = Measured(0.030, 0.010, 0.010, 0.5)
    stages = stages_of(fitted, measured, {})
    assert bottleneck_of(measured, stages, ()) == "load"
    found = {stage.name: stage for stage in stages}
    assert found["load"].seconds == pytest.approx(load)
    assert found["load"].speedup_if_free > 2
    assert all(s.speedup_if_free < 1.1 for s in stages if s.name not in ("load", "step"))
    assert "making batches is the bottleneck" in verdict_of(measured, stages, "load", ())


def test_a_small_rest_is_no_stage_of_its_own() -> None:
    fitted = model(SHORT, TINY, workers=1).fitted(0.011)  # 0.7 ms too long
    assert "load" not in [cost.name for cost in fitted.costs]


def test_what_the_loop_does_is_as_it_was_seen_to_do() -> None:
    # Workers would be ready in 5 ms; of 14, the loop is busy 4 in place of 2, beside a step of 10.
    made = model(replace(READ, seconds=0.010), COLLATE).fitted(0.014, loop=0.004)
    assert made.period() == pytest.approx(0.014)
    assert (made.scale, made.contention) == (1.0, 0.0)
    assert [cost.name for cost in made.binding()] == ["collate"]
    # It is busy for 4 of 20, and waits for workers.
    made = model(READ, DECODE, COLLATE).fitted(0.020, loop=0.004)
    assert [cost.name for cost in made.binding()] == ["read", "decode"]
    assert made.period(4) == pytest.approx(0.014)


def test_workers_that_are_enough() -> None:
    assert model(READ, DECODE).workers_to_saturate() == 4
    assert model(READ, DECODE, workers=0).workers_to_saturate() == 4
    assert model(READ, DECODE, cores=2).workers_to_saturate() is None
    assert model(READ, DECODE, cores=2).best_workers() == 3  # 40 ms by three: 13.3, under 15


@pytest.mark.parametrize("seconds", [0.100, 0.160, 0.400])
@pytest.mark.parametrize("workers", [1, 2, 12])
def test_no_more_workers_are_wanted_than_were_seen_or_four_a_core(
    workers: int, seconds: float
) -> None:
    # Others have the cores: 200 ms a batch by the clock, of which 80 on a core.
    slow = Cost("decode", 0.200, True, 0.080)
    made = model(slow, step=0.030, workers=workers, cores=2).fitted(seconds)
    assert (made.workers_to_saturate() or made.best_workers()) <= max(workers, 8)
    assert made.wanted_workers() is None or workers < 8


def test_of_more_workers_than_are_considered_nothing_is_promised() -> None:
    slow = model(replace(READ, seconds=0.500), cores=2)  # a disk, for which 50 might wait
    assert slow.wanted_workers() == 8
    (told,) = fixes_for(slow, conditions("stock"), (), {}, [MoreWorkers(8, 3.9)])[:1]
    assert "; what more of them than four a core bring, fastdata tune-workers can" in told.text


@pytest.mark.parametrize(
    ("others", "cores", "seconds"),
    [
        (0.0, 4, 0.010),  # the step: 30 ms that need a core have four
        (1.0, 4, 0.010),  # eight beside another get 8/9 of four
        (2.0, 2, 0.01875),  # and 8/10 of two
        (8.0, 2, 0.030),
    ],
)
def test_cores_are_shared_evenly_with_those_who_use_them_too(
    others: float, cores: int, seconds: float
) -> None:
    made = replace(model(READ, DECODE, workers=8, cores=cores), others=others)
    assert made.period() == pytest.approx(seconds)


def test_the_cores_that_the_step_computes_on_are_no_workers() -> None:
    alone = model(READ, DECODE, workers=8, cores=2)
    assert alone.period() == pytest.approx(0.015)
    beside = replace(alone, step_cpu=0.010)  # as long as it is
    assert beside.period() == pytest.approx(0.020)


def test_what_a_tuning_measured_takes_the_place_of_what_workers_should_give() -> None:
    made = replace(model(READ, DECODE, workers=1), supplied={1: 0.045, 2: 0.040, 4: 0.012})
    assert made.period(2) == pytest.approx(0.040)
    assert made.period(3) == pytest.approx(0.040 / 3)
    assert made.period(4, factors={"decode": 0.0}) == pytest.approx(0.010)  # the step
    assert made.wanted_workers() == 4
    assert replace(made, supplied={1: 0.045, 2: 0.044}).wanted_workers() is None


TRIED = [MoreWorkers(2, 1.4), MoreWorkers(4, 1.9)]


def test_the_advice_about_workers_is_what_was_tried() -> None:
    measured, made = Measured(0.020, 0.010, 0.010, 0.5), model(READ, DECODE)
    assert fixes_for(made, conditions("stock"), (), {}) == fixes_for(
        made, conditions("stock"), (), {}, [MoreWorkers(4, 1.05)]
    )
    first = fixes_for(made, conditions("stock"), (), {}, TRIED)[0]
    assert (first.text[:23], first.speedup, first.at_most) == (
        "num_workers=4 (now 0), ",
        1.9,
        False,
    )
    stages = stages_of(made, measured, {})
    told = verdict_of(measured, stages, "decode", (), TRIED)
    assert told.endswith("decoding is the bottleneck; with 4 workers it waits 5%")
    assert enough_workers(made, measured, TRIED) is None
    assert enough_workers(made, measured, [MoreWorkers(4, 1.96)]) == 4


def test_what_was_not_tried_is_a_bound_and_what_failed_is_no_advice() -> None:
    measured, made = Measured(0.020, 0.010, 0.010, 0.5), model(READ, DECODE)
    untried = [MoreWorkers(4, 2.0, "a cache would have to be filled")]
    found = fixes_for(made, conditions("packed"), (), {}, untried)
    (fix,) = (fix for fix in found if fix.text.startswith("num_workers=4"))
    assert fix.at_most
    assert "not tried, as a cache" in fix.text
    assert "workers" not in verdict_of(
        measured, stages_of(made, measured, {}), "decode", (), untried
    )
    failed = [MoreWorkers(4, 0.0, "PicklingError: no")]
    told = fixes_for(made, conditions("packed"), (), {}, failed)
    assert not any("workers=" in fix.text for fix in told)


@pytest.mark.parametrize(
    ("made", "cores"),
    [
        (model(READ, DECODE), 3.0),
        (model(READ), 0.0),  # it waits for the disk
        (model(Cost("load", 0.020, False), workers=0), None),
        (model(Cost("load", 0.020, False), COPY, workers=0), None),
        (model(READ, DECODE, step=0.0), None),
        (model(), None),
    ],
)
def test_cores_are_known_only_of_what_was_seen(made: Model, cores: float | None) -> None:
    assert made.cores_to_saturate() == (None if cores is None else pytest.approx(cores))


def test_waiting_belongs_to_what_is_waited_for() -> None:
    made = model(READ, DECODE, COLLATE)
    stages = stages_of(made, Measured(0.020, 0.010, 0.010, 0.5), {"decode": "a.py:3 f"})
    found = {stage.name: stage for stage in stages}
    assert list(found) == ["read", "decode", "collate", "step"]
    assert found["read"].stall_seconds == pytest.approx(0.0025)
    assert found["decode"].stall_seconds == pytest.approx(0.0075)
    assert found["collate"].stall_seconds == 0
    assert found["decode"].where == "a.py:3 f"
    assert found["decode"].speedup_if_free == pytest.approx(0.020 / 0.012)
    assert found["collate"].speedup_if_free == 1


def test_what_copies_cost_is_the_difference_of_host_and_device_batches() -> None:
    made = model(READ, DECODE, COPY)
    stages = stages_of(made, Measured(0.024, 0.014, 0.010, 0.5), {})
    found = {stage.name: stage.stall_seconds for stage in stages}
    assert found["copy"] == pytest.approx(0.004)
    assert found["read"] + found["decode"] == pytest.approx(0.010)


ITEM = Stall("synchronisation", ".item()", "train.py:12 step")
PERMUTATION = Stall("host tensor", "torch.randperm", "train.py:30 mix", 1, 400_000)


@pytest.mark.parametrize(
    ("made", "measured", "stalls", "bottleneck", "verdict"),
    [
        (
            model(READ, DECODE),
            Measured(0.020, 0.010, 0.010, 0.5),
            (),
            "decode",
            "input-bound: the step waits 50% of the time; decoding is the bottleneck (f, a.py:3)",
        ),
        (
            model(READ, DECODE, cores=2),
            Measured(0.020, 0.010, 0.010, 0.5, on_gpu=True),
            (ITEM,),
            "decode",
            "input-bound: the GPU waits 50% of the time; decoding is the bottleneck (f, a.py:3)",
        ),
        (
            model(READ, DECODE, workers=8),
            Measured(0.010, 0.010, 0.010, 0.0),
            (),
            None,
            "step-bound: nothing to gain from the data side",
        ),
        (
            model(READ, DECODE, workers=8),
            Measured(0.010, 0.010, 0.010, 0.0),
            (ITEM,),
            "step",
            "step-bound, and the step would make a GPU wait: .item() at train.py:12",
        ),
        (
            model(READ, DECODE, workers=8),
            Measured(0.010, 0.010, 0.010, 0.0, on_gpu=True),
            (ITEM,),
            "step",
            "GPU-bound, and the step makes the device wait: .item() at train.py:12",
        ),
        (
            model(READ, DECODE, workers=8),
            Measured(0.010, 0.010, 0.010, 0.0, on_gpu=True),
            (PERMUTATION,),
            "step",
            "GPU-bound, and the step makes a large tensor on the host: torch.randperm at "
            "train.py:30",
        ),
        (
            model(Cost("load", 0.010, False), workers=0),
            Measured(0.020, 0.010, 0.010, 0.5),
            (),
            "load",
            "input-bound: the step waits 50% of the time; making batches is the bottleneck",
        ),
        (
            model(READ, DECODE, step=0.0),
            Measured(0.020, 0.0, 0.0, 1.0, has_step=False),
            (),
            "decode",
            "no step to compare with: 50 batches a second are made; decoding is the bottleneck "
            "(f, a.py:3)",
        ),
    ],
)
def test_verdict(
    made: Model, measured: Measured, stalls: tuple[Stall, ...], bottleneck: str, verdict: str
) -> None:
    stages = stages_of(made, measured, {"decode": "/home/a.py:3 f"})
    found = bottleneck_of(measured, stages, stalls)
    assert found == bottleneck
    assert verdict_of(measured, stages, found, stalls) == verdict


@pytest.mark.parametrize(
    ("seconds", "batches", "words"),
    [
        ([0.041, 0.040, 0.9], 1, "each pass of 1 batch begins with 0.04 s without one, 80% of"),
        ([0.041, 0.041], 10, "each pass of 10 batches begins with 0.04 s without one, 29% of"),
        ([0.041, 0.041], 1000, ""),
        ([0.041], 1, ""),  # it may be an accident
        ([0.001, 0.001], 1, ""),  # as any batch
    ],
)
def test_beginnings_of_passes_that_take_much_are_in_the_verdict(
    seconds: list[float], batches: int, words: str
) -> None:
    measured = Measured(0.010, 0.010, 0.010, 0.0)
    said = restarts_of(seconds, batches, 0.001, measured)
    assert said.startswith(words)
    assert bool(said) == bool(words)
    made = model(READ, DECODE, workers=8)
    verdict = verdict_of(measured, stages_of(made, measured, {}), None, (), restarts=said)
    fed = "step-bound: nothing to gain from the data side"
    assert verdict == (f"step-bound; but {said}" if said else fed)


def test_a_step_that_shares_its_cores_is_told_so_and_who_computes_beside_it() -> None:
    made = model(READ, DECODE, HAND_OVER)
    measured = Measured(0.020, 0.010, 0.010, waited=0.001)
    stages = stages_of(made, measured, {})
    found = {stage.name: stage.stall_seconds for stage in stages}
    assert found["hand over"] == 0
    assert found["read"] + found["decode"] == pytest.approx(0.010)
    assert verdict_of(measured, stages, None, ()) == (
        "step-bound: the step waits for no batch, but shares its cores with the workers, and "
        "takes 2 times as long beside them"
    )


def test_a_step_that_shares_its_cores_with_workers_is_not_waiting() -> None:
    assert not Measured(0.020, 0.015, 0.015, waited=0.01).is_input_bound
    assert Measured(0.020, 0.015, 0.015, waited=0.20).is_input_bound
    # A GPU's loop hardly waits itself: it is the device that does.
    assert Measured(0.020, 0.015, 0.015, waited=0.01, on_gpu=True).is_input_bound


def conditions(
    kind: Any,
    *,
    on_gpu: bool = False,
    input_bound: bool = True,
    calls_python: bool = False,
    epoch_batches: int | None = None,
    persistent: bool = True,
    **others: Any,
) -> Conditions:
    info = LoaderInfo(
        kind, batches_per_epoch=epoch_batches, persistent=persistent, calls_python=calls_python
    )
    seconds = 0.020 if input_bound else 0.010
    return Conditions(info, Measured(seconds, 0.010, 0.010, 0.5, on_gpu=on_gpu), **others)


def fixes(made: Model, given: Conditions, *stalls: Stall) -> dict[str, float]:
    return {fix.text: fix.speedup for fix in fixes_for(made, given, stalls, {})}


def test_fixes_are_ranked_by_what_they_gain() -> None:
    more = [MoreWorkers(4, 1.5)]
    found = fixes_for(model(READ, DECODE), conditions("packed"), (ITEM,), {}, more)
    gains = [(fix.at_most, round(fix.speedup, 3)) for fix in found[:-1]]
    assert gains == [(False, 1.6), (False, 1.5), (False, 1.333), (True, 2.0), (True, 2.0)]
    assert ".item() at train.py:12" in found[-1].text
    assert found[-1].speedup == 1


@pytest.mark.parametrize(
    ("given", "word", "offered"),
    [
        (conditions("packed"), "codec=", True),
        (conditions("packed", raw=True), "codec=", False),
        (conditions("packed", plain=False), "codec=", False),
        (conditions("packed"), 'cache="ram"', True),
        (conditions("packed", plain=False), 'cache="ram"', False),
        (conditions("packed"), 'cache="device"', True),
        (conditions("packed", calls_python=True), 'cache="device"', False),
        (conditions("packed"), "dali", False),
        (conditions("packed", on_gpu=True, has_dali=True), "dali", True),
        (conditions("packed"), "fastdata.pack", False),
        (conditions("stock"), "fastdata.pack", True),
        (conditions("iterable"), "fastdata.pack", False),
        (conditions("stock"), "persistent", False),
        (
            conditions("stock", persistent=False, start_seconds=1.0, epoch_batches=100),
            "persist",
            True,
        ),
        (
            conditions("stock", persistent=False, start_seconds=0.01, epoch_batches=99),
            "persist",
            False,
        ),
    ],
)
def test_fixes_only_where_they_apply(given: Conditions, word: str, offered: bool) -> None:
    assert any(word in text for text in fixes(model(READ, DECODE), given)) == offered


def test_fixes_of_copies() -> None:
    made = model(COPY, step=0.010)
    on_gpu = conditions("stock", on_gpu=True, float_bytes=1.0)
    found = fixes(made, on_gpu)
    assert [text.partition(":")[0] for text in found if "CUDAPrefetcher" in text]
    assert any("pin_memory" in text for text in found)
    eighth = next(gain for text, gain in found.items() if "uint8" in text)
    assert eighth == pytest.approx(14 / 11)
    assert not any("pin_memory" in t for t in fixes(made, replace(on_gpu, pinned=True)))
    assert not any("Prefetcher" in t for t in fixes(made, replace(on_gpu, loader_copies=True)))
    assert not fixes(made, conditions("stock"))


def test_waiting_of_a_sample_is_reading_but_not_waiting_for_a_core() -> None:
    times = Times(queued=0.006)
    times.wall |= {"sample": 0.020, "load": 0.020, "augment": 0.010, "collate": 0.010}
    times.cpu |= {"sample": 0.005, "load": 0.015}
    times.wall["read"] = 0.001
    stages = times.stages()
    # 40 ms, of which 20 on a core; of 6 in the queue 40/61 belong here.
    assert stages["read"][0] == pytest.approx(0.001 + 0.020 - 0.006 * 40 / 61)
    assert stages["decode"] == pytest.approx((0.020, 0.020))
    assert (stages["augment"][0], stages["collate"][0]) == (0.010, 0.010)
    times.all_reading_recorded = True
    assert times.stages()["read"][0] == 0.001
    assert times.stages()["decode"] == pytest.approx((0.040, 0.020))


def test_a_model_of_nothing_is_no_division_by_zero() -> None:
    made = Model((), 0.0, 0, 1).fitted(0.0)
    assert made.period() == 0
    assert made.waiting() == 0
    assert made.cores_to_saturate() is None
    assert made.binding() == ()
    stages = stages_of(made, Measured(0.0, 0.0, 0.0, 0.0), {})
    assert [stage.name for stage in stages] == ["step"]
    assert not math.isnan(stages[0].speedup_if_free)
