"""``cache="ram"``: the same batches, bit for bit, from memory that stays."""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import MemoryData, digest
from process_helpers import wait_until
from samples import SUFFIXES
from worker_helpers import PICTURES, damage_image, layouts, pictures, worker_threads

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.cache import ram as ram_module
from fastdata.cache.ram import FileCopy, RamCacheBackend
from fastdata.codecs.decoders import jpeg_decoder
from fastdata.engine.work import BatchWork
from fastdata.engine.workers import WorkerOptions
from fastdata.errors import OptionError, ShardCorruptError
from fastdata.transforms.pipeline import Pipeline

WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2, "worker_method": "thread"},
    {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "fork"},
    {"num_workers": 2, "worker_method": "process", "multiprocessing_context": "forkserver"},
]
OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "shuffle": True,
    "transform": [T.RandomResizedCrop(20), T.RandomHorizontalFlip()],
}


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    """The same pictures in every container, whole and in shards."""
    return layouts(tmp_path, pictures(60), PICTURES)


def in_memory_soon(loader: Any) -> bool:
    """Wait until all shards are read from memory; pytest ends a wait that has no end."""
    while not all(shard.in_memory for shard in loader.dataset.shards):
        time.sleep(0.01)
    return True


def empty(path: Path) -> None:
    """Overwrite a shard's file, or those in a folder, with zeros, where they are mapped."""
    for file in [path] if path.is_file() else path.iterdir():
        if file.suffix in SUFFIXES.values():
            with open(file, "r+b") as shard:
                shard.write(bytes(os.path.getsize(file)))


@pytest.mark.parametrize("workers", WORKERS, ids=str)
def test_the_file_is_not_read_any_more(paths: dict[str, Path], workers: dict[str, Any]) -> None:
    with fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=0) as plain:
        wanted = [digest(plain) for _ in range(3)]
    for path in paths.values():
        with fastdata.loader(path, **OPTIONS, **workers, cache="ram") as loader:
            assert digest(loader) == wanted[0]
            assert in_memory_soon(loader)
            empty(path)
            assert [digest(loader), digest(loader)] == wanted[1:]
            assert not any("fastdata cache" in name for name in worker_threads())


def test_views_are_made_of_what_is_in_memory(paths: dict[str, Path]) -> None:
    views = T.Views(2, [T.RandomCrop(10)])
    options = {"batch_size": 8, "shuffle": True, "transform": views, "num_workers": 2}

    def of(loader: Any) -> str:
        return digest([(batch.label, *batch.image) for batch in loader])

    with fastdata.loader(paths["lmdb"], **options) as plain:
        wanted = [of(plain) for _ in range(2)]
    with fastdata.loader(paths["lmdb"], **options, cache="ram") as loader:
        assert of(loader) == wanted[0]
        assert in_memory_soon(loader)
        empty(paths["lmdb"])
        assert of(loader) == wanted[1]


def test_what_is_given_to_a_backend_is_not_changed(paths: dict[str, Path]) -> None:
    dataset: Any = fastdata.open(paths["lmdb"])
    views = T.Views(2, [T.RandomCrop(10)])
    work = BatchWork(dataset, Pipeline((views,), dataset.schema), jpeg_decoder())
    backend = RamCacheBackend(work, WorkerOptions(0))
    assert backend.work.dataset is not dataset
    assert all(part.dataset is backend.work.dataset for part in backend.work.parts)
    assert all(part.dataset is dataset for part in (work, *work.parts))
    backend.close()


def test_columns_and_other_fields_come_from_memory_too(paths: dict[str, Path]) -> None:
    with fastdata.loader(paths["lmdb"], cache="ram", num_workers=0) as loader:
        dataset = loader.dataset
        wanted = [dataset._describe_sample(3), dataset._gather("label", np.arange(60)).tolist()]
        iter(loader)
        assert in_memory_soon(loader)
        empty(paths["lmdb"])
        found = [dataset._describe_sample(3), dataset._gather("label", np.arange(60)).tolist()]
        assert found == wanted


def test_the_memory_it_takes_is_said_and_given_back(
    paths: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "fastdata")
    loader = fastdata.loader(paths["lmdb"], cache="ram")
    size = paths["lmdb"].stat().st_size
    assert loader.stats().cache_bytes == size
    assert any("takes" in said and "of host memory" in said for said in caplog.messages)
    with loader:
        next(iter(loader))
        assert in_memory_soon(loader)
    (shard,) = loader.dataset.shards
    assert not shard.in_memory
    loader.close()


def test_what_does_not_fit_is_refused(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ram_module, "available_bytes", lambda: 1000)
    with pytest.raises(OptionError, match=r"cache=\"ram\": .*of which 1.00kB are left"):
        fastdata.loader(paths["lmdb"], cache="ram")


def test_data_without_files_are_refused() -> None:
    with pytest.raises(OptionError, match=r"MemoryData\(50\) has none"):
        fastdata.loader(MemoryData(50), cache="ram")


@pytest.mark.parametrize("layout", ["lmdb", "lmdb shards", "hdf5"])
def test_a_rank_holds_its_part_alone(paths: dict[str, Path], layout: str) -> None:
    path = paths.get(layout) or next(p for name, p in paths.items() if name.startswith(layout[:4]))
    whole = sum(shard.file_bytes for shard in fastdata.open(path).shards)
    seen = []
    for rank in range(2):
        share = {"rank": rank, "world_size": 2, "cache_scope": "rank"}
        with fastdata.loader(path, **OPTIONS, **share, cache="device", num_workers=0) as other:
            labels = np.concatenate([batch.label.numpy() for batch in other])
        with fastdata.loader(path, **OPTIONS, **share, cache="ram", num_workers=2) as loader:
            found = np.concatenate([batch.label.numpy() for batch in loader])
            assert (found == labels).all()
            assert in_memory_soon(loader)
            assert loader.stats().cache_bytes <= whole
            wanted = digest(loader)
            loader.set_epoch(1)
            assert digest(loader) == wanted
            seen += found.tolist()
    assert len(seen) == 60


def test_of_a_subset_its_own_samples_are_held(tmp_path: Path) -> None:
    big = layouts(tmp_path, pictures(40, "raw", (200, 200)), PICTURES)["lmdb"]
    subset = fastdata.open(big)[5:9]
    wanted = digest(fastdata.loader(subset, batch_size=2, num_workers=0))
    with fastdata.loader(subset, batch_size=2, num_workers=0, cache="ram") as loader:
        assert digest(loader) == wanted
        assert in_memory_soon(loader)
        assert loader.stats().cache_bytes < 8 * 200 * 200 * 3
        empty(big)
        assert digest(loader) is not None
        loader.set_epoch(0)
        assert digest(loader) == wanted


def test_stand_ins_are_of_the_part_that_is_held(paths: dict[str, Path]) -> None:
    damage_image(paths["lmdb"], *range(0, 60, 3))
    share = {"rank": 0, "world_size": 2, "cache_scope": "rank", "on_corrupt": "skip"}
    with fastdata.loader(paths["lmdb"], **OPTIONS, **share, cache="ram", num_workers=2) as loader:
        first = digest(loader)
        assert in_memory_soon(loader)
        loader.set_epoch(0)
        assert digest(loader) == first
        assert loader.stats().skipped_samples > 0


def test_a_file_that_was_written_to_is_said(paths: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    shutil.copy(paths["lmdb"], copy)
    held = FileCopy(copy, copy.stat().st_size)
    os.utime(copy, ns=(1, 1))
    with pytest.raises(ShardCorruptError, match="has been written to since it was opened"):
        held.fill([(0, 100)], lambda: True)
    assert not held.complete
    held.close()


def test_a_file_that_was_cut_is_said(paths: dict[str, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.lmdb"
    shutil.copy(paths["lmdb"], copy)
    size = copy.stat().st_size
    held = FileCopy(copy, size)
    os.truncate(copy, size // 2)
    with pytest.raises(ShardCorruptError, match="somebody has cut it"):
        held.fill([(0, size)], lambda: True)
    assert not held.complete
    held.close()
    held.close()


def test_a_file_that_was_replaced_is_not_read(
    paths: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = digest(fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=0))
    with fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=0, cache="ram") as loader:
        _ = list(loader.dataset.shards)  # open
        other = tmp_path / "other"
        other.write_bytes(bytes(paths["lmdb"].stat().st_size))
        other.replace(paths["lmdb"])
        assert digest(loader) == wanted
        wait_until(lambda: "has been replaced since it was opened" in caplog.text)


def test_what_cannot_be_held_goes_on_to_be_read_from_the_file(
    paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: FileCopy, *given: Any) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(FileCopy, "fill", fail)
    wanted = digest(fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=0))
    with fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=2, cache="ram") as loader:
        assert digest(loader) == wanted
        assert not any(shard.in_memory for shard in loader.dataset.shards)
        wait_until(lambda: "Input/output error" in caplog.text)


def test_leaving_while_it_fills(paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """That no thread is left is seen by the fixture that all tests have."""
    fill = FileCopy.fill

    def slow(self: FileCopy, ranges: Any, go_on: Any) -> bool:
        while go_on():
            time.sleep(0.01)
        return fill(self, ranges, go_on)

    monkeypatch.setattr(FileCopy, "fill", slow)
    loader = fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=2, cache="ram")
    next(iter(loader))
    loader.close()
    dropped = fastdata.loader(paths["lmdb"], **OPTIONS, num_workers=2, cache="ram")
    next(iter(dropped))
    del dropped


def test_on_another_device(paths: dict[str, Path]) -> None:
    with fastdata.loader(paths["lmdb"], **OPTIONS, cache="ram", device="meta") as loader:
        assert next(iter(loader)).image.device == torch.device("meta")
