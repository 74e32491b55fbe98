"""Profiling: planted bottlenecks are named, whatever the loader; nothing is left changed."""

from __future__ import annotations

import builtins
import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData
from PIL import Image, ImageFile
from profile_helpers import (
    Photos,
    Samples,
    SlowDecoder,
    SlowDisk,
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
from fastdata.profiling.hooks import TimedCall, installed
from fastdata.profiling.recorder import Recorder
from fastdata.profiling.stalls import find_stalls
from fastdata.profiling.stock import measure_stock
from fastdata.profiling.where import short
from fastdata.steps import SleepStep
from fastdata.transforms import ToDtype

STEP = SleepStep(0.004)
SECONDS = 0.5


def profiled(loader: Any, step: Any = STEP, **options: Any) -> fastdata.ProfileReport:
    return fastdata.profile(loader, step, **{"seconds": SECONDS, "progress": False, **options})


WORDS = {
    "read": "reading is the bottleneck",
    "decode": "decoding is the bottleneck",
    "augment": "augmentation is the bottleneck (wait, profile_helpers.py:",
    "collate": "collate is the bottleneck (slow_collate, profile_helpers.py:",
}


def stock(slow: str, workers: int) -> DataLoader[Any]:
    return DataLoader(
        Samples(slow, transform=wait if slow == "augment" else None),
        4,
        num_workers=workers,
        collate_fn=slow_collate if slow == "collate" else None,
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("slow", list(WORDS))
def test_planted_bottleneck_of_a_torch_dataset_is_named(slow: str, workers: int) -> None:
    report = profiled(stock(slow, workers))
    assert report.input_bound
    assert report.bottleneck == slow, report
    assert report.verdict.startswith("input-bound: the step waits ")
    assert WORDS[slow] in report.verdict
    assert report.waiting > 0.05
    assert report.steps_per_second < 0.95 * report.steps_per_second_device
    assert report.workers == workers
    found = {stage.name: stage for stage in report.stages}
    assert ("hand over" in found) == bool(workers)
    assert found[slow].parallel == bool(workers)
    assert found[slow].where
    assert found[slow].speedup_if_free > 1.05
    assert found[slow].stall_seconds == max(stage.stall_seconds for stage in report.stages)


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
def test_a_loader_that_keeps_up_is_no_bottleneck(name: str) -> None:
    loader = FED[name]()
    # On busy cores the loop takes 2 ms over a batch that is there.
    report = profiled(loader, SleepStep(0.03 if name == "list" else 0.08), steps=5)
    assert report.verdict == "step-bound: nothing to gain from the data side", report
    assert report.bottleneck is None
    assert not report.input_bound
    assert report.waiting < 0.3
    if isinstance(loader, fastdata.Loader):
        loader.close()


def test_hidden_item_is_named() -> None:
    weight = torch.nn.Parameter(torch.zeros(3, 4, 4))
    steps = []

    def step(batch: torch.Tensor) -> None:
        STEP(batch)
        loss = (batch * weight).mean()
        loss.backward()
        steps.append(loss.detach().item())  # hidden

    report = profiled([torch.zeros(4, 3, 4, 4)] * 50, step)
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

    report = profiled([torch.zeros(4, 3)] * 50, step)
    assert report.stalls == ()
    assert any("RuntimeError: not under a mode" in note for note in report.notes)


def test_bytes_of_packed_images_are_touched(small: Path) -> None:
    dataset = fastdata.open(small)
    images = dataset.images("image", np.array([3, 1]), jpeg_decoder())
    (shard,) = dataset.shards
    offsets = shard.column("image.offset")[[3, 1]].tolist()
    ranges = zip(offsets, images.lengths.tolist(), strict=True)
    # One byte of each page is.
    assert images.touch() == sum(sum(shard.data[at : at + n : 4096]) for at, n in ranges) > 0


def test_slow_iterable_is_named_as_a_whole() -> None:
    batches = (wait(torch.zeros(4, 3)) for _ in range(2000))
    report = profiled(batches, SleepStep(0.001))
    assert report.bottleneck == "load"
    assert "making batches is the bottleneck" in report.verdict
    assert [stage.name for stage in report.stages] == ["load", "step"]
    assert any("only waiting, copying and the step" in note for note in report.notes)


def test_iterable_that_ends_is_said() -> None:
    report = profiled(torch.zeros(4, 3) for _ in range(20))
    assert report.steps < 20
    assert any("ended after" in note for note in report.notes)


def test_without_a_step_loading_itself_is_measured() -> None:
    report = profiled(stock("decode", 1), None)
    assert report.bottleneck == "decode"
    assert report.verdict.startswith("no step to compare with: ")
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
    assert 0 <= report.overhead < 0.05
    assert report.cores >= 1
    assert min(event.start for event in report.timeline) == 0
    rows = {event.row for event in report.timeline}
    assert rows == {"loop: wait", "loop: step", "worker 0", "worker 1"}
    assert report.step == "a simulated step of 4 ms"
    assert report.loader.startswith("Loader(50 batches of 4")
    assert report.machine["torch"] == torch.__version__
    json.dumps(report.to_json())
    gains = [fix.speedup for fix in report.fixes]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 1.05


@pytest.mark.parametrize("make", [Samples, lambda: MemoryData(64, size=(8, 8))])
def test_a_dataset_gets_a_loader(make: Callable[[], Any]) -> None:
    report = profiled(make(), batch_size=8)
    assert report.batch_size == 8
    assert any("a loader was made: batch_size=8" in note for note in report.notes)


def test_iterable_dataset_and_one_sample_batches() -> None:
    assert profiled(DataLoader(Stream("read"), 4, num_workers=1)).bottleneck == "read"
    report = profiled(DataLoader(Samples("decode"), batch_size=None), SleepStep(0.001))
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
    profiled(DataLoader(photos, 4))
    assert [getattr(place, name) for place, name in names] == before
    assert photos.transform is transform
    assert threading.active_count() == threads


def test_transforms_are_found_inside_of_datasets() -> None:
    class Method(Samples):
        def __init__(self) -> None:
            super().__init__()
            del self.transform

        def transform(self, sample: Any) -> Any:  # type: ignore[no-redef]
            return sample

    plain, method = Samples(transform=torch.neg), Method()
    nested = ConcatDataset([Subset(plain, [0, 1]), Subset(method, [0])])
    with installed(Recorder(), nested):
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
        ({"loader": [1], "steps": 0}, "from 1 up, not 0"),
        ({"loader": [1], "seconds": 0}, "above 0, not 0"),
        ({"loader": iter([torch.zeros(2)])}, "ended before anything"),
    ],
)
def test_what_cannot_be_profiled(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        fastdata.profile(**arguments)


def test_lines_are_named_for_people() -> None:
    assert short("/a/b/train.py:12 collate") == "collate, train.py:12"
    assert short("train.py:12 <module>") == "train.py:12"


# -- what a profile leaves behind ------------------------------------------------------------


def test_an_epoch_under_way_is_not_disturbed(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(60, size=(40, 40)), PICTURES)
    with fastdata.loader(path, batch_size=4, shuffle=True, num_workers=1) as whole:
        wanted = [batch.label.tolist() for _ in range(2) for batch in whole]
    with fastdata.loader(path, batch_size=4, shuffle=True, num_workers=1) as it:
        epoch = iter(it)
        seen = [next(epoch).label.tolist() for _ in range(5)]
        fastdata.profile(it, seconds=0.5, progress=False)
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
    report = fastdata.profile(Short(count), lambda batch: None, seconds=0.5, progress=False)
    assert report.steps >= 3
    with pytest.raises(OptionError, match="Short gave no batch"):
        fastdata.profile(Short(0), seconds=0.5, progress=False)


def test_generators_of_random_numbers_stay_as_they_were() -> None:
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    data = DataLoader(list(torch.zeros(64, 3)), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    fastdata.profile(data, lambda batch: torch.rand(3), seconds=0.5, progress=False)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


@pytest.mark.parametrize("as_given", [Path, lambda path: [path], str])
def test_a_dataset_may_be_given_by_its_path(
    tmp_path: Path, as_given: Callable[[Path], Any]
) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(64, size=(40, 40)), PICTURES)
    report = fastdata.profile(as_given(path), batch_size=8, seconds=0.5, progress=False)
    assert report.batch_size == 8
    assert {stage.name for stage in report.stages} >= {"read", "decode"}


def test_typed_steps_are_users_code() -> None:
    for file in ("<ipython-input-3-abc>", "<stdin>"):
        source = "def step(batch):\n    batch.sum().item()\n"
        space: dict[str, Any] = {}
        exec(compile(source, file, "exec"), space)
        (stall,) = find_stalls(space["step"], torch.ones(4), torch.device("cpu"))
        assert file in stall.where
