"""A report of `fastdata doctor`: its verdict, its text, its JSON, and its page in a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from browser import Browser, browser_or_skip

from fastdata.doctor import DoctorReport, Row, render_text
from fastdata.doctor.contract import Numerics
from fastdata.doctor.memory import Held
from fastdata.doctor.messages import Watched
from fastdata.doctor.page import render_page
from fastdata.doctor.results import BatchSize, Trial
from fastdata.measuring.statistics import Estimate
from fastdata.pages import write_page
from fastdata.printable import printable

HOSTILE = "<script>document.title='run'</script>&\"'{{ 7 * 7 }}\x1b[31m\n\u202e\udc80é猫"
LONG = "/data/" + "a_very_long_folder_name/" * 12 + "train.py:1234 Trainer.step"

GAIN = Trial(("D09",), Estimate(1.46, 1.35, 1.59, 2), "gain", "", Numerics.EQUAL, 0.0)
NONE = Trial(("D06",), Estimate(1.01, 0.97, 1.06, 2), "no difference", "", Numerics.ROUNDING, 2e-7)
HARM = Trial(
    ("D05",),
    Estimate(0.8, 0.7, 0.9, 2),
    "slower",
    "",
    Numerics.PRECISION,
    0.02,
    42.0,
    step_seconds=0.4,
)
FAILED = Trial(("D15",), None, "failed", "RuntimeError: one of the variables was modified")


def row(id: str, trial: Trial | None = None, **others: object) -> Row:
    made = Row(id, "speed", f"title of {id}", (f"train.py:{id[1:]} train",), (f"what {id}",), trial,
               Numerics.EQUAL)  # fmt: skip
    return replace(made, **others)  # type: ignore[arg-type]


REPORT = DoctorReport(
    script="main.py --dummy",
    watched=Watched(
        steps=16,
        waited=0.01,
        models=("ResNet",),
        optimizers=("SGD",),
        parameters=11_689_512,
        blocked={"torch.save: /home/checkpoint.pt": 3},
        held=(
            Held("convolution", "train.py:20 forward", 210_000_000, 12),
            Held("parameters", "", 47_000_000, 62),
            *(Held(f"relu_{n}", "train.py:21 forward", 1_000_000, 1) for n in range(8)),
        ),
        held_bytes=265_000_000,
    ),
    step_seconds=0.412,
    peak_bytes=1 << 30,
    noise=Estimate(0.99, 0.96, 1.02, 2),
    repeatable=True,
    rows=(
        row("D41", kind="bug", why_not="it changes what is trained"),
        row("D09", GAIN),
        row("D06", NONE),
        row("D05", HARM),
        row("D15", FAILED),
        row(
            "D35",
            replace(
                HARM, gain=Estimate(0.75, 0.7, 0.8, 2), peak_bytes=1 << 30, base_peak_bytes=3 << 30
            ),
            saves="memory",
        ),
        row("D11", why_not="GPU only", where=tuple(f"train.py:{n} train" for n in range(9))),
    ),
    together=None,
    seconds=100.0,
    batch_sizes=(BatchSize(16, 40.0, 512_000_000), BatchSize(32, why="it took all memory")),
    machine={"cores": 2, "torch": "2.13.0"},
)
WAITING = replace(REPORT, watched=replace(REPORT.watched, waited=0.42), rows=(row("D06", NONE),))
TOGETHER = replace(
    REPORT,
    rows=REPORT.rows[1:],
    together=replace(GAIN, follow=("D09", "D07"), gain=Estimate(1.61, 1.5, 1.7, 2)),
)
HOSTILE_REPORT = replace(
    REPORT,
    script=HOSTILE,
    rows=(
        row("D09", GAIN, where=(HOSTILE,), what=(HOSTILE,), title=HOSTILE),
        row("D06", replace(FAILED, why=HOSTILE)),
        row("D11", why_not=HOSTILE),
    ),
    watched=replace(
        REPORT.watched,
        blocked={HOSTILE: 1},
        models=(HOSTILE,),
        held=(Held(HOSTILE, f"{HOSTILE}:3 {HOSTILE}", 1, 1),),
    ),
    machine={HOSTILE: HOSTILE},
)
WIDE = replace(
    REPORT,
    script=LONG,
    rows=tuple(replace(one, where=(LONG,), what=(LONG.replace("/", " "),)) for one in REPORT.rows),
)
LOWER = Trial(("D01",), Estimate(2.0, 1.9, 2.1, 2), "gain", "", Numerics.PRECISION, 0.01)
LOW = replace(REPORT, rows=(row("D01", LOWER), row("D06", NONE)))
BOTH = replace(REPORT, rows=(row("D01", LOWER), row("D09", GAIN)))
REPORTS = {
    "lower precision": LOW,
    "both": BOTH,
    "plain": REPORT,
    "waiting": WAITING,
    "together": TOGETHER,
    "hostile": HOSTILE_REPORT,
    "wide": WIDE,
    "empty": replace(REPORT, rows=(), noise=None, batch_sizes=(), machine={}),
}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("plain", "something is wrong (D41); a step is 1.46 times as fast by D09"),
        ("waiting", "the loop waits for data 42% of the time; no advice makes a step faster"),
        ("together", "a step is 1.61 times as fast by D09, D07"),
        ("lower precision", "a step is 2.00 times as fast by D01, with other numbers"),
        (
            "both",
            "a step is 1.46 times as fast by D09; "
            "a step is 2.00 times as fast by D01, with other numbers",
        ),
        ("empty", "no advice makes a step faster"),
    ],
)
def test_the_verdict_says_what_matters(name: str, verdict: str) -> None:
    assert REPORTS[name].verdict == verdict


def test_the_text_has_a_line_for_each_piece_of_advice() -> None:
    lines = render_text(REPORT).splitlines()
    assert lines[1] == "wrong: title of D41 (D41), train, train.py:41"
    found = {line.split("  ")[0]: line for line in lines}
    assert found["1.46 (1.35-1.59)"].split() == [
        *("1.46", "(1.35-1.59)", "bit-equal", "D09", "what", "D09", "train,", "train.py:09"),
    ]
    assert found["1.01 (0.97-1.06)"].endswith("no difference")
    assert "rounding 2e-07" in found["1.01 (0.97-1.06)"]
    assert found["0.80 (0.70-0.90)"].endswith(
        "do not: it is slower here; the first step takes 42 s more"
    )
    slower = found["0.75 (0.70-0.80)"]
    assert "  1.07GB of memory in place of 3.22GB" in slower
    assert "do not" not in slower
    assert found["failed"].endswith("RuntimeError: one of the variables was modified")
    assert found["GPU only"].endswith("train, train.py:0 and 8 more")
    assert "batches of 16: 40 samples/s, 512MB" in lines
    assert "batches of 32: it took all memory" in lines
    assert (
        "a step's tensors take 265MB at most: convolution forward, train.py:20 210MB; "
        "parameters 47.0MB; relu_0 forward, train.py:21 1.00MB; relu_1 forward, train.py:21 "
        "1.00MB; relu_2 forward, train.py:21 1.00MB; 5 others 5.00MB"
    ) in lines
    assert lines[-1] == "not written: torch.save: /home/checkpoint.pt (3x)"


def test_what_was_not_seen_is_said() -> None:
    assert "validation" not in render_text(REPORT)
    failed = replace(
        REPORT, watched=replace(REPORT.watched, failed="ValueError: 24 samples, not 40")
    )
    assert "early there: ValueError: 24 samples, not 40" in render_text(failed)
    assert "ValueError: 24 samples, not 40" in render_page(failed)


def test_notes_are_lines_of_their_own_if_they_are_asked_for() -> None:
    report = replace(REPORT, rows=(*REPORT.rows, row("D33", kind="note", why_not="it trains")))
    assert "D33" not in render_text(report)
    assert "note: title of D33 (D33), train, train.py:33" in render_text(report, notes=True)
    assert "D33" in render_page(report)


def test_waiting_for_data_comes_first() -> None:
    assert "waits for data 42% of the time" in render_text(WAITING).splitlines()[1]


@pytest.mark.parametrize(
    ("report", "threshold", "is_open"),
    [
        (REPORT, 1.05, True),  # something is wrong
        (TOGETHER, 1.05, True),
        (TOGETHER, 1.46, True),
        (TOGETHER, 1.5, False),
        (WAITING, 1.05, False),
        (LOW, 1.05, False),  # numbers would be others
        (BOTH, 1.05, True),
    ],
)
def test_what_is_open_is_wrong_or_a_gain(
    report: DoctorReport, threshold: float, is_open: bool
) -> None:
    assert report.is_open(threshold) == is_open


@pytest.mark.parametrize("name", REPORTS)
def test_text_and_page_show_what_they_are_given_as_text(name: str) -> None:
    report = REPORTS[name]
    text = render_text(report)
    assert "\x1b" not in text
    assert "\u202e" not in text
    page = render_page(report)
    root = ElementTree.fromstring(page.partition("\n")[2])  # which any open tag breaks
    assert [element for element in root.iter() if element.tag.endswith("script")] == []
    assert printable(report.verdict) in "".join(root.itertext())
    document = json.loads(json.dumps(report.to_json()))
    assert document["verdict"] == report.verdict
    assert len(document["rows"]) == len(report.rows)


def test_nothing_sticks_out_of_the_page_in_a_browser(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    browser: Browser = browser_or_skip(tmp_path_factory.mktemp("browser"))
    names = [("plain", 1280), ("wide", 1280), ("wide", 400), ("hostile", 400)]
    pages = [(render_page(REPORTS[name]), width) for name, width in names]
    for (name, width), found in zip(names, browser.measure(*pages), strict=True):
        assert found["verdict"] == printable(REPORTS[name].verdict), name
        assert found["inner"] == width
        assert found["scroll"] <= width
        assert found["sticking_out"] == []
        assert found["clipped"] == []


def test_a_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    write_page(render_page(REPORT), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
