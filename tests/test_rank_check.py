"""Ranks that divide different epochs are told so; ranks that do not are left alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from torch import distributed
from torch.utils.data import ConcatDataset, random_split

import fastdata
from fastdata.engine import rank_check

COUNT = 36


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.lmdb, two copies of it, one of them stale, val.lmdb, and two halves."""
    folder = tmp_path_factory.mktemp("packed")

    def pack(name: str, numbers: list[int]) -> None:
        samples = ({"image": np.full((8, 8, 3), k, np.uint8), "number": k} for k in numbers)
        fastdata.pack(samples, folder / name, codec="png", num_workers=0, progress=False)

    pack("train.lmdb", list(range(COUNT)))
    pack("stale.lmdb", [*range(COUNT - 1), 99])
    pack("copy.h5", list(range(COUNT)))
    pack("val.lmdb", list(range(100, 100 + COUNT)))
    pack("a.lmdb", list(range(18)))
    pack("b.lmdb", list(range(18, 36)))
    return folder


def load(data: Any, **options: Any) -> list[int]:
    """Return the numbers of an epoch."""
    usual: dict[str, Any] = {"batch_size": 5, "num_workers": 0, "shuffle": True}
    with fastdata.loader(data, **{**usual, **options}) as loader:
        return [number for batch in loader for number in batch.number.tolist()]


def attempt(data: Any, **options: Any) -> str:
    """Return why an epoch was refused, or nothing."""
    try:
        load(data, **options)
    except fastdata.errors.OptionError as error:
        return str(error)
    return ""


def mistaken(folder: Path) -> dict[str, str]:
    """Return what each mistake led to on this rank."""
    odd = distributed.get_rank() == 1
    train, both = folder / "train.lmdb", [folder / "a.lmdb", folder / "b.lmdb"]
    parts = [fastdata.open(path) for path in both]
    generator = torch.Generator().manual_seed(distributed.get_rank())
    found = {
        "another order of files": attempt(both[::-1] if odd else both),
        "another order of parts": attempt(ConcatDataset(parts[::-1] if odd else parts)),
        "another part": attempt(random_split(fastdata.open(train), [20, 16], generator)[0]),
        "another seed": attempt(train, seed=7 if odd else 6),
        "a stale copy": attempt(folder / "stale.lmdb" if odd else train, shuffle=False),
        "another dataset": attempt(folder / "val.lmdb" if odd else train),
        "shuffle": attempt(train, shuffle=odd),
        "blocks": attempt(train, shuffle=fastdata.BlockShuffle(2 if odd else 4)),
        "drop_last": attempt(train, drop_last=odd),
        "even": attempt(train, even=odd),
        "batch_size": attempt(train, batch_size=6 if odd else 5),
        "weights": attempt(train, shuffle=False, weights=np.arange(COUNT) + (1 + odd)),
        "weights on one rank": attempt(
            train, shuffle=False, weights=np.ones(COUNT) if odd else None
        ),
        "parts of ranks": attempt(train, cache="ram", cache_scope="rank", seed=1 + odd),
    }
    distributed.barrier()  # rank 0 has the store by which the ranks compare
    return found


@pytest.fixture(scope="module")
def mistakes(packed: Path) -> dict[str, str]:
    """What each mistake leads to on the rank that came second."""
    first, second = run_ranks(mistaken, 2, packed, group=True)
    assert [name for name in first if not (first[name] or second[name])] == []
    return {name: first[name] or second[name] for name in first}


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("another order of files", r"dataset is a.lmdb, b.lmdb \(36 .*and b.lmdb, a.lmdb \(36"),
        ("another order of parts", r"dataset is a.lmdb, b.lmdb \(36 .*and b.lmdb, a.lmdb \(36"),
        ("another part", r"dataset is train.lmdb \(20 .*and train.lmdb \(20 .*the same part"),
        ("another seed", "seed is 6 on rank 0 and 7 on rank 1"),
        (
            "a stale copy",
            r"dataset is train.lmdb \(36 .*on rank 0 and stale.lmdb \(36 ",
        ),
        ("another dataset", r"dataset is train.lmdb \(36 .*on rank 0 and val.lmdb"),
        ("shuffle", "epoch: shuffle is False on rank 0 and True on rank 1. Samples"),
        ("blocks", r"shuffle is BlockShuffle\(block_size=4.*and BlockShuffle\(block_size=2"),
        ("drop_last", "drop_last is False on rank 0 and True on rank 1"),
        ("even", "even is False on rank 0 and True on rank 1"),
        ("batch_size", "batch_size is 5 on rank 0 and 6 on rank 1"),
        ("weights", r"order is \{'order': 'Weighted'"),
        ("weights on one rank", r"order is \{'order': 'Sequential'\} on rank 0 and \{'order': 'W"),
        ("parts of ranks", "seed is 1 on rank 0 and 2 on rank 1"),
    ],
)
def test_ranks_that_divide_different_epochs_are_told(
    mistakes: dict[str, str], mistake: str, told: str
) -> None:
    said = mistakes[mistake]
    assert re.search(told, said), said
    assert "do not divide the same epoch" in said
    assert "A loader for one rank only takes rank=0, world_size=1" in said


def sound(folder: Path) -> list[int]:
    """Load as programs do that are right; return what of a train epoch this rank gets."""
    first, (train, val) = distributed.get_rank() == 0, (folder / "train.lmdb", folder / "val.lmdb")
    if first:  # before, between and after those of all ranks, and of the same data
        load(val, rank=0, world_size=1)
        load(val)
        load(train, shuffle=False)
    # Made together, used apart, and in another order.
    names = ["train", "val"] if first else ["val", "train"]
    made = {
        name: fastdata.loader(folder / f"{name}.lmdb", 5, num_workers=0, drop_last=name == "train")
        for name in names
    }
    for name in ("train", "val"):
        for _ in range(2):
            list(made[name])
        if first:
            load(val)
    for size in (3, 4):  # one after another, by the same call
        load(train, batch_size=size)
    if first:
        next(iter(made["val"]))
    for epoch in range(3):  # made anew, used once and dropped
        for path in (train, val) if first and epoch != 1 else (train,):
            load(path)
    # Options in which ranks may differ.
    load(train, num_workers=distributed.get_rank(), shuffle=False, seed=distributed.get_rank())
    load(train, rank=0, world_size=1, seed=distributed.get_rank())
    load(folder / ("train.lmdb" if first else "copy.h5"))
    state = made["train"].state_dict()
    again = fastdata.loader(train, 5, num_workers=0, drop_last=True)
    again.load_state_dict(state)
    list(again)
    load(train, seed=None)
    return load(train, rank=distributed.get_rank(), world_size=distributed.get_world_size())


def test_loaders_that_fit_or_are_there_on_one_rank_only_work(packed: Path) -> None:
    first, second = run_ranks(sound, 2, packed, group=True)
    assert sorted(first + second) == list(range(COUNT))


def models_apart(folder: Path) -> list[int]:
    """Load by ranks that were given: two models, each trained by two of four ranks."""
    model, rank = divmod(distributed.get_rank(), 2)
    path = folder / ("train.lmdb", "val.lmdb")[model]
    return load(path, rank=rank, world_size=2, seed=model)


@pytest.mark.ranks
def test_ranks_of_a_part_of_the_group_are_not_compared(packed: Path) -> None:
    found = run_ranks(models_apart, 4, packed, group=True)
    assert sorted(found[0] + found[1]) == list(range(COUNT))
    assert sorted(found[2] + found[3]) == list(range(100, 100 + COUNT))


def in_two_groups(folder: Path) -> list[list[str]]:
    """Return what was logged in each of two process groups, in the second after a state."""
    logged: list[list[str]] = []
    rank_check.log.warning = lambda text, *values: logged[-1].append(text % values)
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    # One store for both: with one each, a rank may reach the first one while that is closed.
    store = distributed.TCPStore("127.0.0.1", port, 2, is_master=rank == 0)
    with fastdata.loader(folder / "train.lmdb", 5, True, num_workers=0) as loader:
        for number in range(2):
            logged.append([])
            own = distributed.PrefixStore(str(number), store)
            distributed.init_process_group("gloo", store=own, rank=rank, world_size=2)
            if number == 1 and rank == 0:
                loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batch": 3})
            next(iter(loader))
            distributed.barrier()
            distributed.destroy_process_group()
    return logged


def test_each_process_group_compares_anew(packed: Path) -> None:
    one, other = run_ranks(in_two_groups, 2, packed)
    assert one[0] == other[0] == []
    said = [text for text in one[1] + other[1] if "began a loader" in text]
    assert len(said) == 1
    assert "batch 3 of epoch 2" in said[0]


def restarted(folder: Path) -> list[str]:
    """Return what was refused by what stands for ranks that torchrun has started again."""
    rank, found = int(os.environ["RANK"]), []
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    for restart in (0, 1):
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restart)
        rank_check._groups = rank_check._Groups()
        rank_check._numbers.clear()
        found.append(attempt(folder / "train.lmdb", seed=restart))
        distributed.barrier()
    return found


def test_a_restart_that_keeps_the_store_compares_anew(packed: Path) -> None:
    assert run_ranks(restarted, 2, packed) == [["", ""], ["", ""]]


def without_store(folder: Path) -> tuple[list[int], list[str]]:
    """Return an epoch loaded while the store fails, and what was logged."""
    said = []
    rank_check.log.warning = lambda text, *values: said.append(text % values)

    def fail() -> None:
        raise distributed.DistStoreError("connection reset")

    distributed.distributed_c10d._get_default_store = fail
    load(folder / "train.lmdb")
    return load(folder / "train.lmdb"), said


def test_a_store_that_fails_is_logged_once(packed: Path) -> None:
    (first, said), (second, _) = run_ranks(without_store, 2, packed, group=True)
    assert sorted(first + second) == list(range(COUNT))
    assert len(said) == 1
    assert "connection reset" in said[0]


def resumed_by_one(folder: Path) -> list[str]:
    """Return what was logged where one rank alone has loaded a state."""
    said: list[str] = []
    rank_check.log.warning = lambda text, *values: said.append(text % values)
    with fastdata.loader(folder / "train.lmdb", 5, True, num_workers=0) as loader:
        if distributed.get_rank() == 0:
            loader.load_state_dict({**loader.state_dict(), "epoch": 2, "batch": 3})
        next(iter(loader))
    return said


def test_a_state_that_one_rank_alone_has_loaded_is_warned_of(packed: Path) -> None:
    logged = run_ranks(resumed_by_one, 2, packed, group=True)
    said = [one for rank in logged for one in rank if "began a loader" in one]
    assert len(said) == 1
    assert "batch 3 of epoch 2" in said[0]
    assert "batch 0 of epoch 0" in said[0]
