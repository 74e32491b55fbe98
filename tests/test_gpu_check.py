"""`scripts/gpu_check`: its dry run on the CPU, its arithmetic, its report, and how it ends."""

from __future__ import annotations

import json
import os
import signal
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
from cli_helpers import make_folder
from torch import nn

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
sys.path.append(str(SCRIPTS / "gpu"))

import bench_parts  # noqa: E402 - found where the line above says
import check  # noqa: E402
import fastdata  # noqa: E402
import gpu_tests  # noqa: E402
import machine  # noqa: E402
import plot as plotting  # noqa: E402
import training  # noqa: E402
import utilisation  # noqa: E402
from budget import Budget  # noqa: E402
from device_cache import KERNELS, bytes_moved, kernel_spans, kernels, united_seconds  # noqa: E402
from fastdata.errors import MissingExtraError, OptionError  # noqa: E402
from fastdata.steps import resnet  # noqa: E402
from fastdata.steps.meter import Meter  # noqa: E402
from feeds import CPU_PATH, PATHS, Feed  # noqa: E402
from overlap import hidden_share  # noqa: E402
from report import DRY_RUN, Bar, Report, Row  # noqa: E402
from rounds import Measurement, UnavailableError, excused, in_turns, put_ratio  # noqa: E402
from settings import Settings  # noqa: E402

LONG = 1e6


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


def rows_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in report["rows"]}


def little(work: Path, images: Path, **changes: Any) -> Settings:
    """Return settings under which everything is over at once."""
    sizes = {"rounds": 1, "training_seconds": 0.001, "window_seconds": 0.001, **changes}
    made = Settings.of(torch.device("cpu"), work, images=images, quick=True)
    values = {name: getattr(made, name) for name in Settings.__slots__}
    return Settings(**{**values, **sizes})


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
            raise MissingExtraError("pip install 'fastdata[dali]'")
        if cache == "ram":
            raise OptionError("it takes 9 GB, and 8 are free")
        if cache == "device":
            raise ZeroDivisionError("by nought")
        return real(path, **options)

    monkeypatch.setattr(fastdata, "loader", loader)
    code, report = run(tmp_path, images, work, "loaders", "--strict")
    reasons = [(row["status"], row.get("why")) for row in report["rows"]]
    assert reasons == [
        ("measured", None),
        ("not available", "pip install 'fastdata[dali]'"),
        ("not available", "it takes 9 GB, and 8 are free"),
        ("failed", "ZeroDivisionError: by nought"),
    ]
    assert code == 1  # for what failed


def tiny_model(height: int, width: int) -> nn.Module:
    """Return a model of images that takes next to no time."""
    layers = nn.Conv2d(3, 4, 8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1000)
    return nn.Sequential(*layers)


# torch says so of Python 3.13.0.
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


# The arithmetic


@pytest.mark.parametrize(
    ("step", "copy", "both", "hidden"),
    [
        (2.0, 1.0, 2.0, 1.0),
        (2.0, 1.0, 3.0, 0.0),
        (2.0, 1.0, 2.5, 0.5),
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


@pytest.mark.parametrize(
    ("spans", "seconds"),
    [
        ([], 0.0),
        ([(0, 2), (3, 4)], 3.0),
        ([(3, 5), (0, 4)], 5.0),  # of two streams at once
        ([(0, 10), (2, 3), (4, 12)], 12.0),
    ],
)
def test_time_that_kernels_cover_together(spans: list[Any], seconds: float) -> None:
    assert united_seconds(spans) == seconds


def test_a_value_is_read_as_one_byte_and_written_as_two() -> None:
    assert bytes_moved(256, 224) == 256 * 224 * 224 * 3 * 3


@pytest.mark.parametrize(
    ("make", "parameters"), [(resnet.resnet18, 11_689_512), (resnet.resnet50, 25_557_032)]
)
def test_the_resnets_have_the_usual_parameters(
    make: Callable[[], resnet.ResNet], parameters: int
) -> None:
    assert sum(tensor.numel() for tensor in make().parameters()) == parameters


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


def test_a_step_of_training_learns_what_it_is_shown(work: Path, images: Path) -> None:
    settings = little(work, images, batch_size=4)
    trainer = training.Trainer("resnet18", settings, compiled=False)
    batch = next(training.synthetic_batches(settings))
    assert batch[0].dtype == torch.bfloat16
    assert batch[0].is_contiguous(memory_format=torch.channels_last)
    losses = [float(trainer.step(*batch)) for _ in range(5)]
    assert losses[-1] < losses[0] / 2


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

    seen = [event("CPU", 0, 9), event("CUDA", 100, 140), event("CUDA", 120, 160)]
    profiler = SimpleNamespace(events=lambda: seen)
    monkeypatch.setattr("torch.profiler.profile", lambda activities: nullcontext(profiler))
    feed: Any = SimpleNamespace(
        size=256, skip=lambda count: None, settings=SimpleNamespace(side=224)
    )
    meter: Any = SimpleNamespace(on_gpu=True, synchronize=lambda: None)
    assert kernel_spans(feed, meter, 1) == [(100, 140), (120, 160)]
    measured = kernels(feed, meter)
    # 30 batches within the 60 us in which something ran.
    assert measured.measure() == pytest.approx(30 * bytes_moved(256, 224) / 60e-6 / 1e9)
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


def test_an_error_outside_of_rounds_is_a_row() -> None:
    report = Report()
    with excused(report, "part", "a"):
        raise UnavailableError("no such thing")
    with excused(report, "part", "b"):
        raise KeyError
    assert [(row.status, row.why) for row in report.rows] == [
        ("not available", "no such thing"),
        ("failed", "KeyError: it said nothing"),
    ]


def test_a_budget_is_shared_and_never_less_than_nothing() -> None:
    now = [0.0]
    budget = Budget(100, clock=lambda: now[0])
    part = budget.share(0.25)
    assert (budget.remaining, part.remaining) == (100, 25)
    now[0] = 40
    assert (budget.remaining, part.remaining) == (60, 0)


def test_each_part_may_use_what_those_before_have_left(
    monkeypatch: pytest.MonkeyPatch, work: Path, images: Path
) -> None:
    given = {}

    def part(name: str, weight: float) -> Any:
        def run(settings: Settings, report: Report, budget: Budget) -> None:
            given[name] = budget.remaining

        return run, weight

    parts = {"a": part("a", 1.0), "b": part("b", 3.0)}
    monkeypatch.setattr(check, "PARTS", parts)
    check.measure(["a", "b"], little(work, images), Report(), minutes=1)
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


# How it ends


def test_ctrl_c_between_parts_keeps_what_was_measured(
    tmp_path: Path,
    images: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(check.PARTS, "overlap", (interrupted, 1.0))
    code, report = run(tmp_path, images, work, "copies", "overlap", "loaders")
    assert code == 130
    assert report["state"] == "interrupted"
    assert rows_of(report)["pinned, bare loop"]["status"] == "measured"
    assert {row["part"] for row in report["rows"]} == {"copies"}
    printed = capsys.readouterr().out
    assert "pinned, bare loop" in printed
    assert "Interrupted" in printed


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
        deadline = time.monotonic() + 60
        while not (path.exists() and "lowest" in path.read_text()):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
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
    assert "pip install 'fastdata[plot]'" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fastdata\[plot\]'"):
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
    work: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def run_limited(command: list[str], environment: dict[str, str], limit: float) -> Any:
        seen.update(environment, command=command, limit=limit)
        return None, "so far\nand here it hung"

    monkeypatch.setattr(gpu_tests, "run_limited", run_limited)
    monkeypatch.setattr(Settings, "dry", False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    report = Report()
    settings = little(work, images, device=torch.device("cuda", 1))
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
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
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
    for name in ("prefetcher over bare loop, pinned", "hidden, steps of 2 copies", CPU_PATH):
        assert rows[name]["value"] > 0
        assert rows[name]["status"] == "measured"
