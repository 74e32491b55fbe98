"""What `fastdata doctor` says of scripts that fail, never step, or do something else than train."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from doctor_helpers import ANOMALIES, script_with, started, watch
from process_helpers import gone

from fastdata.cli import main
from fastdata.doctor import Script, replaying, script_of, session, trials
from fastdata.doctor.advice import ADVICE
from fastdata.doctor.messages import Ended, Ran, Request, Run, Watched
from fastdata.doctor.processes import ScriptFailedError, ScriptProcess
from fastdata.doctor.trials import Trials
from fastdata.errors import OptionError
from fastdata.processes.resources import available_cores

pytestmark = pytest.mark.doctor

ENDS = {
    "raises": ("def train():\n    raise ValueError('of the user')\ntrain()", "ValueError: of the"),
    "never steps": ("print('hello')", "without a backward pass or a step"),
    "no step": (
        "import torch\ntorch.ones(1, requires_grad=True).sum().backward()",
        "ended without a step of an optimiser",
    ),
    "asks": ("input('go on? ')", "EOFError"),
    "leaves": ("import sys; sys.exit(3)", "sys.exit(3)"),
    "says why it leaves": ("raise SystemExit('no data')", "sys.exit('no data')"),
    "an argument is missing": (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()",
        "sys.exit(2)",
    ),
    "is no Python": ("this is no Python", "SyntaxError"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("name", ENDS)
def test_a_script_without_steps_is_explained(name: str, tmp_path: Path) -> None:
    text, expected = ENDS[name]
    ended = watch(text, tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert expected in ended.why
    assert "fastdata" not in ended.why.replace(str(tmp_path), "")


@pytest.mark.smoke
def test_a_traceback_begins_with_the_line_of_the_script(tmp_path: Path) -> None:
    ended = watch(ENDS["raises"][0], tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    first, place, *_ = ended.why.splitlines()
    assert first == "Traceback (most recent call last):"
    assert place.strip() == f'File "{tmp_path / "train.py"}", line 3, in <module>'


@pytest.mark.smoke
def test_a_traceback_has_no_functions_of_doctor(tmp_path: Path) -> None:
    ended = watch("import no_such_module\nimport torch", tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert ended.why.splitlines()[1:] == [
        f'  File "{tmp_path / "train.py"}", line 1, in <module>',
        "    import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ]


@pytest.mark.smoke
def test_an_error_after_some_steps_is_an_error(tmp_path: Path) -> None:
    text = script_with(validation="raise RuntimeError('later')")
    ended = watch(
        text.replace("DataLoader(data, 4)", "DataLoader(data, 8)"), tmp_path, watch_only=True
    )
    assert isinstance(ended, Ended)
    assert ended.failed
    assert "RuntimeError: later" in ended.why


def test_an_error_after_an_epoch_that_ended_early_is_told_with_what_was_seen(
    tmp_path: Path,
) -> None:
    text = script_with(
        validation="""
        model.eval()
        with torch.no_grad():
            passes = sum(len(model(x)) for x, y in loader)
        assert passes == len(data), "samples are missing"
    """
    )
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    assert watched.steps == 12
    assert watched.validates
    assert watched.failed == "AssertionError: samples are missing"
    assert not watched.blocked


def test_slow_steps_are_followed_by_a_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "EPOCH_SECONDS", 0.0)
    monkeypatch.setattr(session, "WATCHED_SECONDS", 0.0)
    text = script_with().replace("range(1000)", "range(1)")
    ended = watch(text, tmp_path, watch_only=True)
    watched = ended.watched if isinstance(ended, Ended) else ended
    assert watched is not None
    assert watched.steps == 5
    assert watched.validates


ACCUMULATION = """
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    done = globals().get("done", 0) + 1
    if done % 16 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_steps_of_more_batches_than_are_watched_are_seen(tmp_path: Path) -> None:
    text = script_with(step=ACCUMULATION).replace("torch.rand(64,", "torch.rand(640,")
    text = text.replace("(64,)", "(640,)")
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    assert watched.steps >= 5


KNOWS_ITS_LENGTH = """
    done = globals().get("done", 0) + 1
    assert done <= len(loader), "an epoch is over"
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""


def test_a_script_that_counts_its_batches_is_measured_for_longer_than_an_epoch(
    tmp_path: Path,
) -> None:
    with started(script_with(step=KNOWS_ITS_LENGTH), tmp_path) as answer:
        assert isinstance(answer(), Watched)
        assert isinstance(answer(Run(50)), Ran)  # an epoch has 16 batches


def test_a_short_script_is_seen_although_it_ends(tmp_path: Path) -> None:
    text = script_with().replace("range(1000)", "range(1)")
    ended = watch(text, tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert not ended.failed
    assert ended.watched is not None
    assert ended.watched.steps == 12  # an epoch of a script that is watched ends early
    assert ended.watched.validates


@pytest.mark.smoke
@pytest.mark.skipif(
    getattr(sys.flags, "safe_path", False), reason="Python itself adds no folder with -P"
)
def test_arguments_and_folder_are_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7")
    start = """
        import sys
        from beside import value
        assert __name__ == "__main__" and sys.modules["__main__"].value == 7
        assert sys.argv[1:] == [], sys.argv
    """
    assert isinstance(watch(script_with(start=start), tmp_path, watch_only=True), Watched)


@pytest.mark.skipif(available_cores() < 2, reason="one thread is as many as there are cores")
def test_variables_that_a_script_sets_for_torch_are_set_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    sets = "import os; os.environ['OMP_NUM_THREADS'] = '1'\n"
    path = tmp_path / "train.py"
    # After torch was imported it has no effect.
    for text, expected in ((sets + script_with(), True), (script_with(start=sets), False)):
        path.write_text(text)
        with Trials(Script("file", str(path)), tmp_path / "scratch") as found:
            watched = found.watch()
        what = [finding.what for finding in watched.findings if finding.id == "D17"]
        assert (what == [f"use {available_cores()} threads (now 1)"]) is expected


AS_PYTHON = '''
"""What it says of itself."""
from __future__ import annotations

import json, sys, threading
value: int = 7
main = sys.modules["__main__"]
facts = {
    "names": sorted(globals()),
    "same": main.__dict__ is globals(),
    "about": [__name__, __file__, __doc__, __spec__, type(__loader__).__name__, __package__],
    "annotations": {name: str(one) for name, one in main.__annotations__.items()},
    "arguments": sys.argv,
    "folder": sys.path[0],
    "stack": [sys._getframe().f_back is None, sys._getframe().f_code.co_filename],
    "line": sys._getframe().f_lineno,
    "thread": threading.current_thread() is threading.main_thread(),
}
raise SystemExit(json.dumps(facts))
'''


def test_a_script_is_the_main_program_as_python_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(AS_PYTHON)
    words = [sys.executable, "train.py", "--epochs", "1"]
    by_python = subprocess.run(words, capture_output=True, text=True).stderr
    script = script_of(words)
    with (
        ScriptProcess(Request(script, str(tmp_path / "scratch"), watch_only=True)) as process,
        pytest.raises(ScriptFailedError) as ended,
    ):
        process.watched(60)
    by_doctor = str(ended.value).partition("sys.exit(")[2].removesuffix(")")
    assert json.loads(ast.literal_eval(by_doctor)) == json.loads(by_python)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py", "--epochs", "1"], Script("file", "train.py", ("--epochs", "1"))),
        (["python", "train.py"], Script("file", "train.py")),
        (
            ["python3", "-m", "package.train", "-b", "8"],
            Script("module", "package.train", ("-b", "8")),
        ),
        (["-m", "package.train"], Script("module", "package.train")),
        (["train.py:build"], Script("function", "train.py:build")),
    ],
)
def test_a_command_line_names_a_script(
    words: list[str], expected: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    assert script_of(words) == expected


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no script"),
        (["--epochs", "1"], "there is no script"),
        (["missing.py"], "missing.py: no such file"),
        (["-m"], "-m needs the name of a module"),
        (["torchrun", "--nproc-per-node=2", "train.py"], "give the script itself"),
    ],
)
def test_a_command_line_without_a_script_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        script_of(words)


def test_a_process_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os; print('last words', flush=True); os._exit(7)")
    request = Request(Script("file", str(tmp_path / "train.py")), str(tmp_path / "scratch"))
    with (
        ScriptProcess(request) as process,
        pytest.raises(ScriptFailedError, match="ended with exit code 7") as failed,
    ):
        process.watched(60)
    assert "last words" in failed.value.explained("train.py")


def test_a_function_is_a_script_too(tmp_path: Path) -> None:
    text = script_with().split("for epoch in")[0]
    text += textwrap.dedent("""
        def build():
            def step(batch):
                optimizer.zero_grad()
                F.cross_entropy(model(batch[0]), batch[1]).backward()
                optimizer.step()
            return loader, step
    """)
    watched = watch(text, tmp_path, watch_only=True)
    assert isinstance(watched, Watched)
    assert watched.steps > 4


def test_advice_is_tried_by_the_command_and_its_gain_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "WINDOW_SECONDS", 0.05)
    monkeypatch.setattr(trials, "PAIRS", 2)  # each takes two new processes
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # several wait for each other beside other tests
    path = tmp_path / "train.py"
    path.write_text(script_with(**ANOMALIES))
    page = tmp_path / "page.html"
    arguments = [
        "doctor",
        "--only",
        "D09",
        "--json",
        "--check",
        "--html",
        str(page),
        "--",
        str(path),
    ]
    code = main(arguments, standalone_mode=False)
    report = json.loads(capfd.readouterr().out)
    [row] = [row for row in report["rows"] if row["id"] == "D09"]
    gain = row["trial"]["gain"]
    assert 0 < gain["low"] <= gain["median"] <= gain["high"]
    assert len(gain["windows"]) == 2
    assert row["trial"]["numerics"] == "bit-equal"
    assert row["where"] == [f"{path}:7 <module>"]
    assert code == (3 if row["trial"]["verdict"] == "gain" else 0)
    assert "D09" in page.read_text()
    assert [row["id"] for row in report["rows"]] == ["D09"]


@pytest.mark.smoke
@pytest.mark.parametrize("option", ["--apply=D06", "--write", "--unsafe", "--no-run"])
def test_source_is_neither_edited_nor_only_read(
    option: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", option, "--", str(tmp_path / "train.py")])
    assert "No such option" in capfd.readouterr().err


@pytest.mark.smoke
def test_all_advice_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--list", "--json"], standalone_mode=False)
    listed = json.loads(capfd.readouterr().out)["advice"]
    assert [one["id"] for one in listed] == [advice.id for advice in ADVICE]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_process_stays_when_the_command_is_stopped(how: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(script_with(step="import time; time.sleep(3600)"))
    command = subprocess.Popen(
        [sys.executable, "-m", "fastdata", "doctor", "--", str(path)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    parent = psutil.Process(command.pid)
    children: list[psutil.Process] = []
    try:
        while not children:
            assert command.poll() is None
            children = parent.children(recursive=True)
            time.sleep(0.1)
        command.send_signal(how)
        assert command.wait() in (130, -how)
        assert gone(*(child.pid for child in children))
    finally:
        command.kill()
        command.wait()
