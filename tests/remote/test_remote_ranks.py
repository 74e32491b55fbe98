"""Ranks over one store, and what becomes of them: the batches of the files, whoever dies.

Elsewhere: one rank and its faults (`test_remote_loading.py`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from process_helpers import wait_until
from range_server import RangeServer
from ranks import run_ranks
from remote_helpers import (
    COUNT,
    TENTH,
    assert_same,
    batches_of,
    downloaders,
    end_downloaders,
    joined,
    loader_of,
    needs_store,
    total_bytes,
)

import fastdata
from fastdata.errors import OptionError, StorageError
from fastdata.remote.folder import CacheFolder

pytestmark = [pytest.mark.ranks, needs_store]

GLOBAL_BATCH = 24


@pytest.fixture(scope="module")
def epochs(packed: Path) -> list[Any]:
    """The batches of three epochs of the files, without a last one that is smaller."""
    with loader_of(packed / "train", drop_last=True) as local:
        return [batches_of(local) for _ in range(3)]


def tenth(packed: Path) -> int:
    return total_bytes(packed / "train") // TENTH


def rank_of(url: Any, rank: int, world_size: int, **options: Any) -> Any:
    batch = GLOBAL_BATCH // world_size
    return loader_of(url, rank=rank, world_size=world_size, batch_size=batch, **options)


# -- any number of ranks -----------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.smoke), 4])
def test_a_cache_of_a_tenth_gives_the_batches_of_the_files(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any], world_size: int
) -> None:
    data = fastdata.open(f"{server.url}/train", cache_bytes=tenth(packed))
    loaders = [rank_of(data, rank, world_size, drop_last=True) for rank in range(world_size)]
    for expected in epochs:
        steps = zip(*loaders, strict=True)  # in step, as ranks of one training are
        found = [[(one.image.clone(), one.label.clone()) for one in step] for step in steps]
        assert_same(joined(list(map(list, zip(*found, strict=True)))), expected)
    counts = data._supplied[0].supply.counts()
    assert counts["removed_blocks"] > 0, "the cache was too large for this test"
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("options", [{"drop_last": True}, {}, {"even": False}])
def test_ranks_that_do_not_divide_the_samples(
    server: RangeServer, packed: Path, cache: Path, options: dict[str, Any]
) -> None:
    keys = []
    steps = set()
    for rank in range(4):
        with (
            rank_of(f"{server.url}/train", rank, 4, **options) as remote,
            rank_of(packed / "train", rank, 4, **options) as local,
        ):
            found = batches_of(remote)
            assert len(remote) == len(found)
            assert_same(found, batches_of(local))
            steps.add(len(found))
            keys += [image.numpy().tobytes() for images, _ in found for image in images]
    if "even" not in options:
        assert len(steps) == 1
    data = fastdata.open(packed / "train")
    everything = {data[index].image.numpy().tobytes() for index in range(COUNT)}
    whole = COUNT // GLOBAL_BATCH * GLOBAL_BATCH if options.get("drop_last") else len(everything)
    assert len(set(keys)) == min(whole, len(everything))
    if options.get("even") is False:
        assert len(keys) == COUNT


def train_on_a_node(url: str, folder: str, cache_bytes: int) -> dict[str, Any]:
    """Train as one of the four processes of two nodes, each of which has a cache."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    here = world_size // 2
    os.environ["LOCAL_WORLD_SIZE"], os.environ["LOCAL_RANK"] = str(here), str(rank % here)
    cache = Path(folder) / f"node-{rank // here}"
    data = fastdata.open(url, cache_dir=cache, cache_bytes=cache_bytes)
    batch_size = GLOBAL_BATCH // world_size
    with loader_of(data, batch_size=batch_size, drop_last=True) as loader:
        epochs = []
        for _ in range(2):
            epochs.append([])
            for batch in loader:
                epochs[-1].append((batch.image.clone().numpy(), batch.label.clone().numpy()))
                torch.distributed.barrier()
        return {"epochs": epochs, "removed": data._supplied[0].supply.counts()["removed_blocks"]}


def test_process_groups_on_two_nodes(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    folder = str(cache.parent)
    shares = run_ranks(
        train_on_a_node,
        4,
        f"{server.url}/train",
        folder,
        tenth(packed),
        group=True,
    )
    assert [len(downloaders(cache.parent / f"node-{node}")) for node in range(2)] == [1, 1]
    for number, expected in enumerate(epochs[:2]):
        of_ranks = [
            [(torch.from_numpy(image), torch.from_numpy(label)) for image, label in epoch]
            for epoch in (share["epochs"][number] for share in shares)
        ]
        assert_same(joined(of_ranks), expected)
    assert all(share["removed"] > 0 for share in shares)


# -- a rank that dies --------------------------------------------------------------------------


def train_and_write(url: str, cache: str, folder: str, rank: int, world_size: int) -> None:
    """Write a line for each batch, and the state behind it; begin at the state that is there.

    After some batches it waits until a file says to go on.
    """
    state, lines = Path(folder, f"state-{rank}"), Path(folder, f"batches-{rank}")
    go_on = Path(folder, "go on")
    data = fastdata.open(url, cache_dir=cache)
    with rank_of(data, rank, world_size, drop_last=True) as loader:
        if state.exists():
            loader.load_state_dict(json.loads(state.read_text()))
        while True:
            epoch = loader.state_dict()["epoch"]
            if epoch == 2:
                return
            for number, batch in enumerate(loader, start=loader.state_dict()["batch"]):
                digest = xxhash.xxh3_64_hexdigest(batch.image.numpy().tobytes())
                with open(lines, "a") as file:
                    file.write(f"{epoch} {number} {digest}\n")
                scratch = Path(f"{state}.new")
                scratch.write_text(json.dumps(loader.state_dict()))
                os.replace(scratch, state)
                wait_until(lambda: len(lines_of(Path(folder), rank)) < 8 or go_on.exists())


def lines_of(folder: Path, rank: int) -> list[str]:
    path = folder / f"batches-{rank}"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.smoke
def test_a_rank_that_is_killed_goes_on_from_its_state(
    server: RangeServer, packed: Path, cache: Path, tmp_path: Path
) -> None:
    """The downloader dies meanwhile too; the other rank goes on."""
    context = multiprocessing.get_context("forkserver")
    arguments = f"{server.url}/train", str(cache), str(tmp_path)

    def start(rank: int) -> Any:
        process = context.Process(target=train_and_write, args=(*arguments, rank, 2))
        process.start()
        return process

    ranks = [start(0), start(1)]
    try:
        while len(lines_of(tmp_path, 1)) < 8:
            assert all(process.is_alive() for process in ranks)
            time.sleep(0.005)
        ranks[1].kill()
        ranks[1].join()
        assert end_downloaders(cache) == 1
        before = len(lines_of(tmp_path, 1))
        assert before == 8
        (tmp_path / "go on").touch()
        ranks.append(start(1))
        for process in (ranks[0], ranks[2]):
            process.join()
            assert process.exitcode == 0
    finally:
        for process in ranks:
            process.kill()
            process.join()
            process.close()
    for rank in range(2):
        expected = []
        with rank_of(packed / "train", rank, 2, drop_last=True) as local:
            for epoch in range(2):
                for number, (image, _) in enumerate(batches_of(local)):
                    digest = xxhash.xxh3_64_hexdigest(image.numpy().tobytes())
                    expected.append(f"{epoch} {number} {digest}")
        found = lines_of(tmp_path, rank)
        if len(found) > len(expected):  # killed between a line and its state: that batch again
            found.pop(before)
        assert found == expected


# -- other numbers of ranks --------------------------------------------------------------------


def test_eight_ranks_then_six_then_eight(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    data = fastdata.open(f"{server.url}/train")
    found, state = [], None
    for world_size, steps in ((8, 5), (6, 9), (8, 2 * len(epochs[0]) - 14)):
        loaders = [rank_of(data, rank, world_size, drop_last=True) for rank in range(world_size)]
        for loader in loaders if state else ():
            loader.load_state_dict(json.loads(json.dumps(state)))
        parts: list[Any] = [[] for _ in loaders]
        for part, loader in zip(parts, loaders, strict=True):
            while len(part) < steps:
                for batch in loader:
                    part.append((batch.image.clone(), batch.label.clone()))
                    if len(part) == steps:
                        break
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        found += joined(parts)
        for loader in loaders:
            loader.close()
    assert_same(found, epochs[0] + epochs[1])


@pytest.mark.smoke
def test_ranks_that_do_not_divide_a_batch_are_refused(
    server: RangeServer, packed: Path, cache: Path
) -> None:
    with rank_of(f"{server.url}/train", 0, 8) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        del iterator
    with loader_of(f"{server.url}/train", rank=0, world_size=5, batch_size=5) as other:
        with pytest.raises(OptionError, match=r"global_batch_size 24, but this loader has 25"):
            other.load_state_dict(state)
        with pytest.warns(UserWarning, match="some samples may come twice or not at all"):
            other.load_state_dict(state, strict=False)


@pytest.mark.parametrize("state_of", ["warm", "cold", "cleared"])
def test_resuming_whatever_is_in_the_cache(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any], state_of: str, tmp_path: Path
) -> None:
    url = f"{server.url}/train"
    loader = loader_of(url, drop_last=True)
    for number, _ in enumerate(loader):
        if number == 10:
            break
    state = loader.state_dict()
    loader.close()
    del loader, _
    folder = cache
    if state_of == "cold":
        folder = tmp_path / "other"
    if state_of == "cleared":
        (dataset,) = CacheFolder.open(cache).datasets()
        CacheFolder.open(cache).remove(dataset)
    again = loader_of(url, drop_last=True, cache_dir=folder)
    again.load_state_dict(state)
    assert_same(batches_of(again), epochs[0][11:])
    assert_same(batches_of(again), epochs[1])
    again.close()


# -- faults ------------------------------------------------------------------------------------


def test_faults_of_the_network_over_several_epochs(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    dice = random.Random(5)
    server.fault = lambda number: dice.choice(["503", "reset"]) if dice.random() < 0.03 else ""
    remote = loader_of(f"{server.url}/train", drop_last=True, cache_bytes=tenth(packed))
    for expected in epochs:
        assert_same(batches_of(remote), expected)
    assert len(server.requests) > 300
    remote.close()


KILLS = 4


def test_the_downloader_is_killed_at_random_moments(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    dice = random.Random(7)
    server.delay = 0.002
    remote = loader_of(f"{server.url}/train", drop_last=True, cache_bytes=tenth(packed))
    moments = set(dice.sample(range(1, 3 * len(epochs[0]) - 1), KILLS))
    killed = at = 0
    for expected in epochs:
        found = []
        for batch in remote:
            found.append((batch.image.clone(), batch.label.clone()))
            if at in moments:
                time.sleep(dice.random() / 100)
                killed += end_downloaders(cache)
            at += 1
        assert_same(found, expected)
    assert killed == KILLS
    remote.close()


def remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        paths = list(folder.glob(pattern))
        assert paths
        for path in paths:
            path.unlink()


def shorten(folder: Path, pattern: str) -> None:
    for path in folder.glob(pattern):
        os.truncate(path, 10)


@pytest.mark.parametrize("what", ["*/*", "*/shard-00001.lmdb", "*/present", "*.sock", "*.lock"])
def test_files_of_the_cache_that_are_removed_come_anew(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any], what: str
) -> None:
    """Who has them open goes on; who opens them then fetches them again."""
    url, may = f"{server.url}/train", total_bytes(packed / "train") // 3
    with loader_of(url, drop_last=True, cache_bytes=may) as remote:
        found = []
        for number, batch in enumerate(remote):
            found.append((batch.image.clone(), batch.label.clone()))
            if number == 5:
                remove(cache, what)
        assert_same(found, epochs[0])
        with loader_of(url, drop_last=True, cache_bytes=may) as other:
            assert_same(batches_of(other), epochs[0])
        assert_same(batches_of(remote), epochs[1])


@pytest.mark.parametrize("what", ["*/*", "*/shard-00001.lmdb", "*/present", "all"])
def test_files_that_nobody_can_fill_any_more_are_an_error(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any], what: str
) -> None:
    """As the downloader that had them open has gone too; nobody waits for ever."""
    url = f"{server.url}/train"
    with loader_of(url, drop_last=True, cache_bytes=tenth(packed)) as remote:
        iterator = iter(remote)
        next(iterator)
        if what == "all":
            shutil.rmtree(cache)
        else:
            remove(cache, what)
        assert end_downloaders(cache) == 1
        with pytest.raises(StorageError, match=r"removed.*anew"):
            for _ in iterator:
                pass
        del iterator
    with loader_of(url, drop_last=True, cache_bytes=tenth(packed)) as again:
        assert_same(batches_of(again), epochs[0])


@pytest.mark.smoke
def test_what_says_which_samples_are_there_may_be_wrong(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    """Bytes that somebody zeroes are fetched again: the downloader looks, and does not remember."""
    with loader_of(f"{server.url}/train", drop_last=True) as remote:
        found = []
        for number, batch in enumerate(remote):
            found.append((batch.image.clone(), batch.label.clone()))
            if number == 5:
                shorten(cache, "*/present")
        assert_same(found, epochs[0])


def test_a_shard_that_is_cut_short_between_two_runs_comes_anew(
    server: RangeServer, packed: Path, cache: Path, epochs: list[Any]
) -> None:
    url = f"{server.url}/train"
    for what in ("*/shard-*", "*/present"):
        with loader_of(url, drop_last=True) as remote:
            assert_same(batches_of(remote), epochs[0])
        del remote
        end_downloaders(cache)
        shorten(cache, what)
    with loader_of(url, drop_last=True) as remote:
        assert_same(batches_of(remote), epochs[0])
