"""What `scripts/gpu_check` is made of: arithmetic, rounds, report, plot, what a driver says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gpu_check_helpers import LONG, SCRIPTS, little
from torch import nn

import check
import gpu_tests
import machine
import plot as plotting
import utilisation
from budget import Budget
from device_cache import kernel_spans, kernels
from fastdata.steps import models as resnet
from fastdata.steps.meter import Meter
from overlap import hidden_share
from report import Bar, Report, Row
from rounds import Measurement, UnavailableError, in_turns, put_ratio
from settings import Settings

pytestmark = pytest.mark.usefixtures("one_thread")

# The arithmetic


@pytest.mark.parametrize(
    ("step", "copy", "both", "hidden"),
    [
        (5.0, 0.8, 5.04, 0.95),
        (2.0, 1.0, 1.9, 1.1),  # noise is seen
        (2.0, 1.0, 3.2, -0.2),
    ],
)
def test_the_hidden_share(step: float, copy: float, both: float, hidden: float) -> None:
    assert hidden_share(step, copy, both) == pytest.approx(hidden)


def test_a_copy_that_takes_no_time_has_no_hidden_share() -> None:
    with pytest.raises(ValueError, match="a copy takes time, not 0"):
        hidden_share(1.0, 0.0, 1.0)


def test_the_resnets_shrink_where_version_1_5_does() -> None:
    strides = [
        (module.kernel_size[0], module.stride[0], module.in_channels, module.out_channels)
        for module in resnet.resnet50().stages.modules()
        if isinstance(module, nn.Conv2d) and module.stride[0] == 2
    ]
    assert strides == [
        (3, 2, 128, 128),
        (1, 2, 256, 512),
        (3, 2, 256, 256),
        (1, 2, 512, 1024),
        (3, 2, 512, 512),
        (1, 2, 1024, 2048),
    ]
    images = torch.zeros(2, 3, 64, 64)
    for model in (resnet.resnet18(10), resnet.resnet50(10)):
        assert model.stages(model.stem(images)).shape[2:] == (2, 2)
        assert model(images).shape == (2, 10)


def test_repeats_fill_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def work(count: int) -> None:
        now[0] += 0.001 * count

    assert Meter(torch.device("cpu")).repeats(work, 0.5) == 500
    assert Meter(torch.device("cpu")).repeats(work, 0.001, least=7) == 7


def test_a_window_on_a_gpu_is_between_two_events_and_begins_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            log.append(f"record on {stream}")

        def elapsed_time(self, end: Event) -> float:
            return 1500.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append("synchronize"))
    meter = Meter(torch.device("cuda", 0))
    seconds = meter.seconds(lambda: log.append("work"), lead=lambda: log.append("lead"))
    assert seconds == 1.5
    ends = ["record on current", "synchronize"]
    assert log == ["synchronize", "lead", "record on current", "work", *ends]


def test_kernels_are_what_the_profiler_saw_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(kind: str, start: float, end: float) -> SimpleNamespace:
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(device_type=SimpleNamespace(name=kind), time_range=span)

    seen = [event("CPU", 0, 9), event("CUDA", 200, 210), event("CUDA", 100, 140)]
    seen += [event("CUDA", 120, 130), event("CUDA", 125, 150)]
    profiler = SimpleNamespace(events=lambda: seen)
    monkeypatch.setattr("torch.profiler.profile", lambda activities: nullcontext(profiler))
    feed: Any = SimpleNamespace(
        size=256, skip=lambda count: None, settings=SimpleNamespace(side=224)
    )
    meter: Any = SimpleNamespace(on_gpu=True, synchronize=lambda: None)
    assert kernel_spans(feed, meter, 1) == [(200, 210), (100, 140), (120, 130), (125, 150)]
    measured = kernels(feed, meter)
    # 30 batches within the 60 us in which something ran; a value is read as one byte, written as 2.
    assert measured.measure() == pytest.approx(30 * 256 * 224 * 224 * 3 * 3 / 60e-6 / 1e9)
    assert measured.note() == "0.1 kernels and copies a batch"
    seen.clear()
    with pytest.raises(UnavailableError, match="saw no kernel"):
        measured.measure()


def test_what_leads_into_a_window_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    meter = Meter(torch.device("cpu"))
    assert meter.seconds(lambda: pass_time(2), lead=lambda: pass_time(5)) == 2


# Rounds


def counting(name: str, log: list[str], **options: Any) -> Measurement:
    """Return a contender whose windows are 1, 2, 3..."""
    counts = iter(range(100))

    def measure() -> float:
        log.append(name)
        return float(next(counts))

    return Measurement(name, measure, "x", **options)


def test_contenders_take_turns_and_the_first_round_does_not_count() -> None:
    log: list[str] = []
    contenders = [counting(name, log) for name in "abc"]
    in_turns(Report(), "part", contenders, 3, Budget(LONG))
    assert "".join(log) == "abc" + "bca" + "cab" + "abc"
    assert contenders[0].values == [1, 2, 3]


def test_rounds_end_with_the_time_but_one_is_measured() -> None:
    log: list[str] = []
    report = Report()
    in_turns(report, "part", [counting("a", log)], 9, Budget(0.0))
    assert len(log) == 2
    assert report.rows[0].values == (1.0,)


def test_a_contender_that_fails_midway_has_no_figure_and_the_rest_have() -> None:
    windows = iter([1.0, 2.0])

    def breaks() -> float:
        for value in windows:
            return value
        raise RuntimeError("out of memory\nand much more")

    log: list[str] = []
    broken, whole = Measurement("broken", breaks, bar=Bar("it", 1)), counting("whole", log)
    report = Report()
    in_turns(report, "part", [broken, whole], 3, Budget(LONG))
    put_ratio(report, "part", "over", broken, whole, bar=Bar("ratio", 1))
    first, second, ratio = report.rows
    assert (first.status, first.why) == ("failed", "RuntimeError: out of memory")
    assert not first.values
    assert second.values == (1, 2, 3)
    assert ratio.why == "RuntimeError: out of memory"
    assert ratio.verdict(dry=False) == "not measured"
    assert [row.verdict(dry=False) for row in (first, second)] == ["not measured", ""]


def test_a_budget_is_shared_and_never_less_than_nothing() -> None:
    now = [0.0]
    budget = Budget(100, clock=lambda: now[0])
    part = budget.share(0.25)
    assert (budget.remaining, part.remaining) == (100, 25)
    now[0] = 40
    assert (budget.remaining, part.remaining) == (60, 0)


def test_each_part_may_use_what_those_before_have_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {}

    def part(name: str, weight: float) -> Any:
        def run(settings: Settings, report: Report, budget: Budget) -> None:
            given[name] = budget.remaining

        return run, weight

    parts = {"a": part("a", 1.0), "b": part("b", 3.0)}
    monkeypatch.setattr(check, "PARTS", parts)
    check.measure(["a", "b"], little(tmp_path, tmp_path), Report(), minutes=1)
    assert given == {"a": pytest.approx(15, abs=1), "b": pytest.approx(60, abs=1)}


# The report


def test_every_figure_is_in_the_file_when_it_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    report = Report(path, {"gpu": {"name": "imagined"}})
    seen = []

    def window() -> float:
        seen.append(json.loads(path.read_text())["rows"][0])
        return float(len(seen))

    in_turns(report, "part", [Measurement("a", window, "x")], 3, Budget(LONG))
    assert [row.get("rounds") for row in seen] == [None, None, [2], [2, 3]]
    assert seen[0]["why"] == "not measured until the end"
    document = json.loads(path.read_text())
    assert document["rows"][0]["rounds"] == [2, 3, 4]
    assert document["gpu"] == {"name": "imagined"}
    assert document["state"] == "running"
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("values", "dry", "verdict", "holds"),
    [
        ((0.96, 0.94, 0.97), False, "met", True),
        ((0.95,), False, "met", True),
        ((0.94, 0.94, 0.99), False, "missed", False),
        ((), False, "not measured", False),
        ((0.5,), True, "not judged", True),
    ],
)
def test_a_bar_is_met_by_the_median(
    values: tuple[float, ...], dry: bool, verdict: str, holds: bool
) -> None:
    report = Report(dry=dry)
    status: Any = "measured" if values else "not available"
    report.put(Row("part", "row", "x", values, status=status, bar=Bar("what is asked", 0.95)))
    assert report.document()["rows"][0]["bar"]["verdict"] == verdict
    assert report.holds is holds
    assert f"| what is asked | 0.95 | {values[-1] if dry else ''}"[:25] in report.table()
    assert verdict in report.table()


def test_the_table_has_medians_spreads_and_reasons() -> None:
    report = Report()
    report.put(Row("copies", "fast", "GB/s", (20.0, 30.0, 25.0), note="mind this"))
    report.put(Row("copies", "slow", status="not available", why="it is not here"))
    report.put(Row("loaders", "other", "images/s", (12345.6,)))
    lines = [" ".join(line.split()) for line in report.table().splitlines()]
    assert "| fast | 25 | 20-30 | GB/s (mind this) |" in lines
    assert "| slow | not available: it is not here |" in lines
    assert "| other | 12,346 | 12,346-12,346 | images/s |" in lines
    assert sum(line.startswith("| copies |") for line in lines) == 1


@pytest.mark.parametrize(("strict", "code"), [(True, 1), (False, 0)])
def test_a_missed_bar_is_an_exit_code_only_if_asked_for(
    strict: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def misses(settings: Settings, report: Report, budget: Budget) -> None:
        report.put(Row("copies", "row", "x", (0.5,), bar=Bar("more", 0.9)))

    monkeypatch.setattr(check, "PARTS", {"copies": (misses, 1.0)})
    monkeypatch.setattr(Settings, "dry", False)
    words = ["--device", "cpu", "--work", str(tmp_path), *(["--strict"] if strict else [])]
    assert check.main(words) == code


# The plot


def some_rows() -> Report:
    report = Report(about={"gpu": {"name": "imagined"}})
    report.put(Row("copies", "pinned", "GB/s", (20.0, 25.0)))
    report.put(Row("overlap", "hidden", "of the copy", (0.9, 0.99), bar=Bar("hidden", 0.95)))
    report.put(Row("training", "ResNet-50, synthetic", "images/s", (2000.0,)))
    report.put(Row("training", "absent", status="not available", why="it is not here"))
    return report


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["--device", "cpu", "--plot", "x.png", "--work", str(tmp_path / "w")]
    assert check.main(words) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        plotting.plot(some_rows().document(), tmp_path / "x.png")


def test_a_plot_shows_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = tmp_path / "report.json"
    document.write_text(json.dumps(some_rows().document()))
    picture = tmp_path / "x.png"
    # In a process of its own: matplotlib keeps the files of its fonts open.
    script = SCRIPTS / "gpu" / "plot.py"
    command = [sys.executable, str(script), str(document), str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(ValueError, match="nothing to plot"):
        plotting.plot(Report().document(), picture)


# The tests of a GPU


TESTS = """
import pytest
def test_good(): pass
def test_bad(): assert 1 == 2, "one is not two"
def test_left_out(): pytest.skip("no second GPU")
@pytest.fixture
def broken(): raise RuntimeError("no fixture")
def test_of_a_fixture(broken): pass
"""


def test_the_outcome_of_the_gpu_tests_is_read_from_pytests_own_report(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    path = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={path}", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    outcome = gpu_tests.read_outcome(path)
    assert outcome.passed == 1
    assert len(outcome.failed) == 2
    assert "test_bad" in outcome.failed[0]
    assert "test_left_out: no second GPU" in outcome.skipped[0]
    row = gpu_tests.row_of(outcome, done.returncode, done.stdout)
    assert row.values == (1 / 3,)
    assert row.note == "1 passed, 2 failed, 1 skipped"
    assert row.verdict(dry=False) == "missed"
    none = gpu_tests.row_of(gpu_tests.Outcome(), 4, "usage\nno such file\n")
    assert (none.status, none.why) == ("failed", "exit code 4, no test ran: no such file")


def test_the_command_of_the_gpu_tests_works_without_the_timeout_plugin(tmp_path: Path) -> None:
    command = gpu_tests.pytest_command(tmp_path / "report.xml", has_timeout=False)
    only = ["-p", "no:timeout", "--collect-only", "tests/test_device_geometry.py"]
    code, said = gpu_tests.run_limited([*command, *only], dict(os.environ), 60)
    assert code == 0, said
    assert "test_a_gpu_renders_what_the_cpu_renders" in said


def test_tests_that_do_not_end_are_ended_with_all_they_started(tmp_path: Path) -> None:
    marker = tmp_path / "alive"
    script = f"while true; do touch {marker}; sleep 0.05; done & echo begun; wait"
    code, said = gpu_tests.run_limited(["bash", "-c", script], dict(os.environ), 0.5)
    assert code is None
    assert said == "begun\n"
    marker.unlink()
    time.sleep(0.3)
    assert not marker.exists()


def test_the_gpu_tests_are_run_where_a_missing_gpu_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def run_limited(command: list[str], environment: dict[str, str], limit: float) -> Any:
        seen.update(environment, command=command, limit=limit)
        return None, "so far\nand here it hung"

    monkeypatch.setattr(gpu_tests, "run_limited", run_limited)
    monkeypatch.setattr(Settings, "dry", False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    report = Report()
    settings = little(tmp_path, tmp_path, device=torch.device("cuda", 1))
    gpu_tests.run(settings, report, Budget(200, clock=lambda: 0.0))
    assert seen["FASTDATA_REQUIRE_CUDA"] == "1"
    assert seen["CUDA_VISIBLE_DEVICES"] == "7"
    assert seen["command"][1:5] == ["-m", "pytest", "-m", "gpu"]
    assert seen["limit"] == 200
    (row,) = report.rows
    assert row.why == "not done after 200 s, and ended: and here it hung"
    assert not report.holds


# What the driver says


def fake_smi(folder: Path, body: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def wait_for(condition: Callable[[], object]) -> None:
    while not condition():
        time.sleep(0.01)


@pytest.fixture
def without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python package pynvml is not installed."""
    monkeypatch.setitem(sys.modules, "pynvml", None)


@pytest.mark.usefixtures("without_nvml")
def test_utilisation_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, f'echo "$@" >{tmp_path}/asked; echo 40; echo 60; exec sleep 60')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with utilisation.Utilisation("GPU-1") as watch:
        wait_for(lambda: len(watch.samples) == 2)
    assert watch.percent == 50
    assert watch.source == "nvidia-smi"
    assert "--loop-ms=100 -i GPU-1" in (tmp_path / "asked").read_text()


@pytest.mark.usefixtures("without_nvml")
def test_utilisation_of_what_has_no_sensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, 'echo "[N/A]"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with utilisation.Utilisation("GPU-1") as watch:
        pass
    assert watch.percent is None
    monkeypatch.setenv("PATH", "")
    with utilisation.Utilisation("GPU-1") as watch:
        pass
    assert (watch.percent, watch.source) == (None, "")


def test_utilisation_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    nvml = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(
            gpu={"handle of GPU-1": 75}[handle]
        ),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    with utilisation.Utilisation("GPU-1", every_seconds=0.01) as watch:
        wait_for(lambda: watch.samples)
    assert (watch.percent, watch.source) == (75, "NVML")

    def refuse(handle: Any) -> Any:
        raise NVMLError("not supported")

    nvml.nvmlDeviceGetUtilizationRates = refuse
    with utilisation.Utilisation("GPU-1", every_seconds=0.01) as watch:
        time.sleep(0.05)
    assert watch.percent is None


def test_the_machine_is_described_by_what_the_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(
        name="imagined",
        total_memory=80 << 30,
        multi_processor_count=100,
        major=9,
        minor=0,
        uuid="1-2",
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    fake_smi(tmp_path, f'echo "$@" >{tmp_path}/asked; echo "555.42, 700.00, 1980, 5, 16"')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = machine.about(torch.device("cuda", 0))
    assert found["gpu"]["driver"] == "555.42"
    assert found["gpu"]["pcie_generation_max"] == "5"
    assert "-i GPU-1-2" in (tmp_path / "asked").read_text()
    assert machine.headline(found).startswith("imagined, 80.0 GiB, driver 555.42\n")
    assert "torch" in found["versions"]
    fake_smi(tmp_path, "exit 9")
    assert "driver" not in machine.gpu(torch.device("cuda", 0))
