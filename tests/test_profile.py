"""Profiling: planted bottlenecks are named, whatever the loader; nothing is left changed."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData
from PIL import Image, ImageFile
from profile_helpers import (
    SLOW,
    Clock,
    Photos,
    Samples,
    SlowDecoder,
    SlowDisk,
    SlowSampler,
    Stream,
    slow_collate,
    wait,
)
from samples import write_shard
from torch.utils.data import ConcatDataset, DataLoader, Subset
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata.codecs.decoders import jpeg_decoder
from fastdata.errors import OptionError
from fastdata.measuring.lines import short_line
from fastdata.measuring.stalls import find_stalls
from fastdata.measuring.workload import step_name
from fastdata.profiling import lines, profiler, rates
from fastdata.profiling.batches import CachedBatches, batches_of
from fastdata.profiling.rates import measure_rates
from fastdata.profiling.recorder import Recorder, TimedCall, hooks_installed
from fastdata.profiling.report import Event
from fastdata.profiling.stock import measure_stock
from fastdata.profiling.tracing import trace
from fastdata.steps import SleepStep
from fastdata.transforms import CenterCrop, PerSample, ToDtype

STEP = SleepStep(0.004)
SECONDS = 0.5
SHORT = 0.2
"""Where nothing is made ahead, shorter windows tell as much."""


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no more workers: what is tried has tests of its own."""
    monkeypatch.setattr(profiler, "try_more_workers", lambda *arguments, **options: ())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Only what a test plants takes time."""
    return Clock(monkeypatch)


def profiled(loader: Any, step: Any = STEP, **options: Any) -> fastdata.ProfileReport:
    return fastdata.profile(loader, step, **{"seconds": SECONDS, "progress": False, **options})


@pytest.fixture
def as_planted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop waits for workers as long as it would: their clocks are not the loop's."""

    def given(batches: Any, *arguments: Any, **options: Any) -> rates.Rates:
        found = measure_rates(batches, *arguments, **options)
        if batches.workers:
            whole = 4 * SLOW / batches.workers
            for name, seconds in (
                ("loader", whole),
                ("intervals", whole),
                ("waits", whole - STEP.seconds),
                ("busy", 0.0),
                ("host", STEP.seconds),
                ("device", STEP.seconds),
                ("device_cpu", 0.0),
            ):
                setattr(found, name, [seconds])
            found.others = 0.0
        return found

    monkeypatch.setattr(profiler, "measure_rates", given)


WORDS = {
    "read": "reading is the bottleneck",
    "decode": "decoding is the bottleneck",
    "augment": "augmentation is the bottleneck",
    "collate": "collate is the bottleneck",
}

LINES = {
    "read": "wait",
    "decode": "(compute|Samples.__getitem__)",  # seen where it gives up the interpreter's lock
    "augment": "wait",
    "collate": "slow_collate",
}
"""The functions that take the time."""


def stock(slow: str, workers: int) -> DataLoader[Any]:
    return DataLoader(
        Samples(slow, transform=wait if slow == "augment" else None),
        4,
        num_workers=workers,
        collate_fn=slow_collate if slow == "collate" else None,
    )


@pytest.mark.parametrize(("workers", "waiting"), [(0, "86%"), (2, "67%")])
@pytest.mark.parametrize("slow", list(WORDS))
@pytest.mark.usefixtures("as_planted")
def test_planted_bottleneck_of_a_torch_dataset_is_named(
    slow: str, workers: int, waiting: str
) -> None:
    report = profiled(stock(slow, workers))
    assert report.input_bound
    assert report.bottleneck == slow, report
    assert report.verdict.startswith(
        f"input-bound: the step waits {waiting} of the time; {WORDS[slow]}"
    )
    assert report.workers == workers
    found = {stage.name: stage for stage in report.stages}
    assert ("hand over" in found) == bool(workers)
    assert found[slow].parallel == bool(workers)
    assert found[slow].seconds == pytest.approx(4 * SLOW)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("slow", list(LINES))
def test_the_line_that_takes_the_time_is_found(
    slow: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow == "decode":  # as on a core of its own: without one it seems to wait
        monkeypatch.setattr(lines, "_cpu_clock", lambda thread: time.perf_counter)
    found = measure_stock(stock(slow, workers), SHORT).lines
    assert re.search(rf"profile_helpers.py:\d+ {LINES[slow]}$", found[slow])


def test_the_line_that_takes_the_time_is_in_the_verdict() -> None:
    report = profiled(stock("augment", 0), seconds=SHORT)
    assert "augmentation is the bottleneck (wait, profile_helpers.py:" in report.verdict


@pytest.mark.parametrize("slow", list(WORDS))
def test_figures_are_what_was_planted(slow: str, clock: Clock) -> None:
    report = profiled(stock(slow, 0))
    making, step = pytest.approx(4 * SLOW), STEP.seconds
    whole = 4 * SLOW + step
    assert report.steps_per_second == pytest.approx(1 / whole)
    assert report.steps_per_second_host == pytest.approx(1 / step)
    assert report.steps_per_second_device == pytest.approx(1 / step)
    assert report.waiting == pytest.approx(4 * SLOW / whole)
    assert report.wait_seconds == making
    assert report.batch_seconds_p50 == report.batch_seconds_p99 == pytest.approx(whole)
    assert report.overhead == 0
    found = {stage.name: stage for stage in report.stages}
    assert found.keys() == {slow, "step"}
    assert found[slow].seconds == found[slow].stall_seconds == making
    assert found[slow].speedup_if_free == pytest.approx(whole / step)
    assert found["step"].seconds == pytest.approx(step)
    computed = 4 * SLOW / step if slow == "decode" else 0.0
    assert report.cores_to_saturate == pytest.approx(computed)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slow_sampler_is_no_handing_over_and_no_stage_of_the_workers(
    workers: int, clock: Clock
) -> None:
    loader = DataLoader(Samples(), 4, num_workers=workers, sampler=SlowSampler())
    report = profiled(loader)
    assert report.bottleneck == "load", report
    found = {stage.name: stage for stage in report.stages}
    assert found["load"].seconds == pytest.approx(4 * SLOW)  # a batch of four
    assert all(found[name].seconds == 0 for name in found.keys() - {"load", "step"})
    assert report.workers_to_saturate is None
    assert [note for note in report.notes if "the sampler takes" in note]
    assert not [note for note in report.notes if "explained by no stage" in note]


def packed(slow: str, workers: int, method: Any) -> fastdata.Loader:
    kind = {"read": SlowDisk, "decode": SlowDecoder}.get(slow, MemoryData)
    loader = fastdata.loader(
        kind(200, size=(8, 8)),
        batch_size=4,
        num_workers=workers,
        worker_method=method,
        transform=wait if slow == "augment" else None,
    )
    assert isinstance(loader, fastdata.Loader)
    return loader


@pytest.mark.parametrize(
    ("slow", "kind"),
    [
        ("read", (0, "thread")),
        ("read", (2, "thread")),
        ("decode", (0, "thread")),
        ("decode", (1, "process")),
        ("augment", (2, "thread")),
        ("augment", (1, "process")),
    ],
)
@pytest.mark.usefixtures("as_planted")
def test_planted_bottleneck_of_packed_data_is_named(slow: str, kind: tuple[int, str]) -> None:
    with packed(slow, *kind) as loader:
        before = loader.state_dict()
        report = profiled(loader)
        assert loader.state_dict() == before
    assert report.bottleneck == slow, report
    assert WORDS[slow] in report.verdict
    assert not np.isnan(report.ready_batches)


def packed_and_fed() -> Any:
    data = MemoryData(200, size=(8, 8))
    return fastdata.loader(data, batch_size=4, num_workers=1, transform=ToDtype(torch.float32))


FED: dict[str, Callable[[], Any]] = {
    "stock": lambda: DataLoader(Samples(), 4, num_workers=1),
    "packed": packed_and_fed,
    "list": lambda: [torch.zeros(4, 3)] * 50,
    "in a thread": lambda: fastdata.CUDAPrefetcher([torch.zeros(4, 3)] * 50, "cpu"),
}


@pytest.mark.parametrize("name", list(FED))
def test_a_loader_that_keeps_up_is_no_bottleneck(name: str, clock: Clock) -> None:
    loader = FED[name]()
    report = profiled(loader)
    assert report.verdict == "step-bound: nothing to gain from the data side", report
    assert report.bottleneck is None
    assert not report.input_bound
    assert report.waiting == pytest.approx(0)
    if isinstance(loader, fastdata.Loader):
        loader.close()


def test_a_step_too_slow_for_the_time_is_said_and_is_run_no_more_than_it_must(
    caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    count = []

    def step(batch: torch.Tensor) -> None:
        count.append(batch)
        SleepStep(0.3)(batch)

    with caplog.at_level("WARNING", "fastdata"):
        report = profiled([torch.zeros(4, 3)] * 50, step, seconds=SHORT)
    assert report.verdict.startswith("step-bound")
    # Looks of 2 each, three rounds of three windows, and one under torch's modes.
    assert len(count) <= 16
    assert not caplog.records  # which takes 5 s: nobody wants to be told

    def stopped_once_it_is_said(batch: torch.Tensor) -> None:
        if caplog.records:
            raise InterruptedError
        SleepStep(0.7)(batch)

    with caplog.at_level("WARNING", "fastdata"), pytest.raises(InterruptedError):
        profiled([torch.zeros(4, 3)] * 50, stopped_once_it_is_said, seconds=SHORT)
    (said,) = (record.message for record in caplog.records)
    assert "a step with its batch takes 0.7" in said


def test_windows_have_whole_waves_of_slow_batches() -> None:
    # A window has time for one: of two the loop waits for the first, and the other is there.
    loader = DataLoader(Samples("read", count=4000), 8, num_workers=2)
    report = profiled(loader, seconds=SHORT)
    assert report.input_bound, report
    assert report.steps % 2 == 0


def test_passes_of_one_batch_are_not_called_fed() -> None:
    loader = DataLoader(Samples("read", count=8), 8, num_workers=1, persistent_workers=True)
    report = profiled(loader, SleepStep(0.02))  # each batch of 48 ms is begun when it is asked for
    assert "each pass of 1 batch begins with" in report.verdict, report
    assert "nothing to gain" not in report.verdict


def test_passes_whose_first_batch_takes_no_longer_lose_nothing(clock: Clock) -> None:
    report = profiled(DataLoader(Samples("read", count=32), 4), SleepStep(0.02))
    assert "each pass" not in report.verdict, report


def test_hidden_item_is_named(clock: Clock) -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 4, 4))
    steps = []

    def step(batch: torch.Tensor) -> None:
        STEP(batch)
        loss = (batch * weight).mean()
        loss.backward()
        steps.append(loss.detach().item())  # hidden

    report = profiled([torch.zeros(4, 3, 4, 4)] * 50, step, seconds=SHORT)
    assert report.bottleneck == "step"
    line = line_with("# hidden")
    assert report.verdict == (
        f"step-bound, and the step would make a GPU wait: .item() at {relative()}:{line}"
    )
    (stall,) = report.stalls
    assert stall.where.startswith(f"{relative()}:{line} ")
    assert any(".item()" in fix.text for fix in report.fixes)
    assert len(steps) > report.steps


def line_with(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and "line_with" not in line)


def relative() -> str:
    return __file__.removeprefix(os.getcwd() + os.sep)


def test_a_step_that_cannot_be_looked_into_is_said() -> None:
    def step(batch: torch.Tensor) -> None:
        STEP(batch)
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not under a mode")

    report = profiled([torch.zeros(4, 3)] * 50, step, seconds=SHORT)
    assert report.stalls == ()
    assert any("RuntimeError: not under a mode" in note for note in report.notes)


def test_bytes_of_packed_images_are_touched(small: Path) -> None:
    dataset = fastdata.open(small)
    images = dataset._images("image", np.array([3, 1]), jpeg_decoder())
    (shard,) = dataset.shards
    offsets = shard.column("image.offset")[[3, 1]].tolist()
    ranges = zip(offsets, images.lengths.tolist(), strict=True)
    # One byte of each page is.
    assert images.touch() == sum(sum(shard.data[at : at + n : 4096]) for at, n in ranges) > 0


def test_slow_iterable_is_named_as_a_whole(clock: Clock) -> None:
    batches = (wait(torch.zeros(4, 3)) for _ in range(2000))
    report = profiled(batches, SleepStep(0.001), seconds=SHORT)
    assert report.bottleneck == "load"
    assert "making batches is the bottleneck" in report.verdict
    assert [stage.name for stage in report.stages] == ["load", "step"]
    assert any("only waiting, copying and the step" in note for note in report.notes)


def test_iterable_that_ends_is_said(clock: Clock) -> None:
    report = profiled(torch.zeros(4, 3) for _ in range(20))
    assert report.steps < 20
    assert any("ended after" in note for note in report.notes)


def test_without_a_step_loading_itself_is_measured(clock: Clock) -> None:
    report = profiled(stock("decode", 0), None)
    assert report.bottleneck == "decode"
    assert report.verdict.startswith(
        "no step to compare with: 41.67 batches a second are made; decoding is the bottleneck"
    )
    assert report.stalls == ()
    assert report.workers_to_saturate is None


def test_report_is_whole_and_plain() -> None:
    with packed("read", 2, "thread") as loader:
        report = profiled(loader, steps=20)
    assert report.steps == 20
    assert report.batch_size == 4
    assert 0 < report.batch_seconds_p50 <= report.batch_seconds_p99
    assert report.wait_seconds > 0
    assert report.copy_bytes_per_second == 0
    assert 0 <= report.overhead < 1
    assert report.cores >= 1
    assert min(event.start for event in report.timeline) == 0
    # Where the machine gives the loop little time, one worker makes all its batches.
    loop, workers = {"loop: wait", "loop: step"}, {"worker 0", "worker 1"}
    assert loop < rows_of(report).keys() <= loop | workers
    assert report.step == "a simulated step of 4 ms"
    assert report.loader.startswith("Loader(50 batches of 4")
    assert report.machine["torch"] == torch.__version__
    json.dumps(report.to_json())
    gains = [(not fix.at_most, fix.speedup) for fix in report.fixes]
    assert gains == sorted(gains, reverse=True)
    assert gains[0][1] > 1
    assert 0 <= report.cores_of_others <= report.cores


def rows_of(report: fastdata.ProfileReport) -> dict[str, set[str]]:
    """Return the stages in each row of the timeline."""
    rows: dict[str, set[str]] = {}
    for event in report.timeline:
        rows.setdefault(event.row, set()).add(event.stage)
    return rows


def end_of(event: Event) -> float:
    return event.start + event.seconds


@pytest.mark.parametrize(
    ("make", "row", "slow"),
    [
        (lambda: packed("decode", 1, "process"), "worker 0", "decode"),
        (lambda: packed("augment", 0, "thread"), "loop: load", "augment"),
        (lambda: stock("augment", 2), "worker 1", "augment"),
        (lambda: stock("read", 0), "loop: load", "read"),
        (lambda: fastdata.CUDAPrefetcher(stock("read", 0), "cpu"), "worker 0", "read"),
    ],
    ids=["process", "in the loop", "stock", "stock in the loop", "in a thread"],
)
def test_the_timeline_has_what_workers_were_at(
    make: Callable[[], Any], row: str, slow: str
) -> None:
    loader = make()
    events = trace(loader, STEP, primed=1, seconds=0.1)
    seconds: dict[tuple[str, str], float] = {}
    for event in events:
        key = event.row, event.stage
        seconds[key] = seconds.get(key, 0.0) + event.seconds
        assert event.start >= 0
        assert event.label.startswith("batch ")
    of_row = {stage: took for (name, stage), took in seconds.items() if name == row}
    assert max(of_row, key=lambda stage: of_row[stage]) == slow
    # One after the other, and within the window of the loop.
    edges = [edge for event in events if event.row == row for edge in (event.start, end_of(event))]
    edges.append(max(end_of(event) for event in events if event.row == "loop: step"))
    assert all(first <= second + 1e-9 for first, second in itertools.pairwise(edges))
    if isinstance(loader, fastdata.Loader):
        loader.close()


def test_the_timeline_has_what_workers_were_at_when_it_ended() -> None:
    ahead = []
    for _ in range(5):  # a busy machine may be between two batches when it ends
        last = {"loop": 0, "worker": 0}
        for event in trace(stock("read", 2), STEP, primed=2, seconds=0.05):
            name = re.split("[: ]", event.row)[0]
            last[name] = max(last[name], int(event.label.removeprefix("batch ")))
        ahead.append(last["worker"] - last["loop"])
    # A batch takes six steps, so the loop waits for one while the next is being made.
    assert max(ahead) > 0


def test_of_other_iterables_the_timeline_is_the_loops() -> None:
    report = profiled([torch.zeros(4, 3)] * 50)
    assert rows_of(report) == {"loop: wait": {""}, "loop: step": {""}}
    assert report.cores_to_saturate is None
    assert report.to_json()["cores_to_saturate"] is None


# -- batches that the loader brings to a device ----------------------------------------------


def test_host_batches_are_those_that_travel() -> None:
    # A device that computes nothing, but is another: uint8 goes there, and becomes float32.
    data = MemoryData(40, size=(8, 8))
    with fastdata.loader(
        data, batch_size=4, num_workers=0, device="meta", transform=ToDtype(torch.float32)
    ) as loader:
        there = next(iter(loader)).image
        assert (there.device.type, there.dtype) == ("meta", torch.float32)
        with batches_of(loader) as taken:
            batches = CachedBatches.take(taken, torch.device("meta"))
        seen: list[torch.Tensor] = []
        report = profiled(loader, lambda batch: seen.append(batch.image), seconds=0.1)
    (batch, *_), (device_batch, *_) = batches.host, batches.device
    assert (batch.image.device.type, batch.image.dtype) == ("cpu", torch.uint8)
    assert batches.nbytes == 4 * (3 * 8 * 8 + batch.label.element_size())
    assert batches.loader_copies
    assert batches.host_known
    assert (device_batch.image.device.type, device_batch.image.dtype) == ("meta", torch.float32)
    # The step gets of each kind of window what the loader hands out.
    assert {(image.device.type, image.dtype) for image in seen} == {("meta", torch.float32)}
    assert report.copy_bytes_per_second > 0
    assert "copy" in {stage.name for stage in report.stages}


def test_host_batches_of_a_prefetcher_are_before_its_transform() -> None:
    def as_float(batch: torch.Tensor) -> torch.Tensor:
        return batch.float()

    bytes_of = [torch.zeros(4, 3, dtype=torch.uint8)] * 50
    loader = fastdata.CUDAPrefetcher(bytes_of, "meta", as_float)
    with batches_of(loader) as taken:
        batches = CachedBatches.take(taken, torch.device("meta"))
    assert (batches.host[0].dtype, batches.device[0].dtype) == (torch.uint8, torch.float32)
    assert batches.nbytes == 12
    assert batches.delivered(batches.host[0], torch.device("meta")).dtype == torch.float32


def test_what_travels_is_not_made_up() -> None:
    # Nobody knows what an iterable sent, nor can a generator be asked again.
    for loader in (
        [torch.zeros(4, 3, device="meta")] * 50,
        fastdata.CUDAPrefetcher((torch.zeros(4, 3) for _ in range(500)), "meta"),
    ):
        report = profiled(loader, lambda batch: None, seconds=0.1, device="meta")
        assert report.copy_bytes_per_second == 0
        assert "copy" not in {stage.name for stage in report.stages}
        assert any("what is sent there for them is not known" in note for note in report.notes)


# -- loaders and steps that misbehave --------------------------------------------------------


class Unspeakable(Samples):
    """Has no words for itself, as a step or as a loader; nor a length."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    __str__ = __repr__

    def __len__(self) -> int:
        raise ValueError("no length")

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(4, 3)] * 50)

    def __call__(self, batch: torch.Tensor) -> None:
        STEP(batch)


class _Loads:
    """The same, and no dataset."""

    __repr__ = __str__ = Unspeakable.__repr__
    __len__ = Unspeakable.__len__
    __iter__ = Unspeakable.__iter__


def test_a_loader_and_a_step_without_words_are_profiled() -> None:
    report = profiled(_Loads(), Unspeakable(), seconds=0.1)
    assert (report.loader, report.step) == ("a _Loads", "a Unspeakable")
    assert str(report)


def test_an_error_without_words_is_told_by_its_kind() -> None:
    class WithoutWordsError(Exception):
        __str__ = Unspeakable.__repr__

    def step(batch: torch.Tensor) -> None:
        STEP(batch)
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise WithoutWordsError

    report = profiled([torch.zeros(4, 3)] * 50, step, seconds=0.1)
    assert any("WithoutWordsError: a WithoutWordsError" in note for note in report.notes)


def test_what_is_no_step_is_refused_without_words() -> None:
    with pytest.raises(OptionError, match="a _Loads is no callable"):
        fastdata.profile([1], _Loads())  # type: ignore[arg-type]


def test_steps_are_called_by_their_names() -> None:
    assert step_name(partial(wait, 3)) == "wait"
    assert step_name(torch.nn.Linear(1, 1)) == "Linear"
    assert step_name(STEP) == "a simulated step of 4 ms"


@pytest.mark.parametrize("make", [Samples, lambda: MemoryData(64, size=(8, 8))])
def test_a_dataset_gets_a_loader(make: Callable[[], Any]) -> None:
    report = profiled(make(), batch_size=8, seconds=SHORT)
    assert report.batch_size == 8
    assert any("a loader was made: batch_size=8" in note for note in report.notes)


@pytest.mark.usefixtures("as_planted")
def test_iterable_dataset_and_one_sample_batches() -> None:
    assert profiled(DataLoader(Stream("read"), 4, num_workers=1)).bottleneck == "read"
    report = profiled(DataLoader(Samples("decode"), batch_size=None))
    assert report.bottleneck == "decode"


def test_real_pictures_are_read_and_decoded(tmp_path: Path) -> None:
    parts = measure_stock(DataLoader(Photos(tmp_path / "a.jpg"), 4), 0.1)
    assert {"read", "decode", "augment", "collate"} <= {cost.name for cost in parts.costs}
    assert parts.notes == ()  # what decodes was recognised


def test_everything_is_put_back(tmp_path: Path) -> None:
    names = [(builtins, "open"), (os, "read"), (Image, "open"), (ImageFile.ImageFile, "load")]
    before = [getattr(place, name) for place, name in names]
    photos = Photos(tmp_path / "a.jpg")
    transform, threads = photos.transform, threading.active_count()
    profiled(DataLoader(photos, 4), seconds=SHORT)
    assert [getattr(place, name) for place, name in names] == before
    assert photos.transform is transform
    until = time.monotonic() + 5.0  # queues of workers end their threads when they come to it
    while threading.active_count() > threads and time.monotonic() < until:
        time.sleep(0.01)
    assert threading.active_count() == threads


def test_transforms_of_packed_data_are_recorded_in_a_stock_dataloader(
    tmp_path: Path, clock: Clock
) -> None:
    path = write_shard(tmp_path / "shard.lmdb", pictures(40))
    transform = (PerSample(wait), CenterCrop(8))
    dataset = fastdata.open(path, transform=transform)
    for data in (dataset, Subset(dataset, range(40))):
        report = profiled(DataLoader(data, 4), seconds=SHORT)
        assert report.bottleneck == "augment", report
    assert dataset.transform == transform
    assert dataset[0].image.shape == (3, 8, 8)


def test_transforms_are_found_inside_of_datasets() -> None:
    class Method(Samples):
        def __init__(self) -> None:
            super().__init__()
            del self.transform

        def transform(self, sample: Any) -> Any:  # type: ignore[no-redef]
            return sample

    plain, method = Samples(transform=torch.neg), Method()
    nested = ConcatDataset([Subset(plain, [0, 1]), Subset(method, [0])])
    with hooks_installed(Recorder(), nested):
        assert isinstance(plain.transform, TimedCall)
        assert plain.transform(torch.ones(1)) == -1
        assert isinstance(method.transform, TimedCall)
    assert plain.transform is torch.neg
    assert "transform" not in vars(method)


class Fails(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise ZeroDivisionError("in the dataset")


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_the_step_come_out_as_themselves(workers: int) -> None:
    opened = builtins.open

    def step(batch: Any) -> None:
        raise KeyError("in the step")

    with pytest.raises(KeyError, match="in the step"):
        profiled(DataLoader(Samples(), 4, num_workers=workers), step)
    with packed("", workers, "thread") as loader, pytest.raises(KeyError, match="in the step"):
        profiled(loader, step)
    assert builtins.open is opened


def test_errors_of_the_dataset_come_out_as_themselves() -> None:
    with pytest.raises(ZeroDivisionError, match="in the dataset"):
        profiled(DataLoader(Fails(), 4))


def test_an_error_while_stages_are_measured_puts_everything_back() -> None:
    opened = builtins.open
    with pytest.raises(ZeroDivisionError, match="in the dataset"):
        measure_stock(DataLoader(Fails(), 4), 0.1)
    assert builtins.open is opened


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loader": 3}, "not int"),
        ({"loader": []}, "gave no batch"),
        ({"loader": [1], "step": 3}, "no callable"),
        ({"loader": [1], "steps": 0}, "steps=0 is not an integer from 1"),
        ({"loader": [1], "seconds": 0}, "seconds=0 is not a number from 0.001"),
        ({"loader": iter([torch.zeros(2)])}, "ended before anything"),
    ],
)
def test_what_cannot_be_profiled(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.profile(**arguments)


def test_lines_are_named_for_people() -> None:
    assert short_line("/a/b/train.py:12 collate") == "collate, train.py:12"
    assert short_line("train.py:12 <module>") == "train.py:12"


# -- what a profile leaves behind ------------------------------------------------------------


def test_an_epoch_under_way_is_not_disturbed(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(60, size=(40, 40)), PICTURES)
    with fastdata.loader(path, batch_size=4, shuffle=True, num_workers=1) as whole:
        wanted = [batch.label.tolist() for _ in range(2) for batch in whole]
    with fastdata.loader(path, batch_size=4, shuffle=True, num_workers=1) as it:
        epoch = iter(it)
        seen = [next(epoch).label.tolist() for _ in range(5)]
        fastdata.profile(it, seconds=0.1, progress=False)
        assert it.state_dict()["batch"] == 5
        seen += [batch.label.tolist() for batch in epoch]
        assert (it.state_dict()["epoch"], it.state_dict()["batch"]) == (1, 0)
        seen += [batch.label.tolist() for batch in it]
    assert seen == wanted


class Short:
    """An iterable that can be begun again and again, without a length."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(4, 3, 8, 8)] * self.count)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_short_passes_without_a_length(count: int) -> None:
    report = fastdata.profile(Short(count), lambda batch: None, seconds=0.1, progress=False)
    assert report.steps >= 3
    with pytest.raises(OptionError, match="Short gave no batch"):
        fastdata.profile(Short(0), seconds=0.1, progress=False)


def test_generators_of_random_numbers_stay_as_they_were() -> None:
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    data = DataLoader(list(torch.zeros(64, 3)), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    fastdata.profile(data, lambda batch: torch.rand(3), seconds=0.1, progress=False)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


@pytest.mark.parametrize("as_given", [Path, lambda path: [path], str])
def test_a_dataset_may_be_given_by_its_path(
    tmp_path: Path, as_given: Callable[[Path], Any]
) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(64, size=(40, 40)), PICTURES)
    report = fastdata.profile(as_given(path), batch_size=8, seconds=0.1, progress=False)
    assert report.batch_size == 8
    assert {stage.name for stage in report.stages} >= {"read", "decode"}


def test_typed_steps_are_users_code() -> None:
    for file in ("<ipython-input-3-abc>", "<stdin>"):
        source = "def step(batch):\n    batch.sum().item()\n"
        space: dict[str, Any] = {}
        exec(compile(source, file, "exec"), space)
        (stall,) = find_stalls(space["step"], torch.ones(4), torch.device("cpu"))
        assert file in stall.where
