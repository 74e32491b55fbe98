"""Ranks that are processes: what torch.distributed says, and shares that fit together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from ranks import run_ranks
from samples import encode, photo, write_shard

import fastdata
from fastdata.distributed import rank_and_world_size
from fastdata.errors import OptionError
from fastdata.formats.writer import Record
from fastdata.sampling import Batches, Shuffled
from fastdata.schema import ImageField, ScalarField, Schema

COUNT = 47
Shares = dict[str, list[Any]]
"""For each name the values of the ranks; those of a way of cutting are steps of samples."""


def run_group(world_size: int, work: Callable[..., dict[str, Any]], *arguments: Any) -> Shares:
    """Return for each name that `work` returns the values of all ranks of a process group."""
    shares = run_ranks(work, world_size, *arguments, group=True)
    return {name: [share[name] for share in shares] for name in shares[0]}


def cut() -> dict[str, Any]:
    """Cut an epoch as the ranks of torch.distributed."""
    rank, world_size = rank_and_world_size(None, None)

    def batches(**options: bool) -> Batches:
        return Batches(Shuffled(COUNT, 3), 4, rank=rank, world_size=world_size, **options)

    kinds = {
        "drop_last": batches(drop_last=True),
        "padded": batches(),
        "uneven": batches(even=False),
    }
    return {
        "who": [rank, world_size],
        "padding": kinds["padded"].padding,
        "identity": kinds["padded"].identity,
        **{name: [batch.tolist() for batch in kind.in_epoch(1)] for name, kind in kinds.items()},
    }


@pytest.fixture(scope="module", params=[2, 3])
def shares(request: pytest.FixtureRequest) -> Any:
    """What `cut` returned on each of 2 ranks, then 3."""
    return run_group(request.param, cut)


def samples_of(share: list[list[list[int]]]) -> list[int]:
    return sorted(sample for steps in share for batch in steps for sample in batch)


def test_every_process_finds_its_rank(shares: Any) -> None:
    world_size = len(shares["who"])
    assert shares["who"] == [[rank, world_size] for rank in range(world_size)]
    assert all(identity == shares["identity"][0] for identity in shares["identity"])


def test_ranks_drop_the_same_steps(shares: Any) -> None:
    steps = COUNT // (4 * len(shares["who"]))
    assert [list(map(len, share)) for share in shares["drop_last"]] == [[4] * steps] * len(
        shares["who"]
    )
    seen = samples_of(shares["drop_last"])
    assert len(set(seen)) == len(seen) == steps * 4 * len(shares["who"])


def test_ranks_pad_to_the_same_steps(shares: Any) -> None:
    sizes = [list(map(len, share)) for share in shares["padded"]]
    assert all(size == sizes[0] for size in sizes)
    seen = samples_of(shares["padded"])
    assert set(seen) == set(range(COUNT))
    assert len(seen) == COUNT + shares["padding"][0]
    assert shares["padding"][0] > 0


def test_uneven_ranks_have_each_sample_once(shares: Any) -> None:
    assert samples_of(shares["uneven"]) == list(range(COUNT))


def test_without_a_group_there_is_one_rank() -> None:
    assert not torch.distributed.is_initialized()
    assert rank_and_world_size(None, None) == (0, 1)


def test_a_rank_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 6)
    assert rank_and_world_size(None, None) == (5, 6)
    assert rank_and_world_size(0, 1) == (0, 1)


def test_torch_without_distributed_is_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    monkeypatch.delattr(torch.distributed, "is_initialized")  # such a build lacks it
    assert rank_and_world_size(None, None) == (0, 1)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (1, None, "rank is 1 and world_size None: give both, or neither"),
        (None, 2, "rank is None and world_size 2: give both, or neither"),
        (2, 2, "rank is 0 to world_size - 1, not 2 with a world_size of 2"),
        (-1, 2, "rank is 0 to world_size - 1, not -1"),
    ],
)
def test_half_a_share_is_refused(rank: int | None, world_size: int | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rank_and_world_size(rank, world_size)


# -- the loader ---------------------------------------------------------------------

NUMBERED = Schema({"image": ImageField(), "number": ScalarField("int64")})


def load(path: str) -> dict[str, Any]:
    """Load an epoch as the ranks of torch.distributed, which the loader is not told of."""
    with fastdata.loader(path, batch_size=3, shuffle=True, seed=1, num_workers=1) as loader:
        return {"steps": len(loader), "loaded": [batch.number.tolist() for batch in loader]}


def test_the_loader_takes_its_rank_from_torch_distributed(tmp_path: Path) -> None:
    image = encode(photo(16, 16), "jpeg")
    records = [Record(f"{number}", (image, number)) for number in range(13)]
    write_shard(tmp_path / "data.lmdb", records, NUMBERED)
    shares = run_group(2, load, os.fspath(tmp_path / "data.lmdb"))
    assert shares["steps"] == [3, 3]
    expected = [
        Batches(Shuffled(13, 1), 3, rank=rank, world_size=2).in_epoch(0) for rank in range(2)
    ]
    assert shares["loaded"] == [[batch.tolist() for batch in share] for share in expected]
