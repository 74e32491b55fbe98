"""Datasets in stores: the batches of the files, whatever cache, network and others do.

Most of it by a plain HTTP server, which is quick and has faults when told to; S3 is moto's.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest
import torch
from object_server import has_s3
from process_helpers import in_child
from range_server import RangeServer, range_server
from remote_helpers import (
    COUNT,
    assert_same,
    batches_of,
    downloaders,
    end_downloaders,
    joined,
    loader_of,
    needs_store,
    total_bytes,
)
from torch.utils.data import DataLoader
from warm_python import WarmPython

import fastdata
from fastdata import transforms
from fastdata.errors import (
    DatasetNotFoundError,
    FormatError,
    ObjectChangedError,
    OptionError,
    ShardCorruptError,
    StorageError,
)
from fastdata.remote import downloader
from fastdata.remote import supply as supply_module
from fastdata.remote.folder import CacheFolder

pytestmark = needs_store

TRANSFORM = [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip()]


def crops_of(data: Any, **options: Any) -> Any:
    """Return a loader of crops of JPEGs, with workers, unless it is told otherwise."""
    usual: dict[str, Any] = {"batch_size": 12, "transform": TRANSFORM, "num_workers": 2}
    # A tenth of the dataset has room for the blocks that are in use at once.
    order = fastdata.BlockShuffle(block_size=4, window_blocks=2, lanes=2)
    return loader_of(data, **{"shuffle": order, **usual, **options})


# -- the same batches --------------------------------------------------------------------------


@pytest.mark.usefixtures("cache")
def test_a_split_of_a_store_is_that_of_the_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fields = {
        "image": fastdata.schema.ImageField(),
        "label": fastdata.schema.ScalarField(),
        "split": fastdata.schema.ScalarField(classes=("train", "val")),
    }
    rows = (
        {"image": rng.integers(0, 255, (24, 24, 3), np.uint8), "label": k, "split": k % 3 == 0}
        for k in range(60)
    )
    path = tmp_path / "served" / "both"
    fastdata.pack(rows, path, fields=fields, shard_size=25, num_workers=0, progress=False)
    with range_server(tmp_path / "served") as server:
        with pytest.raises(OptionError, match=r"several splits: train \(40 samples\)"):
            loader_of(f"{server.url}/both", batch_size=8)
        for split, count in (("train", 40), ("val", 20)):
            with loader_of(path, split=split, batch_size=8) as loader:
                local = batches_of(loader)
            assert sum(len(label) for _, label in local) == count
            with loader_of(f"{server.url}/both", split=split, batch_size=8) as loader:
                assert_same(batches_of(loader), local)


@pytest.mark.parametrize(("world_size", "percent"), [(1, 16), (4, 12), (2, None)])
def test_batches_are_those_of_the_files(
    server: RangeServer, packed: Path, cache: Path, world_size: int, percent: int | None
) -> None:
    whole = total_bytes(packed / "jpegs")
    data = fastdata.open(
        f"{server.url}/jpegs", cache_bytes=None if percent is None else whole // 100 * percent
    )
    options = {"batch_size": 12 // world_size, "world_size": world_size, "drop_last": True}
    loaders = [crops_of(data, rank=rank, **options) for rank in range(world_size)]
    local = crops_of(packed / "jpegs", drop_last=True)
    for epoch in range(2):
        expected = batches_of(local)
        of_ranks = [batches_of(loader) for loader in loaders]
        assert_same(joined(of_ranks), expected)
        if epoch == 0 and percent is not None:
            counts = data._supplied[0].supply.counts()
            assert counts["removed_blocks"] > 0, "the cache was too large for this test"
    for loader in [*loaders, local]:
        loader.close()


ORDERS = [True, False, "block", fastdata.BlockShuffle(1, 300)]


@pytest.mark.parametrize(
    ("name", "shuffle"),
    [
        *(("one.h5", order) for order in ORDERS),
        ("raw.lmdb", True),
        *(pytest.param("raw.lmdb", order, marks=pytest.mark.formats) for order in ORDERS[1:]),
    ],
)
def test_any_order_of_any_shard(
    server: RangeServer, packed: Path, cache: Path, shuffle: Any, name: str
) -> None:
    of_files = "lanes" if shuffle is True else shuffle
    remote = crops_of(f"{server.url}/{name}", shuffle=shuffle)
    local = crops_of(packed / name, shuffle=of_files)
    assert_same(batches_of(remote), batches_of(local))
    remote.close()
    local.close()


def test_samplers_weights_and_processes(server: RangeServer, packed: Path, cache: Path) -> None:
    chosen = np.random.default_rng(0).permutation(COUNT)[:140].tolist()
    for options in (
        {"sampler": chosen, "shuffle": False},
        {"weights": np.arange(COUNT), "shuffle": False},
        {"worker_method": "process"},
        {"worker_method": "process", "multiprocessing_context": "forkserver"},
        {"num_workers": 0},
    ):
        remote = crops_of(f"{server.url}/jpegs", **options)
        local = crops_of(packed / "jpegs", **options)
        assert_same(batches_of(remote), batches_of(local))
        remote.close()
        local.close()


def test_resuming_within_an_epoch(server: RangeServer, packed: Path, cache: Path) -> None:
    local = crops_of(packed / "jpegs")
    first, second = batches_of(local), batches_of(local)
    remote = crops_of(f"{server.url}/jpegs")
    for at, _ in enumerate(remote):
        if at == 10:
            state = remote.state_dict()
            break
    again = crops_of(f"{server.url}/jpegs")
    again.load_state_dict(state)
    assert_same(batches_of(again), first[11:])
    assert_same(batches_of(again), second)
    for loader in (local, remote, again):
        loader.close()


@pytest.mark.parametrize("used", ["a whole epoch", "a part of an epoch"])
def test_a_used_loader_loads_in_a_forked_process(
    server: RangeServer, packed: Path, cache: Path, used: str
) -> None:
    with crops_of(packed / "jpegs") as local, crops_of(f"{server.url}/jpegs") as remote:
        local.set_epoch(1)
        expected = batches_of(local)
        epoch = iter(remote)
        next(epoch)
        if used == "a whole epoch":
            list(epoch)
        labels = in_child(lambda: [batch.label.tolist() for batch in remote])
        assert labels == [label.tolist() for _, label in expected]
        del epoch
        assert_same(batches_of(remote), expected)


def test_stock_data_loaders_and_single_samples(
    server: RangeServer, packed: Path, cache: Path
) -> None:
    local = fastdata.open(packed / "jpegs")
    data = fastdata.open(f"{server.url}/jpegs")
    assert data.digest == local.digest
    assert data.classes == local.classes
    assert list(data.targets) == list(local.targets)
    for index in (0, 599, 150, 151, -1):
        assert torch.equal(data[index].image, local[index].image)
    assert torch.equal(pickle.loads(pickle.dumps(data))[7].image, local[7].image)
    stock = DataLoader(data, 50, num_workers=2, multiprocessing_context="fork")
    for batch, other in zip(stock, DataLoader(local, 50), strict=True):
        assert torch.equal(batch.image, other.image)


def test_parts_and_several_datasets(server: RangeServer, packed: Path, cache: Path) -> None:
    local = fastdata.open(packed / "jpegs")
    data = fastdata.open(f"{server.url}/jpegs")
    half = np.arange(0, COUNT, 2)
    one, other = crops_of(data[half]), crops_of(local[half])
    assert_same(batches_of(one), batches_of(other))
    copy = shutil.copytree(packed / "jpegs", cache / "copy")
    mixed = fastdata.open([f"{server.url}/jpegs", packed / "jpegs"])
    files = fastdata.open([copy, packed / "jpegs"])
    both, plain = crops_of(mixed), crops_of(files)
    assert_same(batches_of(both), batches_of(plain))
    for loader in (one, other, both, plain):
        loader.close()


S3_EPOCHS = """
import os, sys
from pathlib import Path
import torch
from object_server import CREDENTIALS, s3_server
import fastdata
from fastdata.storage import open_store

folder, os.environ["FASTDATA_CACHE"] = sys.argv[1:]
os.environ.update(CREDENTIALS)
with s3_server() as server:
    url = server.bucket("bucket") + "/sets/jpegs"
    for path in Path(folder).iterdir():
        open_store(url, server.options).put(path.name, path)
    options = {"shuffle": "lanes", "batch_size": 12, "num_workers": 2}
    remote = fastdata.loader(url, storage_options=server.options, **options)
    local = fastdata.loader(folder, **options)
    for _ in range(2):
        for one, other in zip(remote, local, strict=True):
            assert torch.equal(one.image, other.image)
    print("the same")
"""


@pytest.mark.skipif(not has_s3(), reason="moto is not installed")
def test_s3(packed: Path, cache: Path, warm_python: WarmPython) -> None:
    ran = warm_python.run(S3_EPOCHS, packed / "jpegs", cache)
    assert ran.stdout == "the same\n", ran.stderr
    assert ran.returncode == 0, ran.stderr


# -- what goes wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["503", "reset", "cut"])
def test_faults_of_the_network_are_not_seen(
    server: RangeServer, packed: Path, cache: Path, fault: str
) -> None:
    server.fault = lambda number: fault if number % 9 == 5 else ""
    remote, local = crops_of(f"{server.url}/jpegs"), crops_of(packed / "jpegs")
    assert_same(batches_of(remote), batches_of(local))
    assert len(server.requests) > 20
    remote.close()
    local.close()


def test_the_downloader_is_killed(server: RangeServer, packed: Path, cache: Path) -> None:
    server.delay = 0.01
    whole = total_bytes(packed / "jpegs")
    remote = crops_of(f"{server.url}/jpegs", cache_bytes=whole // 100 * 15)
    local = crops_of(packed / "jpegs")
    found = []
    killed = set()
    for at, batch in enumerate(remote):
        found.append((batch.image.clone(), batch.label.clone()))
        if at % 12 == 3:
            for process in downloaders(cache):
                killed.add(process.pid)
                process.kill()
    assert_same(found, batches_of(local))
    assert len(killed) >= 3
    remote.close()
    local.close()


def test_bytes_that_are_damaged_in_the_cache_come_anew(
    server: RangeServer, packed: Path, cache: Path
) -> None:
    local = fastdata.open(packed / "jpegs")
    data = fastdata.open(f"{server.url}/jpegs")
    assert torch.equal(data[4].image, local[4].image)
    reader, row = data._locate(4)
    with open(reader.path, "r+b") as file:
        file.seek(int(reader.column("image.offset")[row]) + 200)
        file.write(b"damage" * 10)
    assert torch.equal(data[4].image, local[4].image)


def test_damage_in_files_that_were_removed_from_the_cache_is_an_error(
    server: RangeServer, cache: Path
) -> None:
    """As the downloader that had them open has gone too; nobody waits for ever."""
    data = fastdata.open(f"{server.url}/jpegs")
    _ = data[4]
    reader, row = data._locate(4)
    with open(reader.path, "r+b") as file:
        file.seek(int(reader.column("image.offset")[row]) + 200)
        file.write(b"damage" * 10)
    shutil.rmtree(reader.path.parent)
    end_downloaders(cache)
    with pytest.raises(StorageError, match=r"removed.*anew"):
        _ = data[4]


def test_damage_in_the_store_is_an_error_that_names_the_url(
    packed: Path, cache: Path, tmp_path: Path
) -> None:
    shutil.copytree(packed / "jpegs", tmp_path / "served" / "jpegs")
    reader, row = fastdata.open(tmp_path / "served" / "jpegs")._locate(4)
    with open(reader.path, "r+b") as file:
        file.seek(int(reader.column("image.offset")[row]) + 200)
        file.write(b"damage" * 10)
    with range_server(tmp_path / "served") as server:
        data = fastdata.open(f"{server.url}/jpegs")
        with pytest.raises(ShardCorruptError, match=f"{server.url}/jpegs/shard-.*checksum"):
            _ = data[4]
        loader = crops_of(data, on_corrupt="skip")
        assert sum(len(label) for _, label in batches_of(loader)) == COUNT
        assert loader.stats().skipped_samples == 1
        loader.close()


def test_an_object_that_changes_is_noticed(packed: Path, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(packed / "jpegs", tmp_path / "served" / "jpegs")
    with range_server(tmp_path / "served") as server:
        data = fastdata.open(f"{server.url}/jpegs")
        _ = data[0]
        for path in (tmp_path / "served" / "jpegs").glob("*.lmdb"):
            os.utime(path, ns=(1, 1))
        with pytest.raises(ObjectChangedError, match="has changed"):
            _ = data[590]


def test_a_server_that_has_gone(packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with range_server(packed) as server:
        url = f"{server.url}/jpegs"
        local = fastdata.open(packed / "jpegs")
        data = fastdata.open(url)
        for index in range(100):
            _ = data[index]
    # While it is open, another downloader asks the server for it first.
    del data
    monkeypatch.setenv("FASTDATA_OFFLINE", "1")
    assert end_downloaders(cache) == 1
    again = fastdata.open(url)
    assert torch.equal(again[50].image, local[50].image)
    with pytest.raises(StorageError, match="is not in the cache"):
        fastdata.open(f"{url}-other")


def test_a_store_that_does_not_answer_soon_is_not_waited_for(
    server: RangeServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the cache has the dataset; but that it is gone from the store is an error."""
    url = f"{server.url}/jpegs"
    assert len(fastdata.open(url)) == COUNT
    folder = CacheFolder.open(cache)
    (known,) = folder.datasets()
    answered = threading.Event()
    answers = {
        "no answer in 0 s": lambda *_: answered.wait(60),
        "refused": StorageError("refused"),
        "gone": DatasetNotFoundError("gone"),
    }
    warned: list[str] = []
    for said, answer in answers.items():
        find = Mock(side_effect=answer)
        monkeypatch.setattr(downloader, "find_dataset", find)
        monkeypatch.setattr(downloader, "OFFLINE_SECONDS", 0.1 if callable(answer) else 60.0)
        monkeypatch.setattr(downloader.log, "warning", lambda _, text: warned.append(text))
        asked = downloader.Downloader(folder)
        if said == "gone":
            with pytest.raises(DatasetNotFoundError, match="gone"):
                asked._found(url, {}, False)
        else:
            assert asked._found(url, {}, False) == known
            assert f"{url} cannot be asked ({said})" in warned.pop()
        find.assert_called_once_with(folder, url, {})
    answered.set()
    assert not warned


def test_who_is_offline_does_not_wait_for_who_is_not(
    server: RangeServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/jpegs"
    assert len(fastdata.open(url)) == COUNT
    answered = threading.Event()
    find = Mock(side_effect=lambda *_: answered.wait(60))
    monkeypatch.setattr(downloader, "find_dataset", find)
    asked = downloader.Downloader(CacheFolder.open(cache))
    body = {"options": {}, "streams": None, "cache_bytes": None}
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(asked._open, 1, {**body, "url": f"{server.url}/x", "offline": False})
        while not find.called:
            time.sleep(0.005)
        assert asked._open(2, {**body, "url": url, "offline": True})["num_samples"] == COUNT
        answered.set()
        with pytest.raises(AttributeError):  # of what it was answered
            other.result()
    for held in asked._held.values():
        held.stored.close()


def test_wrong_urls(server: RangeServer, cache: Path, packed: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=f"{server.url}/nothing"):
        fastdata.open(f"{server.url}/nothing")
    with pytest.raises(OptionError, match="cache_bytes"):
        fastdata.open(f"{server.url}/jpegs", cache_bytes="much")
    with pytest.raises(OptionError, match="for URLs"):
        fastdata.open(packed / "jpegs", cache_bytes="1GB")
    with pytest.raises(OptionError, match="cache_dir"):
        fastdata.loader(fastdata.open(packed / "jpegs"), cache_dir=tmp_path)
    with pytest.raises(OptionError, match="cache="):
        fastdata.loader(f"{server.url}/jpegs", cache="ram").close()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "manifest.json").write_text("{}")
    server.folder = tmp_path
    with pytest.raises(FormatError, match=f"{server.url}/text/manifest.json"):
        fastdata.open(f"{server.url}/text")


def test_a_manifest_of_a_newer_version(packed: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "served" / "jpegs"
    shutil.copytree(packed / "jpegs", folder)
    text = (folder / "manifest.json").read_text().replace('"version": 1', '"version": 99')
    (folder / "manifest.json").write_text(text)
    newer = pytest.raises(FormatError, match=r"version 99 is newer.*Upgrade")
    with range_server(tmp_path / "served") as server, newer:
        fastdata.open(f"{server.url}/jpegs")


# -- the cache folder --------------------------------------------------------------------------


def test_it_never_takes_more_than_it_may(server: RangeServer, packed: Path, cache: Path) -> None:
    may = total_bytes(packed / "jpegs") // 100 * 14
    loader = crops_of(f"{server.url}/jpegs", cache_bytes=may)
    most, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            files = [*cache.rglob("*.lmdb"), *cache.rglob("present")]
            most[0] = max(most[0], sum(path.stat().st_blocks * 512 for path in files))
            time.sleep(0.002)

    watching = threading.Thread(target=watch)
    watching.start()
    for _ in range(2):
        for _ in loader:
            pass
    stop.set()
    watching.join()
    loader.close()
    assert 0 < most[0] <= may


def test_which_samples_are_there_has_its_place_on_the_disk(
    server: RangeServer, cache: Path
) -> None:
    fastdata.open(f"{server.url}/jpegs")
    (present,) = cache.rglob("present")
    assert present.stat().st_blocks * 512 >= present.stat().st_size == 2 * COUNT


def test_what_cannot_hold_a_window_is_refused(server: RangeServer, cache: Path) -> None:
    data = fastdata.open(f"{server.url}/jpegs", cache_bytes=150_000)
    loader = crops_of(data, shuffle=fastdata.BlockShuffle(10, 10, 4))
    with pytest.raises(OptionError, match=r"needs .* at once.*cache_bytes.*window_blocks=5"):
        next(iter(loader))
    loader.close()
    with pytest.raises(OptionError, match="columns"):
        fastdata.open(f"{server.url}/one.h5", cache_bytes=1000)


def test_old_datasets_make_room(server: RangeServer, packed: Path, cache: Path) -> None:
    data = fastdata.open(f"{server.url}/one.h5")
    for sample in data:
        assert sample is not None
    del data, sample
    while end_downloaders(cache):  # a client that is just ending may start another one
        time.sleep(0.2)
    may = total_bytes(packed / "jpegs") // 100 * 15
    loader = crops_of(f"{server.url}/jpegs", cache_bytes=may)
    for _ in loader:
        pass
    loader.close()
    assert [one.url.rpartition("/")[2] for one in CacheFolder.open(cache).datasets()] == ["jpegs"]


def test_a_new_folder_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """The ranks of a training open it when they start."""

    def open_folders(_: int) -> None:
        for number in range(50):
            CacheFolder.open(tmp_path / str(number))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(open_folders, range(8)))


def test_folders_that_are_none_of_ours(
    server: RangeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{server.url}/jpegs"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(OptionError, match="neither empty nor a cache"):
        fastdata.open(url, cache_dir=tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="cannot be used"):
        fastdata.open(url, cache_dir=tmp_path / "file")
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        with pytest.raises(OptionError, match=r"another user's .12345"):
            fastdata.open(url, cache_dir=tmp_path / "theirs")
    (tmp_path / "shared").mkdir()

    class Partition:
        mountpoint, fstype = str(tmp_path / "shared"), "nfs4"

    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [Partition])
    with pytest.raises(OptionError, match=r"is on nfs4.*local disk"):
        fastdata.open(url, cache_dir=tmp_path / "shared")


def test_the_downloader_ends_and_nothing_is_left_of_it(
    server: RangeServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = fastdata.open(f"{server.url}/jpegs")
    _ = data[0]
    (process,) = downloaders(cache)
    assert process.ppid() != os.getpid()
    process.send_signal(signal.SIGSTOP)  # a downloader that hangs is no reason to leave one behind
    process.send_signal(signal.SIGCONT)
    assert torch.equal(data[1].image, data[1].image)


def test_what_is_removed_while_it_is_read_is_read_again(
    server: RangeServer, packed: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the cache were emptied within every task: what came of holes is not handed out."""
    data = fastdata.open(f"{server.url}/raw.lmdb")
    local = fastdata.open(packed / "raw.lmdb")
    supply = data._supplied[0].supply
    real_run, emptied = supply_module.Supply.run, set()

    def run(self: Any, read: Any) -> Any:
        def emptying() -> Any:
            found = read()
            if not self.watched or threading.get_ident() in emptied:
                return found
            emptied.add(threading.get_ident())
            held = list(self._watching.held)
            for samples, _ in held:
                for sample in samples.tolist():
                    self.replace(sample)
            if isinstance(found, bytes):
                return bytes(len(found))  # what a hole gives
            return found

        return real_run(self, emptying)

    monkeypatch.setattr(supply_module.Supply, "run", run)
    assert torch.equal(data[3].image, local[3].image)
    assert emptied
    assert supply.waited_seconds > 0
