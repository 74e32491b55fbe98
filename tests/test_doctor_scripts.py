"""What `fastdata doctor` says of scripts that fail, never step, or do something else than train."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from doctor_helpers import ANOMALIES, PLAIN, script_with, started, watch
from process_helpers import gone

from fastdata.cli import main
from fastdata.doctor import Script, replaying, script_of, session, stepless
from fastdata.doctor.advice import ADVICE
from fastdata.doctor.messages import Ended, Ran, Request, Run, Watched
from fastdata.doctor.processes import ScriptFailedError, ScriptProcess
from fastdata.doctor.script import ONE_RANK
from fastdata.doctor.trials import Trials
from fastdata.errors import OptionError
from fastdata.measuring import noise
from fastdata.processes.resources import available_cores

pytestmark = pytest.mark.doctor

ENDS = {
    "raises": ("def train():\n    raise ValueError('of the user')\ntrain()", "ValueError: of the"),
    "never steps": ("print('hello')", "ended without a step of an optimiser"),
    "no step": (
        "import torch\ntorch.ones(1, requires_grad=True).sum().backward()",
        "ended without a step of an optimiser",
    ),
    "its workers only load data": (
        "from torch.utils.data import DataLoader\nlist(DataLoader([1, 2], num_workers=1))",
        "ended without a step of an optimiser",
    ),
    "asks": ("input('go on? ')", "EOFError"),
    "leaves": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "says why it leaves": ("raise SystemExit('no data')", "SystemExit: no data"),
    "an argument is missing": (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('data'); p.parse_args()",
        "SystemExit: 2",
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
    assert "fastdata/" not in ended.why.replace(str(tmp_path), "")


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


FAILURES = {
    "a traceback": (
        "def train():\n    raise ValueError('red \\x1b[31m text')\nprint('begin')\ntrain()",
        """
        FILE failed:

        begin

        Traceback (most recent call last):
          File "FILE", line 4, in <module>
            train()
          File "FILE", line 2, in train
            raise ValueError('red \\x1b[31m text')
        ValueError: red \\x1b[31m text
        """,
    ),
    "an argument is missing": (
        ENDS["an argument is missing"][0],
        """
        FILE failed:

        usage: train.py [-h] data
        train.py: error: the following arguments are required: data

        SystemExit: 2
        """,
    ),
    "it has nothing to do": (
        "import sys; print('10%\\r100%', flush=True); sys.exit()",
        """
        FILE: the script ended without a step of an optimiser.

        The end of what it printed:
        10%
        100%
        """,
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_command_shows_how_a_script_failed(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text, expected = FAILURES[name]
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--quiet", "--", str(path)])
    shown = textwrap.dedent(expected).strip().replace("FILE", str(path))
    lines = capfd.readouterr().err.strip().splitlines()
    # Python marks the place of an error from 3.11 or 3.13 on.
    assert [line for line in lines if set(line) - {" ", "^", "~"} or not line] == (
        f"fastdata: error: {shown}".splitlines()
    )


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


BY_HAND = """
    loss = F.cross_entropy(model(x), y)
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
            p -= 0.1 * gradient
"""
NO_STEPS = {
    "weights are changed by hand": (BY_HAND, "1,000 backward passes"),
    "inference": ("with torch.no_grad(): model(x)", "0 s of batches and forward passes"),
    "it only loads data": ("pass", "0 s of batches and forward passes"),
    "slow backward passes": (BY_HAND, "0 s of forward and backward passes"),
}


@pytest.mark.parametrize("name", NO_STEPS)
def test_a_script_that_trains_without_an_optimizer_ends_soon(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, within = NO_STEPS[name]
    monkeypatch.setattr(stepless, "PASSES_SECONDS", 0.3)
    monkeypatch.setattr(stepless, "BACKWARD_SECONDS", 0.3 if "slow" in name else 120.0)
    ended = watch(script_with(step=step, validation="pass"), tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert not ended.failed
    assert f"no step of a torch.optim optimiser was seen within {within}" in ended.why
    assert f"fastdata doctor {tmp_path / 'train.py'}:build" in ended.why


def test_a_script_may_take_its_time_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepless, "PASSES_SECONDS", 0.5)
    monkeypatch.setattr(stepless, "LONGEST_SECONDS", 0.1)
    looks = "import time; x, y = next(iter(loader)); time.sleep(0.7); model(x); time.sleep(0.7)"
    text = script_with(optimizer=f"{PLAIN['optimizer']}\n{looks}")
    assert isinstance(watch(text, tmp_path, watch_only=True), Watched)


def test_backward_passes_in_a_step_are_no_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepless, "MOST_BACKWARDS", 5)
    step = """
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss
        optimizer.step(closure)
    """
    optimizer = "optimizer = torch.optim.LBFGS(model.parameters(), 1e-3, max_iter=20)"
    model = "model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))"
    text = script_with(step=step, model=model, optimizer=optimizer)
    assert isinstance(watch(text, tmp_path, watch_only=True), Watched)


PROCESSES = """
    def train(rank, loader):
        (Path(__file__).parent / f"trained-{rank}").touch()
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    from pathlib import Path
    import subprocess, time
    import torch.multiprocessing as mp
    context = mp.get_context("fork")
"""
SPAWNED = """
    if __name__ == "__main__":
        mp.spawn(train, (loader,), nprocs=2)
"""
FORKED = """
    process = context.Process(target=train, args=(0, loader))
    process.start()
    process.join()
    time.sleep(3600)
"""
STARTS = {
    "spawned": SPAWNED,
    "forked": FORKED,
    "another start method": FORKED.replace("context", "mp.get_context('spawn')").replace(
        "train, args=(0, loader)", "time.sleep, args=(3600,)"
    ),
    "torchrun": "subprocess.run(['/usr/bin/torchrun', 'train.py'])",
    "its processes have ended": FORKED.replace("time.sleep(3600)", "raise SystemExit").replace(
        "train, args=(0, loader)", "int"
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_script_that_trains_in_its_own_processes_is_told_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepless, "JOIN_SECONDS", 0.5)
    starts = textwrap.indent(textwrap.dedent(STARTS[name]), " " * 4)
    before = textwrap.dedent(PROCESSES) + textwrap.dedent(starts)
    text = script_with(before="").replace("for epoch in", f"{before}\nfor epoch in")
    path = tmp_path / "train.py"
    ended = watch(text, tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert not ended.failed
    number = 1 + next(
        n
        for n, line in enumerate(text.splitlines())
        if "mp.spawn(" in line or ".start()" in line or "subprocess.run" in line
    )
    assert f"the script starts processes (train.py:{number}) and makes no step" in ended.why
    assert f"fastdata doctor {path}:build" in ended.why
    assert ended.why.endswith(f"{ONE_RANK} fastdata doctor {path}")
    if name == "spawned":
        assert not list(tmp_path.glob("trained-*"))


def test_processes_of_a_script_for_torchrun_run_together_with_the_variables_for_one_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ONE_RANK.split():
        monkeypatch.setenv(*variable.split("="))
    start = """
        import os
        torch.distributed.init_process_group("gloo")
        assert (torch.distributed.get_world_size(), os.environ["LOCAL_RANK"]) == (1, "0")
    """
    with contextlib.ExitStack() as stack:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            answer = stack.enter_context(started(script_with(start=start), tmp_path / name))
            assert isinstance(answer(), Watched)


def test_processes_that_prepare_data_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepless, "JOIN_SECONDS", 0.0)
    prepares = """
        with context.Pool(1) as pool:
            pool.map(len, ["data"])
        process = context.Process(target=time.sleep, args=(1,))
        process.start()
        process.join()
        subprocess.run(["true"])
        subprocess.run("echo training", shell=True, check=True)
    """
    before = textwrap.dedent(PROCESSES) + textwrap.dedent(prepares)
    text = script_with().replace("DataLoader(data, 4)", "DataLoader(data, 4, num_workers=1)")
    text = text.replace("for epoch in", f"{before}\nfor epoch in")
    assert isinstance(watch(text, tmp_path, watch_only=True), Watched)


def test_the_time_to_watch_a_script_has_an_end(tmp_path: Path) -> None:
    text = script_with(step=f"{PLAIN['step']}\n        import time; time.sleep(0.3)")
    watched = watch(text, tmp_path, watch_only=True, seconds=0.1)
    assert isinstance(watched, Watched)
    assert watched.steps == 1


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
    by_doctor = str(ended.value).removeprefix("SystemExit: ")
    assert json.loads(by_doctor) == json.loads(by_python)


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
        (["torchrun", "--nproc-per-node=2", "train.py"], f"{ONE_RANK} fastdata doctor main.py"),
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


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("returned", "kinds"),
    [
        ("loader", "(DataLoader, None)"),
        ("data, print", "(TensorDataset, a step)"),
        ("'train.lmdb', print", "(str, a step)"),
    ],
)
def test_a_function_returns_a_loader_of_batches_and_a_step(
    returned: str, kinds: str, tmp_path: Path
) -> None:
    text = script_with().split("for epoch in")[0] + f"\ndef build():\n    return {returned}\n"
    ended = watch(text, tmp_path, watch_only=True)
    assert isinstance(ended, Ended)
    assert ended.why.startswith(f"{tmp_path / 'train.py'}:build returned {kinds}: doctor needs")
    assert "Traceback" not in ended.why


def test_advice_is_tried_by_the_command_and_its_gain_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "MOST_NOISE", math.inf)  # of other tests
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
    assert 0 < gain["low"] <= gain["value"] <= gain["high"]
    assert gain["starts"] >= 2
    assert gain["value"] > 1.2
    assert row["trial"]["numerics"] == "identical"
    assert row["where"] == [f"{path}:7 <module>"]
    assert code == {"gain": 3, "cannot be told": 1}[row["trial"]["verdict"]]
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
    step = "print('begun', flush=True); import time; time.sleep(3600)"
    path.write_text(script_with(step=step))
    command = subprocess.Popen(
        [sys.executable, "-m", "fastdata", "doctor", "--", str(path)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    parent = psutil.Process(command.pid)
    try:
        while not any("begun" in one.read_text() for one in tmp_path.glob("*/run-1/output.txt")):
            assert command.poll() is None
            time.sleep(0.1)
        children = parent.children(recursive=True)
        assert children
        command.send_signal(how)
        assert command.wait() in (130, -how)
        assert gone(*(child.pid for child in children))
    finally:
        command.kill()
        command.wait()
