"""Tuning for real, of datasets whose right number of workers is known; and what becomes of it
when trials die, hang or are interrupted."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterable
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from cli_helpers import run, run_json
from PIL import Image
from process_helpers import gone, wait_until
from torch.utils.data import DataLoader
from tune_helpers import Dying, Sleepy, Tiring, sleep
from warm_python import WarmPython

import fastdata
from fastdata.errors import MissingExtraError, OptionError, WorkerError
from fastdata.loading import is_dataset
from fastdata.measuring.images import ChosenCrops
from fastdata.measuring.page_cache import read_within, resident
from fastdata.measuring.windows import Rate, Supply, Windows
from fastdata.measuring.workload import Workload, WorkloadSpec
from fastdata.processes.pool import ProcessPool
from fastdata.steps import is_script_target
from fastdata.tuned_settings.settings import Settings
from fastdata.tuning import runner, tuner
from fastdata.tuning.budget import TimeBudget
from fastdata.tuning.choice import CEILING, fed
from fastdata.tuning.picture import plot
from fastdata.tuning.report import Demand, Trial, TuningResult
from fastdata.tuning.runner import LocalRunner, ProcessRunner, TrialFailedError

TESTS = Path(__file__).parent
QUICK = Windows(1, 0.05)


def stock(workers: int) -> Settings:
    return Settings(workers, "process", 2, backend="torch")


def shared_memory(pids: Iterable[int]) -> list[str]:
    """Return the shared memory that torch has named after processes."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    return [name for name in names if any(name.startswith(f"torch_{pid}_") for pid in pids)]


def tune(data: Any, **options: Any) -> TuningResult:
    return fastdata.tune_workers(data, **{"seconds": 1, "progress": False, **options})


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, where that it is another one is not what is tested."""
    monkeypatch.setattr(runner, "ProcessRunner", LocalRunner)


@pytest.fixture
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the session's fork server start the process that measures: it has imported torch."""

    def pool(*arguments: Any, context: str) -> ProcessPool:
        assert context == "spawn"
        return ProcessPool(*arguments, context="forkserver")

    forkserver.ensure_running()  # which is no process that a test leaves behind
    monkeypatch.setattr(runner, "ProcessPool", pool)


# -- the whole ----------------------------------------------------------------------------


class Given(LocalRunner):
    """Gives the figures of a machine on which a step takes 25 batches a second, a worker makes 24.

    They are as exact on a busy machine.
    """

    def call(self, name: str, *arguments: Any, seconds: float) -> Any:
        workers = arguments[0].num_workers if name in ("supply", "train") else 0
        if name == "supply":
            return Supply((24.0 * max(workers, 1),) * 3, 0.1)
        if name == "demand":
            return (25.0,) * 7
        if name == "train":
            return (fed(arguments[0], 24.0 * max(workers, 1), 25.0),) * 5
        found = super().call(name, *arguments, seconds=seconds)
        return replace(found, batch_seconds=1 / 24) if name == "probe" else found


def test_the_smallest_number_of_workers_that_feeds_the_step_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "ProcessRunner", Given)
    monkeypatch.setattr(tuner, "LocalRunner", Given)
    monkeypatch.setattr(tuner, "TimeBudget", lambda seconds: TimeBudget(seconds, lambda: 0.0))
    result = tune(Sleepy(64, 0.0), batch_size=8, step=sleep, max_workers=3, seconds=3)
    supply = {
        trial.settings.num_workers: trial.supply.median
        for trial in result.trials
        if trial.supply is not None
    }
    assert supply == {0: 24, 1: 24, 2: 48, 3: 72}
    assert result.settings.num_workers == 2
    assert result.settings.backend == "torch"
    assert result.trained is not None
    assert result.demand is not None
    assert result.trained.median == result.demand.rate.median == 25
    assert result.saturates
    assert "keeps the step busy" in result.verdict


@pytest.mark.timing
@pytest.mark.usefixtures("quick_start")
def test_a_step_of_python_is_run_in_the_process_that_calls() -> None:
    called_in = set()

    def step(batch: Any) -> None:
        called_in.add(os.getpid())
        time.sleep(0.04)

    result = tune(Sleepy(), batch_size=8, step=step, max_workers=1, seconds=1, trial_seconds=100)
    assert called_in == {os.getpid()}
    rated = [trial.settings for trial in result.trials if trial.supply is not None]
    assert result.settings in rated
    assert result.trained is not None
    assert result.demand is not None
    share = result.trained.median / result.demand.rate.median
    assert ("keeps the step busy" in result.verdict) == result.saturates == (share >= CEILING)
    assert "step" in result.demand.step
    assert result.complete
    costs = [(trial.settings.num_workers, trial.memory_bytes) for trial in result.trials]
    assert costs == sorted(costs)


@pytest.mark.usefixtures("here")
def test_a_packed_dataset_is_tuned_by_threads(tiny: dict[str, Path]) -> None:
    result = tune(tiny["lmdb"], batch_size=25, step_ms=20, max_workers=1, seconds=3)
    assert result.settings.backend == "cpu"
    assert result.trained is not None
    assert result.cache_state == "warm"
    assert {trial.settings.num_workers for trial in result.trials} == {0, 1}
    assert all(trial.supply is not None for trial in result.trials)


def test_a_loader_of_each_kind_is_made_again_with_its_own_options(tiny: dict[str, Path]) -> None:
    loader = fastdata.loader(tiny["lmdb"], batch_size=20, num_workers=0)
    assert Workload(WorkloadSpec(loader)).probe().batch_size == 20
    assert len(next(iter(loader))[0]) == 20  # it is still of use
    loader.close()
    theirs: Any = DataLoader(Sleepy(64, 0.0), batch_size=4, shuffle=True)
    assert Workload(WorkloadSpec(theirs)).probe().batch_size == 4
    with pytest.raises(OptionError, match="batch_size: a loader has been given"):
        Workload(WorkloadSpec(theirs, {"batch_size": 8}))


@pytest.mark.parametrize("container", ["lmdb", "h5", "files"])
@pytest.mark.parametrize(
    ("sizes", "asked", "side"),
    [
        ([(40, 60), (50, 30)], None, 30),
        ([(40, 60), (40, 60)], None, None),
        ([(40, 300), (50, 30)], None, 224),
        ([(40, 60), (50, 30)], 16, 16),
        ([(40, 300), (50, 30)], "none", None),
    ],
)
def test_crops_are_chosen_by_the_images_where_they_are_measured(
    tmp_path: Path, container: str, sizes: list[tuple[int, int]], asked: Any, side: int | None
) -> None:
    for number, (height, width) in enumerate(sizes):
        path = tmp_path / "images" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (width, height), (number, 7, 9)).save(path)
    data = tmp_path / "images"
    if container != "files":
        data = tmp_path / f"packed.{container}"
        fastdata.pack(tmp_path / "images", data, progress=False)
    options = {"transform": ChosenCrops(asked), "batch_size": 1 if side is None else 2}
    workload = Workload(WorkloadSpec(str(data), options))
    info = workload.probe()
    if side is None:
        assert info.transforms == "images as they are stored"
    else:
        assert info.transforms.startswith(f"RandomResizedCrop(size=({side}, {side})")
        with workload.loaders.open(info.base) as loader:
            assert next(iter(loader)).image.shape[2:] == (side, side)
    highest, widest = (max(of_all) for of_all in zip(*sizes, strict=True))
    said = f"images are up to {highest}x{widest}: batches are random resized crops of {side}, and"
    assert [said in note for note in info.notes] == ([True] if side and asked is None else [])


class Alike:
    """Samples by their numbers, and their number: no torch Dataset."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.zeros(2), index


class Iterated(Alike):
    def __iter__(self) -> Any:
        return (self[index] for index in range(64))


@pytest.mark.parametrize("data", [Alike(), Iterated(), [(0.0, n) for n in range(64)]])
def test_what_is_like_a_dataset_is_one(data: Any) -> None:
    info = Workload(WorkloadSpec(data, {"batch_size": 4})).probe()
    assert (info.batch_size, info.batches, info.base.backend) == (4, 16, "torch")
    assert is_dataset(data) == (not isinstance(data, list))  # which may be one of batches


@pytest.mark.usefixtures("here")
def test_a_script_has_the_loader_and_the_step() -> None:
    result = tune(f"{TESTS / 'tune_helpers.py'}:build", max_workers=1)
    assert result.batch_size == 8
    assert result.demand is not None
    assert "sleep" in result.demand.step
    assert 25 < result.demand.rate.median < 50.5


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{}/absent.py:build", "absent.py: no such file"),
        ("{}/absent.py", "absent.py: no such file"),
        ("{}/here.py", "here.py:build"),
    ],
)
def test_a_script_that_is_missing_or_without_a_function_is_named(
    target: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "ProcessRunner", lambda *_: pytest.fail("a process was started"))
    (tmp_path / "here.py").touch()
    target = target.format(tmp_path)
    with pytest.raises(OptionError, match=words):
        tune(target)
    for command in "tune-workers", "profile":
        found = run(command, target)
        assert found.exit_code == 2
        assert words in found.stderr


def test_what_exists_under_a_name_with_a_colon_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "train.py:build"
    with pytest.raises(OptionError, match=r"train\.py: no such file"):
        is_script_target(str(path))
    path.touch()
    assert not is_script_target(str(path))
    assert not is_script_target(path)
    assert is_script_target("package.module:build")
    assert not is_script_target(Sleepy())


def test_what_cannot_be_sent_to_a_process_is_measured_in_this_one() -> None:
    data = Sleepy(64, 0.0)
    data.key = lambda value: value  # type: ignore[attr-defined]
    result = tune(data, batch_size=8, max_workers=1, seconds=1)
    assert "measured in this process" in result.notes[0]
    assert result.settings.num_workers == 1


@pytest.mark.timing
@pytest.mark.usefixtures("quick_start")
def test_what_only_the_caller_knows_is_measured_in_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As a notebook's classes: pickled by their name, which the other process does not have.
    notebook = types.ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", notebook)
    mine = type("Mine", (Sleepy,), {"__module__": "a_notebook"})
    notebook.Mine = mine  # type: ignore[attr-defined]
    result = tune(mine(400, 0.0005), batch_size=8, max_workers=1, keep=False)
    assert result.notes[0].startswith("measured in this process, as the data cannot be sent")
    assert "a_notebook" in result.notes[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"step": sleep, "step_ms": 3}, "give the step, or its length"),
        ({"step": "resnet5"}, "one of resnet18"),
        ({"step": 3}, "3 is no callable"),
        ({"step_ms": -1}, "step_ms=-1 is not a number from"),
        ({"seconds": 0}, "seconds=0 is not a number from 1"),
        ({"seconds": float("inf")}, "seconds=inf is not a number from 1"),
        ({"max_workers": 0}, "max_workers=0 is not an integer from 1"),
        ({"trial_seconds": 0}, "trial_seconds=0 is not a number"),
    ],
)
def test_wrong_arguments_are_said(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        fastdata.tune_workers(Sleepy(), **options)


@pytest.mark.usefixtures("here")
def test_an_error_of_the_data_says_what_it_was() -> None:
    with pytest.raises(WorkerError, match="batches cannot be made: ValueError: sample 7"):
        tune(Dying("raise", workers=0), batch_size=4)
    with pytest.raises(OptionError, match="no images"):
        tune(Sleepy(64, 0.0), batch_size=4, step="resnet18", device="cpu")
    with pytest.raises(OptionError, match="gave no batch"):
        tune(DataLoader(Sleepy(3), batch_size=8, drop_last=True))


# -- trials that die ------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.parametrize(
    ("how", "reason"), [("kill parent", "died of SIGKILL"), ("hang", "gave no answer within 1 s")]
)
@pytest.mark.usefixtures("quick_start")
def test_a_trial_that_dies_has_a_reason_and_leaves_nothing(how: str, reason: str) -> None:
    others = set(psutil.Process().children(recursive=True))
    runner = ProcessRunner(Workload, WorkloadSpec(Dying(how), {"batch_size": 4}))
    try:
        runner.call("supply", stock(1), QUICK, seconds=math.inf)
        family = psutil.Process(runner.pid)
        pids = {family.pid} | {child.pid for child in family.children(recursive=True)}
        seconds = 1 if how == "hang" else math.inf
        with pytest.raises(TrialFailedError, match=reason):
            runner.call("supply", stock(2), QUICK, seconds=seconds)
        assert not family.is_running()
        mine = set(psutil.Process().children(recursive=True)) - others
        assert not [one for one in mine if "resource_tracker" not in " ".join(one.cmdline())]
        assert not shared_memory(pids)
    finally:
        temporary = runner._temporary
        runner.close()
    assert not os.path.exists(temporary)
    runner.close()  # twice is once


@pytest.mark.parametrize(
    ("how", "reason"),
    [("raise", "ValueError"), ("memory", "MemoryError"), ("exit", "exited unexpectedly")],
)
def test_an_error_of_a_worker_is_the_reason(how: str, reason: str) -> None:
    runner = LocalRunner(Workload, WorkloadSpec(Dying(how), {"batch_size": 4}))
    with pytest.raises(TrialFailedError, match=reason):
        runner.call("supply", stock(2), QUICK, seconds=math.inf)
    assert len(runner.call("supply", stock(1), QUICK, seconds=math.inf).rates) == 1


CUSTOM = """
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class BadSample(Exception):
    pass

class Mine(Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, index):
        info = get_worker_info()
        if info is not None and info.num_workers == 2:
            raise BadSample("this sample is broken")
        return torch.zeros(3), index

def build():
    print("hello from build")
    return DataLoader(Mine(), batch_size=8)
"""


def test_an_error_class_of_a_script_is_a_reason_and_what_it_prints_is_no_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "custom.py"
    script.write_text(CUSTOM)
    runner = ProcessRunner(Workload, WorkloadSpec(f"{script}:build"))
    try:
        with pytest.raises(TrialFailedError, match="BadSample: this sample is broken") as caught:
            runner.call("supply", stock(2), QUICK, seconds=math.inf)
    finally:
        runner.close()
    assert "Traceback" not in str(caught.value)  # a row has one line
    printed = capfd.readouterr()
    assert "hello from build" in printed.err
    assert not printed.out


@pytest.mark.usefixtures("here")
def test_a_trial_that_dies_is_a_row_of_the_result(tmp_path: Path) -> None:
    script = tmp_path / "custom.py"
    script.write_text(CUSTOM.replace("print(", "str("))
    document = run_json("tune-workers", f"{script}:build", "--seconds", 2, "--max-workers", 2,
                        "--no-keep")  # fmt: skip
    found = {row["settings"]["num_workers"]: row for row in document["trials"]}
    assert found[2]["failure"].endswith("BadSample: this sample is broken")
    assert "Traceback" not in found[2]["failure"]
    assert document["verdict"].endswith("more workers failed")
    assert found[0]["supply"]
    assert found[1]["supply"]
    assert document["settings"]["num_workers"] == 1


def hold(end: Connection) -> None:
    """Have a trial hang, until killed."""
    runner = ProcessRunner(Workload, WorkloadSpec(Dying("hang"), {"batch_size": 4}))
    runner.call("supply", Settings(0, backend="torch"), QUICK, seconds=math.inf)
    end.send((runner.pid, runner._temporary))
    runner.call("supply", stock(2), QUICK, seconds=math.inf)


@pytest.mark.timing
def test_a_process_that_is_killed_takes_the_one_that_measures_with_it() -> None:
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe()
    process = context.Process(target=hold, args=(theirs,))
    process.start()
    theirs.close()
    try:
        pid, temporary = mine.recv()
        mine.close()
        runner = psutil.Process(pid)
        wait_until(lambda: len(runner.children()) >= 2)
        family = [runner, *runner.children(recursive=True)]  # workers that hang
    finally:
        process.kill()
        process.join()
        process.close()
    assert gone(*(one.pid for one in family))
    assert not os.path.exists(temporary)


# -- Ctrl-C ---------------------------------------------------------------------------------


@pytest.mark.timing
@pytest.mark.usefixtures("quick_start")
def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(3, ProcessRunner, monkeypatch)
    # However slow the machine is, there is time for the fourth turn.
    monkeypatch.setattr(tuner, "TimeBudget", lambda seconds: TimeBudget(seconds, lambda: 0.0))
    options = {"step_ms": 20, "max_workers": 3, "seconds": 1, "trial_seconds": 100}
    result = tune(Sleepy(), batch_size=8, **options)
    assert not result.complete
    rated = [trial.settings for trial in result.trials if trial.supply is not None]
    assert len(rated) == 3
    assert result.settings in rated


@pytest.mark.usefixtures("here")
def test_ctrl_c_before_anything_was_measured_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_after(0, LocalRunner, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        tune(Sleepy(), batch_size=8)


def interrupt_after(turns: int, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the turn after so many, while its answer is waited for."""
    call, seen = kind.call, []

    def counted(runner: Any, name: str, *arguments: Any, seconds: float) -> Any:
        if name == "probe":  # no turn is left out because a batch took long to make
            return replace(call(runner, name, seconds=seconds), batch_seconds=0.001)
        if name != "supply":
            return call(runner, name, *arguments, seconds=seconds)
        seen.append(name)
        if len(seen) <= turns:
            return call(runner, name, *arguments, seconds=seconds)
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            return call(runner, name, *arguments, seconds=seconds)
        finally:
            timer.join()

    monkeypatch.setattr(kind, "call", counted)


# -- the command ------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_the_command_prints_a_table_and_the_verdict_last(tiny: dict[str, Path]) -> None:
    found = run("tune-workers", tiny["lmdb"], "--batch-size", 20, "--step-ms", 60, "--seconds", 1,
                "--max-workers", 1)  # fmt: skip
    assert found.exit_code in (0, 3), found.stderr  # others on the cores may be in the way
    lines = found.stdout.splitlines()
    assert lines[0] == "batches of 20 samples: images as they are stored"
    assert lines[1].startswith("demand: ")
    assert "batches/s" in lines[2]
    assert ("keeps the step busy" in lines[-1]) == (found.exit_code == 0)
    assert "steps/s" in lines[-1]


@pytest.mark.usefixtures("here")
def test_the_command_prints_json_and_says_what_cannot_be(tiny: dict[str, Path]) -> None:
    document = run_json("tune-workers", tiny["lmdb"], "--batch-size", 20, "--step-ms", 0.05,
                        "--seconds", 1, "--max-workers", 1, "--crop", "24", code=3)  # fmt: skip
    assert document["saturates"] is False
    assert document["verdict"].startswith("cannot saturate")
    assert document["transforms"].startswith("RandomResizedCrop(size=(24, 24)")
    assert {"settings", "supply", "failure"} <= set(document["trials"][0])
    assert document["complete"] is True
    json.dumps(document)


@pytest.mark.timing
def test_ctrl_c_at_the_command_prints_what_there_is(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    seen = tmp_path / "seen"
    target = f"{TESTS / 'tune_helpers.py'}:build"
    environment = {**os.environ, "TUNE_TEST_SEEN": str(seen)}
    words = ["tune-workers", target, "--seconds", 6, "--max-workers", 2, "--json"]
    # Workers of the pass that warms, and of the turns after: one of these is over.  The sixth
    # worker hangs.
    environment["TUNE_TEST_HANG_AFTER"] = "5"
    program = (
        "from fastdata.cli import main\n"
        "from fastdata.tuning import runner\n"
        "made = runner.ProcessPool\n"
        "runner.ProcessPool = lambda *given, context: made(*given, context='fork')\n"
        "main()\n"
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with warm_python.start(program, *words, env=environment, **pipes) as process:
        while len(seen.read_text() if seen.exists() else "") < 6:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate()
    assert process.returncode == 130, error
    document = json.loads(out)
    assert document["complete"] is False
    assert any(trial["supply"] for trial in document["trials"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--crop", "x"], "neither a number"),
        (["--model", "alexnet"], "Invalid value for '--model'"),
        (["--seconds", "0"], "--seconds 0.0 is not a number from 1"),
        (["--model", "resnet18", "--step-ms", "3"], "give the step, or its length"),
    ],
)
def test_wrong_usage_of_the_command(tiny: dict[str, Path], words: list[str], message: str) -> None:
    found = run("tune-workers", tiny["lmdb"], *words)
    assert found.exit_code == 2
    assert message in found.stderr


def test_crop_is_not_for_a_script() -> None:
    found = run("tune-workers", f"{TESTS / 'tune_helpers.py'}:build", "--crop", "224")
    assert found.exit_code == 2
    assert "--crop is for a dataset: the function chooses" in found.stderr


def test_dali_that_is_not_installed_is_said_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Path]
) -> None:
    monkeypatch.setattr(tuner, "dali_is_installed", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[dali\]'"):
        tune(tiny["lmdb"], dali=True)
    found = run("tune-workers", tiny["lmdb"], "--dali")
    assert found.exit_code == 1
    assert "needs NVIDIA DALI" in found.stderr


# -- the picture and the page cache --------------------------------------------------------------


def some_result() -> TuningResult:
    trials = tuple(
        Trial(
            Settings(n),
            Rate(10.0 * max(n, 1), 9.0 * max(n, 1), 11.0 * max(n, 1)),
            trained=Rate(7.0, 6.0, 8.0) if n in (0, 2) else None,
        )
        for n in (0, 1, 2, 4)
    )
    trials += (Trial(Settings(2, "process"), Rate(17.0, 16.0, 18.0)),)
    broken = Trial(Settings(8), None, "the process died")
    demand = Demand(Rate(15, 14.9, 15.1), "a simulated step of 67 ms")
    return TuningResult(Settings(2), "well", True, 32, demand, trials=(*trials, broken))


def test_a_plot_without_matplotlib_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: dict[str, Path]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[plot\]'"):
        plot(some_result(), tmp_path / "c.png")
    found = run("tune-workers", tiny["lmdb"], "--plot", tmp_path / "c.png")
    assert found.exit_code == 1
    assert "pip install 'fastdata-vision[plot]'" in found.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("c.xyz", "no picture of this suffix; it is one of png, svg"), ("x/c.png", "no folder")],
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    class Figure:
        canvas = types.SimpleNamespace(get_supported_filetypes=lambda: {"png": "", "svg": ""})

    stub = types.SimpleNamespace(Figure=Figure)
    monkeypatch.setitem(sys.modules, "matplotlib", types.SimpleNamespace(figure=stub))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", stub)
    monkeypatch.setattr(runner, "ProcessRunner", lambda *_: pytest.fail("a process was started"))
    target = f"{TESTS / 'tune_helpers.py'}:build"
    found = run("tune-workers", target, "--plot", tmp_path / name)
    assert found.exit_code == 2
    assert words in found.stderr


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_only_a_plot_is_replaced_by_a_plot(
    tmp_path: Path, warm_python: WarmPython, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    code = (
        "import sys; from test_tune import some_result; from fastdata.tuning.picture import plot\n"
        "for path in sys.argv[1:]: plot(some_result(), path)"
    )
    plot, theirs = tmp_path / f"c.{suffix}", tmp_path / f"theirs.{suffix}"
    theirs.write_bytes(b"\x89PNG\r\n\x1a\n, all my work")
    done = warm_python.run(code, str(plot), str(plot), str(theirs))
    assert "DestinationExistsError" in done.stderr
    assert f"theirs.{suffix} is not a plot of fastdata, so it is not replaced" in done.stderr
    assert theirs.read_bytes().endswith(b"all my work")
    assert sorted(os.listdir(tmp_path)) == [plot.name, theirs.name]


def test_a_plot_is_a_picture(tmp_path: Path, warm_python: WarmPython) -> None:
    pytest.importorskip("matplotlib")
    # In a process of its own: matplotlib keeps the files of its fonts open.
    code = (
        "import sys; from test_tune import some_result; from fastdata.tuning.picture import plot\n"
        "for path in sys.argv[1:]: plot(some_result(), path)"
    )
    pictures = [str(tmp_path / name) for name in ("c.png", "c.svg", "c.xyz")]
    done = warm_python.run(code, *pictures)
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "c.svg").read_text()  # text is drawn, and repeated in comments
    for label in (
        "supply: the loader alone",
        "training: steps/s with the step",
        "supply of other settings",
        "demand: a simulated step of 67 ms",
        "workers",
        "batches of 32 a second (median, 95% interval)",
        "samples a second",
    ):
        assert f"<!-- {label} -->" in drawn
    assert "OptionError" in done.stderr
    assert "c.xyz" in done.stderr


def test_what_was_just_written_is_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    assert resident([path, tmp_path / "empty"]) == 1.0
    assert resident([tmp_path / "none"]) is None
    assert read_within([path], 10, 1 << 30)
    assert not read_within([path], 10, 1 << 10)
    assert not read_within([path], 0, 1 << 30)


@pytest.mark.gpu
def test_a_gpu_gets_batches_of_its_own(cuda: torch.device, tmp_path: Path) -> None:
    path = tmp_path / "data.lmdb"
    samples = ({"image": np.full((64, 64, 3), k, np.uint8), "label": k % 5} for k in range(200))
    fastdata.pack(samples, path, num_workers=0, progress=False)
    result = tune(path, batch_size=20, step="resnet18", device="cuda", seconds=20, max_workers=1)
    assert result.demand is not None
    assert "on cuda" in result.demand.step
    assert {trial.settings.pin_memory for trial in result.trials} == {True, False}


@pytest.mark.usefixtures("here")
def test_where_all_trials_fail_it_says_why() -> None:
    with pytest.raises(WorkerError, match="sample 7 is no good"):
        tune(Tiring(), batch_size=8, max_workers=1)
