"""Ranks that are processes: a loader takes its share from torch.distributed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from memory_data import MemoryData
from ranks import run_ranks
from samples import encode, photo, write_shard

import fastdata
from fastdata.formats.writer import Record
from fastdata.schema import ImageField, ScalarField, Schema

COUNT = 13
NUMBERED = Schema({"image": ImageField(), "number": ScalarField("int64")})

CUTS: dict[str, dict[str, bool]] = {
    "padded": {},
    "drop last": {"drop_last": True},
    "uneven": {"even": False},
}


def load(path: str, **share: int) -> dict[str, Any]:
    """Load an epoch cut in each way, as the ranks of torch.distributed or as the given one."""
    found = {}
    for name, cut in CUTS.items():
        options: dict[str, Any] = {"batch_size": 3, "shuffle": True, "seed": 1, "num_workers": 1}
        with fastdata.loader(path, **options, **cut, **share) as loader:
            loaded = [batch.number.tolist() for batch in loader]
            found[name] = {"loaded": loaded, "steps": len(loader), "state": loader.state_dict()}
    return found


def test_the_loader_takes_its_rank_from_torch_distributed(tmp_path: Path) -> None:
    image = encode(photo(16, 16), "jpeg")
    records = [Record(f"{number}", (image, number)) for number in range(COUNT)]
    path = os.fspath(write_shard(tmp_path / "data.lmdb", records, NUMBERED))
    ranks = run_ranks(load, 2, path, group=True)
    assert ranks == [load(path, rank=rank, world_size=2) for rank in range(2)]
    seen = {
        name: sorted(n for rank in ranks for batch in rank[name]["loaded"] for n in batch)
        for name in CUTS
    }
    assert [[rank[name]["steps"] for rank in ranks] for name in CUTS] == [[3, 3], [2, 2], [3, 2]]
    assert len(seen["padded"]) == COUNT + 1
    assert set(seen["padded"]) == set(range(COUNT))
    assert len(set(seen["drop last"])) == len(seen["drop last"]) == 12
    assert seen["uneven"] == list(range(COUNT))


def test_torch_without_distributed_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.delattr(torch.distributed, "is_initialized")  # such a build lacks it
    with fastdata.loader(MemoryData(4, size=(8, 8)), num_workers=0) as loader:
        assert (loader.rank, loader.world_size) == (0, 1)
        assert len(list(loader)) == 4
