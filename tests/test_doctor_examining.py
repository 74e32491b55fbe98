"""Which advice is tried, followed together, and left out, by measurements that are made up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from fastdata.doctor import Script, examine, examining
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Plain, Watched
from fastdata.doctor.processes import ScriptFailedError
from fastdata.doctor.results import Environment, Follow, Trial
from fastdata.doctor.running import TIME_IS_UP, TrialsEndedError
from fastdata.errors import OptionError
from fastdata.measuring.statistics import judge

SCRIPT = Script("file", "train.py")
KEPT = (("MALLOC_TRIM_THRESHOLD_", "4"),)
BOUND = (("OMP_PROC_BIND", "close"),)


def finding(id: str, phase: Phase = "train", **others: Any) -> Plain:
    made = {"environment": (), "is_tried": True, "why_not": "", **others}
    return Plain(id, f"train.py:{id[1:]} main", f"what {id}", phase=phase, **made)


class MadeUpRows:
    """Takes the place of `Rows`; the numerics are those of all rows."""

    repeatable, smallest_gain = True, 1.03

    def __init__(self, numerics: dict[str, Numerics]) -> None:
        self.numerics = numerics
        self.numbers: dict[Follow, list[float]] = {}

    def found(self) -> dict[Follow, Trial]:
        def numerics(follow: Follow) -> Numerics | None:
            return max((self.numerics.get(id, Numerics.EQUAL) for id in follow), default=None)

        return {
            follow: Trial(follow, one.gain, one.verdict, numerics=numerics(follow))
            for follow, one in judge(self.numbers).items()
        }


class MadeUp:
    """Takes the place of `Trials`: the gain of several pieces of advice is the product of each."""

    clock = "wall"
    step_seconds, peak_bytes = 0.1, 1 << 30

    def __init__(self, gains: dict[str, float], *findings: Plain) -> None:
        self.gains, self.findings = gains, findings
        self.asked: list[tuple[Phase, dict[Follow, Environment]]] = []
        self.numerics: dict[str, Numerics] = {}
        phases: tuple[Phase, ...] = "train", "evaluate"
        self.rows = {phase: MadeUpRows(self.numerics) for phase in phases}
        self.on_compare: Callable[[int], object] = lambda _: None
        self.gain_of: Callable[[Follow], float] = self._product

    def __call__(self, *arguments: Any) -> MadeUp:
        return self

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None: ...

    def watch(self) -> Watched:
        return Watched(self.findings, steps=16)

    def base(self, phase: Phase) -> MadeUp:
        return self

    def at_most(self, part: str | None) -> float | None:
        return {"step": 1.25, "clip": 1.02}.get(part or "")

    def compare(self, rows: dict[Follow, Environment], phase: Phase = "train") -> None:
        self.asked.append((phase, rows))
        for follow in ((), *rows):
            gain = math.log(self.gain_of(follow))
            self.rows[phase].numbers.setdefault(follow, [gain - 0.001, gain, gain + 0.001])
        self.on_compare(len(self.asked))

    def _product(self, follow: Follow) -> float:
        return math.prod(self.gains[id] for id in follow)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have examinations take what is made up."""

    def use(gains: dict[str, float], *findings: Plain) -> MadeUp:
        found = MadeUp(gains, *findings)
        monkeypatch.setattr(examining, "Trials", found)
        return found

    return use


def test_all_rows_are_compared_at_once_and_the_quick_ones_come_first(made_up: Any) -> None:
    ids = "D01", "D05", "D06", "D09", "D18", "D55"
    environments = {"D18": BOUND, "D55": KEPT}
    used = made_up(
        dict.fromkeys(ids, 1.0),
        *(finding(id, environment=environments.get(id, ())) for id in ids),
    )
    report = examine(SCRIPT)
    [(phase, rows)] = used.asked
    assert phase == "train"
    assert list(rows) == [("D55",), ("D09",), ("D06",), ("D01",), ("D05",), ("D18",)]
    assert (rows["D55",], rows["D18",], rows["D06",]) == (KEPT, BOUND, ())
    assert report.together is None
    assert {row.trial.verdict for row in report.rows if row.trial} == {"no difference"}


def test_gains_are_followed_together_the_largest_first(made_up: Any) -> None:
    used = made_up(
        {"D06": 1.2, "D07": 1.3, "D09": 1.5, "D03": 0.8, "D08": 1.0},
        *(finding(id) for id in ("D03", "D06", "D07", "D08", "D09")),
    )
    report = examine(SCRIPT)
    every = "D09", "D07", "D06"
    assert list(used.asked[1][1]) == [every, ("D07", "D06"), ("D09", "D06"), ("D09", "D07")]
    assert report.together is not None
    assert report.together.follow == every
    assert report.together.gain.value == pytest.approx(1.2 * 1.3 * 1.5)
    assert {row.id: row.trial.verdict for row in report.rows if row.trial} == {
        **dict.fromkeys(("D06", "D07", "D09"), "gain"),
        "D03": "slower",
        "D08": "no difference",
    }


def test_what_gets_slower_together_is_left_out(made_up: Any) -> None:
    used = made_up({"D06": 1.2, "D09": 1.5}, finding("D06"), finding("D09"))
    used.gain_of = lambda follow: (
        1.1 if len(follow) > 1 else math.prod(used.gains[id] for id in follow)
    )
    assert examine(SCRIPT).together is None


def test_what_adds_nothing_to_the_others_is_left_out(made_up: Any) -> None:
    used = made_up(
        {"D06": 1.6, "D07": 1.3, "D09": 1.5}, *(finding(id) for id in ("D06", "D07", "D09"))
    )

    def gain_of(follow: Follow) -> float:
        """With D06, D09 makes a step a little slower."""
        return math.prod(
            0.98 if id == "D09" and "D06" in follow else used.gains[id] for id in follow
        )

    used.gain_of = gain_of
    report = examine(SCRIPT)
    assert report.together is not None
    assert report.together.follow == ("D06", "D07")


def test_the_allocator_multiplies_what_is_measured_with_it(made_up: Any) -> None:
    used = made_up(
        {"D55": 1.4, "D06": 1.2, "D09": 1.5},
        finding("D55", environment=KEPT),
        finding("D06"),
        finding("D09"),
    )
    report = examine(SCRIPT)
    assert list(used.asked[1][1]) == [("D09", "D06")]
    assert report.together.follow == ("D55", "D09", "D06")
    assert report.together.gain.value == pytest.approx(1.4 * 1.2 * 1.5)
    single = {row.id: row.trial.gain for row in report.rows}
    assert report.together.gain.high / report.together.gain.value > (
        single["D55"].high / single["D55"].value
    )


@pytest.mark.parametrize("gains", [{"D55": 1.4, "D06": 1.2}, {"D55": 1.4, "D06": 1.0}])
def test_the_allocator_and_one_other_gain_need_no_more_measuring(
    gains: dict[str, float], made_up: Any
) -> None:
    used = made_up(gains, finding("D55", environment=KEPT), finding("D06"))
    report = examine(SCRIPT)
    assert len(used.asked) == 1
    if gains["D06"] == 1.0:
        assert report.together is None
    else:
        assert report.together.gain.value == pytest.approx(1.4 * 1.2)


@pytest.mark.parametrize("numerics", [Numerics.PRECISION, Numerics.TRAINING])
def test_other_numbers_are_not_followed_together(numerics: Numerics, made_up: Any) -> None:
    used = made_up({"D01": 2.0, "D09": 1.5, "D06": 1.2}, *map(finding, ("D01", "D06", "D09")))
    used.numerics["D01"] = numerics
    report = examine(SCRIPT)
    assert report.together is not None
    assert report.together.follow == ("D09", "D06")


def test_advice_that_cannot_make_a_step_three_percent_faster_is_not_tried(made_up: Any) -> None:
    used = made_up({"D09": 1.5}, finding("D13"), finding("D09"))
    report = examine(SCRIPT)
    assert [list(rows) for _, rows in used.asked] == [[("D09",)]]
    [row] = [row for row in report.rows if row.id == "D13"]
    assert (row.trial, row.why_not) == (None, "it can make a step at most 1.02x as fast")


def test_only_what_is_wanted_is_tried_and_reported_with_mistakes(made_up: Any) -> None:
    mistake = finding("D42", is_tried=False)
    used = made_up({"D06": 1.0, "D09": 1.0}, finding("D06"), finding("D09"), mistake)
    report = examine(SCRIPT, only=("D06",))
    assert [list(rows) for _, rows in used.asked] == [[("D06",)]]
    assert [row.id for row in report.rows] == ["D42", "D06"]


@pytest.mark.parametrize("id", ["D46", "D99", "d06"])
def test_advice_that_does_not_exist_is_refused(id: str, made_up: Any) -> None:
    made_up({})
    with pytest.raises(OptionError, match=f"unknown advice '{id}': fastdata doctor --list"):
        examine(SCRIPT, only=("D06", id))


def test_a_validation_that_cannot_be_measured_is_a_row_with_its_reason(made_up: Any) -> None:
    used = made_up({"D09": 1.5, "D10": 1.5}, finding("D09"), finding("D10", "evaluate"))

    def fail(count: int) -> None:
        if count == 2:
            used.rows["evaluate"].numbers.clear()
            raise ScriptFailedError("no validation was reached")

    used.on_compare = fail
    report = examine(SCRIPT)
    [row] = [row for row in report.rows if row.id == "D10"]
    assert (row.trial, row.why_not) == (None, "no validation was reached")
    assert report.ended_by == "nothing"
    assert next(row for row in report.rows if row.id == "D09").trial.verdict == "gain"


ENDS: dict[str, tuple[BaseException, str]] = {
    "time": (TrialsEndedError(TIME_IS_UP), TIME_IS_UP),
    "noise": (TrialsEndedError("too noisy to measure: others"), "too noisy to measure: others"),
    "interruption": (KeyboardInterrupt(), "interrupted"),
    "failure": (ScriptFailedError("boom"), "the script failed in a trial: boom"),
}


@pytest.mark.parametrize("by", ENDS)
def test_what_was_measured_is_reported_when_trials_end_early(by: str, made_up: Any) -> None:
    used = made_up({"D09": 1.5, "D06": 1.2}, finding("D09"), finding("D06"))
    error, said = ENDS[by]

    def end(_: int) -> None:
        del used.rows["train"].numbers["D06",]
        raise error

    used.on_compare = end
    report = examine(SCRIPT)
    rows = {row.id: row for row in report.rows}
    assert rows["D09"].trial.verdict == "gain"
    assert (rows["D06"].trial, rows["D06"].why_not) == (None, said)
    assert (report.ended_by, report.ended) == (by, said)


def test_more_threads_are_not_judged_by_processor_time(made_up: Any) -> None:
    used = made_up({"D17": 1.0, "D09": 1.5}, finding("D17"), finding("D09"))
    used.clock = "cpu"
    used.on_compare = lambda _: used.rows["train"].numbers.pop(("D17",))
    [row] = [row for row in examine(SCRIPT).rows if row.id == "D17"]
    assert row.why_not == "other programs are busy, so more threads cannot be judged"


def test_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="WORLD_SIZE is 2: a script is tried with one rank"):
        examine(SCRIPT)
