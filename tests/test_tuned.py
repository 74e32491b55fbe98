"""Tuned results that are kept: used where everything is as it was measured, and nowhere else."""

from __future__ import annotations

import functools
import importlib.util
import json
import logging
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import write_shard
from torch.utils.data import IterableDataset, TensorDataset
from tune_helpers import Squares
from worker_helpers import PICTURES, RRC, pictures

import fastdata
from fastdata import assembly
from fastdata import options as loader_options
from fastdata import transforms as T  # noqa: N812
from fastdata.formats.layout import canonical_json
from fastdata.measuring.windows import Rate
from fastdata.native.library import compiled
from fastdata.options import LoaderOptions
from fastdata.processes.resources import default_workers
from fastdata.tuned_settings import key as keys
from fastdata.tuned_settings import store
from fastdata.tuned_settings.key import identity_of, key_of, resolve_auto_settings
from fastdata.tuned_settings.settings import Settings
from fastdata.tuned_settings.store import Key, TunedSettings
from fastdata.tuning import listing
from fastdata.tuning.report import Demand, Trial, TuningResult

TUNED = Settings(7, "thread", prefetch_factor=5)
PROCESSES = Settings(1, "process", prefetch_factor=4, backend="torch")
WITH = {"batch_size": 4, "transform": RRC}


def tuned(settings: Settings = TUNED) -> TunedSettings:
    """Return what is kept, with something in every field."""
    return TunedSettings(settings, 4, "keeps the step busy", True, 20.5, 10.0)


def result(settings: Settings = TUNED) -> TuningResult:
    """Return a result with something in every field."""
    rate = Rate(20.5, 19.0, 22.0, (19.0, 20.5, 22.0))
    return TuningResult(
        settings,
        "keeps the step busy",
        True,
        4,
        demand=Demand(Rate(10.0, 9.5, 10.5), "a simulated step of 100 ms"),
        trained=Rate(9.9, 9.8, 10.0),
        trials=(Trial(settings, rate, start_seconds=0.1), Trial(PROCESSES, None, "it died")),
        advice=("nothing",),
        notes=("a note",),
    )


def options_of(data: Any, **options: Any) -> tuple[Any, LoaderOptions]:
    """Return the data and options that a loader asks with."""
    asked: list[tuple[Any, LoaderOptions]] = []

    def remember(data: Any, options: LoaderOptions) -> LoaderOptions:
        asked.append((data, options))
        return options

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "resolve_auto_settings", remember)
        fastdata.loader(data, **options)
    return asked[0]


def keep(data: Any, settings: Settings = TUNED, **options: Any) -> Key:
    """Keep a result for a loader."""
    key = key_of(*options_of(data, **options))
    assert key is not None
    assert store.save(key, tuned(settings)) is not None
    return key


def chosen(data: Any, **options: Any) -> tuple[Any, ...]:
    """Return what a loader takes for workers, method and batches ahead."""
    by = fastdata.loader(data, **options).backend.workers  # type: ignore[union-attr]
    return by.num_workers, by.method, by.prefetch_factor


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for each test, in a process that has said nothing yet."""
    folder = tmp_path / "tuned"
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(folder))
    monkeypatch.setattr(store, "_logged", set())
    monkeypatch.setattr(loader_options, "default_workers", lambda: 2)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A packed dataset of a test's own."""
    return write_shard(tmp_path / "train.lmdb", pictures(12), PICTURES)


# -- used, and not used -------------------------------------------------------------


def test_a_kept_result_is_used_all_of_it(data: Path) -> None:
    by_rule = chosen(data, **WITH)
    keep(data, **WITH)
    assert chosen(data, **WITH) == (7, "thread", 5) != by_rule
    assert by_rule[2] == 2


def test_what_is_given_stays_as_given(data: Path) -> None:
    keep(data, **WITH)
    assert chosen(data, **WITH, prefetch_factor=3) == (7, "thread", 3)
    assert chosen(data, **WITH, num_workers=1) == (1, "thread", 2)
    # Settings were measured together: with other workers their number says nothing.
    by_rule = chosen(data, **WITH, worker_method="process")
    assert by_rule == (loader_options.default_workers(), "process", 2)


TRAIN = """
import json, logging, sys
import fastdata
from fastdata import transforms as T

WITH = 1

def darken(image):
    return image // 2 * WITH

def build(data, **options):
    return fastdata.loader(data, transform=[T.RandomResizedCrop(24), darken], **options)

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    data, options = json.loads(sys.argv[1])
    for each in options:
        by = build(data, **each).backend.workers
        print(by.num_workers, by.method, by.prefetch_factor)
"""


def run(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_result_of_one_process_is_used_in_a_new_one(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def module(path: Path, text: str) -> Any:
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        found = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, found)
        spec.loader.exec_module(found)
        return found

    # Measured where the script is a module, used where it runs, with strings hashed otherwise.
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    darker = module(tmp_path / "darker.py", TRAIN.replace("image // 2", "image // 3"))
    keep(data, batch_size=4, transform=[T.RandomResizedCrop(24), module(script, TRAIN).darken])
    opened = fastdata.open(data)
    options = options_of(opened, batch_size=4, transform=[RRC[0], darker.darken])[1]
    assert resolve_auto_settings(opened, options) is options

    rule = f"{default_workers()} {'process' if default_workers() > 1 else 'thread'} 2"
    cases = json.dumps([str(data), [{"batch_size": 4}, {"batch_size": 5}, {"batch_size": 4}]])
    used = run(script, cases, PYTHONHASHSEED="2")
    assert used.stdout.splitlines() == ["7 thread 5", rule, "7 thread 5"]
    said = [line for line in used.stderr.splitlines() if "tuned settings" in line]
    assert len(said) == 1
    assert said[0].startswith(f"INFO tuned settings for {data}: 7 threads, prefetch 5 (measured 20")


def set_env(name: str, value: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setenv(name, value)


def set_in(module: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(module, name, value)


@pytest.mark.parametrize(
    "change",
    [
        set_env("LOCAL_WORLD_SIZE", "2"),
        set_in(keys, "available_cores", lambda: 99),
        set_in(keys, "cpu_quota", lambda: 1.5),
        set_in(keys, "limit_bytes", lambda: 2**33),
        set_in(keys.platform, "node", lambda: "another-host"),
        set_in(keys, "_processor", lambda: "another processor"),
        set_in(keys, "_gpus", lambda: {"names": ["another GPU"], "driver": "1", "cuda": "12"}),
        set_in(keys, "_dali", lambda: "99.0"),
        set_in(keys.cv2, "__version__", "99.0"),
        set_in(keys, "compiled", lambda: None),
        set_in(keys.torch, "__version__", "99.0"),
        set_in(keys, "__version__", "99.0"),
        set_env("FASTDATA_TUNED", "0"),
    ],
)
def test_a_result_of_another_machine_is_not_used(
    data: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    keep(data, **WITH)
    with monkeypatch.context() as patch:
        change(patch)
        assert chosen(data, **WITH)[0] != 7
    assert chosen(data, **WITH)[0] == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"batch_size": 5},
        {"transform": [T.RandomResizedCrop(25), T.RandomHorizontalFlip()]},
        {"transform": RRC[:1]},
        {"transform": [*RRC, T.ToDtype(torch.float16)]},
        {"transform": None, "batch_size": 1},
        {"dtype": torch.float32},
        {"device": "meta"},
        {"decoder": "pil"},
        {"decoder": "native"},
        {"shuffle": True},
        {"shuffle": "block"},
        {"sampler": [3, 1, 2]},
        {"weights": np.ones(12)},
        {"cache": "ram"},
        {"multiprocessing_context": "spawn"},
    ],
)
def test_a_result_of_other_work_is_not_used(data: Path, changed: dict[str, Any]) -> None:
    if changed.get("decoder") == "native" and not compiled():
        pytest.skip("no compiled library")
    keep(data, **WITH)
    _, options = options_of(data, **{**WITH, **changed})
    assert resolve_auto_settings(fastdata.open(data), options) is options


def test_the_processor_is_the_device_of_batches_without_one(data: Path) -> None:
    keep(data, **WITH)
    assert chosen(data, **WITH, device="cpu")[0] == 7


@pytest.mark.parametrize(
    "same",
    [
        {"seed": 5},
        {"drop_last": True},
        {"rank": 1, "world_size": 2},
        {"persistent_workers": False},
        {"on_corrupt": "skip"},
        {"transform": tuple(RRC)},
    ],
)
def test_what_leaves_rates_as_they_are_does_not_matter(data: Path, same: dict[str, Any]) -> None:
    keep(data, **WITH)
    assert chosen(data, **{**WITH, **same})[0] == 7


def test_not_after_the_dataset_is_packed_anew(data: Path) -> None:
    keep(data, **WITH)
    records = pictures(12)
    write_shard(data, [records[1], *records[1:]], PICTURES)
    assert chosen(data, **WITH)[0] != 7
    write_shard(data, records, PICTURES)
    assert chosen(data, **WITH)[0] == 7
    assert chosen(fastdata.open(data)[:6], **WITH)[0] != 7


def test_the_same_samples_in_another_container_are_the_same(data: Path) -> None:
    keep(data, **WITH)
    assert chosen(write_shard(data.with_suffix(".h5"), pictures(12), PICTURES), **WITH)[0] == 7


def test_several_shards_have_a_result_of_their_own(data: Path) -> None:
    other = write_shard(data.with_name("other.lmdb"), pictures(5), PICTURES)
    keep([data, other], **WITH)
    assert chosen([data, other], **WITH)[0] == 7
    assert chosen(data, **WITH)[0] != 7


def test_all_ranks_find_the_same(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = set()
    for rank in "0", "1":
        monkeypatch.setenv("LOCAL_RANK", rank)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", rank)
        key = key_of(*options_of(data, **WITH, rank=int(rank), world_size=2))
        assert key is not None
        found.add(key.digest)
    assert len(found) == 1


def test_no_result_changes_the_backend(data: Path) -> None:
    dali = replace(TUNED, backend="dali")
    keep(data, dali, **WITH)  # which no tuning does
    opened = fastdata.open(data)
    for given in {}, {"backend": "cpu"}, {"worker_method": "process"}, {"decoder": "pil"}:
        _, options = options_of(opened, **WITH, **given)
        assert resolve_auto_settings(opened, options) is options
    keep(data, **WITH)
    _, options = options_of(opened, **WITH)
    assert resolve_auto_settings(opened, options).num_workers == 7
    assert resolve_auto_settings(opened, options).backend == "auto"


def test_a_result_with_dali_is_for_loaders_that_are_given_it(data: Path) -> None:
    opened = fastdata.open(data)
    _, options = options_of(opened, **WITH)
    options = replace(options, backend="dali")
    key = key_of(opened, options)
    assert key is not None
    assert store.save(key, tuned(replace(TUNED, backend="dali"))) is not None
    assert resolve_auto_settings(opened, options).num_workers == 7
    auto = replace(options, backend="auto")
    assert resolve_auto_settings(opened, auto) is auto


def test_where_nothing_is_kept_nothing_is_described(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "key_of", lambda *_: pytest.fail("a key was made"))
    _, options = options_of(data, **WITH)
    assert resolve_auto_settings(fastdata.open(data), options) is options


def test_workers_beyond_reason_are_not_started(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for settings, why in (
        (Settings(1000), "1000 workers"),
        (Settings(1, prefetch_factor=100), "a prefetch_factor of 100"),
    ):
        keep(data, settings, **WITH)
        assert chosen(data, **WITH)[0] == loader_options.default_workers()
        assert why in caplog.text


def test_it_is_said_once(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fastdata")
    keep(data, **WITH)
    for _ in range(3):
        chosen(data, **WITH)
    said = [record for record in caplog.records if "tuned settings" in record.message]
    assert [record.levelname for record in said] == ["INFO"]
    assert f"{store.entries()[0].measured_at:%Y-%m-%d}" in said[0].message


# -- datasets that are not packed ------------------------------------------------------


def test_a_stock_loader_is_tuned_too() -> None:
    keep(Squares(), PROCESSES, batch_size=2)
    loader = fastdata.loader(Squares(), batch_size=2)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 4)  # type: ignore[union-attr]
    for other in Squares(9), Squares(scale=2.0):
        assert fastdata.loader(other, batch_size=2).num_workers != 1  # type: ignore[union-attr]
    collated = fastdata.loader(Squares(), batch_size=2, collate_fn=list)
    assert collated.num_workers != 1  # type: ignore[union-attr]


def test_tensors_are_compared_by_their_shape_and_dtype() -> None:
    keep(TensorDataset(torch.arange(6)), PROCESSES)
    same, other = TensorDataset(torch.arange(6) + 1), TensorDataset(torch.zeros(6))
    assert fastdata.loader(same).num_workers == 1  # type: ignore[union-attr]
    assert fastdata.loader(other).num_workers != 1  # type: ignore[union-attr]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (Stream(), "Stream is an IterableDataset.* attribute `digest`"),
        (Squares(scale=eval("lambda: 2")), "<lambda> is a function without a name"),
    ],
)
def test_without_a_sure_description_nothing_is_kept_and_that_is_said(
    dataset: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fastdata")
    asked = options_of(dataset)
    assert key_of(*asked) is None
    assert key_of(*asked) is None
    (said,) = (record.message for record in caplog.records)
    assert "no tuned result can be kept" in said
    assert re.search(why, said)


def test_a_dataset_may_say_what_it_holds() -> None:
    stream = Stream()
    stream.digest = "2024"  # type: ignore[attr-defined]
    keep(stream, PROCESSES)
    assert fastdata.loader(stream).num_workers == 1  # type: ignore[union-attr]
    stream.digest = "2025"  # type: ignore[attr-defined]
    assert fastdata.loader(stream).num_workers != 1  # type: ignore[union-attr]


def test_an_error_of_the_datasets_own_does_not_stop_a_loader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Squares):
        @property
        def digest(self) -> str:
            raise KeyError("no such thing")

    keep(Squares(), PROCESSES)
    for _ in range(2):
        assert len(fastdata.loader(Broken())) == 8  # type: ignore[arg-type]
    assert caplog.text.count("no such thing") == 1


def test_a_batch_sampler_needs_a_size() -> None:
    assert key_of(*options_of(Squares(), batch_sampler=[[1, 2], [3]])) is None
    sampler = torch.utils.data.BatchSampler(range(8), 2, False)
    assert key_of(*options_of(Squares(), batch_sampler=sampler)) is not None


class Shouting:
    """A callable whose ``repr`` is its own."""

    def __init__(self, loud: int) -> None:
        self.loud = loud

    def __repr__(self) -> str:
        return f"Shouting({self.loud})"


class Plain:
    """A callable whose ``repr`` has an address."""

    def __init__(self, size: int) -> None:
        self.size = size


def add(value: int, more: int = 1) -> int:
    return value + more


def adding(number: int) -> Callable[[int], int]:
    return lambda value: value + number


def darken(image: Any) -> Any:
    return image


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (0.1, 0.2),
        ([1, 2], [2, 1]),
        ([1], (1,)),
        ({"a": 1}, {"a": 2}),
        (list(range(1000)), list(range(1001))),
        (np.zeros(3), np.zeros(3, np.float32)),
        (torch.zeros(3), torch.zeros(4)),
        (torch.float16, torch.float32),
        (len, sum),
        (add, darken),
        (functools.partial(add, more=2), functools.partial(add, more=3)),
        (adding(1), adding(2)),
        (Shouting(1), Shouting(2)),
        (Plain(1), Plain(2)),
        (Plain, Shouting),
        (T.Normalize((0.5,), (0.1,)), T.Normalize((0.5,), (0.2,))),
        (T.PerSample(add), T.PerSample(darken)),
        (torch.nn.Linear(2, 2), torch.nn.Linear(2, 3)),
        (np.random.default_rng(1), torch.Generator()),
    ],
)
def test_different_things_have_different_identities(one: Any, other: Any) -> None:
    assert canonical_json(identity_of(one)) != canonical_json(identity_of(other))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plain(3),
        lambda: T.PerSample(add),
        lambda: [Plain({"a": Plain(1)})],
        lambda: adding(3),
        lambda: torch.nn.Linear(2, 2),
        lambda: np.random.default_rng(),
        lambda: {"b", "a"},
    ],
)
def test_an_address_is_no_part_of_an_identity(make: Callable[[], Any]) -> None:
    both = make(), make()
    assert canonical_json(identity_of(both[0])) == canonical_json(identity_of(both[1]))


def test_a_cycle_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    canonical_json(identity_of(ring))
    plain = Plain(1)
    plain.size = plain  # type: ignore[assignment]
    canonical_json(identity_of(plain))


# -- files ----------------------------------------------------------------------------


def damaged(change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Return a function from a sound file's bytes to a damaged one's."""

    def change_bytes(sound: bytes) -> bytes:
        document = json.loads(sound)
        changed = change(document)
        return json.dumps(document if changed is None else changed).encode()

    return change_bytes


@pytest.mark.parametrize(
    "damage",
    [
        lambda sound: b"",
        lambda sound: sound[: len(sound) // 2],
        lambda sound: b"\x80\x04\x95pickle",
        lambda sound: b"[" * 100_000,
        damaged(lambda document: [document]),
        damaged(lambda document: {"another": "program"}),
        damaged(lambda document: document.update(fastdata_tuned=1)),
        damaged(lambda document: document.update(measured_at="yesterday")),
        damaged(lambda document: document.update(measured_at=7)),
        damaged(lambda document: document.update(measured_at="2024-01-01T00:00:00")),
        damaged(lambda document: document.update(machine=[])),
        damaged(lambda document: document.update(tuned=None)),
        damaged(lambda document: document["work"].update(batch_size=5)),
        damaged(lambda document: document["tuned"].pop("verdict")),
        damaged(lambda document: document["tuned"].update(supply="fast")),
        damaged(lambda document: document["tuned"].update(batch_size="4")),
        damaged(lambda document: document["tuned"]["settings"].update(num_workers=-1)),
        damaged(lambda document: document["tuned"]["settings"].update(num_workers="7")),
        damaged(lambda document: document["tuned"]["settings"].update(prefetch_factor=0)),
        damaged(lambda document: document["tuned"]["settings"].update(prefetch_factor=10**9)),
        damaged(lambda document: document["tuned"]["settings"].update(num_workers=10**9)),
        damaged(lambda document: document["tuned"].update(streams=10**6)),
        damaged(lambda document: document["tuned"].update(batch_size=10**30)),
        damaged(lambda document: document["tuned"].update(supply=float("nan"))),
        damaged(lambda document: document["tuned"]["settings"].update(worker_method="fibre")),
        damaged(lambda document: document["tuned"]["settings"].update(backend="gpu")),
        damaged(lambda document: document["tuned"]["settings"].update(pin_memory=1)),
        damaged(lambda document: document["tuned"]["settings"].update(more=1)),
    ],
)
def test_a_damaged_file_is_as_good_as_absent(
    data: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    path = store.directory() / f"{keep(data, **WITH).digest}.json"
    path.write_bytes(damage(path.read_bytes()))
    for _ in range(2):
        assert chosen(data, **WITH)[0] == loader_options.default_workers()
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert str(path) in warning.message


def test_files_of_an_older_version_are_ignored_and_that_is_said_once(
    data: Path, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keep(data, **WITH)
    for number in range(3):
        (place / f"{number}.json").write_text('{"fastdata_tuned": 1, "result": {}}')
    assert [entry.tuned.settings for entry in store.entries()] == [TUNED]
    assert caplog.text.count(f"its version is 1, not {store.VERSION}") == 1


def test_a_damaged_file_hides_no_other(data: Path, place: Path) -> None:
    keep(data, **WITH)
    (place / "notes.json").write_text("shopping list")
    (place / "folder.json").mkdir()
    assert [entry.tuned.settings for entry in store.entries()] == [TUNED]


def test_a_place_that_cannot_be_written_is_a_warning(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FASTDATA_TUNED_DIR", str(tmp_path / "file" / "tuned"))
    key = key_of(*options_of(data, **WITH))
    assert key is not None
    assert store.save(key, tuned()) is None
    assert f"cannot be kept in {tmp_path / 'file' / 'tuned'}" in caplog.text
    assert "FASTDATA_TUNED_DIR" in caplog.text
    assert chosen(data, **WITH)[0] == loader_options.default_workers()
    assert store.entries() == []


def test_a_disk_that_fills_up_leaves_what_was_kept(
    data: Path, place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = keep(data, **WITH)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "replace", full)
    assert store.save(key, tuned(Settings(1))) is None
    assert "No space left on device" in caplog.text
    assert [file.name for file in place.iterdir()] == [f"{key.digest}.json"]
    assert chosen(data, **WITH)[0] == 7


def save_often(key: Key, settings: Settings) -> None:
    for _ in range(100):
        store.save(key, tuned(settings))


@pytest.mark.parametrize("what", ["folder's mode", "file's mode", "folder's owner", "file's owner"])
def test_what_others_may_have_written_is_not_used_and_that_is_said_once(
    data: Path, place: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    key = keep(data, **WITH)
    (path,) = place.glob("*.json")
    spoiled = place if "folder" in what else path
    if "mode" in what:
        spoiled.chmod(0o777)
    elif os.geteuid() != 0:
        pytest.skip("needs root")
    else:
        os.chown(spoiled, 12345, 12345)
    assert store.find(key) is None
    assert store.entries() == []
    (said,) = [record.getMessage() for record in caplog.records]
    assert "others" in said or "another user's" in said or "other users" in said
    assert "FASTDATA_TUNED_DIR" in said
    caplog.clear()
    if "folder" in what:
        assert store.save(key, tuned()) is None
        assert "FASTDATA_TUNED_DIR" in caplog.text


def test_the_folder_of_tuned_results_is_the_users_whatever_the_umask(
    data: Path, place: Path
) -> None:
    before = os.umask(0)
    try:
        key = keep(data, **WITH)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o077 for path in (place, *place.iterdir())] == [0, 0]
    assert store.find(key) is not None


def test_two_writers_and_a_reader_do_not_meet(data: Path, place: Path) -> None:
    key = keep(data, **WITH)
    context = multiprocessing.get_context("fork")
    both = [TUNED, Settings(2)]
    writers = [context.Process(target=save_often, args=(key, each)) for each in both]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or not reads:
        entry = store.find(key)
        assert entry is not None
        assert entry.tuned.settings in both
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
        writer.close()
    assert [file.name for file in place.iterdir()] == [f"{key.digest}.json"]


def test_a_result_comes_back_as_it_was(data: Path) -> None:
    key = keep(data, **WITH)
    entry = store.find(key)
    assert entry is not None
    assert entry.key == key
    assert entry.tuned == tuned()


def test_a_result_is_the_same_after_json() -> None:
    plain = result().to_json()
    assert TuningResult.from_json(json.loads(json.dumps(plain))) == result()
    for damage in {"trials": 7}, {"batch_size": "4"}, {"demand": {}}, {"more": 1}:
        with pytest.raises(ValueError, match=r"trials is 7|batch_size|fields"):
            TuningResult.from_json({**plain, **damage})


def test_a_path_that_is_no_text_is_kept_too(tmp_path: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.lmdb"))
    keep(write_shard(odd, pictures(3), PICTURES))
    assert chosen(odd)[0] == 7


def test_by_default_it_is_the_users_state_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTDATA_TUNED_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/somewhere/state")
    if sys.platform == "linux":
        assert store.directory() == Path("/somewhere/state/fastdata/tuned")


# -- what people ask for -----------------------------------------------------------------


def test_show_lists_what_is_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert listing.show() == []
    keep(data, **WITH)
    (row,) = listing.show()
    assert json.loads(json.dumps(row)) == row
    assert row["dataset"] == str(data)
    assert (row["batch_size"], row["supply"], row["demand"]) == (4, 20.5, 10.0)
    assert (row["settings"], row["here"]) == ("7 threads, prefetch 5", True)
    monkeypatch.setattr(keys.platform, "node", lambda: "another-host")
    assert listing.show()[0]["here"] is False


def test_forget_all_or_one_dataset(data: Path) -> None:
    other = write_shard(data.with_name("other.h5"), pictures(5), PICTURES)
    for options in WITH, {**WITH, "batch_size": 2}:
        keep(data, **options)
    keep(other)
    assert len(listing.show()) == 3
    moved = data.rename(data.with_name("moved.lmdb"))
    assert listing.forget(moved) == 2
    other.unlink()
    assert [row["dataset"] for row in listing.show()] == [str(other)]
    assert listing.forget(data) == 0
    assert listing.forget(other) == 1
    keep(moved)
    assert listing.forget() == 1
    assert listing.forget() == 0


# -- the machine ------------------------------------------------------------------------------


def test_gpus_are_told_by_the_drivers_files_without_starting_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "DRIVER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was started"))
    assert keys._gpus()["names"] == []
    for number, name in enumerate(("NVIDIA B", "NVIDIA A")):
        folder = tmp_path / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 4\n")
    (tmp_path / "version").write_text("NVRM version: 550.1\nGCC version: 12\n")
    found = keys._gpus()
    assert (found["names"], found["driver"]) == (["NVIDIA A", "NVIDIA B"], "NVRM version: 550.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert keys._gpus() is None
