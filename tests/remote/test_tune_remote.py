"""Tuning with a dataset in a store: workers by what is in the cache, streams by what is not."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from range_server import RangeServer
from remote_helpers import COUNT, LANES, needs_store

import fastdata
from fastdata.measuring.downloads import store_info
from fastdata.measuring.workload import Workload, WorkloadSpec
from fastdata.remote.folder import CacheFolder
from fastdata.tuned_settings import store as kept
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Key
from fastdata.tuning import runner, streams, tuner
from fastdata.tuning.budget import TimeBudget
from fastdata.tuning.fetching import Fetched, ScratchCache
from fastdata.tuning.report import StoreResult, TuningResult, text_lines
from fastdata.tuning.runner import LocalRunner
from fastdata.tuning.streams import choose_streams, notes_on_store
from fastdata.tuning.tuner import _keep

pytestmark = needs_store


SLOW = 200_000
"""Bytes a second of a stream."""

GIVEN = {16: 20_000.0, 32: 40_000.0}
"""Bytes a second that so many streams are said to give: far less than any step takes."""


@pytest.fixture(autouse=True)
def nothing_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(tmp_path / "tuned"))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure in this process, where that it is another one is not what is tested."""
    monkeypatch.setattr(runner, "ProcessRunner", LocalRunner)


def tuned(url: str, **options: Any) -> TuningResult:
    usual = {"batch_size": 12, "shuffle": LANES, "step_ms": 20, "seconds": 1, "max_workers": 1}
    return fastdata.tune_workers(url, **{**usual, "progress": False, **options})


@pytest.mark.timing
def test_streams_are_tried_out_of_the_store_and_workers_in_the_cache(
    server: RangeServer,
    cache: Path,
    here: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store that gives each stream so little that 16 of them do not feed the step."""
    url = f"{server.url}/train"
    server.delay, server.stream_bytes_per_second = 0.01, SLOW
    monkeypatch.setattr(streams, "COUNTS", tuple(GIVEN))
    probe, warm, fetch = Workload.probe, Workload.warm, ScratchCache.fetch

    def warmed(work: Workload, settings: Settings | None, seconds: float) -> str:
        """Have enough in the cache in the end, however slow this machine is."""
        found = warm(work, settings, seconds)
        data = fastdata.open(url)
        for index in range(60):
            _ = data[index]
        return found

    def fetched(scratch: ScratchCache, count: int, seconds: float) -> Fetched:
        """Fetch, and give the figures of a store that is known."""
        found = fetch(scratch, count, math.inf)
        assert found.bytes_per_second is not None, found.failure
        return replace(found, bytes_per_second=GIVEN[count])

    monkeypatch.setattr(tuner, "TimeBudget", lambda seconds: TimeBudget(seconds, lambda: 0.0))
    # No turn is left out because a batch took long to make.
    quick = {"batch_seconds": 0.001}
    monkeypatch.setattr(Workload, "probe", lambda work: replace(probe(work), **quick))
    monkeypatch.setattr(Workload, "warm", warmed)
    monkeypatch.setattr(ScratchCache, "fetch", fetched)
    result = tuned(url)
    found = result.store
    assert found is not None
    assert found.read_from == "cache"
    assert found.in_cache == 0
    assert [one.streams for one in found.trials] == [16, 32]
    assert found.streams == 32
    assert found.batches_per_second == pytest.approx(GIVEN[32] / (found.sample_bytes * 12))
    assert any("streams=32 (now 16)" in note for note in result.notes)
    assert any("MB/s" in note and "nearer region" in note for note in result.notes)
    assert result.verdict.endswith("batches/s, with 32 streams")
    text = "\n".join(text_lines(result))
    assert "store: settings were measured on samples that were in the cache by then; 0%" in text
    assert "*  32" in text
    assert TuningResult.from_json(json.loads(json.dumps(result.to_json()))) == result
    assert len(kept.entries()) == 1
    # What was fetched to measure streams is not in the cache, nor anywhere.
    (dataset,) = CacheFolder.open(cache).datasets()
    assert not list(cache.glob(".*"))
    assert dataset.num_present < COUNT
    # Loaders that find it use as many, and others as many as there are anyway.
    server.stream_bytes_per_second = float("inf")
    for number, (given, least) in enumerate(
        [({}, 17), ({"num_workers": 1}, 1), ({"streams": 2}, 1)]
    ):
        options = {"num_workers": "auto", "batch_size": 12, "shuffle": LANES, **given}
        folder = tmp_path / f"cache-{number}"
        with fastdata.loader(url, cache_dir=folder, **options) as loader:
            server.most_busy, server.gather = 0, least
            enough = 16 if given else len(loader)
            assert sum(1 for _ in itertools.islice(loader, enough)) == enough
        most = 32 if not given else given.get("streams", 16)
        assert least <= server.most_busy <= most, given


def test_in_a_full_cache_nothing_is_said_of_streams(
    server: RangeServer, cache: Path, here: None
) -> None:
    for _ in fastdata.open(f"{server.url}/train"):
        pass
    before = len(server.requests)
    result = tuned(f"{server.url}/train")
    assert result.store is not None
    assert (result.store.read_from, result.store.in_cache) == ("cache", 1)
    assert (result.store.trials, result.store.streams) == ((), None)
    assert not any("stream" in note for note in result.notes)
    images = [size for path, size in server.requests[before:] if path.endswith(".lmdb")]
    assert sum(images) < 1_000_000, "no image is fetched again"


def test_what_cannot_stay_in_the_cache_is_said_and_not_kept(
    server: RangeServer, cache: Path
) -> None:
    """Weights are of all samples, so that loaders cannot be made of those that are here."""
    data = fastdata.open(f"{server.url}/train")
    for index in range(60):
        _ = data[index]
    info = store_info(data)
    assert info is not None
    work = Workload(WorkloadSpec(data, {"batch_size": 12, "weights": [1.0] * COUNT}))
    assert not work.stay_in_cache()
    found = StoreResult("network", info.present, 9, 10, 100.0)
    (note, _) = notes_on_store(found, info, None, 12)
    assert "too few samples were in the cache" in note
    result = TuningResult(Settings(1), "well", True, 12, store=found)
    result = _keep(result, Key({"host": "here"}, {}), complete=True)
    assert result.notes == ("not kept: settings were measured while images were downloaded",)
    assert not kept.entries()
    assert "while images were downloaded" in "\n".join(text_lines(result))


def test_loaders_stay_in_the_cache_once_there_is_enough(server: RangeServer, cache: Path) -> None:
    url = f"{server.url}/train"
    work = Workload(WorkloadSpec(url, {"batch_size": 12, "shuffle": LANES, "streams": 1}))
    assert not work.stay_in_cache(), "nothing is there yet"
    data = fastdata.open(url)
    for index in range(60):
        _ = data[index]
    assert work.stay_in_cache()
    supply = work.loaders.dataset._supplied[0].supply
    waited = supply.waited_seconds
    with work.loaders.open(Settings(0)) as loader:
        labels = [label for batch in loader for label in batch.label.tolist()]
    assert 0 < len(labels) < COUNT
    assert supply.waited_seconds == waited, "nothing was waited for"


def test_streams_that_were_measured_stay_when_a_full_cache_is_tuned() -> None:
    key = Key({"host": "here"}, {})
    for streams_measured in (32, None):
        found = StoreResult("cache", 1.0, 9, 10, 100.0, streams=streams_measured)
        _keep(TuningResult(Settings(1), "well", True, 12, store=found), key, complete=True)
    (entry,) = kept.entries()
    assert entry.tuned.streams == 32
    assert str(entry.tuned) == "1 thread, prefetch 2, 32 streams"


RATES = {8: 10.0, 16: 20.0, 32: 38.0, 64: 40.0}


@pytest.mark.parametrize(
    ("wanted", "rates", "chosen"),
    [
        (15.0, RATES, 16),
        (39.0, RATES, 64),
        (100.0, RATES, 32),
        (None, RATES, 32),
        (15.0, {8: 10.0, 16: None}, 8),
        (15.0, {8: None}, None),
    ],
)
def test_the_smallest_number_of_streams_that_is_enough_is_chosen(
    wanted: float | None, rates: dict[int, float | None], chosen: int | None
) -> None:
    tried = [Fetched(number, rate) for number, rate in rates.items()]
    found = choose_streams(tried, wanted)
    assert (None if found is None else found.streams) == chosen
