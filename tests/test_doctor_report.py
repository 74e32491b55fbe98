"""A report of `fastdata doctor`: its verdict, its text, its JSON, and its page in a browser."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width
from xml.etree import ElementTree

import pytest
from browser import Browser, browser_or_skip

from fastdata.doctor import DoctorReport, Row, render_text
from fastdata.doctor.contract import Numerics
from fastdata.doctor.memory import Held
from fastdata.doctor.messages import Watched
from fastdata.doctor.results import Trial
from fastdata.doctor.text import render_page
from fastdata.measuring.statistics import Estimate
from fastdata.pages import write_page
from fastdata.printable import printable

HOSTILE = "<script>document.title='run'</script>&\"'{{ 7 * 7 }}\x1b[31m\n\u202e\udc80é猫"
LONG = "/data/" + "a_very_long_folder_name/" * 12 + "train.py:1234 Trainer.step"
MALLOC = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_THRESHOLD_=1073741824"

ACTIONS = {
    "D01": "torch.autocast(dtype=torch.bfloat16)",
    "D06": "AdamW(fused=True)",
    "D08": "Conv2d(bias=False)",
    "D09": "remove detect_anomaly",
    "D10": "torch.inference_mode() in validation",
    "D35": "checkpoint(ResNet.layer1)",
    "D41": "gradients are clipped before scaler.unscale_",
    "D55": f"{MALLOC} (now 40,000 page faults a step)",
}


def trial(verdict: str, value: float, **others: Any) -> Trial:
    gain = Estimate(value, 0.97 * value, 1.03 * value, 2)
    made = Trial((), gain, verdict, "", Numerics.EQUAL, 0.0, step_seconds=0.4)  # type: ignore[arg-type]
    return replace(made, **others)


def row(id: str, verdict: str = "", value: float = 1.0, **others: Any) -> Row:
    """Return a row whose trial had a verdict; without one it was not tried."""
    made = Row(
        id,
        "speed",
        f"title of {id}",
        (f"train.py:{int(id[1:])} train",),
        (ACTIONS.get(id, f"what {id}"),),
        trial(verdict, value) if verdict else None,
        Numerics.EQUAL,
    )
    return replace(made, **others)


MISTAKE = row("D41", kind="bug", why_not="it changes the training")
GPU = row("D11", why_not="GPU only", where=tuple(f"train.py:{n} train" for n in range(9)))
GAIN = row("D09", "gain", 1.38)
FUSED = row("D06", "gain", 1.05, trial=trial("gain", 1.05, numerics=Numerics.ROUNDING))
LOWER = row("D01", "gain", 2.0, trial=trial("gain", 2.0, numerics=Numerics.PRECISION))
ALLOCATOR = row("D55", "gain", 1.2, title="set malloc's thresholds", where=())
SAME = row("D03", "no difference", 1.01)
OPEN = row("D08", "cannot be told", 1.05)
SLOWER = row("D05", "slower", 0.8)
FAILED = row("D15", trial=Trial(("D15",), why="Traceback ...\nRuntimeError: a view was modified"))
NO_TIME = row("D07", why_not="there was no time left: --seconds gives more")
SMALL = row("D13", why_not="it can make a step 1.01 times as fast at most", at_most=1.01)
LESS_MEMORY = row(
    "D35",
    trial=trial("slower", 0.78, peak_bytes=1_100_000_000, base_peak_bytes=3_200_000_000),
    saves="memory",
)
VALIDATION = row("D10", "gain", 1.09, phase="evaluate")

REPORT = DoctorReport(
    script="main.py --dummy",
    watched=Watched(
        steps=16,
        waited=0.01,
        models=("ResNet",),
        optimizers=("AdamW",),
        parameters=11_189_512,
        blocked={"torch.save: /home/checkpoint.pt": 3},
        held=(
            Held("convolution", "train.py:20 forward", 210_000_000, 12),
            Held("parameters", "", 47_000_000, 62),
        ),
        held_bytes=257_000_000,
    ),
    step_seconds=0.412,
    peak_bytes=1 << 30,
    noise=Estimate(0.99, 0.98, 1.01, 2),
    repeatable=True,
    rows=(MISTAKE, GAIN, FUSED, SAME, OPEN, SLOWER, FAILED, LESS_MEMORY, GPU, NO_TIME, SMALL),
    together=trial("gain", 1.44, follow=("D09", "D06")),
    seconds=100.0,
    machine={"cores": 2, "torch": "2.13.0"},
    smallest_gain=1.04,
)


def with_rows(*rows: Row, **others: Any) -> DoctorReport:
    """Return a report with no more than these rows."""
    return replace(REPORT, rows=rows, together=None, **others)


BUSY = "too noisy to measure: other programs use 1.9 of your 2 cores"
TIME = "the time is up: --seconds gives more"
FASTER = "A step can be 1.38x (1.34-1.42) as fast: remove detect_anomaly."
WAITING = replace(REPORT.watched, waited=0.4)

VERDICTS = {
    "one gain": (with_rows(GAIN, SAME), FASTER),
    "together": (
        replace(REPORT, rows=(GAIN, FUSED, SAME)),
        "A step can be 1.44x (1.40-1.48) as fast: remove detect_anomaly and AdamW(fused=True).",
    ),
    "many together": (
        with_rows(GAIN, FUSED, row("D07", "gain", 1.1), row("D13", "gain", 1.1))
        and replace(
            with_rows(GAIN, FUSED, row("D07", "gain", 1.1), row("D13", "gain", 1.1)),
            together=trial("gain", 2.0, follow=("D09", "D06", "D07", "D13")),
        ),
        "A step can be 2.00x (1.94-2.06) as fast: remove detect_anomaly, AdamW(fused=True) and "
        "2 more.",
    ),
    "not faster together": (
        replace(REPORT, rows=(GAIN, FUSED), together=trial("cannot be told", 1.3)),
        FASTER,
    ),
    "allocator": (
        with_rows(GAIN, ALLOCATOR),
        "A step can be 1.20x (1.16-1.24) as fast: set malloc's thresholds. "
        "A step can be 1.38x (1.34-1.42) as fast as with D55 alone: remove detect_anomaly.",
    ),
    "allocator and together": (
        replace(
            with_rows(GAIN, ALLOCATOR, LOWER), together=trial("gain", 1.6, follow=("D55", "D09"))
        ),
        "A step can be 1.60x (1.55-1.65) as fast: set malloc's thresholds and remove "
        "detect_anomaly. With lower precision, a step can be 2.00x (1.94-2.06) as fast as with "
        "D55 alone: torch.autocast(dtype=torch.bfloat16).",
    ),
    "allocator alone": (
        with_rows(ALLOCATOR, SAME),
        "A step can be 1.20x (1.16-1.24) as fast: set malloc's thresholds.",
    ),
    "lower precision": (
        with_rows(LOWER, SAME),
        "With lower precision, a step can be 2.00x (1.94-2.06) as fast: "
        "torch.autocast(dtype=torch.bfloat16).",
    ),
    "both": (
        with_rows(LOWER, GAIN),
        f"{FASTER} With lower precision, a step can be 2.00x (1.94-2.06) as fast: "
        "torch.autocast(dtype=torch.bfloat16).",
    ),
    "validation": (
        with_rows(VALIDATION, SAME),
        "Validation can be 1.09x (1.06-1.12) as fast: torch.inference_mode() in validation.",
    ),
    "none": (
        with_rows(*[SAME] * 6, SLOWER, GPU, SMALL),
        "7 changes tried, none is faster; gains below 4% cannot be seen.",
    ),
    "open": (
        with_rows(SAME, OPEN, smallest_gain=1.2),
        "2 changes tried, none is known to be faster; gains below 20% cannot be seen.",
    ),
    "partial": (
        with_rows(SAME, *[NO_TIME] * 6, ended=TIME),
        "1 of 7 changes tried, none is faster; gains below 4% cannot be seen. "
        "The time is up: --seconds gives more.",
    ),
    "partial gain": (
        with_rows(GAIN, NO_TIME, ended="interrupted"),
        f"{FASTER} 1 of 2 changes tried. Interrupted.",
    ),
    "one process": (
        with_rows(
            row("D08", trial=trial("cannot be told", 1.3, gain=Estimate(1.3, 0.0, math.inf, 1))),
            NO_TIME,
            smallest_gain=math.inf,
            noise=Estimate(1.01, 0.0, math.inf, 1),
            ended="interrupted",
        ),
        "1 of 2 changes tried, none is known to be faster. Interrupted.",
    ),
    "failed": (with_rows(FAILED), "1 change tried, 1 failed."),
    "some failed": (
        with_rows(FAILED, SAME),
        "2 changes tried, none is faster, 1 failed; gains below 4% cannot be seen.",
    ),
    "too noisy": (
        with_rows(NO_TIME, SAME and NO_TIME, ended=BUSY),
        "Too noisy to measure: other programs use 1.9 of your 2 cores.",
    ),
    "script failed": (
        with_rows(MISTAKE, NO_TIME, ended="the script failed: KeyError: 'x'"),
        "1 mistake: gradients are clipped before scaler.unscale_, train.py:41 (D41). "
        "The script failed: KeyError: 'x'.",
    ),
    "nothing found": (with_rows(), "Nothing to try was found."),
    "needs a GPU": (with_rows(GPU), "Nothing to try was found without a GPU."),
    "cannot matter": (with_rows(SMALL), "Nothing to try was found."),
    "waits": (
        with_rows(SAME, watched=WAITING),
        "The loop waits for data 40% of the time: fastdata profile says why. "
        "1 change tried, none is faster; gains below 4% cannot be seen.",
    ),
    "all": (
        replace(REPORT, watched=WAITING),
        "A step can be 1.44x (1.40-1.48) as fast: remove detect_anomaly and AdamW(fused=True). "
        "1 mistake: gradients are clipped before scaler.unscale_, train.py:41 (D41). "
        "The loop waits for data 40% of the time: fastdata profile says why. "
        "7 of 8 changes tried, 1 failed.",
    ),
    "mistakes": (
        with_rows(MISTAKE, row("D47", kind="bug"), GAIN),
        f"{FASTER} 2 mistakes: D41, D47.",
    ),
}

HOSTILE_REPORT = replace(
    REPORT,
    script=HOSTILE,
    rows=(
        replace(MISTAKE, where=(HOSTILE, HOSTILE), what=(HOSTILE,)),
        replace(GAIN, where=(HOSTILE,), what=(HOSTILE,), title=HOSTILE),
        row("D06", trial=Trial((), why=HOSTILE)),
        replace(NO_TIME, why_not=HOSTILE),
    ),
    watched=replace(
        REPORT.watched,
        blocked={HOSTILE: 1},
        models=(HOSTILE,),
        failed=HOSTILE,
        held=(Held(HOSTILE, f"{HOSTILE}:3 {HOSTILE}", 1, 1),),
    ),
    machine={HOSTILE: HOSTILE},
    ended=HOSTILE,
)
REPORTS = {
    "full": REPORT,
    "hostile": HOSTILE_REPORT,
    "wide": replace(
        REPORT,
        script=LONG,
        rows=tuple(
            replace(one, where=(LONG,) * 3, what=(LONG.replace("/", " "), LONG))
            for one in REPORT.rows
        ),
    ),
    "wide characters": replace(
        REPORT,
        script="猫" * 200,
        rows=tuple(
            replace(one, where=("x" + "猫" * 90,) * 2, what=("猫" * 99, "é 猫" * 50))
            for one in REPORT.rows
        ),
        watched=replace(WAITING, models=("猫" * 120,), failed="x" + "猫 犬" * 90),
    ),
    **{name: report for name, (report, _) in VERDICTS.items()},
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_says_what_is_known(name: str) -> None:
    report, verdict = VERDICTS[name]
    assert report.verdict == verdict
    shown = " ".join(line.strip() for line in render_text(report).split("\n\n")[0].splitlines())
    assert shown.startswith(verdict)


def test_the_text_of_a_whole_report() -> None:
    assert render_text(REPORT) == (
        """\
A step can be 1.44x (1.40-1.48) as fast: remove detect_anomaly and AdamW(fused=True).
1 mistake: gradients are clipped before scaler.unscale_, train.py:41 (D41).
7 of 8 changes tried, 1 failed.

ResNet, 11.2 M parameters, AdamW, on the CPU; a step takes 412 ms. Gains below 4% cannot be seen.

Faster (95%)       Numerics   Change                     Where
1.38x (1.34-1.42)  identical  D09 remove detect_anomaly  train.py:9
1.05x (1.02-1.08)  rounding   D06 AdamW(fused=True)      train.py:6
1.44x (1.40-1.48)  2 together, measured: D09, D06

No difference: D03 what D03
Slower, do not use: D05 what D05, 0.80x (0.78-0.82)
Cannot be told: D08 Conv2d(bias=False), 1.05x (1.02-1.08)
Failed: D15 what D15, RuntimeError: a view was modified
Less memory: D35 checkpoint(ResNet.layer1), 1.10GB instead of 3.20GB, 0.78x (0.76-0.80)
Needs a GPU to try: D11 what D11, train.py:0 and 8 more
Not tried (there was no time left: --seconds gives more): D07 what D07, train.py:7
Not tried (it can make a step 1.01 times as fast at most): D13 what D13, train.py:13
Not written: checkpoint.pt by torch.save"""
    )


def test_files_that_were_not_written_are_counted_by_function() -> None:
    names = "open: /a/b.txt", "open: /a/c.txt", "torch.save: /x/y.pt", "hub.create_repo"
    watched = replace(REPORT.watched, blocked=dict.fromkeys(names, 2))
    shown = render_text(replace(REPORT, watched=watched)).splitlines()[-1]
    assert shown == "Not written: 2 files by open; y.pt by torch.save; hub.create_repo"


def test_a_trial_that_failed_has_no_numerics() -> None:
    failed = replace(FAILED, promised=Numerics.PRECISION)
    assert "Failed: D15 what D15, RuntimeError: a view was modified" in render_text(
        with_rows(failed)
    ).split("\n")


def test_all_of_a_report_is_printed_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    note = row("D33", kind="note", why_not="it changes the training")
    report = replace(REPORT, rows=(*REPORT.rows, note), noise=Estimate(0.99, 0.98, 1.01, 2))
    short, full = render_text(report), render_text(report, everything=True)
    for text in (
        "Script: main.py --dummy",
        "The script compared with itself: 0.99x (0.98-1.01).",
        "D03 what D03, 1.01x (0.98-1.04), identical, train.py:3",
        "D33 what D33, train.py:33",
        "convolution forward, train.py:20 210MB",
        ", ".join(f"train.py:{n}" for n in range(9)),
    ):
        assert text not in " ".join(short.split())
        assert text in " ".join(full.split())
    pinned = f"Both sides of each comparison ran with {MALLOC}."
    assert pinned in " ".join(full.split())
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")  # of the user
    assert "MALLOC_TRIM_THRESHOLD_=1 " in render_text(report, everything=True)
    uncompared = render_text(replace(report, noise=None), everything=True)
    assert "Both sides" not in uncompared
    assert "D33" in render_page(report)


def test_things_to_do_are_five_at_most_with_the_allocator_first() -> None:
    ids = [f"D{n}" for n in range(60, 68)]
    gains = [row(id, "gain", 1.1 + n / 10) for n, id in enumerate(ids)]
    text = render_text(with_rows(SAME, *gains, ALLOCATOR))
    assert re.findall(r"^\d.*?(D\d+)", text, re.M) == ["D55", "D67", "D66", "D65", "D64"]
    assert "Also faster: D63 what D63, 1.40x (1.36-1.44); D62 what D62" in text
    assert MALLOC.replace(" ", "") in "".join(text.split())
    assert "All other gains are in addition to D55." in text.splitlines()
    both = render_text(REPORTS["allocator and together"])
    assert "1.60x (1.55-1.65)  2 together, D55 times the others: D55, D09" in both.splitlines()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"clock": "cpu"}, "Other programs were busy, so steps were judged by processor time."),
        (
            {"repeatable": False},
            "Each run of the same step has other gradients, so numerics were not measured.",
        ),
        (
            {"noise": Estimate(1.01, 0.0, math.inf, 1)},
            "Only one process was measured: a verdict needs at least one more.",
        ),
        (
            {"watched": replace(REPORT.watched, failed="Traceback\nValueError: 24, not 40")},
            "The script failed while it was watched, perhaps because epochs end early there: "
            "ValueError: 24, not 40",
        ),
    ],
)
def test_how_it_was_measured_is_said(changes: dict[str, Any], line: str) -> None:
    report = replace(REPORT, **changes)
    assert line not in render_text(REPORT)
    for text in (render_text(report), render_text(report, everything=True)):
        assert line in " ".join(text.split())
    assert line in "".join(root_of(render_page(report)).itertext())


def test_a_ratio_of_one_process_has_no_interval() -> None:
    report, _ = VERDICTS["one process"]
    assert "Cannot be told: D08 Conv2d(bias=False), 1.30x\n" in render_text(report)
    for text in (render_text(report, everything=True), render_page(report)):
        assert not re.search(r"\binf\b|\bnan\b", text)


def test_why_trials_ended_is_said_once() -> None:
    ended = "the script failed in a trial: Traceback (most recent call last):\n  ...\nKeyError: 3"
    rows = [replace(one, why_not=ended) for one in (NO_TIME, SAME, OPEN)]
    rows[1:] = [replace(one, trial=None) for one in rows[1:]]
    text = render_text(with_rows(*rows, ended=ended))
    assert text.splitlines()[0] == "The script failed in a trial: KeyError: 3."
    assert "Not tried: D07 what D07, train.py:7; D03 what D03, train.py:3; D08" in text
    assert "Traceback" not in text


def test_several_mistakes_have_a_line_each() -> None:
    rows = [row(f"D{n}", kind="bug") for n in range(41, 47)]
    text = render_text(with_rows(*rows))
    assert "6 mistakes: D41, D42, D43, D44, D45, D46." in text.splitlines()[0]
    assert "Mistake: what D42, train.py:42 (D42)" in text.splitlines()
    assert "and 3 more: --all" in text.splitlines()
    full = render_text(with_rows(*rows), everything=True)
    assert full.count("Mistake: ") == 6


def test_a_change_that_takes_long_to_start_says_so() -> None:
    compiled = row("D05", trial=trial("gain", 1.3, warm_up_seconds=42.0))
    assert "D05 what D05 (first step: 42 s more)" in render_text(with_rows(compiled))


def test_only_true_savings_of_memory_are_called_so() -> None:
    more = replace(LESS_MEMORY, trial=trial("slower", 0.78, peak_bytes=98, base_peak_bytes=100))
    text = render_text(with_rows(more))
    assert "Less memory" not in text
    assert "Slower, do not use: D35" in text


def test_places_are_files_and_lines() -> None:
    path = "/my data/deep/folders/of/a/project/train.py:31 Trainer.<lambda>"
    text = render_text(with_rows(replace(GAIN, where=(path, "b.py:2 train", "OMP_NUM_THREADS=1"))))
    assert f"...{path.split(' Tr')[0][-21:]}" in text
    assert "and 2 more" in text
    full = render_text(with_rows(replace(SAME, where=(path, "OMP_NUM_THREADS=1"))), everything=True)
    place = "/my data/deep/folders/of/a/project/train.py:31, OMP_NUM_THREADS=1"
    assert place in " ".join(full.split())


@pytest.mark.parametrize(
    ("name", "mood"),
    [
        ("one gain", "good"),
        ("none", "good"),
        ("lower precision", "good"),
        ("open", "unsure"),
        ("partial", "unsure"),
        ("failed", "unsure"),
        ("too noisy", "unsure"),
        ("one process", "unsure"),
        ("nothing found", "unsure"),
        ("needs a GPU", "unsure"),
        ("waits", "unsure"),
        ("mistakes", "bad"),
        ("script failed", "bad"),
    ],
)
def test_the_page_is_green_only_for_a_sure_verdict(name: str, mood: str) -> None:
    root = root_of(render_page(REPORTS[name]))
    [header] = [element for element in root.iter() if element.tag.endswith("header")]
    assert header.get("class") == mood


@pytest.mark.parametrize(
    ("report", "threshold", "is_open"),
    [
        (with_rows(MISTAKE), 1.05, True),
        (with_rows(GAIN), 1.05, True),
        (with_rows(GAIN), 1.38, True),
        (with_rows(GAIN), 1.4, False),
        (with_rows(VALIDATION), 1.05, True),
        (with_rows(LOWER), 1.05, False),
        (with_rows(OPEN, SLOWER, SAME), 1.0, False),
        (with_rows(row("D08", "cannot be told", 1.5)), 1.05, False),
    ],
)
def test_mistakes_and_gains_that_keep_numbers_are_open(
    report: DoctorReport, threshold: float, is_open: bool
) -> None:
    assert report.is_open(threshold) == is_open


def test_json_has_words_and_null() -> None:
    report, verdict = VERDICTS["one process"]
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["verdict"] == verdict
    assert document["version"] == 1
    assert document["noise"] == {"value": 1.01, "low": None, "high": None, "starts": 1}
    assert document["smallest_gain"] is None
    [open_row, untried] = document["rows"]
    assert open_row["trial"]["gain"] == {"value": 1.3, "low": None, "high": None, "starts": 1}
    assert (open_row["promised"], open_row["trial"]["numerics"]) == ("identical", "identical")
    assert (untried["trial"], untried["why_not"]) == (None, NO_TIME.why_not)
    assert "findings" not in document["watched"]


def root_of(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page.partition("\n")[2])  # any open tag breaks it


def assert_is_fit(report: DoctorReport) -> None:
    """Assert that all forms of a report keep to their limits and show text as text."""
    short, full = render_text(report), render_text(report, everything=True)
    assert len(short.splitlines()) <= 25
    assert "\\x00" not in full + short
    for line in (*short.splitlines(), *full.splitlines()):
        assert sum(2 if east_asian_width(one) in "WF" else 1 for one in line) <= 100
        assert line == printable(line).rstrip()
    page = render_page(report)
    root = root_of(page)
    assert [element for element in root.iter() if element.tag.endswith("script")] == []
    [title] = [element for element in root.iter() if element.get("id") == "verdict"]
    assert title.text
    assert printable(report.verdict).startswith(title.text)
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert document["verdict"] == report.verdict
    assert len(document["rows"]) == len(report.rows)


@pytest.mark.parametrize("name", REPORTS)
def test_every_form_shows_what_it_is_given_as_text(name: str) -> None:
    assert_is_fit(REPORTS[name])


def test_a_monstrous_report_keeps_to_25_lines() -> None:
    verdicts = ["gain", "no difference", "slower", "cannot be told", "failed", ""]
    rows = [
        replace(
            row(f"D{n}", verdicts[n % 6], 1 + n / 3, why_not=f"{LONG} {n}" if n % 6 == 5 else ""),
            kind="bug" if n % 7 == 3 else "speed",
            where=(LONG,) * 40,
            what=tuple(f"{LONG} {n}" for n in range(1 + n % 4)),
        )
        for n in range(30)
    ]
    report = replace(
        REPORT,
        rows=tuple(rows),
        together=trial("gain", 1e9, follow=tuple(one.id for one in rows)),
        watched=replace(
            WAITING,
            models=(LONG,) * 9,
            optimizers=(LONG,) * 9,
            blocked={f"{LONG} {n}": n for n in range(20)},
            failed=LONG * 3,
        ),
        ended=LONG,
        repeatable=False,
        clock="cpu",
    )
    assert_is_fit(report)
    assert re.search(r"^\d+ more lines: --all$", render_text(report).splitlines()[-1])
    full = render_text(report, everything=True)
    assert all(one.id in full for one in rows)


def random_report(draw: random.Random) -> DoctorReport:
    words = ["AdamW(fused=True)", LONG, HOSTILE, "", "x" * 150, "two words", "\t", "名前.py:3 f"]
    verdicts = ["gain", "no difference", "slower", "cannot be told", "failed"]

    def some(most: int = 3) -> tuple[str, ...]:
        return tuple(draw.choice(words) for _ in range(draw.randint(0, most)))

    def estimate() -> Estimate:
        value = math.exp(draw.gauss(0, 1) * draw.choice((0.1, 5.0)))
        low, high = draw.choice([(0.0, math.inf), (value / 1.1, value * 1.1), (0.0, 1e200)])
        return Estimate(value, low, high, draw.randint(1, 5))

    def made_trial() -> Trial:
        return Trial(
            some(),
            draw.choice((estimate(), estimate(), None)),
            draw.choice(verdicts),  # type: ignore[arg-type]
            draw.choice(words),
            draw.choice((None, *Numerics)),
            None,
            draw.choice((0.0, 90.0)),
            draw.choice((0, 100, 10**10)),
            draw.choice((0, 100, 10**10)),
            0.1,
        )

    def made_row() -> Row:
        return Row(
            f"D{draw.randint(1, 60):02}",
            draw.choice(("speed", "speed", "speed", "bug", "note")),
            draw.choice(words),
            some(),
            some(),
            draw.choice((made_trial(), made_trial(), None)),
            draw.choice(list(Numerics)),
            draw.choice((*words, "GPU only")),
            draw.choice(("train", "evaluate")),
            draw.choice(("time", "memory")),
            draw.choice((None, 1.0, 2.5)),
        )

    return DoctorReport(
        script=draw.choice(words),
        watched=Watched(
            waited=draw.random(),
            models=some(),
            optimizers=some(),
            parameters=draw.choice((0, 999, 10**12)),
            blocked=dict.fromkeys(some(), 3),
            failed=draw.choice(words),
            device=draw.choice(("cpu", "cuda")),
        ),
        step_seconds=draw.choice((0.0, 0.4)),
        peak_bytes=0,
        noise=draw.choice((None, estimate())),
        repeatable=draw.random() < 0.5,
        rows=tuple(made_row() for _ in range(draw.choice((0, 1, 5, 40)))),
        together=draw.choice((None, made_trial())),
        seconds=1.0,
        smallest_gain=draw.choice((None, 1.04, math.inf)),
        ended=draw.choice(("", "", "interrupted", *words)),
        clock=draw.choice(("wall", "cpu")),
    )


def test_random_reports_keep_to_their_limits_and_promise_nothing() -> None:
    draw = random.Random(0)
    for _ in range(300):
        report = random_report(draw)
        assert_is_fit(report)
        gains = {
            one.id
            for one in report.rows
            if one.trial and one.trial.gain and one.trial.verdict == "gain"
        }
        known = bool(gains) or bool(report.together and report.together.verdict == "gain")
        assert known or not re.search(r"can be \S+x .*as fast", report.verdict)
        lines = render_text(report).splitlines()
        table = [n for n, line in enumerate(lines) if line.startswith("Faster (95%)")]
        for line in lines[table[0] + 1 :] if table else ():
            if found := re.match(r"\d\S*x .*? (D\d\d) ", line):
                assert found[1] in gains
            elif not line.startswith(" "):
                break
        for line in lines:
            if line.startswith("Also faster: "):
                assert set(re.findall(r"(?:: |; )(D\d\d) ", line)) <= gains


def test_nothing_sticks_out_of_the_page_in_a_browser(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    browser: Browser = browser_or_skip(tmp_path_factory.mktemp("browser"))
    names = [("full", 1280), ("wide", 1280), ("wide", 400), ("hostile", 400)]
    pages = [
        (render_page(REPORTS[name]).replace("<details>", "<details open='open'>"), width)
        for name, width in names
    ]
    for (name, width), found in zip(names, browser.measure(*pages), strict=True):
        verdict = " ".join(printable(REPORTS[name].verdict).split())
        assert verdict.startswith(" ".join(found["verdict"].split()))
        assert found["inner"] == width
        assert found["scroll"] <= width
        assert found["sticking_out"] == []
        assert found["clipped"] == []


def test_a_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    page = render_page(REPORT)
    write_page(page, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert page.index("1.44x") < page.index("<details>")
    assert not re.search(r'(src|href)="|url\(|@import', page)
