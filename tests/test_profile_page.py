"""A profile's report as text and as an HTML page, also in a real browser."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import Browser, browser_or_skip

from fastdata import replacing
from fastdata.errors import DestinationExistsError, DiskFullError, OptionError
from fastdata.measuring.stalls import Stall
from fastdata.pages import write_page
from fastdata.printable import printable
from fastdata.profiling.figures import blocks, machine_lines, milliseconds, number, share, speedup
from fastdata.profiling.page import MOST_EVENTS, lay_out, render_page
from fastdata.profiling.report import (
    Event,
    Fix,
    ProfileReport,
    Stage,
    batch_times,
    gain,
    key_figures,
    render_text,
    stall_line,
)

NAN, INF = math.nan, math.inf
HOSTILE = "<script>document.title='run'</script>&\"'{{ 7 * 7 }}\x1b[31m\n\u202e\udc80é猫"
LONG = "/data/" + "a_very_long_folder_name/" * 12 + "train.py:1234 Dataset.__getitem__"

TIMELINE = (
    Event("worker 0", 10.00, 0.40, "batch 0", "read"),
    Event("loop: wait", 10.00, 0.25, "batch 0"),
    Event("loop: step", 10.25, 0.50, "batch 0"),
    Event("worker 0", 10.40, 0.60, "batch 1", "decode"),
    Event("loop: wait", 10.75, 0.05, "batch 1"),
    Event("loop: step", 10.80, 0.20, "batch 1"),
)

INPUT_BOUND = ProfileReport(
    verdict="input-bound: the step waits 38% of the time; decoding is the bottleneck",
    bottleneck="decode",
    input_bound=True,
    steps_per_second=12.4,
    steps_per_second_host=19.0,
    steps_per_second_device=20.0,
    batch_size=256,
    waiting=0.38,
    stages=(
        Stage("read", 0.030, True, 0.001, 1.01),
        Stage("decode", 0.120, True, 0.030, 1.60, "train.py:42 load_image"),
        Stage("augment", 0.060, True, 0.0, 1.05),
        Stage("step", 0.050, False, 0.0, 2.00),
    ),
    fixes=(Fix("Use 6 workers: num_workers=6", 1.58), Fix("Pack the dataset")),
    batch_seconds_p50=0.080,
    batch_seconds_p99=0.160,
    ready_batches=0.4,
    wait_seconds=0.0306,
    copy_bytes_per_second=5.1e9,
    workers=4,
    workers_to_saturate=6,
    cores=8,
    cores_to_saturate=5.6,
    overhead=0.004,
    steps=370,
    timeline=TIMELINE,
    step="a training step of ResNet-50",
    loader="a loader of train.lmdb",
    machine={"cpu": "a CPU", "versions": {"torch": "2.13.0"}, "gpu": None, "cores": [0, 1]},
    notes=("The page cache was warm.",),
)
STALLING = replace(
    INPUT_BOUND,
    verdict="step-bound, and the step makes the device wait: .item() at train.py:12",
    bottleneck="step",
    input_bound=False,
    stalls=(
        Stall("synchronisation", ".item()", "train.py:12 train_step", 1),
        Stall("host tensor", "torch.randperm", "train.py:20 mix", 3, 2_500_000),
    ),
)
NOTHING = ProfileReport("nothing is known", None, False, NAN, NAN, NAN, 1, NAN, ())
ODD = replace(
    INPUT_BOUND,
    steps_per_second=0.0,
    steps_per_second_device=INF,
    steps_per_second_host=NAN,
    waiting=INF,
    stages=(
        Stage("read", NAN, True, NAN, NAN),
        Stage("decode", INF, True, INF, INF),
        Stage("copy", 0.0, False, -0.001, 1.0),
        Stage("step", 1e-9, False, 0.0, 1e6),
    ),
    fixes=(Fix("who knows", NAN), Fix("for ever", INF)),
    batch_seconds_p50=NAN,
    batch_seconds_p99=INF,
    ready_batches=NAN,
    copy_bytes_per_second=NAN,
    cores_to_saturate=NAN,
    overhead=NAN,
    timeline=(
        Event("loop: wait", NAN, 1.0),
        Event("loop: wait", 0.0, INF),
        Event("loop: wait", 0.0, -1.0),
        Event("loop: step", 5.0, 0.0, "no time at all"),
    ),
    machine={"speed": INF},
)
HOSTILE_REPORT = replace(
    STALLING,
    verdict=HOSTILE,
    loader=HOSTILE,
    step=HOSTILE,
    stages=(Stage("decode", 0.1, True, 0.05, 1.5, HOSTILE),),
    stalls=(Stall("synchronisation", HOSTILE, HOSTILE),),
    fixes=(Fix(HOSTILE, 2.0),),
    timeline=(Event(HOSTILE, 0.0, 1.0, HOSTILE),),
    machine={HOSTILE: {HOSTILE: HOSTILE}},
    notes=(HOSTILE,),
)
WIDE = replace(
    STALLING,
    verdict="input-bound: " + LONG,
    loader=LONG,
    stages=tuple(
        Stage(name, 12345.6, True, 12345.6, 123456.0, LONG)
        for name in ("read", "decode", "augment", "collate", "hand over", "pin", "copy", "step")
    ),
    stalls=(Stall("host tensor", LONG, LONG, 123456, 10**12),),
    steps_per_second=1234567.0,
    fixes=(Fix(LONG, 123456.0),),
    timeline=tuple(Event(f"worker {LONG}", 1e5 + index, 0.9, LONG) for index in range(40)),
    machine={LONG: LONG},
    notes=(LONG,),
)
REPORTS = {
    "input-bound": INPUT_BOUND,
    "stalling": STALLING,
    "nothing": NOTHING,
    "odd": ODD,
    "hostile": HOSTILE_REPORT,
    "wide": WIDE,
}


@pytest.fixture(params=list(REPORTS))
def report(request: pytest.FixtureRequest) -> ProfileReport:
    """Every report in turn."""
    return REPORTS[request.param]


# -- figures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (0.0000001, "<0.001"),
        (0.0123, "0.012"),
        (0.9996, "1.00"),
        (1.234, "1.23"),
        (9.996, "10.0"),
        (12.34, "12.3"),
        (99.96, "100"),
        (12345.6, "12,346"),
        (NAN, "n/a"),
        (INF, "unlimited"),
        (-INF, "n/a"),
        (-2.5, "-2.50"),
    ],
)
def test_numbers_have_three_digits_that_count(value: float, text: str) -> None:
    assert number(value) == text


def test_figures_have_units_and_unknown_ones_have_none() -> None:
    assert [milliseconds(value) for value in (0.0306, NAN)] == ["30.6 ms", "n/a"]
    assert [share(value) for value in (0.38, 0.004, 0.0001, 0.0, 1.0, NAN)] == [
        "38%",
        "0.4%",
        "<0.1%",
        "0%",
        "100%",
        "n/a",
    ]
    assert [speedup(value) for value in (1.584, 12.34, INF, NAN)] == [
        "1.58x",
        "12x",
        "unlimited",
        "n/a",
    ]
    assert gain(Fix("", 1.58)) == "1.58x as fast"
    assert {gain(Fix("", value)) for value in (1.0, 0.5, NAN, INF)} == {"gain not predicted"}


def test_text_that_is_printed_has_no_control_characters() -> None:
    assert printable(HOSTILE) == (
        "<script>document.title='run'</script>&\"'{{ 7 * 7 }}\\x1b[31m \\u202e\\udc80é猫"
    )
    assert printable("a\u00a0b\tc\x7f") == "a b c\\x7f"


def test_a_stall_says_what_it_does_and_how_often() -> None:
    assert [stall_line(stall) for stall in STALLING.stalls] == [
        ".item() makes the host wait for the device, 1 time a step",
        "torch.randperm is made on the host, then copied, 3 times a step, 2.5 MB copied",
    ]


def test_key_figures_are_those_that_there_are() -> None:
    figures = dict(key_figures(INPUT_BOUND))
    assert figures["step waits for data"] == "38%"
    assert figures["host to device"] == "5.10 GB/s"
    assert figures["workers that would be enough"] == "6"
    assert figures["cores that loading would need"] == "5.60"
    left_out = {"host to device", "workers that would be enough", "cores that loading would need"}
    assert figures.keys() - dict(key_figures(NOTHING)).keys() == left_out


def test_a_step_without_waiting_takes_what_the_ceiling_says() -> None:
    assert dict(batch_times(INPUT_BOUND))["the step, without waiting"] == pytest.approx(0.05)
    assert math.isnan(dict(batch_times(NOTHING))["the step, without waiting"])


def test_nested_tables_of_a_machine_become_lines() -> None:
    assert machine_lines(INPUT_BOUND.machine) == [
        ("cpu", "a CPU"),
        ("versions.torch", "2.13.0"),
        ("gpu", "none"),
        ("cores", "0, 1"),
    ]


# -- JSON -----------------------------------------------------------------------------


def test_json_has_every_attribute_and_no_number_that_json_lacks(report: ProfileReport) -> None:
    document = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert list(document) == list(ProfileReport.__slots__)
    assert document["verdict"] == report.verdict
    assert len(document["stages"]) == len(report.stages)


def test_json_says_null_for_what_is_not_known() -> None:
    document = ODD.to_json()
    assert document["steps_per_second_device"] is None
    assert document["stages"][0]["seconds"] is None
    assert document["machine"] == {"speed": None}
    assert document["stages"][3]["seconds"] == 1e-9


# -- text -----------------------------------------------------------------------------


def test_text_begins_with_the_verdict_in_one_line(report: ProfileReport) -> None:
    assert str(report).splitlines()[0] == printable(report.verdict)


def test_text_has_no_control_characters(report: ProfileReport) -> None:
    text = str(report)
    assert all(line.isprintable() for line in text.split("\n"))
    text.encode("utf-8")


def test_text_in_ascii_is_ascii(report: ProfileReport) -> None:
    text = render_text(report, ascii_only=True)
    assert text.isascii()
    assert ("#" in text) == any(stage.seconds > 0 for stage in report.stages)


def test_text_has_rates_stages_and_ranked_fixes() -> None:
    lines = str(INPUT_BOUND).splitlines()
    names = ("the real", "one b", "batches on")
    rates = [line.split()[-2:] for line in lines if line.startswith(names)]
    assert rates == [["12.4", "3,174"], ["19.0", "4,864"], ["20.0", "5,120"]]
    places = [
        next(number for number, line in enumerate(lines) if re.match(pattern, line))
        for pattern in (
            r"read \* +30\.0 ms  █████ +1\.00 ms +1\.01x as fast$",
            r"decode \* +120 ms  █{20} +30\.0 ms +1\.60x as fast$",
            r" +at train\.py:42 load_image$",
            r"augment \* +60\.0 ms  █{10} +0 ms +1\.05x",
            r"step +50\.0 ms  █{8}▍ +0 ms +2\.00x",
            r"1\. Use 6 workers: num_workers=6 \(1\.58x as fast\)$",
            r"2\. Pack the dataset \(gain not predicted\)$",
            r"- The page cache was warm\.$",
        )
    ]
    assert places == sorted(places)


def test_text_has_the_lines_that_stall() -> None:
    text = str(STALLING)
    assert ".item() makes the host wait for the device, 1 time a step\n  at train.py:12" in text
    assert "2.5 MB copied\n  at train.py:20 mix" in text
    assert "makes the device wait" not in str(INPUT_BOUND).partition("\n")[2]


def test_text_without_anything_says_so() -> None:
    text = str(NOTHING)
    assert "No stage could be measured" in text
    assert "Nothing to mend" in text
    assert "the real loader                n/a" in text


@pytest.mark.parametrize(
    ("value", "bar", "ascii_bar"),
    [
        (0.0, "    ", "    "),
        (NAN, "    ", "    "),
        (-1.0, "    ", "    "),
        (1e-9, "▏   ", "#   "),
        (5.0, "██  ", "##  "),
        (5.625, "██▎ ", "##  "),
        (10.0, "████", "####"),
        (99.0, "████", "####"),
        (INF, "████", "####"),
    ],
)
def test_bars_of_text_are_as_long_as_they_must_be(value: float, bar: str, ascii_bar: str) -> None:
    assert blocks(value, 10.0, 4) == bar
    assert blocks(value, 10.0, 4, ascii_only=True) == ascii_bar


# -- the timeline ---------------------------------------------------------------------


def test_the_timeline_is_in_percent_of_its_window_and_the_loop_comes_first() -> None:
    rows = {row.name: row for row in lay_out(TIMELINE).rows}
    assert list(rows) == ["loop: wait", "loop: step", "worker 0"]
    kinds = [{stretch.kind for stretch in row.stretches} for row in rows.values()]
    assert kinds == [{"wait"}, {"step"}, {"read", "decode"}]
    assert rows["worker 0"].stretches[0].title == "worker 0 read batch 0: 400 ms, from 0 ms"
    assert lay_out(TIMELINE).stages == ("read", "decode")
    assert [(s.left, s.width) for s in rows["loop: step"].stretches] == [
        ("25.000%", "50.000%"),
        ("80.000%", "20.000%"),
    ]
    assert rows["loop: step"].stretches[0].title == "loop: step batch 0: 500 ms, from 250 ms"
    assert rows["loop: step"].summary == "loop: step: 2 of 700 ms together"


def test_workers_are_in_the_order_of_their_numbers() -> None:
    names = ["worker 10", "worker 2", "loop: step", "loop: wait"]
    rows = lay_out([Event(name, at, 1.0) for at, name in enumerate(names)]).rows
    assert [row.name for row in rows] == ["loop: step", "loop: wait", "worker 2", "worker 10"]
    assert {stretch.kind for row in rows[2:] for stretch in row.stretches} == {"work"}


def test_the_page_has_a_key_of_the_stages_of_workers() -> None:
    (caption,) = tree(INPUT_BOUND).iter("figcaption")
    assert "".join(caption.itertext()).split()[:3] == ["read", "decode", "Point"]
    assert [rect.get("class") for rect in caption.iter("rect")] == ["read", "decode"]


@pytest.mark.parametrize(
    ("seconds", "texts"),
    [
        (1.0, ["0", "200", "400", "600", "800", "1,000"]),
        (0.6, ["0", "100", "200", "300", "400", "500", "600"]),
        (0.0035, ["0", "1", "2", "3"]),
        (0.00012, ["0", "0.02", "0.04", "0.06", "0.08", "0.1", "0.12"]),
        (70.0, ["0", "20,000", "40,000", "60,000"]),
    ],
)
def test_ticks_are_round_milliseconds(seconds: float, texts: list[str]) -> None:
    ticks = lay_out([Event("loop: step", 3.0, seconds)]).ticks
    assert [tick.text for tick in ticks] == texts
    for tick in ticks:
        place = float(tick.text.replace(",", "")) / 1e3 / seconds
        assert float(tick.left.rstrip("%")) == pytest.approx(100 * place, abs=0.01)


def test_a_timeline_leaves_out_what_has_no_time_and_too_many() -> None:
    assert lay_out([]).rows == ()
    assert lay_out(ODD.timeline).left_out == 3
    assert len(lay_out(ODD.timeline).rows) == 1
    many = [Event("worker 0", index, 1.0) for index in range(MOST_EVENTS + 7)]
    timeline = lay_out(many)
    assert timeline.left_out == 7
    assert sum(len(row.stretches) for row in timeline.rows) == MOST_EVENTS
    assert "7 events are not drawn" in render_page(replace(INPUT_BOUND, timeline=tuple(many)))


# -- the page, parsed -----------------------------------------------------------------


class Tags(HTMLParser):
    """All tags and texts of a page, as a browser's parser would cut it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.text += data


def tree(report: ProfileReport) -> ElementTree.Element:
    """Parse a page as XML, which every ``<``, ``&`` and open tag breaks."""
    return ElementTree.fromstring(render_page(report).partition("\n")[2])


def test_the_page_is_well_formed(report: ProfileReport) -> None:
    root = tree(report)
    assert root.tag == "html"
    identities = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(identities) == len(set(identities))
    for element in root.iter():
        name = element.get("aria-labelledby")
        assert name is None or name in identities


def test_the_page_refers_to_nothing_outside_and_runs_nothing(report: ProfileReport) -> None:
    page = render_page(report)
    tags = Tags(page).tags
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "object", "base", "a"}
    for _, attributes in tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not attributes.keys() & {"href", "src", "srcset", "xlink:href", "action", "style"}
    assert not re.search(r"https?://|url\(|@import", page)
    policies = [a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_the_page_escapes_everything() -> None:
    page = render_page(HOSTILE_REPORT)
    page.encode("utf-8")
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "{{ 7 * 7 }}" in page  # it is text, not a template
    shown = Tags(page).text
    # Verdict (and title), loader, step, stage, stall, fix, row, tooltip, machine, note.
    assert shown.count(printable(HOSTILE)) >= 14


def test_the_page_has_what_the_text_has(report: ProfileReport) -> None:
    shown = " ".join(Tags(render_page(report)).text.split())
    wanted = [
        report.verdict,
        report.loader,
        report.step,
        *(stage.where for stage in report.stages),
        *(milliseconds(stage.seconds) for stage in report.stages),
        *(stall_line(stall) for stall in report.stalls),
        *(stall.where for stall in report.stalls),
        *(fix.text for fix in report.fixes),
        *(gain(fix) for fix in report.fixes),
        *report.notes,
        *(text for pair in key_figures(report) for text in pair),
        *(text for pair in machine_lines(report.machine) for text in pair),
    ]
    assert [text for text in wanted if " ".join(printable(text).split()) not in shown] == []


def test_every_drawing_has_a_name_or_is_hidden(report: ProfileReport) -> None:
    root = tree(report)
    for drawing in root.iter("svg"):
        assert drawing.get("aria-hidden") == "true" or drawing.get("aria-label")
    assert root.get("lang") == "en"


def test_the_page_marks_the_bottleneck_and_says_whose_fault_it_is() -> None:
    moods = {}
    for name in ("input-bound", "stalling", "nothing"):
        root = tree(REPORTS[name])
        (header,) = root.iter("header")
        marked = [
            "".join(row.itertext()).split()[0]
            for row in root.iter("tr")
            if "bottleneck" in "".join(row.itertext())
        ]
        moods[name] = (header.get("class"), marked)
    assert moods == {
        "input-bound": ("data", ["decode"]),
        "stalling": ("step", ["step"]),
        "nothing": ("fine", []),
    }


def luminance(color: str) -> float:
    """Relative luminance, as WCAG 2.1 defines it."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_have_the_contrast_that_people_need() -> None:
    schemes = re.findall(r":root \{(.*?)\}", render_page(INPUT_BOUND), re.S)
    assert len(schemes) == 3  # light, dark, paper
    for scheme in schemes:
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", scheme))
        bars = [(name, 3) for name in ("work", "step", "read", "augment", "collate")]
        for name, least in [("ink", 7), ("soft", 4.5), ("wait", 4.5), *bars]:
            for ground in ("paper", "panel"):
                light, dark = sorted((luminance(colors[name]), luminance(colors[ground])))[::-1]
                assert (light + 0.05) / (dark + 0.05) >= least, (name, ground, colors)


# -- writing it -----------------------------------------------------------------------


def test_a_page_is_written_whole_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    write_page(render_page(REPORTS["hostile"]), path)
    write_page(render_page(INPUT_BOUND), path)
    assert path.read_text(encoding="utf-8") == render_page(INPUT_BOUND)
    assert os.listdir(tmp_path) == ["r.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_page_is_not_written_through_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "r.html")
    for _ in range(2):
        with pytest.raises(DestinationExistsError, match=r"link\.html is a link, not a page"):
            write_page(render_page(INPUT_BOUND), link)
        write_page(render_page(INPUT_BOUND), tmp_path / "r.html")
    assert link.is_symlink()


def test_a_page_that_cannot_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.html"
    earlier = render_page(REPORTS["hostile"])
    write_page(earlier, path)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replacing, "_renamed", full)
    with pytest.raises(DiskFullError, match=r"r\.html: No space left on device\. Make room"):
        write_page(render_page(INPUT_BOUND), path)
    assert path.read_text(encoding="utf-8") == earlier
    assert os.listdir(tmp_path) == ["r.html"]


def test_a_page_takes_the_place_of_no_folder_or_device(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"is a folder: name a file .*page\.html"):
        write_page(render_page(INPUT_BOUND), tmp_path)
    with pytest.raises(OptionError, match=r"missing does not exist: make it .mkdir -p"):
        write_page(render_page(INPUT_BOUND), tmp_path / "missing" / "r.html")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DestinationExistsError, match="pipe is a named pipe, not a page"):
        write_page(render_page(INPUT_BOUND), tmp_path / "pipe")
    assert os.listdir(tmp_path) == ["pipe"]


# -- in a browser ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Chromium.  Without it tests skip, unless FASTDATA_REQUIRE_CHROMIUM=1 says it is there."""
    return browser_or_skip(tmp_path_factory.mktemp("browser"))


def test_a_browser_tells_of_a_script_that_fails(browser: Browser, tmp_path: Path) -> None:
    # Else "nothing on the console" would mean nothing.
    page = tmp_path / "broken.html"
    page.write_text("<p>x</p><script>document.title = 'run'; missing()</script>")
    dom, console = browser(page)
    assert "<title>run</title>" in dom
    assert any("missing is not defined" in line for line in console)


@pytest.mark.parametrize("name", ["input-bound", "hostile"])
def test_a_browser_shows_the_verdict_and_has_nothing_to_say(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    path = tmp_path / "r.html"
    write_page(render_page(REPORTS[name]), path)
    dom, console = browser(path)
    assert console == []
    shown = Tags(dom)
    assert printable(REPORTS[name].verdict) in shown.text
    # Nothing of the report became a tag: parsed by the browser, it has those that were written.
    written = Tags(render_page(REPORTS[name]))
    assert [tag for tag, _ in shown.tags] == [tag for tag, _ in written.tags]


MEASURED = [("input-bound", 1280)]
MEASURED += [(name, width) for name in ("stalling", "wide", "odd") for width in (1280, 400)]


@pytest.fixture(scope="module")
def measured(browser: Browser) -> dict[tuple[str, int], dict[str, Any]]:
    """What a browser measures of some pages, by report and width."""
    pages = [(render_page(REPORTS[name]), width) for name, width in MEASURED]
    return dict(zip(MEASURED, browser.measure(*pages), strict=True))


@pytest.mark.parametrize(("name", "width"), MEASURED[1:])
def test_nothing_sticks_out_of_the_page(
    measured: dict[tuple[str, int], dict[str, Any]], name: str, width: int
) -> None:
    found = measured[name, width]
    assert found["inner"] == width
    assert found["scroll"] <= width
    assert found["sticking_out"] == []
    assert found["clipped"] == []
    assert min(found["stage_bars"]) >= 150  # there is something to see
    for before, after in zip(found["ticks"], found["ticks"][1:], strict=False):
        assert before["right"] < after["left"]


def test_bars_are_as_long_as_what_they_show(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    found = measured["input-bound", 1280]
    assert found["verdict"] == INPUT_BOUND.verdict
    # By hand: of 120 ms, of 20 steps a second, of 160 ms, of a gain of 1.00.
    assert [row[0] for row in found["stages"]] == pytest.approx([0.25, 1, 0.5, 0.4167], abs=0.01)
    assert [row[1] for row in found["stages"]] == pytest.approx([0.0083, 0.25, 0, 0], abs=0.01)
    assert [row[2] for row in found["stages"]] == pytest.approx([0.01, 0.6, 0.05, 1], abs=0.01)
    assert [row[0] for row in found["rates"]] == pytest.approx([0.62, 0.95, 1], abs=0.01)
    assert [row[0] for row in found["times"]] == pytest.approx([0.5, 1, 0.3125], abs=0.01)
    assert len(set(found["stage_bars"])) == 1
    wait, step, worker = found["rows"]
    for row, expected in [
        (wait, [[0, 0.25], [0.75, 0.05]]),
        (step, [[0.25, 0.5], [0.8, 0.2]]),
        (worker, [[0, 0.4], [0.4, 0.6]]),
    ]:
        for stretch, places in zip(row, expected, strict=True):
            assert stretch == pytest.approx(places, abs=0.005)


def test_the_page_is_dark_where_the_reader_wants_that(
    browser: Browser, measured: dict[tuple[str, int], dict[str, Any]]
) -> None:
    assert measured["input-bound", 1280]["paper"] == "rgb(255, 255, 255)"
    options = ["--blink-settings=preferredColorScheme=0"]
    (dark,) = browser.measure((render_page(INPUT_BOUND), 1280), options=options)
    assert dark["paper"] == "rgb(13, 17, 23)"


def test_a_browser_makes_a_picture_of_it(browser: Browser, tmp_path: Path) -> None:
    from PIL import Image

    path = tmp_path / "r.html"
    write_page(render_page(INPUT_BOUND), path)
    browser(path, f"--screenshot={tmp_path / 'r.png'}")
    with Image.open(tmp_path / "r.png") as picture:
        colors = {color for _, color in picture.convert("RGB").getcolors(1 << 24)}
    # The bars of steps, of work and of waiting, in the light scheme.
    assert {(26, 127, 55), (9, 105, 218), (188, 76, 0)} <= colors
