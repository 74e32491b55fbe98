"""The command line of `fastdata doctor`: its options, those of the script, and `--explain`."""

from __future__ import annotations

import ast
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import run, run_json, start
from doctor_helpers import script_with

import fastdata.doctor
from fastdata.cli.doctor import doctor_command
from fastdata.doctor import DoctorReport, Row, Script
from fastdata.doctor.advice import ADVICE
from fastdata.doctor.contract import Kind, Numerics
from fastdata.doctor.explaining import explanations
from fastdata.doctor.messages import Watched
from fastdata.doctor.results import EndedBy, Trial, Verdict
from fastdata.measuring.statistics import Estimate


@pytest.fixture
def examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a command has examined: the script, and the options of `examine`."""
    found: dict[str, Any] = {}

    def examine(script: Script, **options: Any) -> None:
        found.update(options, script=script)
        raise SystemExit

    monkeypatch.setattr(fastdata.doctor, "examine", examine)
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    return found


EPOCHS = Script("file", "train.py", ("--epochs", "1"))


@pytest.mark.parametrize(
    ("words", "script", "seconds"),
    [
        (["train.py", "--epochs", "1"], EPOCHS, 300),
        (["--", "train.py", "--epochs", "1"], EPOCHS, 300),
        (["python", "train.py", "--epochs", "1"], EPOCHS, 300),
        (["--seconds", "60", "train.py", "--epochs", "1"], EPOCHS, 60),
        (["--seconds=60", "-q", "--", "train.py", "--epochs", "1"], EPOCHS, 60),
        (
            ["--seconds", "60", "train.py", "--seconds", "3"],
            Script("file", "train.py", ("--seconds", "3")),
            60,
        ),
        (["train.py", "-q", "--json"], Script("file", "train.py", ("-q", "--json")), 300),
        (["train.py", "--help"], Script("file", "train.py", ("--help",)), 300),
        (
            ["train.py", "--", "--seconds", "3"],
            Script("file", "train.py", ("--", "--seconds", "3")),
            300,
        ),
        (
            ["--seconds", "60", "-m", "package.train", "-b", "8", "--seconds", "3"],
            Script("module", "package.train", ("-b", "8", "--seconds", "3")),
            60,
        ),
        (
            ["python3", "-m", "package.train", "--epochs", "1"],
            Script("module", "package.train", ("--epochs", "1")),
            300,
        ),
        (["python", "-u", "train.py", "--epochs", "1"], EPOCHS, 300),
        (["python3", "-u", "-m", "p", "-u"], Script("module", "p", ("-u",)), 300),
    ],
)
def test_options_after_the_script_belong_to_it(
    words: list[str], script: Script, seconds: float, examined: dict[str, Any]
) -> None:
    run("doctor", *words)
    assert (examined["script"], examined["seconds"]) == (script, seconds)


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        (["train.py", "--seconds", "60"], "--seconds"),
        (["train.py", "--html=out.html", "-b", "8", "--check"], "--html, --check"),
        (["--seconds", "60", "-m", "package.train", "--only", "D06"], "--only"),
        (["train.py", "--epochs", "1"], None),
        (["--", "train.py", "--seconds", "60"], None),
        (["train.py", "--", "--seconds", "60"], None),
        (["--seconds", "60", "--check", "train.py"], None),
    ],
)
@pytest.mark.usefixtures("examined")
def test_an_option_of_doctor_after_the_script_is_noted_once(
    words: list[str], noted: str | None
) -> None:
    result = run("doctor", *words)
    notes = [line for line in result.stderr.splitlines() if "note:" in line]
    expected = f"fastdata: note: the script gets {noted}; options of doctor come before the script"
    assert notes == ([expected] if noted else [])
    assert result.stdout == ""


@pytest.mark.usefixtures("examined")
def test_json_is_for_doctor_before_the_script_only() -> None:
    before = run("doctor", "--json", "missing.py")
    assert '"OptionError"' in before.stdout
    after = run("doctor", "missing.py", "--json")
    assert (before.exit_code, after.exit_code, after.stdout) == (2, 2, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "1", "train.py"], "No such option '--epochs'"),
        (["--seconds"], "requires an argument"),
        (["--seconds", "--", "train.py"], "'--' is not a valid float"),
        (["-m"], "-m needs the name of a module"),
        ([], "there is no script"),
        (["--seconds", "60"], "there is no script"),
        (["python", "-u"], "there is no script"),
        (["python", "-O", "train.py"], "without python's option -O"),
        (["python", "-u", "-Wignore", "train.py"], "without python's option -Wignore"),
        (["python", "-X", "dev", "-m", "package.train"], "set PYTHONOPTIMIZE"),
    ],
)
@pytest.mark.usefixtures("examined")
def test_wrong_usage_is_explained(words: list[str], message: str) -> None:
    result = run("doctor", *words)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_script_gets_its_options(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys; sys.exit(f'got {sys.argv[1:]}')")
    result = run("doctor", path, "--epochs", "1")
    assert result.exit_code == 1
    assert "got ['--epochs', '1']" in result.stderr


@pytest.mark.parametrize(
    ("ended_by", "code"),
    [("nothing", 0), ("time", 0), ("noise", 0), ("failure", 1), ("interruption", 130)],
)
@pytest.mark.usefixtures("examined")
def test_trials_that_end_early_have_a_report_and_an_exit_code(
    ended_by: EndedBy, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = DoctorReport(
        "train.py", Watched(), 0.1, 0, None, True, (), None, 1.0, ended="why", ended_by=ended_by
    )
    monkeypatch.setattr(fastdata.doctor, "examine", lambda *_, **__: report)
    result = run("doctor", "train.py")
    assert result.exit_code == code
    assert "Why." in result.stdout


def row_with(verdict: Verdict | None, why_not: str = "", kind: Kind = "speed") -> Row:
    trial = Trial(("D06",), Estimate(1.2, 1.0, 1.4, 2), verdict) if verdict else None
    return Row("D06", kind, "title", (), (), trial, Numerics.EQUAL, why_not)


NO_TIME = row_with(None, "there was no time left; --seconds gives more")


@pytest.mark.parametrize(
    ("ended_by", "rows", "code"),
    [
        ("noise", [row_with(None, "why")], 1),
        ("time", [NO_TIME], 1),
        ("time", [row_with("cannot be told"), NO_TIME], 1),
        ("nothing", [NO_TIME], 1),
        ("nothing", [row_with(None, "other programs are busy, so ...")], 1),
        ("nothing", [row_with("cannot be told")], 1),
        ("noise", [], 1),
        ("noise", [row_with(None, "why"), row_with(None, "", "bug")], 3),
        ("time", [row_with("gain"), NO_TIME], 3),
        ("time", [row_with("no difference"), NO_TIME], 0),
        ("noise", [row_with("slower"), row_with(None, "why")], 0),
        ("nothing", [], 0),
        ("nothing", [row_with(None, "only its author knows when it is needed")], 0),
    ],
)
@pytest.mark.usefixtures("examined")
def test_check_fails_if_nothing_could_be_measured(
    ended_by: EndedBy, rows: list[Row], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = "" if ended_by == "nothing" else "why"
    report = DoctorReport(
        "train.py", Watched(), 0.1, 0, None, True, tuple(rows), None, 1.0,
        ended=ended, ended_by=ended_by,
    )  # fmt: skip
    monkeypatch.setattr(fastdata.doctor, "examine", lambda *_, **__: report)
    result = run("doctor", "--check", "--json", "train.py")
    assert result.exit_code == code
    assert json.loads(result.stdout)["verdict"] == report.verdict
    note = "fastdata: --check: no change has a verdict, for lack of time or because of noise"
    assert (note in result.stderr.splitlines()) == (code == 1)
    assert run("doctor", "--json", "train.py").exit_code == 0


@pytest.mark.doctor
def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script_with())
    with start("doctor", "--json", "--only", "D01", path) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        said = ""
        while "how busy the machine is" not in said:
            said = command.stderr.readline()
            assert said, "it ended before a trial"
        command.send_signal(signal.SIGINT)
        report = json.loads(command.stdout.read())
        assert command.wait() == 130
    assert (report["ended_by"], report["verdict"][-12:]) == ("interruption", "Interrupted.")
    assert report["step_seconds"] > 0
    assert {row["id"] for row in report["rows"]} == {"D01"}


def test_examples_of_the_help_can_be_parsed() -> None:
    examples = [line.split()[2:] for line in str(doctor_command.epilog).splitlines()
                if line.startswith("  fastdata doctor")]  # fmt: skip
    assert len(examples) > 3
    for words in examples:
        context = doctor_command.make_context("doctor", words)
        assert context.params["script"] == tuple(words[len(doctor_command.own_words(words)) :])


IDS = [advice.id for advice in ADVICE]
START = re.compile(r"([A-Z_]+=\S+ )+python main\.py")


def test_every_advice_has_one_explanation() -> None:
    assert list(explanations()) == IDS == sorted(set(IDS))
    page = Path(fastdata.doctor.__file__).with_name("advice.md").read_text("utf-8")
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == IDS


@pytest.mark.parametrize("id", IDS)
def test_an_explanation_has_all_parts(id: str) -> None:
    parts = run_json("doctor", "--explain", id)
    assert parts.keys() == {"id", "title", "what", "why", "example", "when_not_to", "source"}
    assert all(text.strip() for text in parts.values())
    assert parts["source"].startswith("https://")
    if not START.fullmatch(parts["example"]):  # tests/test_docs.py runs it
        ast.parse(parts["example"])
    lines = run("doctor", "--explain", id).stdout.splitlines()
    assert lines[0].startswith(f"{id}  {parts['title']}")
    named = [line.partition(":")[0] for line in lines]
    assert {"Why", "Example", "When not to", "Source"} <= set(named)
    assert len(lines) <= 14
    assert max(map(len, lines[:-1])) <= 100  # the last line is a URL


@pytest.mark.parametrize("id", ["D46", "D99", "d06", ""])
def test_an_unknown_advice_is_not_explained(id: str) -> None:
    result = run("doctor", "--explain", id)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"unknown advice {id!r}: fastdata doctor --list has all" in result.stderr


def test_the_list_has_the_text_of_the_explanations() -> None:
    listed = run_json("doctor", "--list")["advice"]
    assert [(one["id"], one["about"], one["source"]) for one in listed] == [
        (id, one["what"], one["source"]) for id, one in explanations().items()
    ]
