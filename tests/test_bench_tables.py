"""The measured tables of the documentation are those of the results that are kept."""

from __future__ import annotations

import datetime
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from docs_blocks import pages as markdown_pages

from fastdata.doctor import advice, examining, session

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "scripts" / "bench"))

import all as bench  # noqa: E402
import chart  # noqa: E402
import doctor_cases  # noqa: E402
import load  # noqa: E402
import load_tables  # noqa: E402
import pages  # noqa: E402
import results  # noqa: E402
from results import Measured, figures_of  # noqa: E402

MEASURED = [
    page for page in pages.all_pages() if re.search("<!-- (table|figure):", page.read_text())
]


@pytest.mark.parametrize("page", MEASURED, ids=str)
def test_a_page_has_the_tables_and_figures_of_the_results(page: Path) -> None:
    text = page.read_text("utf-8")
    assert pages.renewed(page) == text, "scripts/bench/all --write makes them anew"
    # Such a line would be HTML up to its end, and its Markdown shown as it is.
    assert not re.search(r"(?m)^ {0,3}<!-- /?figure", text)


def test_the_picture_has_the_results() -> None:
    text = (REPOSITORY / pages.PICTURE).read_text("utf-8")
    assert chart.svg(Measured.load("load")) == text, "scripts/bench/all --write makes it anew"
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


@pytest.mark.parametrize("name", pages.FIGURES)
def test_every_figure_is_measured(name: str) -> None:
    assert re.fullmatch(rf"{name} -->[^()]+|{name} -->!\[.*\]\(\S+\)", pages.figure_of(name))


def test_every_table_stands_once_in_its_page_and_is_measured() -> None:
    found = []
    for page in markdown_pages():
        names = re.findall(r"(?m)^<!-- table: (\S+) -->$", page.read_text("utf-8"))
        found += [(name, page.relative_to(REPOSITORY).as_posix()) for name in names]
    assert sorted(found) == sorted((name, table.page) for name, table in pages.TABLES.items())
    sources = {source for table in pages.TABLES.values() for source in table.sources}
    assert sources == bench.MEASUREMENTS.keys()
    assert all(Measured.load(source).runs for source in sources)


def counted(contender: str, *values: float, **more: Any) -> list[dict[str, Any]]:
    """Return the lines of a contender, with a warm-up that is not to be counted."""
    line = {"benchmark": "b", "contender": contender, "unit": "images/s"}
    warm_up = {**line, "warm_up": True, "value": 1e9}
    return [warm_up, *({**line, "warm_up": False, "value": value, **more} for value in values)]


def test_figures_are_those_of_counted_rounds_and_of_rows() -> None:
    lines = counted("a", 3.0, 1.0, 2.0) + counted("broke", 5.0)
    lines.append({"benchmark": "b", "contender": "broke", "round": 2, "failed": "it did"})
    lines.append({"benchmark": "b", "contender": "missing", "absent": "not here"})
    assert figures_of(lines) == {
        "a": {"median": 2.0, "lowest": 1.0, "highest": 3.0, "unit": "images/s"}
    }
    # Contenders that rows are made of have no figures of their own.
    rows = [{"benchmark": "b", "row": "a over b", "values": {"median": 2}}]
    rows.append({"benchmark": "b", "row": "not measured", "values": None})
    assert figures_of(lines + rows) == {"a over b": {"median": 2}}


def run(date: str, **medians: float) -> dict[str, Any]:
    figures = {name: {"median": value} for name, value in medians.items()}
    machine = {"cpu": "a CPU", "cores": 2}
    return {
        "date": date,
        "command": f"run of {date}",
        "machine": machine,
        "versions": {"peer": f"of {date}"},
        "photographs": 200,
        "samples": 4000,
        "figures": figures,
    }


def test_what_was_not_measured_again_stays_with_its_date_and_ratios_are_of_one_run() -> None:
    found = Measured(()).with_run(run("2026-01-01", ours=10.0, peer=5.0, other=1.0))
    found = found.with_run(run("2026-02-01", ours=30.0, other=10.0))
    assert [found.figure(name)["median"] for name in ("ours", "peer", "other")] == [30, 5, 10]
    assert found.ratio("ours", "peer") == 2  # not 6
    assert found.ratio("ours", "other") == 3
    said = pages.origin(found)
    assert said.startswith("`run of 2026-02-01`, 2026-02-01: a CPU, 2 cores; 200 photographs, ")
    assert "repeated to 4,000 samples" in said
    assert "Earlier, `run of 2026-01-01`, 2026-01-01 (peer): a CPU" in said
    assert pages.version(found, "peer", "peer") == " of 2026-01-01"
    # A run that has nothing more to say is forgotten.
    found = found.with_run(run("2026-03-01", ours=1.0, peer=1.0, other=1.0))
    assert [one["date"] for one in found.runs] == ["2026-03-01"]


@pytest.fixture
def bench_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one page and a benchmark, whose lines `lines.json` has."""
    script = tmp_path / "bench.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "print('a table for people')\n"
        "said = json.loads((pathlib.Path(__file__).parent / 'lines.json').read_text())\n"
        "for line in said['lines']: print(json.dumps(line))\n"
        "sys.exit(said['code'])\n"
    )
    (tmp_path / "docs").mkdir()
    text = "before\n<!-- table: pack -->\n<!-- /table -->\nafter\n"
    (tmp_path / "docs" / "benchmarks.md").write_text(text)
    (tmp_path / "README.md").write_text(
        "packs <!-- figure: pack_vs_ffcv -->?<!-- /figure -->x as fast"
    )
    one = bench.Measurement("bench.py", ["--rounds", "2"], images=False)
    monkeypatch.setattr(bench, "MEASUREMENTS", {"pack": one})
    monkeypatch.setattr(bench, "HERE", tmp_path)
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(pages, "REPOSITORY", tmp_path)
    monkeypatch.setattr(pages, "TABLES", {"pack": pages.TABLES["pack"]})
    results.Measured((run("2026-01-01", **{load_tables.FASTDATA: 9.0}),)).save("load")
    return tmp_path


def measure(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str, **said: Any) -> int:
    (folder / "lines.json").write_text(json.dumps({"lines": [], "code": 0, **said}))
    monkeypatch.setattr(sys, "argv", ["all", *words])
    return bench.main()


def test_a_measurement_is_kept_written_and_not_repeated(
    bench_of_one: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    page = bench_of_one / "docs" / "benchmarks.md"
    lines = counted("fastdata lmdb", 900.0, 1000.0, 1100.0) + counted("FFCV DatasetWriter", 500.0)
    assert measure(bench_of_one, monkeypatch, lines=lines) == 0
    assert "a table for people" in capfd.readouterr().out
    today = datetime.date.today().isoformat()
    assert "| `fastdata.pack` to LMDB | 1,000 | 900-1,100 | 2.00x |" in page.read_text()
    assert f"`python scripts/bench/bench.py --rounds 2`, {today}: " in page.read_text()
    assert page.read_text().startswith("before\n<!-- table: pack -->\n\n| |")
    assert page.read_text().endswith("\n\n<!-- /table -->\nafter\n")
    sentence = "packs <!-- figure: pack_vs_ffcv -->2.0<!-- /figure -->x as fast"
    assert (bench_of_one / "README.md").read_text() == sentence
    assert ">9</text>" in (bench_of_one / pages.PICTURE).read_text()
    # Of today: left as it is, unless it is asked for.
    lines = counted("fastdata lmdb", 2000.0)
    assert measure(bench_of_one, monkeypatch, lines=lines) == 0
    assert "| 1,000 |" in page.read_text()
    assert measure(bench_of_one, monkeypatch, "--only", "pack", lines=lines) == 0
    assert "| `fastdata.pack` to LMDB | 2,000 | 2,000-2,000 | 2.00x |" in page.read_text()
    assert "(FFCV DatasetWriter)" in page.read_text()
    # Nothing is lost where nothing was measured, and a failure is told.
    kept = page.read_text()
    assert measure(bench_of_one, monkeypatch, "--days", "0", code=1) == 1
    assert page.read_text() == kept
    assert "not all of these could be measured (above): pack" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        measure(bench_of_one, monkeypatch, "--only", "pack,lod")
    assert "no measurement is called 'lod': pack" in capfd.readouterr().err
    assert measure(bench_of_one, monkeypatch, "--list") == 0
    assert f"pack           {today}" in capfd.readouterr().out


def test_only_takes_names_with_commas_and_repeated(
    bench_of_one: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one = bench.MEASUREMENTS["pack"]
    monkeypatch.setattr(bench, "MEASUREMENTS", {"pack": one, "load": one, "raw": one, "cifar": one})
    words = ["--only", "pack,raw", "--only", "load"]
    assert measure(bench_of_one, monkeypatch, *words, lines=counted("a", 1.0)) == 0
    started = re.findall(r"(?m)^-- (\w+), about", capfd.readouterr().err)
    assert started == ["pack", "raw", "load"]


def test_readme_has_one_run_and_the_accuracy_row_with_its_results() -> None:
    loaded = Measured(
        (run("2026-01-01", **{load_tables.FASTDATA: 9.0, load_tables.TORCHVISION: 3.0}),)
    )
    packed = Measured((run("2026-01-01", **{"fastdata lmdb": 5.0, "FFCV DatasetWriter": 2.0}),))
    # A later run of another contender, without fastdata, is not to be compared.
    loaded = loaded.with_run(run("2026-02-01", **{load_tables.FFCV: 100.0}))
    lines = load_tables.readme(loaded, packed, Measured(()))
    assert not any("FFCV, JPEG" in line for line in lines)
    assert "FFCV" not in chart.svg(loaded)
    assert lines[0] == "| 2 shared cores, a CPU, 2026-01-01 | images/s | over torchvision |"
    assert "| `fastdata.loader`, JPEG | 9 | 3.0x |" in lines
    assert lines[-1] == "| packing with fastdata / with FFCV | 5 / 2 | 2.5x FFCV's |"
    top1 = {"jpeg": [0.5, 0.6], "raw": [0.5, 0.6], "original": [0.5, 0.5]}
    figures = {"figures": {name: {"top1": values} for name, values in top1.items()}}
    lines = load_tables.readme(loaded, packed, Measured((figures,)))
    assert lines[-1].startswith("| accuracy (top-1) ")
    assert "| 55.0% / 50.0% |" in lines[-1]


def test_a_table_without_results_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    for name in ("doctor", "doctor-nothing", "mnist"):
        assert pages.text_of(name) == f"{name} -->\n\nNot measured yet.\n\n"


def test_tables_of_doctor_name_the_clock_and_what_failed() -> None:
    gains = {"gain": [1.5, 1.4, 1.6], "wall": [9.0, 1.0, 99.0], "cpu": [1.45, 1.44, 1.46]}
    gains["ratio"] = [1.03, 0.96, 1.11]
    row = {**gains, "verdict": "gain", "clock": "cpu", "half_width_percent": 6.7, "agrees": True}
    failed = {"failed": "doctor does not find it", "agrees": False}
    rows = [("D06 fused AdamW", row), ("D09 anomaly detection off", failed)]
    found = Measured.of({"benchmark": "doctor", "row": n, "values": v} for n, v in rows)
    numbers = "1.50 (1.40-1.60), gain | 6.7% | 1.45 (1.44-1.46) | cpu | 1.03 (0.96-1.11)"
    assert pages.doctor(found)[2:] == [
        f"| D06 fused AdamW | {numbers} | yes |",
        "| D09 anomaly detection off | doctor does not find it | | | | | NO |",
    ]
    counts = {"runs": 19, "not_judged": 1, "pieces": 114, "with_a_gain": 1, "with_a_slower": 0}
    values = {**counts, "itself": [0.98, 1.02], "smallest_gain": [1.03, 1.09]}
    found = Measured.of([{"benchmark": "doctor-nothing", "row": "nothing", "values": values}])
    said = "| 19 | 1 | 114 | 1 | 0 | 0.98-1.02 | 1.03-1.09 |"
    assert pages.doctor_nothing(found)[2:] == [said]


def test_made_up_advice_replaces_all_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    users = advice, examining, session
    for module in users:  # each gets its own back
        monkeypatch.setattr(module, "ADVICE", advice.ADVICE)
    doctor_cases.make_up_advice()
    assert [one.id for one in advice.ADVICE] == [f"X{n}" for n in range(doctor_cases.MADE_UP)]
    assert all(module.ADVICE is advice.ADVICE for module in users)


@pytest.mark.parametrize("case", doctor_cases.CASES, ids=lambda case: case.id)
def test_a_script_for_doctor_is_another_one_with_the_advice_followed(case: Any) -> None:
    advice.advice_by_id(case.id)
    for is_timed in (False, True):
        before, after = (
            case.script(is_followed=is_followed, is_timed=is_timed) for is_followed in (False, True)
        )
        assert (before == after) == (case.id == "D55")  # this one is followed in the environment
        for text in (before, after):
            compile(text, case.id, "exec")
            assert ("timed_steps" in text) == is_timed


def test_every_contender_of_the_loading_tables_exists() -> None:
    measured = {name for workload in load.WORKLOADS.values() for name in workload.contenders}
    assert measured == load.KNOWN.keys()
    named = {*load_tables.LABELS, load_tables.ORIGINALS}
    named |= {load_tables.UNPACKED.format(method) for method in ("thread", "process")}
    assert named == measured
    for known in load.KNOWN.values():
        assert (REPOSITORY / "scripts" / "bench" / "contenders" / known.script).exists()
