"""Which advice is tried, followed together, and left out, by measurements that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fastdata.doctor import Script, examine, examining, render_text
from fastdata.doctor.contract import Numerics, Phase
from fastdata.doctor.messages import Plain, Watched
from fastdata.doctor.processes import ScriptFailedError
from fastdata.doctor.trials import Trial
from fastdata.errors import OptionError
from fastdata.measuring.windows import rate_of

SCRIPT = Script("file", "train.py")
NOISE = rate_of([0.97, 0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.02, 1.03])


def finding(id: str, phase: Phase = "train", **others: Any) -> Plain:
    made = {"environment": (), "is_tried": True, "why_not": "", **others}
    return Plain(id, f"train.py:{id[1:]} main", f"what {id}", phase=phase, **made)


class MadeUp:
    """Takes the place of `Trials`: the gain of several pieces of advice is the product of each."""

    def __init__(self, gains: dict[str, float], *findings: Plain) -> None:
        self.gains, self.findings = gains, findings
        self.asked: list[tuple[tuple[str, ...], tuple[tuple[str, str], ...]]] = []
        self.step_seconds, self.peak_bytes = 0.1, 1 << 30
        self.numerics: dict[str, Numerics] = {}
        self.clock = 0.0

    def __call__(self, *_: Any, **__: Any) -> MadeUp:
        return self

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None: ...

    def watch(self) -> Watched:
        return Watched(self.findings, steps=16)

    def base(self, phase: Phase) -> MadeUp:
        return self

    def at_most(self, part: str | None) -> float | None:
        return {"step": 1.25, "clip": 1.1}.get(part or "")

    def noise(self, phase: Phase) -> Trial:
        self.clock += 10
        if phase == "evaluate" and "evaluate" in self.gains:
            raise ScriptFailedError("no validation was reached")
        return Trial((), NOISE, numerics=Numerics.EQUAL)

    def trial(self, ids: tuple[str, ...], phase: Phase = "train", environment: Any = ()) -> Trial:
        self.asked.append((ids, environment))
        self.clock += 10
        gain = 1.0
        for id in ids:
            gain *= self.gains[id]
        rate = rate_of([gain + 0.001 * n for n in range(-4, 5)])
        numerics = max(self.numerics.get(id, Numerics.EQUAL) for id in ids)
        return Trial(ids, rate, numerics=numerics)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have examinations take what is made up, by a clock of its own."""

    def use(gains: dict[str, float], *findings: Plain) -> MadeUp:
        found = MadeUp(gains, *findings)
        monkeypatch.setattr(examining, "Trials", found)
        monkeypatch.setattr(examining.time, "monotonic", lambda: found.clock)
        return found

    return use


def test_gains_are_followed_together_the_largest_first(made_up: Any) -> None:
    used = made_up(
        {"D06": 1.2, "D07": 1.3, "D09": 1.5, "D03": 0.8, "D08": 1.0},
        *(finding(id) for id in ("D03", "D06", "D07", "D08", "D09")),
    )
    report = examine(SCRIPT)
    assert report.together is not None
    assert report.together.follow == ("D09", "D07", "D06")
    assert used.asked[-1][0] == ("D09", "D07", "D06")  # measured anew
    assert report.verdict == "a step is 2.34 times as fast by D09, D07, D06"
    assert {row.id: row.trial.verdict for row in report.rows if row.trial} == {
        **dict.fromkeys(("D06", "D07", "D09"), "gain"),
        "D03": "harm",
        "D08": "none",
    }


def test_what_gets_slower_together_is_left_out(made_up: Any) -> None:
    used = made_up({"D06": 1.2, "D09": 1.5}, finding("D06"), finding("D09"))
    alone = used.trial

    def trial(ids: tuple[str, ...], *arguments: Any, **options: Any) -> Trial:
        return alone(("D06",) if len(ids) > 1 else ids, *arguments, **options)

    used.trial = trial
    assert examine(SCRIPT).together is None


def test_what_adds_nothing_to_the_others_is_left_out_in_the_end(made_up: Any) -> None:
    used = made_up(
        {"D06": 1.2, "D07": 1.3, "D09": 1.5}, *(finding(id) for id in ("D06", "D07", "D09"))
    )
    alone = used.trial

    def trial(ids: tuple[str, ...], *arguments: Any, **options: Any) -> Trial:
        # With D06 there is nothing left to gain by D09.
        rest = tuple(id for id in ids if id != "D09") if "D06" in ids else ids
        made = alone(rest, *arguments, **options)
        return replace(made, follow=ids)

    used.trial = trial
    used.gains["D06"] = 1.6
    used.gains["D09"] = 1.5
    report = examine(SCRIPT)
    assert report.together is not None
    assert report.together.follow == ("D06", "D07")


def test_a_part_of_a_step_bounds_what_can_be_gained(made_up: Any) -> None:
    made_up({"D06": 1.2, "D09": 1.5}, finding("D06"), finding("D09"))
    report = examine(SCRIPT)
    assert {row.id: row.at_most for row in report.rows} == {"D06": 1.25, "D09": None}
    assert "it can be 1.25 at most" in render_text(report)


def test_advice_in_the_environment_is_followed_together_too(made_up: Any) -> None:
    binding = (("OMP_PROC_BIND", "close"),)
    used = made_up({"D18": 1.3, "D09": 1.5}, finding("D18", environment=binding), finding("D09"))
    examine(SCRIPT)
    assert (("D18",), binding) in used.asked
    assert used.asked[-1] == (("D09", "D18"), binding)


def test_other_numbers_are_not_followed_together(made_up: Any) -> None:
    used = made_up({"D01": 2.0, "D09": 1.5}, finding("D01"), finding("D09"))
    used.numerics["D01"] = Numerics.PRECISION
    report = examine(SCRIPT)
    assert report.together is None
    assert report.verdict.endswith("2.00 times as fast by D01, with other numbers")


def test_no_trial_begins_when_the_time_is_up(made_up: Any) -> None:
    used = made_up(
        dict.fromkeys(("D09", "D07", "D06", "D05"), 1.0),
        *(finding(id) for id in ("D05", "D06", "D07", "D09")),
    )
    report = examine(SCRIPT, seconds=35)
    assert [ids for ids, _ in used.asked] == [("D09",), ("D07",)]  # 10 s each, after 10 of noise
    left_out = {row.id for row in report.rows if "no time left" in row.why_not}
    assert left_out == {"D06", "D05"}


def test_advice_that_cannot_make_a_step_three_percent_faster_is_not_tried(made_up: Any) -> None:
    used = made_up({"D06": 1.2, "D09": 1.5}, finding("D06"), finding("D09"))
    used.at_most = lambda part: 1.02 if part == "step" else None
    report = examine(SCRIPT)
    assert [ids for ids, _ in used.asked] == [("D09",)]
    [row] = [row for row in report.rows if row.id == "D06"]
    assert (row.trial, row.why_not) == (None, "it can make a step 1.02 times as fast at most")


def test_only_what_is_wanted_is_tried_and_reported_with_mistakes(made_up: Any) -> None:
    mistake = finding("D42", is_tried=False)
    used = made_up({"D06": 1.0, "D09": 1.0}, finding("D06"), finding("D09"), mistake)
    report = examine(SCRIPT, only=("D06",))
    assert [ids for ids, _ in used.asked] == [("D06",)]
    assert [row.id for row in report.rows] == ["D42", "D06"]


@pytest.mark.parametrize("id", ["D46", "D99", "d06"])
def test_advice_that_does_not_exist_is_refused(id: str, made_up: Any) -> None:
    made_up({})
    with pytest.raises(OptionError, match=f"unknown advice '{id}': fastdata doctor --list"):
        examine(SCRIPT, only=("D06", id))


def test_a_validation_that_cannot_be_measured_is_a_row_with_its_reason(made_up: Any) -> None:
    made_up({"D09": 1.5, "evaluate": 0}, finding("D09"), finding("D10", "evaluate"))
    report = examine(SCRIPT)
    [row] = [row for row in report.rows if row.id == "D10"]
    assert row.trial is not None
    assert (row.trial.verdict, row.trial.why) == ("failed", "no validation was reached")
    assert report.verdict == "a step is 1.50 times as fast by D09"


def test_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(OptionError, match="WORLD_SIZE is 2: a script is tried with one rank"):
        examine(SCRIPT)
