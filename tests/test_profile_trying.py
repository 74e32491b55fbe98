"""Advice about workers is tried before it is given; cores that others use are counted."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from memory_data import MemoryData
from profile_helpers import Samples
from samples import write_shard
from torch.utils.data import DataLoader, get_worker_info
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata.measuring import cores
from fastdata.measuring.cores import CoresOfOthers
from fastdata.measuring.factories import loader_factory
from fastdata.profiling import model
from fastdata.steps import SleepStep
from fastdata.tuned_settings import store
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Point, TunedSettings


@pytest.fixture(autouse=True)
def few_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have no more than two workers tried, and nothing kept."""
    monkeypatch.setattr(model, "MAX_WORKERS", 2)
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(tmp_path / "tuned"))


def profiled(loader: Any) -> fastdata.ProfileReport:
    return fastdata.profile(loader, SleepStep(0.004), seconds=0.5, progress=False)


def advised(report: fastdata.ProfileReport) -> list[Any]:
    return [fix for fix in report.fixes if fix.text.startswith("num_workers=")]


def prefetched(loader: Any) -> Any:
    return fastdata.CUDAPrefetcher(loader, "cpu", torch.neg)


class Custom(DataLoader[Any]):
    """A subclass, which is made anew as the stock one."""


LOADERS: dict[str, Callable[[], Any]] = {
    "stock": lambda: DataLoader(Samples("read"), 4),
    "subclass": lambda: Custom(Samples("read"), 4),
    "packed": lambda: fastdata.loader(
        MemoryData(200, size=(8, 8)), batch_size=4, num_workers=0, transform=_wait
    ),
    "prefetched": lambda: prefetched(DataLoader(Samples("read"), 4, num_workers=1)),
}


def _wait(image: torch.Tensor) -> torch.Tensor:
    time.sleep(0.006)
    return image


@pytest.mark.parametrize("name", list(LOADERS))
def test_more_workers_are_tried_and_the_gain_is_what_was_seen(name: str) -> None:
    loader = LOADERS[name]()
    for _ in range(3):  # cores that are very busy with others may hide it
        report = profiled(loader)
        if found := advised(report):
            break
    (fix,) = found
    assert fix.text.startswith("num_workers=2 (now ")
    assert ", tried for a moment" in fix.text
    assert not fix.at_most
    # 24 ms and the step, or 24 beside it, become 12.
    assert 1.2 < fix.speedup < 5
    assert "with 2 workers it waits" in report.verdict
    if isinstance(loader, fastdata.Loader):
        loader.close()


class SlowToSend:
    """A batch that takes long to be pickled, which nobody does without workers."""

    def __init__(self, samples: Any) -> None:
        self.batch = torch.stack(samples)

    def __reduce__(self) -> Any:
        time.sleep(0.07)
        return SlowToSend, ([self.batch[0]],)


def test_batches_that_take_long_to_hand_over_get_no_advice_to_do_so() -> None:
    report = profiled(DataLoader(Samples("read"), 4, collate_fn=SlowToSend))
    assert not advised(report), report
    assert "workers" not in report.verdict
    (note,) = (note for note in report.notes if "was tried" in note)
    assert note.startswith("num_workers=2 was tried for a moment, and is 0.")
    assert report.workers_to_saturate is None


class OnlyHere(Samples):
    """Samples that no worker can make."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            raise RuntimeError("its file is open elsewhere")
        return super().__getitem__(index)


def test_workers_that_fail_are_no_advice_and_that_is_said() -> None:
    report = profiled(DataLoader(OnlyHere("read"), 4))
    assert not advised(report)
    (note,) = (note for note in report.notes if "was tried" in note)
    assert note.endswith("and failed: RuntimeError: RuntimeError: its file is open elsewhere")


def test_what_cannot_be_tried_is_a_bound(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "some.lmdb", pictures(64, size=(40, 40)), PICTURES)
    options: Any = {"batch_size": 4, "num_workers": 0, "transform": _wait}
    with fastdata.loader(path, cache="ram", **options) as loader:
        report = profiled(loader)
    (fix,) = advised(report)
    assert fix.at_most
    assert "not tried, as a cache would have to be filled" in fix.text
    places = [fix.at_most for fix in report.fixes if fix.speedup > 1]
    assert places == sorted(places)


def test_a_kept_tuning_says_which_number_is_tried() -> None:
    loader = DataLoader(Samples("read"), 4)
    key = loader_factory(loader, {}).key
    assert key is not None
    curve = Point(0, 41.0), Point(1, 40.0), Point(2, 39.0)  # whatever a model would say
    settings = Settings(1, "process", backend="torch")
    tuned = TunedSettings(settings, 4, "a verdict", False, 40.0, None, curve)
    assert store.save(key, tuned) is not None
    found = store.find(key)
    assert found is not None
    assert found.tuned == tuned
    report = profiled(loader)
    assert all(fix.text.startswith("num_workers=1 (now 0)") for fix in advised(report))
    (note,) = (note for note in report.notes if "tune-workers measured on 20" in note)
    assert note.endswith("0: 41, 1: 40, 2: 39")


# -- cores of others -------------------------------------------------------------------------

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")
Own = namedtuple("Own", "user system children_user children_system")


class Machine:
    """Counts of a machine, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores_: int, cgroup: Path) -> None:
        self.now, self.busy, self.own = 0.0, [0.0] * cores_, [0.0, 0.0]
        self.file = cgroup / "cpu.stat"
        self.group(0.0)
        monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(cores_)), False)
        monkeypatch.setattr(cores.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(psutil, "cpu_times", self._times)
        monkeypatch.setattr(psutil, "Process", lambda: self._process(self.own[0], [self.own[1]]))

    def _times(self, percpu: bool) -> list[Any]:
        return [Times(0, 0, busy, 99 * self.now, 7 * self.now, *[0] * 5) for busy in self.busy]

    def _process(self, seconds: float, children: list[float]) -> Any:
        return SimpleNamespace(
            cpu_times=lambda: Own(0, 0, 0, seconds),
            children=lambda recursive: [self._process(child, []) for child in children],
        )

    def group(self, seconds: float) -> None:
        self.file.write_text(f"usage_usec {round(seconds * 1e6)}\nuser_usec 0\n")


@pytest.mark.parametrize(
    ("quota", "group", "others"),
    [
        ("max", 5.0, 1.0),  # of eight seconds on cores five are ours, with those of a child
        ("200000", 5.0, 0.0),  # others have nothing of what two cores' worth of time we may use
        ("200000", 7.0, 2 / 3),  # but those in our group have
        ("300000", 5.0, 0.0),
        ("400000", 5.0, 1.0),
    ],
)
def test_cores_of_others_are_what_this_process_and_its_children_do_not_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, group: float, others: float
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota} 100000")
    machine = Machine(monkeypatch, 4, tmp_path)
    meter = CoresOfOthers(tmp_path)
    assert meter.cores == 0
    machine.busy, machine.now = [50.0] * 4, 10.0  # before it begins
    meter.begin()
    machine.busy, machine.now = [52.0] * 4, 13.0
    machine.own = [3.0, 2.0]
    machine.group(group)
    meter.end()
    assert meter.cores == pytest.approx(others)
