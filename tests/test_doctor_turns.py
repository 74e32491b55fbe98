"""How rows are compared: in simulated processes, by a clock that only they move."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata.doctor import trials
from fastdata.doctor.advice.processor import KEPT
from fastdata.doctor.contract import Numerics
from fastdata.doctor.messages import Ran, Run, Watched
from fastdata.doctor.processes import ScriptFailedError
from fastdata.doctor.results import Follow
from fastdata.doctor.running import TIME_IS_UP, TrialsEndedError
from fastdata.doctor.script import Script
from fastdata.doctor.trials import Trials

pytestmark = pytest.mark.smoke

BOUND = (("OMP_PROC_BIND", "close"),)
ROWS: dict[Follow, tuple[tuple[str, str], ...]] = {
    (id,): () for id in ("D07", "D06", "D03", "D08", "D15", "D35")
}
GAINS = {"D07": 1.3, "D06": 1.08, "D03": 0.8, "D08": 1.0, "D15": 1.0, "D35": 0.7}


@dataclass
class Machine:
    """A simulated machine, and what runs on it."""

    gains: Mapping[str, float] = field(default_factory=lambda: GAINS)
    step: float = 0.05
    start: float = 5.0
    switch: float = 0.0
    between: float = 0.005
    """Spread of a row's speed between processes, and of a block's within one."""
    allocator: float = 1.0
    others: float = 0.0
    wall_noise: float = 0.0
    clock: float = 0.0
    on_step: Callable[[Process], object] = lambda _: None
    random: random.Random = field(default_factory=lambda: random.Random(1))
    processes: list[Process] = field(default_factory=list)


class Process:
    """Takes the place of a script's process."""

    has_ended = False

    def __init__(self, machine: Machine, environment: dict[str, str]) -> None:
        self.machine, self.environment = machine, environment
        self.follow: Follow = ()
        self.began = machine.clock
        self.factors: dict[str, float] = {}
        self.steps = self.state = 0
        machine.processes.append(self)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.has_ended = True

    @staticmethod
    def save(tensors: dict[str, Any], path: str, process: Process, seed: int) -> None:
        torch.save(tensors, path)

    def watched(self, seconds: float) -> Watched:
        self._take(self.machine.start, seconds)
        return Watched()

    def ask(self, command: Run, seconds: float) -> Ran:
        self.machine.clock += self.machine.switch * (command.follow != self.follow)
        self.follow = command.follow
        if command.dump:
            self.state = self.state or self.steps + 1  # it is kept by the first dump
            tensors = {"weight": torch.full((4,), 0.1 * self.state)}
            self.save({"gradients": tensors, "updates": tensors}, command.dump, self, command.seed)
        steps = command.steps
        self.steps += steps
        self.machine.on_step(self)
        taken = steps * self._step()
        wall = taken * (1 + self.machine.random.random() * self.machine.wall_noise)
        self._take(wall, seconds)
        return Ran(wall, 1 << 30, steps, {}, cpu_seconds=taken)

    def _step(self) -> float:
        machine, seconds = self.machine, self.machine.step
        for id in self.follow:
            spread = machine.random.gauss(0, machine.between)
            seconds /= self.factors.setdefault(id, machine.gains[id] * math.exp(spread))
        if "MALLOC_TRIM_THRESHOLD_" not in self.environment:
            spread = machine.random.gauss(0, 2 * machine.between)
            seconds *= self.factors.setdefault("malloc", machine.allocator * math.exp(spread))
        if "OMP_PROC_BIND" in self.environment:
            seconds /= 1.2
        return seconds * math.exp(machine.random.gauss(0, machine.between))

    def _take(self, takes: float, seconds: float) -> None:
        self.machine.clock += min(takes, max(seconds, 0.1))
        if takes > seconds:
            raise ScriptFailedError(f"the script made no step within {seconds:.0f} s")


class Simulated(Trials):
    """Trials on a simulated machine."""

    machine = Machine()

    def _start(self, *, pinned: bool = True, environment: Any = (), **_: object) -> Any:
        kept = dict(KEPT) if pinned else {}
        return Process(self.machine, {**kept, **dict(environment)})


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return trials on a machine; `until` is a tenth later than the deadline."""

    def make(machine: Machine, seconds: float = 300.0, **watched: Any) -> Simulated:
        class Others:
            cores = machine.others

            def end(self) -> None: ...

        monkeypatch.setattr(trials.time, "monotonic", lambda: machine.clock)
        monkeypatch.setattr(trials, "CoresOfOthers", Others)
        monkeypatch.setattr(trials, "available_cores", lambda: 2)
        found = Simulated(Script("file", "train.py"), tmp_path, seconds, 1.1 * seconds)
        found.machine = machine
        found.watched = Watched(step_seconds=machine.step, **watched)
        return found

    return make


def verdicts(found: Trials) -> dict[str, str]:
    return {
        "+".join(ids) or "itself": one.verdict for ids, one in found.rows["train"].found().items()
    }


def test_rows_are_judged_after_two_processes(tried: Any) -> None:
    machine = Machine()
    found = tried(machine)
    found.compare(ROWS)
    assert verdicts(found) == {
        "itself": "no difference",
        "D07": "gain",
        "D06": "gain",
        "D03": "slower",
        "D08": "no difference",
        "D15": "no difference",
        "D35": "slower",
    }
    assert len(machine.processes) == 2
    for (id,), trial in ((ids, one) for ids, one in found.rows["train"].found().items() if ids):
        assert trial.gain.value == pytest.approx(GAINS[id], rel=0.02), id
        assert trial.gain.starts == 2
        assert trial.gain.high / trial.gain.low < 1.1
        assert trial.numerics == Numerics.EQUAL
    assert machine.clock < 120


def test_rows_that_stay_open_get_further_processes(tried: Any) -> None:
    machine = Machine(between=0.03)
    found = tried(machine)
    found.compare({("D06",): (), ("D35",): ()})
    assert len(machine.processes) > 2
    starts = {ids: one.gain.starts for ids, one in found.rows["train"].found().items()}
    assert starts["D06",] == len(machine.processes)
    assert starts["D35",] <= starts["D06",]


def test_a_gain_with_a_wide_interval_gets_further_processes(tried: Any) -> None:
    starts = set()
    for seed in range(8):
        found = tried(Machine(between=0.02, gains={"D07": 2.0}, random=random.Random(seed)))
        found.compare({("D07",): ()})
        trial = found.rows["train"].found()["D07",]
        assert trial.verdict == "gain"
        assert trial.gain.starts == 4 or trial.gain.high < 1.05 * trial.gain.value
        starts.add(trial.gain.starts)
    assert len(starts) > 1


def test_the_row_that_the_script_fails_with_is_blamed(tried: Any) -> None:
    def fail(process: Process) -> None:
        if process.follow == ("D06",) and process.steps > 400:  # in the turns
            process.has_ended = True
            raise ScriptFailedError("Traceback\nRuntimeError: no kernel")

    machine = Machine(on_step=fail)
    found = tried(machine)
    found.compare(ROWS)
    trial = found.rows["train"].found()["D06",]
    assert (trial.verdict, trial.why, trial.gain) == ("failed", "RuntimeError: no kernel", None)
    assert verdicts(found)["D07"] == "gain"
    assert verdicts(found)["D08"] == "no difference"


def test_numbers_are_compared_from_the_same_state_in_all_processes(tried: Any) -> None:
    def fail(process: Process) -> None:
        if process.follow == ("D07",):  # the first one: others are followed in a second process
            raise ScriptFailedError("no")

    found = tried(Machine(on_step=fail))
    found.compare(ROWS)
    found.compare({("D06", "D08"): ()})
    trials_of = found.rows["train"].found()
    assert trials_of["D07",].verdict == "failed"
    numerics = {one.numerics for ids, one in trials_of.items() if ids and ids != ("D07",)}
    assert numerics == {Numerics.EQUAL}


@pytest.mark.parametrize(("draws", "numerics"), [(True, None), (False, Numerics.TRAINING)])
def test_other_random_numbers_are_not_taken_for_other_training(
    draws: bool, numerics: Numerics | None, tried: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row with another order of memory drops other values out."""

    def save(tensors: dict[str, Any], path: str, process: Process, seed: int) -> None:
        values = torch.full((4,), 1.0 + (process.follow == ("D03",)) + draws * seed)
        torch.save({name: {"weight": values} for name in tensors}, path)

    monkeypatch.setattr(Process, "save", staticmethod(save))
    found = tried(Machine(gains={"D03": 1.5, "D07": 1.2}))
    found.compare({("D03",): (), ("D07",): ()})
    trials_of = found.rows["train"].found()
    assert trials_of["D03",].numerics == numerics
    assert trials_of["D07",].numerics == Numerics.EQUAL


def test_a_script_that_fails_without_advice_ends_the_trials(tried: Any) -> None:
    def fail(process: Process) -> None:
        if process.follow == () and process.steps > 300:
            raise ScriptFailedError("ValueError: too far")

    found = tried(Machine(on_step=fail))
    with pytest.raises(ScriptFailedError, match="too far"):
        found.compare(ROWS)
    assert found.rows["train"].found()["D07",].gain.value == pytest.approx(1.3, rel=0.05)


def test_a_first_step_that_takes_too_long_is_left_out(tried: Any) -> None:
    def compile_(process: Process) -> None:
        if "D05" in process.follow:
            process.machine.clock += 100
            raise ScriptFailedError("the script made no step within 88 s")

    found = tried(Machine(on_step=compile_))
    found.compare({**ROWS, ("D05",): ()})
    assert verdicts(found)["D05"] == "failed"
    assert verdicts(found)["D07"] == "gain"


def test_compiling_is_not_begun_when_the_time_is_short(tried: Any) -> None:
    followed: set[Follow] = set()
    machine = Machine(gains={**GAINS, "D05": 1.5}, on_step=lambda one: followed.add(one.follow))
    found = tried(machine, 90)
    found.compare({**ROWS, ("D05",): ()})
    assert ("D05",) not in followed
    assert verdicts(found)["D07"] == "gain"
    found = tried(machine, 300)
    machine.clock = 0.0
    found.compare({**ROWS, ("D05",): ()})
    assert verdicts(found)["D05"] == "gain"


@pytest.mark.parametrize("seconds", [20, 60, 120, 300])
@pytest.mark.parametrize("step", [0.001, 0.05, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("start", [2.0, 30.0])
def test_trials_end_in_time(seconds: float, step: float, start: float, tried: Any) -> None:
    machine = Machine(step=step, start=start)
    machine.clock = 15.0  # of watching
    found = tried(machine, seconds)
    ended = ""
    try:
        found.compare({**ROWS, ("D55",): KEPT, ("D18",): BOUND})
    except TrialsEndedError as error:
        ended = str(error)
    assert ended in ("", TIME_IS_UP)
    assert machine.clock <= 1.1 * seconds + 0.2
    assert all(process.began <= seconds for process in machine.processes[1:])


def test_slow_switching_leaves_time_for_a_second_process(tried: Any) -> None:
    machine = Machine(step=0.01, switch=0.3)
    found = tried(machine, 120)
    found.compare(ROWS)
    assert verdicts(found)["D07"] == "gain"
    assert {one.gain.starts for one in found.rows["train"].found().values()} == {2}
    assert machine.clock < 120


def test_what_was_measured_until_an_interruption_counts(tried: Any) -> None:
    def interrupt(process: Process) -> None:
        if process.steps > 300:
            raise KeyboardInterrupt

    found = tried(Machine(on_step=interrupt))
    with pytest.raises(KeyboardInterrupt):
        found.compare(ROWS)
    trials_of = found.rows["train"].found()
    assert trials_of["D07",].gain.value == pytest.approx(1.3, rel=0.05)
    assert trials_of["D07",].verdict == "cannot be told"
    assert trials_of["D07",].gain.high == math.inf


def test_a_busy_machine_judges_one_thread_by_processor_time(tried: Any) -> None:
    found = tried(Machine(others=1.0, wall_noise=3.0), threads=1)
    found.compare(ROWS)
    assert found.clock == "cpu"
    assert verdicts(found)["D07"] == "gain"
    assert verdicts(found)["D03"] == "slower"
    assert verdicts(found)["D08"] == "no difference"


def test_processor_time_does_not_judge_more_threads(tried: Any) -> None:
    found = tried(Machine(gains={"D17": 0.6, "D07": 1.3}, others=1.0), threads=1)
    found.compare({("D17",): (), ("D07",): ()})
    assert set(verdicts(found)) == {"itself", "D07"}


@pytest.mark.parametrize("watched", [{"threads": 2}, {"threads": 1, "device": "cuda"}])
def test_a_busy_machine_gives_no_verdict_by_wall_time(watched: Any, tried: Any) -> None:
    machine = Machine(others=1.9, wall_noise=3.0)
    found = tried(machine, **watched)
    with pytest.raises(TrialsEndedError, match=r"other programs use 1\.9 of your 2 cores"):
        found.compare(ROWS)
    assert machine.clock < 30
    assert found.rows["train"].found() == {}


def test_steps_that_differ_from_themselves_give_no_verdict(tried: Any) -> None:
    machine = Machine(between=0.5)
    found = tried(machine)
    with pytest.raises(TrialsEndedError, match="the same step differs from itself by"):
        found.compare(ROWS)
    assert machine.clock < 30


def test_the_first_few_slow_rounds_do_not_end_trials_of_more_rounds(tried: Any) -> None:
    for seed in range(10):
        found = tried(Machine(step=0.46, between=0.05, random=random.Random(seed)))
        found.compare({("D07",): ()})
        assert "D07" in verdicts(found)


@pytest.mark.parametrize("step", [0.05, 1.0])
def test_the_allocator_is_judged_by_three_pairs_of_processes(step: float, tried: Any) -> None:
    machine = Machine(allocator=1.3, step=step)
    found = tried(machine, 600)
    found.compare({("D55",): KEPT, **ROWS})
    trial = found.rows["train"].found()["D55",]
    assert trial.verdict == "gain"
    assert trial.gain.value == pytest.approx(1.3, rel=0.03)
    assert trial.gain.starts == 3
    assert trial.numerics == Numerics.EQUAL
    defaults = [one for one in machine.processes if "MALLOC_TRIM_THRESHOLD_" not in one.environment]
    assert len(defaults) == 3
    assert all(one.follow == () for one in defaults)
    assert verdicts(found)["D08"] == "no difference"


def test_an_environment_is_compared_with_the_script_as_it_is(tried: Any) -> None:
    found = tried(Machine())
    found.compare({("D18",): BOUND})
    trial = found.rows["train"].found()["D18",]
    assert (trial.verdict, trial.gain.starts) == ("gain", 3)
    assert trial.gain.value == pytest.approx(1.2, rel=0.03)


def test_ten_comparisons_of_the_same_have_no_gain(tried: Any) -> None:
    """Without a difference, at most one report of twenty has a gain."""
    count = 0
    for seed in range(20):
        machine = Machine(gains=dict.fromkeys(GAINS, 1.0), random=random.Random(seed))
        found = tried(machine)
        found.compare(ROWS)
        count += "gain" in verdicts(found).values()
    assert count <= 1
