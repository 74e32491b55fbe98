"""`scripts/gpu_check`: its dry run on the CPU, how it ends, and its command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import make_folder
from gpu_check_helpers import LONG, SCRIPTS, little, rows_of
from torch import nn

import bench_parts
import check
import fastdata
import training
from budget import Budget
from device_cache import KERNELS
from fastdata.errors import MissingExtraError, OptionError
from fastdata.steps.meter import Meter
from feeds import CPU_PATH, PATHS, Feed
from report import DRY_RUN, Report
from settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of three little JPEGs."""
    return make_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where datasets are kept, for all tests."""
    return tmp_path_factory.mktemp("work")


@pytest.fixture
def any_option(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A loader that knows every path, whatever it then is; returns what it was asked for."""
    asked = []
    real = fastdata.loader

    def loader(path: Path, *, cache: Any = None, backend: Any = None, **options: Any) -> Any:
        asked.append({"cache": cache, "backend": backend, **options})
        return real(path, **options)

    monkeypatch.setattr(fastdata, "loader", loader)
    return asked


def run(tmp_path: Path, images: Path, work: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Run a dry run of some parts; return the exit code and the report."""
    path = tmp_path / "out" / "report.json"
    common = ["--device", "cpu", "--quick", "--images", str(images), "--work", str(work)]
    code = check.main([*words, *common, "--json", str(path)])
    return code, json.loads(path.read_text())


# The parts


def test_copies_of_a_dry_run_are_all_measured(
    tmp_path: Path, images: Path, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run(tmp_path, images, work, "copies")
    assert code == 0
    assert report["state"] == "complete"
    rows = rows_of(report)
    assert {row["status"] for row in rows.values()} == {"measured"}
    assert [name for name in rows if "through the prefetcher" in name]
    over = rows["prefetcher over bare loop, pinned"]
    ours, bare = (rows[f"pinned, {how}"] for how in ("through the prefetcher", "bare loop"))
    expected = [a / b for a, b in zip(ours["rounds"], bare["rounds"], strict=True)]
    assert over["rounds"] == pytest.approx(expected, rel=1e-4)
    assert over["bar"]["at_least"] == 0.95
    assert over["bar"]["verdict"] == "not judged"
    printed = capsys.readouterr().out
    assert printed.count(DRY_RUN) == 2
    assert report["dry_run"] == DRY_RUN
    for name in rows:
        assert name in printed


@pytest.mark.timing
def test_overlap_of_a_dry_run_is_the_hidden_share_of_what_it_measured(
    tmp_path: Path, images: Path, work: Path
) -> None:
    _, report = run(tmp_path, images, work, "overlap")
    rows = rows_of(report)
    assert list(rows) == [f"hidden, steps of {n} copies" for n in ("1", "1.5", "2", "5")]
    for row in rows.values():
        measured = row["details"]
        expected = [
            1 - (both - step) / copy
            for step, copy, both in zip(
                measured["step_ms"], measured["copy_ms"], measured["both_ms"], strict=True
            )
        ]
        assert row["rounds"] == pytest.approx(expected, rel=1e-4)
    # Where compute is no longer than the copy, nothing is asked.
    assert ["bar" in row for row in rows.values()] == [False, True, True, True]


def test_a_prefetcher_that_is_not_there_is_a_reason(
    tmp_path: Path, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fastdata._PUBLIC, "CUDAPrefetcher", "fastdata.nowhere")
    monkeypatch.delitem(fastdata.__dict__, "CUDAPrefetcher", raising=False)
    _, report = run(tmp_path, images, work, "copies", "overlap")
    rows = rows_of(report)
    reason = "this fastdata has no CUDAPrefetcher"
    for name in ("pinned, through the prefetcher", "hidden, steps of 2 copies"):
        assert rows[name]["status"] == "not available"
        assert rows[name]["why"] == reason
    assert rows["pinned, bare loop"]["status"] == "measured"


def test_loaders_of_a_dry_run_measure_every_path(
    tmp_path: Path, images: Path, work: Path, any_option: list[dict[str, Any]]
) -> None:
    _, report = run(tmp_path, images, work, "loaders")
    rows = rows_of(report)
    assert list(rows) == list(PATHS)
    assert all(row["value"] > 0 for row in rows.values())
    assert [(asked["backend"], asked["cache"]) for asked in any_option] == [
        (None, None),
        ("dali", None),
        (None, "ram"),
        (None, "device"),
    ]
    for asked in any_option:
        assert asked["shuffle"]
        assert asked["drop_last"]
        assert asked["device"] == torch.device("cpu")


def test_a_path_that_fails_leaves_the_others(
    tmp_path: Path, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fastdata.loader

    def loader(path: Path, *, cache: Any = None, backend: Any = None, **options: Any) -> Any:
        if backend == "dali":
            raise MissingExtraError("pip install 'fastdata-vision[dali]'")
        if cache == "ram":
            raise OptionError("it takes 9 GB, and 8 are free")
        if cache == "device":
            raise KeyError
        return real(path, **options)

    monkeypatch.setattr(fastdata, "loader", loader)
    code, report = run(tmp_path, images, work, "loaders", "--strict")
    reasons = [(row["status"], row.get("why")) for row in report["rows"]]
    assert reasons == [
        ("measured", None),
        ("not available", "pip install 'fastdata-vision[dali]'"),
        ("not available", "it takes 9 GB, and 8 are free"),
        ("failed", "KeyError: it said nothing"),
    ]
    assert code == 1  # for what failed


def tiny_model(height: int, width: int) -> nn.Module:
    """Return a model of images that takes next to no time."""
    layers = nn.Conv2d(3, 4, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1000)
    return nn.Sequential(*layers)


# torch says so of Python 3.13.0.
@pytest.mark.timing
@pytest.mark.filterwarnings("ignore:Guards may run slower:RuntimeWarning")
@pytest.mark.usefixtures("any_option")
def test_training_of_a_dry_run_compares_every_path_with_synthetic_data(
    tmp_path: Path, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundred steps of the real one take half a minute; that it learns is tested below.
    title, _ = training.MODELS["resnet18"]
    monkeypatch.setitem(training.MODELS, "resnet18", (title, tiny_model))
    path = tmp_path / "report.json"
    report = Report(path, dry=True)
    settings = little(work, images, models=("resnet18",), batch_size=4, samples=16)
    training.run(settings, report, Budget(LONG))
    rows = rows_of(json.loads(path.read_text()))
    for how in ("eager", "compiled"):
        title = f"ResNet-18 {how}"
        assert rows[f"{title}, synthetic"]["value"] > 0
        for name in PATHS:
            share = rows[f"{title}, {name}: share"]
            rate, ceiling = (rows[f"{title}, {what}"]["value"] for what in (name, "synthetic"))
            assert share["value"] == pytest.approx(rate / ceiling, rel=1e-4)
    assert len(rows) == 2 * (1 + 2 * len(PATHS))


def test_resnet50_from_packed_jpegs_has_a_bar_even_where_nothing_ran(
    work: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(*_: Any, **__: Any) -> Any:
        raise OptionError("no")

    monkeypatch.setattr(fastdata, "loader", loader)
    monkeypatch.setattr(training, "measure_model", lambda *_: None)
    report = Report()
    training.run(little(work, images), report, Budget(LONG))
    barred = [row for row in report.rows if row.bar is not None]
    assert [row.name for row in barred] == [
        f"ResNet-50 {how}, {CPU_PATH}: share" for how in ("eager", "compiled")
    ]
    assert {row.bar.at_least for row in barred if row.bar} == {0.98}
    assert not report.holds  # not measured is not met


def test_nothing_is_compiled_without_the_time_for_it(
    work: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    monkeypatch.setattr(training, "PATHS", {})
    monkeypatch.setattr(
        training, "measure_model", lambda name, compiled, *_: measured.append((name, compiled))
    )
    monkeypatch.setattr(Settings, "dry", False)
    report = Report()
    training.run(little(work, images), report, Budget(60, clock=lambda: 0.0))
    assert measured == [("resnet50", False), ("resnet18", False), ("resnet18", True)]
    (left_out,) = report.rows
    assert left_out.name.startswith("ResNet-50 compiled")
    assert "60 s of this part's time were left" in left_out.why


@pytest.mark.usefixtures("any_option")
def test_cache_of_a_dry_run_measures_the_loop_and_has_no_kernels(
    tmp_path: Path, images: Path, work: Path
) -> None:
    _, report = run(tmp_path, images, work, "cache")
    rows = rows_of(report)
    assert rows["copy within the device"]["value"] > 0
    for size in (8, 16):
        loop = rows[f"batches of {size} through the loader"]
        over = rows[f"batches of {size} through the loader, over copy"]
        assert over["value"] > 0
        assert loop["unit"] == "GB/s"
    assert rows[KERNELS]["why"] == "there are no kernels without a GPU"
    assert rows[KERNELS]["bar"]["at_least"] == 0.6


def test_a_dataset_too_small_to_time_is_a_reason(tmp_path: Path, images: Path, work: Path) -> None:
    _, report = run(tmp_path, images, work, "loaders", "--samples", "8")
    assert "1 batches an epoch are too few to time: more --samples" in report["rows"][0]["why"]


def test_batches_that_a_step_does_not_want_are_refused(
    images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = little(work, images, samples=16)
    packed = bench_parts.Datasets(images, work / "data", 16).packed(".lmdb")
    real = fastdata.loader
    monkeypatch.setattr(
        fastdata, "loader", lambda path, **options: real(path, **options, dtype=torch.float16)
    )
    with pytest.raises(ValueError, match=r"torch\.float16.*a step wants.*torch\.bfloat16"):
        Feed("half", packed, settings, {})


def test_the_gpu_tests_are_not_run_without_a_gpu(tmp_path: Path, images: Path, work: Path) -> None:
    _, report = run(tmp_path, images, work, "tests")
    (row,) = report["rows"]
    assert row["why"] == "there is no GPU to test on"


def test_a_step_of_training_learns_what_it_is_shown(work: Path, images: Path) -> None:
    settings = little(work, images, batch_size=4)
    trainer = training.Trainer("resnet18", settings, compiled=False)
    batch = next(training.synthetic_batches(settings))
    assert batch[0].dtype == torch.bfloat16
    assert batch[0].is_contiguous(memory_format=torch.channels_last)
    losses = [float(trainer.step(*batch)) for _ in range(5)]
    assert losses[-1] < losses[0] / 2


# How it ends


def test_ctrl_c_amid_rounds_keeps_those_that_were_measured(
    tmp_path: Path, images: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = Meter.seconds

    def seconds(self: Meter, *arguments: Any, **options: Any) -> float:
        calls.append(1)
        if len(calls) == limit[0]:
            raise KeyboardInterrupt
        return real(self, *arguments, **options)

    monkeypatch.setattr(Meter, "repeats", lambda *_, **__: 3)
    monkeypatch.setattr(Meter, "seconds", seconds)
    # Five contenders: the warm-up, one counted round, and two windows of the next, in which
    # the third contender begins.
    limit = [5 + 5 + 3]
    code, report = run(tmp_path, images, work, "copies")
    assert code == 130
    rounds = {name: len(row["rounds"]) for name, row in rows_of(report).items()}
    assert rounds == {
        "pageable, bare loop": 1,
        "pinned, bare loop": 1,
        "pinned, through the prefetcher": 2,
        "pinned, prefetcher with static=True": 2,
        "pageable, through the prefetcher": 1,
        "prefetcher over bare loop, pinned": 1,
    }


@pytest.mark.timing
def test_a_signal_ends_the_command_with_its_table(tmp_path: Path, images: Path, work: Path) -> None:
    """As a scheduler's does; Ctrl-C is what the two tests above raise."""
    path = tmp_path / "report.json"
    words = ["copies", "overlap", "--device", "cpu", "--images", str(images)]
    command = [sys.executable, str(SCRIPTS / "gpu" / "check.py"), *words]
    with subprocess.Popen(
        [*command, "--work", str(work), "--json", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (path.exists() and "lowest" in path.read_text()):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Interrupted" in out
    assert "GB/s" in out
    assert "Traceback" not in err
    assert json.loads(path.read_text())["state"] == "interrupted"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["everything"], "everything is no part; there are tests, copies"),
        (["--device", "meta"], "--device is cuda or cpu, not meta"),
        (["--device", "abacus"], "--device abacus: "),
        (["--device", "cpu", "--images", "/no/such"], "there is no folder /no/such"),
        ([], "finds no GPU.*--device cpu --quick is a dry run"),
    ],
)
def test_what_cannot_begin_says_why(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check.main([*words, "--work", str(tmp_path / "w")]) == 2
    captured = capsys.readouterr()
    with pytest.raises(ValueError, match=said):
        raise ValueError(captured.err)
    assert not captured.out
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("words", [["--minutes", "0"], ["--samples", "0"], ["--batch-size", "x"]])
def test_numbers_that_make_no_sense_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        check.main(words)
    assert words[0] in capsys.readouterr().err


# The command


def gpu_check(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "FASTDATA_PYTHON"}
    return subprocess.run(
        [str(SCRIPTS / "gpu_check"), *words],
        capture_output=True,
        text=True,
        check=False,
        env={**kept, **environment},
    )


@pytest.mark.timing
def test_the_command_takes_a_python_as_it_is(tmp_path: Path, images: Path, work: Path) -> None:
    path = tmp_path / "report.json"
    words = ["copies", "--device=cpu", "--quick", "--images", str(images), "--work", str(work)]
    done = gpu_check(*words, "--json", str(path), FASTDATA_PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert DRY_RUN in done.stdout
    assert json.loads(path.read_text())["state"] == "complete"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--help"], 0, "a dry run without a GPU"),
        (["--python"], 1, "--python needs the path of a Python"),
        (["--python", "/no/such"], 1, "/no/such is not a program"),
    ],
)
def test_the_command_says_what_it_wants(words: list[str], code: int, said: str) -> None:
    done = gpu_check(*words)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.gpu
def test_figures_of_a_gpu_are_measured(
    cuda: torch.device, tmp_path: Path, images: Path, work: Path
) -> None:
    path = tmp_path / "report.json"
    words = ["copies", "overlap", "loaders", "cache", "--quick", "--batch-size", "64"]
    sizes = ["--samples", "512", "--minutes", "0.3", "--images", str(images), "--work", str(work)]
    assert check.main([*words, *sizes, "--json", str(path)]) == 0
    rows = rows_of(json.loads(path.read_text()))
    assert not [row for row in rows.values() if row["status"] == "failed"]
    # Other tests may have the GPU at the same time: what the figures are says nothing.
    for name in ("prefetcher over bare loop, pinned", "hidden, steps of 2 copies", CPU_PATH):
        assert rows[name]["status"] == "measured"
