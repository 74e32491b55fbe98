"""Whole sessions of tuning, on machines that are made up."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from simulated_tuning import CURVE, Batches, Clock, Meter, T, rate

from fastdata.measuring import workload
from fastdata.measuring.factories import WorkloadInfo
from fastdata.measuring.images import ImageInfo
from fastdata.measuring.windows import Rate, Supply
from fastdata.measuring.workload import Workload
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning.budget import TimeBudget
from fastdata.tuning.choice import curve, fed, ruled_out
from fastdata.tuning.report import Demand, advice_for, verdict_of
from fastdata.tuning.runner import TrialFailedError
from fastdata.tuning.session import Session
from fastdata.tuning.trials import StepRuns, Trials
from fastdata.tuning.tuner import ProgressBar


class Machine:
    """A runner whose supply is a function of settings; time passes as it is measured."""

    def __init__(
        self,
        curve: Callable[[Settings], float],
        *,
        noise: float = 0.01,
        seed: int = 0,
        overhead: float = 0.0,
    ) -> None:
        self.curve, self.noise, self.overhead = curve, noise, overhead
        self.random = np.random.default_rng(seed)
        self.demand = 0.0
        self.clock = Clock()
        self.asked: list[Settings] = []

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        if name == "demand":
            return self._windows(self.demand, 7)
        settings = arguments[0]
        self.asked.append(settings)
        self.clock.now += 1.0
        value = self.curve(settings)
        if value <= 0:
            raise TrialFailedError("the process died")
        if name == "supply":
            return Supply(self._windows(value, 3), 0.1)
        return self._windows(1 / (1 / fed(settings, value, self.demand) + self.overhead), 5)

    def _windows(self, value: float, count: int) -> tuple[float, ...]:
        noise = 1 - abs(self.random.normal(0, self.noise, count))
        return tuple((value * noise).tolist())

    def close(self) -> None: ...


INFO = WorkloadInfo(Settings(1), 32, 1000, 500)


def session_of(machine: Machine, demand: float | None, **options: Any) -> Session:
    info = options.pop("info", INFO)
    budget = TimeBudget(options.pop("seconds", 1000), machine.clock)
    common: Any = machine, info, budget, 10, lambda text: None
    free = {"memory_bytes": lambda: 1 << 34, "shm_bytes": lambda: 1 << 30, **options}
    session = Session(Trials(*common, **free), StepRuns(*common))
    if demand is not None:
        machine.demand = demand
        session.runs.measure_demand("a step")
    return session


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("demand", "workers"), [(2.0, 0), (80.0, 1), (250.0, 3), (430.0, 5), (700.0, 8), (950.0, 8)]
)
def test_the_right_number_of_workers_is_found(demand: float, workers: int, seed: int) -> None:
    # A hundred batches a second a worker, as far as eight cores go.
    machine = Machine(lambda s: 100.0 * min(max(s.num_workers, 1), 8), noise=0.01, seed=seed)
    session = session_of(machine, demand)
    session.sweep(8, 32, ["thread"])
    assert session.confirm_choice().num_workers == workers  # type: ignore[union-attr]


def test_with_no_step_the_plateau_is_chosen() -> None:
    machine = Machine(lambda s: 100.0 * min(max(s.num_workers, 1), 3))
    session = session_of(machine, None)
    session.sweep(8, 32, ["thread"])
    assert session.confirm_choice().num_workers == 3  # type: ignore[union-attr]


def test_more_workers_than_cores_are_tried_while_that_helps() -> None:
    machine = Machine(lambda s: 10.0 * max(s.num_workers, 1))
    session = session_of(machine, 55.0)
    session.sweep(2, 8, ["process"])
    assert session.confirm_choice().num_workers == 7  # type: ignore[union-attr]
    machine = Machine(lambda s: 10.0 * min(max(s.num_workers, 1), 2))
    session = session_of(machine, 55.0)
    session.sweep(2, 8, ["process"])
    assert max(one.num_workers for one in machine.asked) == 4


def test_another_kind_of_worker_saves_one() -> None:
    machine = Machine(
        lambda s: (100.0 if s.worker_method == "process" else 60.0) * s.num_workers or 60.0
    )
    session = session_of(machine, 170.0)
    session.sweep(4, 4, ["thread", "process"])
    assert session.confirm_choice() == Settings(2, "process", 1)


def test_the_step_is_run_with_other_numbers_of_the_chosen_workers_while_there_is_time() -> None:
    def curve(settings: Settings) -> float:
        return 100.0 * max(settings.num_workers, 1)

    session = session_of(Machine(curve), 150.0)
    session.sweep(4, 4, ["thread", "process"])
    chosen = session.confirm_choice()
    assert {one.num_workers for one in session.runs.trained} == {2}
    session.train_curve(chosen)
    trained = {one.num_workers: rate.median for one, rate in session.runs.trained.items()}
    assert sorted(trained) == [0, 1, 2, 4]
    assert trained[0] == pytest.approx(60, rel=0.05)  # one after the other
    assert trained[1] == pytest.approx(100, rel=0.05)
    assert {one.worker_method for one in session.runs.trained} == {"thread"}
    late = session_of(Machine(curve), 150.0, seconds=30)
    late.sweep(4, 4, ["thread"])
    late.trials.budget.begin()
    late.confirm_choice()
    late.runs.budget.extend(-late.runs.budget.left)
    before = dict(late.runs.trained)
    late.train_curve(late.choice())
    assert late.runs.trained == before


def test_a_curve_has_the_best_of_each_number_of_workers_of_a_kind() -> None:
    other = Settings(2, "process")
    rates = [
        (T[2], rate(19)),
        (T[1], rate(10)),
        (other, rate(30)),
        (replace(T[2], prefetch_factor=1), rate(20)),
    ]
    assert curve(rates, T[4]) == [rates[1], rates[3]]
    assert curve(rates, other) == [rates[2]]


def test_what_falls_short_with_the_step_gives_way_to_the_next() -> None:
    def curve(settings: Settings) -> float:
        return 100.0 * max(settings.num_workers, 1)

    machine = Machine(curve)
    trained_with: list[int] = []
    session = session_of(machine, 150.0)
    call = machine.call

    def worse(name: str, *arguments: Any, seconds: float) -> Any:
        if name == "train":
            trained_with.append(arguments[0].num_workers)
            if arguments[0].num_workers < 4:
                return (100.0,) * 5
        return call(name, *arguments, seconds=seconds)

    machine.call = worse  # type: ignore[method-assign]
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice().num_workers == 4  # type: ignore[union-attr]
    assert set(trained_with) == {2, 4}


def test_where_none_reaches_the_ceiling_ties_go_to_fewer_workers() -> None:
    machine = Machine(lambda s: 100.0 * max(s.num_workers, 1), overhead=0.002)  # 1.2 of 10 ms
    session = session_of(machine, 100.0)
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice().num_workers == 2  # type: ignore[union-attr]
    assert len(session.runs.trained) > 1


@pytest.mark.parametrize(("of_process", "workers"), [(5.0, 4), (14.0, 4)])
def test_another_kind_is_tried_where_the_knee_is_above_the_cores(
    of_process: float, workers: int
) -> None:
    """Such as on two busy cores, where 4 workers seem to bring more than 2, and 8 no more."""

    def supply(settings: Settings) -> float:
        each = of_process if settings.worker_method == "process" else 10.0
        return each * min(max(settings.num_workers, 1), 4)

    session = session_of(Machine(supply), None)
    session.sweep(2, 8, ["thread", "process"])
    chosen = session.confirm_choice()
    assert chosen is not None
    assert chosen.num_workers == workers
    assert chosen.worker_method == ("process" if of_process > 10 else "thread")


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("demand", [1000.0, None])
def test_a_kind_of_worker_that_does_not_grow_does_not_hide_another(
    seed: int, demand: float | None
) -> None:
    machine = Machine(
        lambda s: 90.0 if s.worker_method == "thread" else 50.0 * s.num_workers, seed=seed
    )
    session = session_of(machine, demand)
    session.sweep(4, 4, ["thread", "process"])
    assert session.confirm_choice() == Settings(4, "process", 1)  # prefetching changes nothing
    assert Settings(4, "process", 4) in machine.asked


@pytest.mark.parametrize(("demand", "sufficient"), [(None, False), (1000.0, False), (250.0, True)])
@pytest.mark.parametrize("matters", [True, False])
def test_batches_ahead_that_bring_nothing_are_saved(
    demand: float | None, sufficient: bool, matters: bool
) -> None:
    def curve(settings: Settings) -> float:
        slow = 0.7 if matters and settings.prefetch_factor == 1 else 1.0
        return slow * 100.0 * min(max(settings.num_workers, 1), 3)

    session = session_of(Machine(curve), demand)
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice() == Settings(3, prefetch_factor=2 if matters else 1)
    assert bool(session.sufficient()) == sufficient


def test_without_workers_nothing_is_ahead_that_could_be_saved() -> None:
    machine = Machine(lambda s: 0.0 if s.num_workers else 20.0)
    session = session_of(machine, 15.0)
    session.sweep(2, 2, ["thread"])
    assert session.confirm_choice() == Settings(0)
    assert {one for one in machine.asked if not one.num_workers} == {Settings(0)}


def test_a_failure_is_a_row_and_others_go_on() -> None:
    machine = Machine(lambda s: 0.0 if s.num_workers == 2 else 100.0 * max(s.num_workers, 1))
    session = session_of(machine, 180.0)
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice().num_workers == 3  # type: ignore[union-attr]
    failed = [trial for trial in session.trials.rows() if trial.supply is None]
    assert failed
    assert {trial.failure for trial in failed} == {"the process died"}
    assert machine.asked.count(Settings(2)) == 1


def test_what_would_not_fit_is_not_tried() -> None:
    machine = Machine(lambda s: 100.0 * max(s.num_workers, 1))
    info = replace(INFO, base=Settings(1, "process", backend="torch"), batch_bytes=100 << 20)
    session = session_of(machine, 350.0, info=info, memory_bytes=lambda: 2 << 30)
    session.sweep(8, 8, ["process"])
    rows = {trial.settings.num_workers: trial for trial in session.trials.rows()}
    assert "would not fit: takes about 2.42GB of memory" in rows[8].failure
    assert all(one.num_workers < 8 for one in machine.asked)
    assert session.confirm_choice().num_workers == 4  # type: ignore[union-attr]


def test_slow_batches_leave_time_for_as_many_workers_as_it_takes() -> None:
    class Slow(Machine):
        def call(self, name: str, *arguments: Any, seconds: float) -> Any:
            if name == "supply":  # ten batches a turn, made ahead and measured
                self.clock.now += 10 / self.curve(arguments[0])
            return super().call(name, *arguments, seconds=seconds)

    machine = Slow(lambda settings: 3.1 * max(settings.num_workers, 1))
    session = session_of(machine, 10.0, seconds=30)
    session.sweep(2, 8, ["thread"])
    assert session.choice().num_workers == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("demand", "out"),
    [
        (None, {T[0], T[1], T[2]}),
        (10, {T[0], T[4], T[8]}),  # two workers give twice as much
        (30, {T[0], T[1], T[2]}),
        (300, {T[0], T[1], T[2]}),
    ],
)
def test_what_cannot_be_chosen_any_more_is_ruled_out(
    demand: float | None, out: set[Settings]
) -> None:
    assert ruled_out(CURVE, demand) == out
    assert ruled_out([], demand) == set()


def test_rounds_interleave_in_random_order() -> None:
    machine = Machine(lambda s: 100.0)
    session = session_of(machine, None)
    session.measure([T[n] for n in range(4)])
    rounds = [machine.asked[start : start + 4] for start in (0, 4, 8)]
    assert all(set(one) == {T[n] for n in range(4)} for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_the_time_is_kept_and_what_was_not_tried_is_said() -> None:
    machine = Machine(lambda s: 1.0)
    session = session_of(machine, None, seconds=3)
    session.sweep(64, 64, ["thread"])
    assert machine.clock.now <= 4
    assert "the time was up: not tried were" in session.notes[-1]
    assert session.confirm_choice() is not None


class Simulated(Workload):
    """A workload with a step and a loader that only move a clock."""

    def __init__(self, step: Callable[[Any], None], loader: Any) -> None:
        self.device, self.step, self._batches = torch.device("cpu"), step, [0]
        self.loaders: Any = SimpleNamespace(
            device=None, open=lambda settings: nullcontext(loader), stay_in_cache=lambda: True
        )


class Patient(Machine):
    """A machine of slow steps, on which time passes as windows say."""

    def __init__(self, step_seconds: float, batch_seconds: float) -> None:
        super().__init__(lambda s: max(s.num_workers, 1) / batch_seconds, noise=0.0)
        self.demand = 1 / step_seconds

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        loader: Any = None
        if name == "warm":
            return ""
        if name != "demand":
            settings = arguments[0]
            self.asked.append(settings)
            loader = Batches(self.clock, 1 / self.curve(settings), stock=0, start=0.1)
        if name == "train" and settings.num_workers:  # batches are made meanwhile
            loader.seconds = max(0.0, loader.seconds - 1 / self.demand)
        with mock.patch.object(workload, "Meter", return_value=Meter(self.clock)):
            return getattr(Simulated(self._step, loader), name)(*arguments)

    def _step(self, batch: Any) -> None:
        self.clock.now += 1 / self.demand


@pytest.mark.parametrize(
    ("step_seconds", "batch_seconds", "given"),
    [(0.05, 0.01, 30), (0.9, 0.2, 30), (2.0, 0.1, 60), (4.0, 1.0, 60), (0.2, 1.5, 60)],
)
def test_the_run_with_the_step_is_within_the_time(
    step_seconds: float, batch_seconds: float, given: float
) -> None:
    machine = Patient(step_seconds, batch_seconds)
    info = replace(INFO, batch_seconds=batch_seconds)
    session = session_of(machine, machine.demand, info=info, seconds=given)
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice() is not None
    assert session.runs.trained
    assert not [note for note in session.notes if "that were given" in note]
    assert machine.clock.now <= given


def test_a_step_too_slow_for_the_time_is_said_before_settings_are_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Patient(step_seconds=6.0, batch_seconds=0.1)
    info = replace(INFO, batch_seconds=0.1)
    session = session_of(machine, machine.demand, info=info, seconds=30)
    assert not machine.asked
    (said,) = (record.message for record in caplog.records)
    match = re.match(r"tuning takes about (\d+) s, not the 30 s that were given: a step", said)
    assert match
    assert "takes about" in session.notes[-1]
    session.sweep(4, 4, ["thread"])
    assert session.confirm_choice() is not None
    assert 0.6 * int(match[1]) < machine.clock.now <= int(match[1]) + 1
    assert session.trials.budget.total == pytest.approx(int(match[1]), abs=1)


def test_slow_batches_have_an_answer_before_they_are_given_up() -> None:
    machine = Patient(step_seconds=0.1, batch_seconds=1.2)
    session = session_of(machine, None, info=replace(INFO, batch_seconds=1.2), seconds=40)
    session.sweep(2, 2, ["thread"])
    assert {settings.num_workers for settings, _ in session.rates} >= {0, 1}
    assert machine.clock.now <= 45


def test_where_not_all_have_a_turn_the_shortest_are_first() -> None:
    machine = Patient(step_seconds=0.5, batch_seconds=3.0)  # more workers have batches sooner
    info = replace(INFO, batch_seconds=3.0)
    session = session_of(machine, machine.demand, info=info, seconds=60)
    session.sweep(4, 4, ["thread"])
    assert machine.asked[0] == T[4]
    assert session.confirm_choice().num_workers == 4  # type: ignore[union-attr]
    assert machine.clock.now <= 60


def test_time_left_includes_the_run_with_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    budget = TimeBudget(10, clock)
    with ProgressBar(budget, True) as bar:
        assert budget.reserve_run(Settings(1), 1.75) == 0  # seven steps
        assert budget.for_trials == 6
        budget.extend(5)
        clock.now = 3
        bar.show("a turn")
        assert "12 s left" in bar._bar.desc
        assert bar._bar.total == 15
    clock.now = 30
    assert (budget.left, budget.for_trials) == (0, 0)


class Warming(Machine):
    """Remembers with what settings the data was to be read."""

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        self.asked.append(arguments[0])
        return "warm"


@pytest.mark.parametrize(
    ("free", "read_by"),
    [(1 << 40, 8), (1 << 30, 4), ((256 + 64 + 40) << 20, None)],
)
def test_memory_is_predicted_before_the_data_is_read(free: int, read_by: int | None) -> None:
    machine = Warming(lambda settings: 1.0)
    base = Settings(1, "process", backend="torch")
    info = replace(INFO, base=base, batch_bytes=50 << 20)
    session = session_of(
        machine, None, info=info, memory_bytes=lambda: free, shm_bytes=lambda: 1 << 40
    )
    assert session.trials.warm(8) == "warm"
    expected = None if read_by is None else replace(base, num_workers=read_by)
    assert machine.asked == [expected]


def test_what_takes_longer_than_there_is_time_is_not_read_before() -> None:
    machine = Warming(lambda settings: 1.0)
    session_of(machine, None, info=replace(INFO, batch_seconds=5.0), seconds=30).trials.warm(2)
    assert machine.asked == [None]


def test_workers_that_start_slowly_persist() -> None:
    base = Settings(1, "process", backend="torch")
    info = replace(INFO, base=base, batches=10)
    machine = Machine(lambda s: 1000.0 * max(s.num_workers, 1))
    session = session_of(machine, 100.0, info=info)  # an epoch of 0.1 s, and a start as long
    session.sweep(2, 2, ["process"])
    assert session.confirm_choice().persistent_workers  # type: ignore[union-attr]
    session = session_of(machine, 100.0, info=replace(info, batches=100_000))
    session.sweep(2, 2, ["process"])
    assert not session.confirm_choice().persistent_workers  # type: ignore[union-attr]


@pytest.mark.parametrize("demand", [None, 150.0, 1000.0])
def test_dali_is_a_row_of_the_comparison_and_never_chosen(demand: float | None) -> None:
    machine = Machine(
        lambda s: (10_000.0 if s.backend == "dali" else 100.0) * max(s.num_workers, 1)
    )
    session = session_of(machine, demand, info=replace(INFO, allows_dali=True))
    session.sweep(2, 2, ["thread"])
    assert not [one for one in machine.asked if one.backend == "dali"]
    session.compare_dali()
    chosen = session.confirm_choice()
    assert chosen is not None
    assert chosen.backend == "cpu"
    (row,) = (row for row in session.trials.rows() if row.settings.backend == "dali")
    assert row.supply is not None
    assert row.supply.median > 1000
    assert "DALI is for comparison" in session.notes[-1]


def test_dali_is_not_measured_where_it_makes_no_such_batches() -> None:
    machine = Machine(lambda s: 100.0)
    session = session_of(machine, None)
    session.sweep(1, 1, ["thread"])
    session.compare_dali()
    assert all(one.backend == "cpu" for one in machine.asked)
    assert "DALI was not measured" in session.notes[-1]


# -- words --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("supply", "demand", "trained", "saturates", "words"),
    [
        (rate(20), 10, rate(9.95), True, "keeps the step busy: 9.95 of 10 steps/s"),
        (rate(10.2), 10, rate(9.9), True, "less than 1.1 times the demand"),
        (rate(20), 10, rate(9), False, r"falls short with the step, 9 of 10 steps/s \(90.0%"),
        (rate(5), 10, rate(5), False, "cannot saturate: demand 10 batches/s .* best supply 5"),
        (rate(20), None, None, False, "2 threads, prefetch 2: 20 batches/s"),
        (rate(20), 10, None, True, "not tried with the step"),
    ],
)
def test_verdicts(
    supply: Rate, demand: float | None, trained: Rate | None, saturates: bool, words: str
) -> None:
    found, text = verdict_of(
        T[2], supply, demand=demand, trained=trained, best=supply, batch_size=4
    )
    assert found == saturates
    assert "\n" not in text
    assert re.search(words, text)


@pytest.mark.parametrize(
    ("settings", "supply", "best", "trained", "words"),
    [
        (T[0], rate(60), rate(60), rate(8.5), "no workers: falls short with the step, 8.5 of 10 "
         r"steps/s .*: they make batches between steps, and more were not tried"),
        (T[0], rate(60), rate(60), None, r"no workers: falls short of a demand of 10 batches/s .*"),
        (T[2], rate(12, 0.5), rate(13, 0.5), rate(9), "2 threads, prefetch 2: falls short with the "
         r"step, 9 of 10 .*: no supply is surely 1.1 times the demand, the best is 13 batches/s"),
    ],
)  # fmt: skip
def test_a_demand_below_the_supply_is_not_called_unreachable(
    settings: Settings, supply: Rate, best: Rate, trained: Rate | None, words: str
) -> None:
    found, text = verdict_of(
        settings, supply, demand=10, trained=trained, best=best, batch_size=4,
        more="were not tried",
    )  # fmt: skip
    assert not found
    assert re.match(words, text)
    assert "cannot saturate" not in text


@pytest.mark.parametrize(
    ("workers", "epoch", "words"),
    [
        (2, 4, "an epoch has 4 batches, and while it lasts nobody makes the first one"),
        (2, 1, "an epoch has 1 batch, and"),
        (2, 1000, "taking a batch costs the loop 25 ms"),
        (2, None, "taking a batch costs the loop 25 ms"),
    ],
)
def test_short_epochs_are_named_as_what_is_lost(
    workers: int, epoch: int | None, words: str
) -> None:
    # 100 ms of a worker for the first batch, of an epoch of four: 25 ms a batch.
    found, text = verdict_of(
        T[workers], rate(20), demand=10, trained=rate(8), best=rate(20), batch_size=4, epoch=epoch
    )
    assert not found
    assert words in text


def test_advice_is_given_only_where_it_applies() -> None:
    packed = replace(
        INFO, images=ImageInfo(("jpeg",), (512, 224), 10**9), cuda=True,
        device_free_bytes=10**10, allows_dali=True,
    )  # fmt: skip
    known: dict[str, Any] = {"cores": 2, "available_bytes": 1 << 34, "factor": 3.0, "grew": True}
    told = " ".join(advice_for(packed, cache_state="cold", **known))
    for word in ('codec="raw"', 'cache="device"', 'cache="ram"', "smaller size", "DALI"):
        assert word in told
    warm = " ".join(advice_for(replace(packed, cuda=False), cache_state="warm", **known))
    assert "DALI" not in warm
    assert "cache=" not in warm
    assert "more cores: 2" in warm
    waiting = " ".join(advice_for(packed, cache_state="warm", workers=4, **known))
    assert "more workers: 4 on 2 cores" in waiting
    assert "more cores" not in waiting
    raw = replace(INFO, images=ImageInfo(("raw",), (224, 224)))
    assert advice_for(raw, cache_state="warm", **{**known, "grew": False}) == ()
    stock = replace(INFO, base=Settings(1, "process", backend="torch"))
    assert "fastdata pack" in advice_for(stock, cache_state="warm", **known)[0]


def test_a_result_has_the_demand() -> None:
    machine = Machine(lambda s: 100.0)
    session = session_of(machine, 10.0)
    assert isinstance(session.runs.demand, Demand)
    assert session.rate == pytest.approx(10, rel=0.05)
