"""torchdata: StatefulDataLoader and nodes over a packed dataset."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from ranks import COUNT, run_ranks, samples_of

import fastdata
from fastdata import transforms as T  # noqa: N812

pytestmark = pytest.mark.skipif(find_spec("torchdata") is None, reason="needs torchdata")


def stateful(path: str, num_workers: int) -> Any:
    """Return an epoch, and what is left of it after resuming behind its third batch."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    def make() -> Any:
        torch.manual_seed(0)
        return StatefulDataLoader(
            fastdata.open(path), 8, shuffle=True, num_workers=num_workers, prefetch_factor=None
        )

    loader, whole, state = make(), [], None
    for number, batch in enumerate(loader):
        whole.append(samples_of(batch[0]))
        if number == 2:
            state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    return whole, [samples_of(batch[0]) for batch in again]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_loader_resumes(packed: str, num_workers: int) -> None:
    ((whole, rest),) = run_ranks(stateful, 1, packed, num_workers)
    assert sorted(one for batch in whole for one in batch) == list(range(COUNT))
    assert rest == whole[3:]


def through_nodes(path: str) -> Any:
    from torch.utils.data import RandomSampler, default_collate
    from torchdata.nodes import Batcher, Loader, Mapper, MapStyleWrapper

    data = fastdata.open(path, transform=[T.CenterCrop(16)])
    samples: Any = MapStyleWrapper(data, RandomSampler(data))
    loader: Any = Loader(Mapper(Batcher(samples, 8, drop_last=False), default_collate))
    return [
        [(samples_of(batch[0]), tuple(batch[0].shape[2:])) for batch in loader] for _ in range(2)
    ]


@pytest.mark.proves("D7")
def test_nodes_read_transformed_samples(packed: str) -> None:
    (epochs,) = run_ranks(through_nodes, 1, packed)
    for epoch in epochs:
        assert sorted(one for batch, _ in epoch for one in batch) == list(range(COUNT))
        assert {size for _, size in epoch} == {(16, 16)}


def loader_in_nodes(path: str) -> Any:
    """Return two epochs of a loader as a node's source, and what is left after resuming."""
    from torchdata.nodes import IterableWrapper, Loader

    with fastdata.loader(path, 8, True) as loader:
        node = Loader(IterableWrapper(loader))
        return [[samples_of(batch[0]) for batch in node] for _ in range(2)]


def test_a_loader_is_a_nodes_source(packed: str) -> None:
    (epochs,) = run_ranks(loader_in_nodes, 1, packed)
    for epoch in epochs:
        assert sorted(one for batch in epoch for one in batch) == list(range(COUNT))
    assert epochs[0] != epochs[1]
