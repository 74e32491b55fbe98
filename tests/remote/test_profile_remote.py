"""Profiling a loader of a dataset in a store: downloading is a stage, until all images are here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from range_server import RangeServer
from remote_helpers import loader_of, needs_store

import fastdata
from fastdata.profiling import rates, trying
from fastdata.profiling.downloads import DownloadWatch
from fastdata.profiling.model import Cost, Model
from fastdata.profiling.page import render_page
from fastdata.remote.supply import Supply
from fastdata.steps import SleepStep

pytestmark = needs_store

STEP = SleepStep(0.004)

SLOW = 400_000
"""Bytes a second of a stream: a batch, of 24 images of 15.6 kB, takes long beside a step."""


@pytest.fixture
def server(server: RangeServer) -> RangeServer:
    """A server that takes its time."""
    server.delay, server.stream_bytes_per_second = 0.01, SLOW
    return server


@pytest.fixture
def no_stock(server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server begins no answer but while the loop waits for images, however slow the loop is.

    So of three batches in a row one at least is waited for: the 16 streams bring fewer.
    Only for loaders without workers.
    """
    is_waiting, hold = threading.Event(), Supply.hold
    is_waiting.set()

    def held(supply: Supply, *arguments: Any) -> None:
        is_waiting.set()
        try:
            hold(supply, *arguments)
        finally:
            is_waiting.clear()

    def begin(number: int) -> str:
        is_waiting.wait()
        return ""

    monkeypatch.setattr(Supply, "hold", held)
    server.fault = begin
    yield
    is_waiting.set()


def profiled(loader: Any, step: Any = STEP) -> fastdata.ProfileReport:
    return fastdata.profile(loader, step, seconds=0.3, progress=False)


@pytest.mark.timing
@pytest.mark.parametrize("workers", [(0, "auto"), (2, "thread"), (1, "process")])
def test_downloading_is_the_largest_stage_until_all_is_in_the_cache(
    server: RangeServer, cache: Path, workers: tuple[int, str], request: pytest.FixtureRequest
) -> None:
    count, method = workers
    if not count:
        request.getfixturevalue("no_stock")
    loader = loader_of(f"{server.url}/train", num_workers=count, worker_method=method)
    report = profiled(loader)
    assert report.input_bound
    assert "downloading is the bottleneck" in report.verdict
    stages = {stage.name: stage for stage in report.stages}
    assert max(stages.values(), key=lambda stage: stage.seconds).name == "download"
    assert max(stages.values(), key=lambda stage: stage.stall_seconds).name == "download"
    assert not stages["download"].parallel
    assert {"read", "collate"} <= set(stages), "the others are measured, too"

    server.stream_bytes_per_second = float("inf")
    for _ in loader:
        pass
    warm = profiled(loader)
    loader.close()
    assert warm.download is None
    assert warm.to_json()["download"] is None
    assert "download" not in {stage.name for stage in warm.stages}
    assert "store" not in str(warm)
    assert "downloading" not in str(warm)


@pytest.mark.usefixtures("no_stock")
def test_the_report_has_the_figures_that_advice_rests_on(
    server: RangeServer, packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows, measure = [], rates._LoaderRun.measure
    monkeypatch.setattr(
        rates._LoaderRun, "measure", lambda *given: (windows.append(given), measure(*given))
    )
    whole = sum(path.stat().st_size for path in (packed / "train").glob("*.lmdb"))
    loader = loader_of(f"{server.url}/train", cache_bytes=whole // 2)
    report = profiled(loader)
    loader.close()
    assert len(windows) == 1, "in turns with others the loop would have a stock"
    plain = json.loads(json.dumps(report.to_json()))["download"]
    assert plain["sample_bytes"] == pytest.approx(72 * 72 * 3)
    assert plain["streams"] == 16
    assert plain["present_before"] == 0 < plain["present"] < 1
    assert (plain["total_bytes"], plain["cache_bytes"]) == (whole, whole // 2)
    assert plain["bytes_per_second"] > 0
    needed = plain["sample_bytes"] * 24 * report.steps_per_second_device
    assert plain["needed_bytes_per_second"] == pytest.approx(needed)
    assert 0 < plain["waiting"] < 1

    texts = " ".join(fix.text for fix in report.fixes)
    for part in ("a larger cache_bytes", "streams=32 (now 16)", "a nearer region", "15.6 kB"):
        assert part in texts
    assert all(fix.at_most for fix in report.fixes)
    half = next(fix for fix in report.fixes if "streams=" in fix.text)
    assert half.speedup <= 2.01, "twice the streams give no more than twice"
    assert any("no setting of workers helps" in note for note in report.notes)
    for text in (str(report), render_page(report)):
        assert "step waits for the store" in text
        assert "MB/s" in text
    assert {event.row for event in report.timeline} == {
        "loop: download",
        "loop: wait",
        "loop: step",
    }


def test_a_cache_with_room_for_all_is_no_advice(server: RangeServer, cache: Path) -> None:
    loader = loader_of(f"{server.url}/train", num_workers=2)
    report = profiled(loader, step=None)
    loader.close()
    assert report.bottleneck == "download"
    assert report.download is not None
    assert report.download.needed_bytes_per_second is None
    assert not any("cache_bytes" in fix.text for fix in report.fixes)
    assert any("has room for the whole dataset" in note for note in report.notes)


def test_waiting_for_what_is_here_is_no_waiting_for_the_store(
    server: RangeServer, cache: Path
) -> None:
    server.stream_bytes_per_second = float("inf")
    loader = loader_of(f"{server.url}/train", num_workers=1, worker_method="thread")
    watch = DownloadWatch.of(loader)
    assert watch is not None
    watch.requested()
    assert watch.waited(7.0) == 7.0, "none of its images is here"
    assert "downloaded meanwhile" in trying._why_not(loader)
    for _ in loader:
        pass
    watch.requested()
    assert watch.waited(7.0) == 0.0
    assert not trying._why_not(loader)
    assert DownloadWatch.of(loader) is None
    loader.close()


def test_files_and_samplers_are_not_watched(server: RangeServer, packed: Path, cache: Path) -> None:
    files = loader_of(packed / "train")
    sampled = loader_of(f"{server.url}/train", shuffle=False, sampler=list(range(48)))
    for loader in (files, sampled):
        watch = DownloadWatch.of(loader)
        assert (watch is None) == (loader is files or not loader.batches.joins)
        loader.close()


def test_workers_do_not_shorten_a_download() -> None:
    costs = Cost("decode", 0.02, True), Cost("download", 0.05, False)
    model = Model(costs, 0.01, workers=2, cores=8).fitted(0.06)
    assert model.period() == pytest.approx(0.06)
    assert model.period(16) == pytest.approx(0.06)
    assert model.wanted_workers() is None
    assert model.period(factors={"download": 0.0}) == pytest.approx(0.01)
    alone = Model(costs, 0.01, workers=0, cores=8).fitted(0.1)
    assert alone.period() == pytest.approx(0.1)
    assert alone.period(factors={"download": 0.0}) == pytest.approx(0.05), "no scale on it"
