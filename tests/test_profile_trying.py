"""Advice about workers is tried before it is given; cores that others use are counted."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from cgroup_helpers import in_cgroups
from memory_data import MemoryData
from profile_helpers import Clock, Samples
from samples import write_shard
from torch.utils.data import DataLoader, get_worker_info
from worker_helpers import PICTURES, pictures

import fastdata
from fastdata.measuring import cores
from fastdata.measuring.cores import CoresOfOthers
from fastdata.measuring.factories import loader_factory
from fastdata.profiling import model, trying
from fastdata.profiling.batches import batches_of
from fastdata.profiling.rates import compare_loaders
from fastdata.steps import SleepStep
from fastdata.tuned_settings import store
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Point, TunedSettings


@pytest.fixture(autouse=True)
def few_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have no more than two workers tried, and nothing kept."""
    monkeypatch.setattr(model, "MAX_WORKERS", 2)
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(tmp_path / "tuned"))


STEP = SleepStep(0.004)


def profiled(loader: Any) -> fastdata.ProfileReport:
    return fastdata.profile(loader, STEP, seconds=0.2, progress=False)


class Trial:
    """Takes the place of a trial's clock: `seconds` are what a step takes with each loader.

    Each makes a batch; `workers` are how many it does that with.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds = {"now": 0.028, "then": 0.014}
        self.workers: dict[str, int] = {}
        patch.setattr(trying, "compare_loaders", self._compare)

    def _compare(self, loaders: Any, *arguments: Any, **options: Any) -> dict[str, float]:
        for name, (batches, _) in loaders.items():
            next(batches)
            self.workers[name] = batches.workers
        return self.seconds


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    """What trials find is given."""
    return Trial(monkeypatch)


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
def test_more_workers_are_tried_and_the_gain_is_what_was_seen(name: str, trial: Trial) -> None:
    loader = LOADERS[name]()
    report = profiled(loader)
    assert trial.workers == {"now": int(name == "prefetched"), "then": 2}
    (fix,) = advised(report)
    assert fix.text.startswith("num_workers=2 (now ")
    assert ", tried for a moment" in fix.text
    assert not fix.at_most
    assert fix.speedup == pytest.approx(2)
    assert "with 2 workers it waits" in report.verdict
    if isinstance(loader, fastdata.Loader):
        loader.close()


def test_a_trial_runs_both_loaders() -> None:
    (fix,) = advised(profiled(DataLoader(Samples("read"), 4)))
    assert ", tried for a moment" in fix.text
    assert not fix.at_most


class Slow:
    """An iterable whose batches take a time each."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(20):
            time.sleep(self.seconds)
            yield torch.zeros(4, 3)


def test_loaders_are_compared_by_what_a_step_takes_with_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Clock(monkeypatch)
    with batches_of(Slow(0.024)) as now, batches_of(Slow(0.07)) as then:
        loaders = {"now": (now, 0.028), "then": (then, 0.016)}
        found = compare_loaders(loaders, STEP, torch.device("cpu"), seconds=0.5)
    assert found == pytest.approx({"now": 0.028, "then": 0.074})


def test_more_workers_that_are_slower_are_no_advice(trial: Trial) -> None:
    trial.seconds["then"] = 0.04
    report = profiled(DataLoader(Samples("read"), 4))
    assert not advised(report), report
    assert "workers" not in report.verdict
    (note,) = (note for note in report.notes if "was tried" in note)
    assert note == "num_workers=2 was tried for a moment, and is 0.70 times as fast"
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
    in_cgroups(tmp_path, monkeypatch, {"cpu.max": f"{quota} 100000"})
    machine = Machine(monkeypatch, 4, tmp_path / "sys/fs/cgroup")
    meter = CoresOfOthers()
    assert meter.cores == 0
    machine.busy, machine.now = [50.0] * 4, 10.0  # before it begins
    meter.begin()
    machine.busy, machine.now = [52.0] * 4, 13.0
    machine.own = [3.0, 2.0]
    machine.group(group)
    meter.end()
    assert meter.cores == pytest.approx(others)
