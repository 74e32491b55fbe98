"""Order, ranks and batches as pure functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.errors import OptionError
from fastdata.sampling import Batches, SamplerOrder, Sequential, Shuffled


def indices_of(batches: Batches, epoch: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches.of(epoch)]


@given(count=st.integers(0, 300), seed=st.integers(-5, 2**65), epoch=st.integers(0, 5))
def test_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    order = Shuffled(count, seed).of(epoch)(np.arange(count))
    assert sorted(order.tolist()) == list(range(count))


def test_shuffle_depends_on_seed_and_epoch_only() -> None:
    positions = np.arange(1000)
    order = Shuffled(1000, 1).of(0)(positions)
    np.testing.assert_array_equal(order, Shuffled(1000, 1).of(0)(positions))
    assert (order != Shuffled(1000, 1).of(1)(positions)).mean() > 0.9
    assert (order != Shuffled(1000, 2).of(0)(positions)).mean() > 0.9


def test_every_sample_is_as_likely_at_every_place() -> None:
    epochs = 6000
    places = np.zeros((6, 6))
    for epoch in range(epochs):
        places[np.arange(6), Shuffled(6, 0).of(epoch)(np.arange(6))] += 1
    expected = epochs / 6
    assert ((places - expected) ** 2 / expected).sum() < 80  # 25 degrees of freedom: p = 1e-7


def test_shuffle_is_stable() -> None:
    assert Shuffled(10, 0).of(0)(np.arange(10)).tolist() == [9, 8, 1, 2, 6, 0, 5, 7, 3, 4]


def test_batches_are_cut_in_order() -> None:
    assert indices_of(Batches(Sequential(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert indices_of(Batches(Sequential(7), 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_is_found_without_those_before_it() -> None:
    batches = Batches(Shuffled(100, 3), 8)
    epoch = batches.of(5)
    np.testing.assert_array_equal(epoch[9], indices_of(batches, 5)[9])
    with pytest.raises(IndexError, match="batch 13 of an epoch of 13"):
        epoch[13]


@given(
    count=st.integers(0, 60),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 7),
    drop_last=st.booleans(),
)
def test_ranks_share_an_epoch(
    count: int, batch_size: int, world_size: int, drop_last: bool
) -> None:
    shares = [
        Batches(Shuffled(count, 1), batch_size, drop_last, rank, world_size)
        for rank in range(world_size)
    ]
    steps = [indices_of(share) for share in shares]
    assert len({len(batches) for batches in steps}) == 1
    assert all(len(batches) == len(share) for batches, share in zip(steps, shares, strict=True))
    seen = sorted(i for batches in steps for batch in batches for i in batch)
    if drop_last:
        assert len(set(seen)) == len(seen)
        assert all(len(batch) == batch_size for batches in steps for batch in batches)
        assert count - len(seen) < batch_size * world_size
    else:
        assert set(seen) == set(range(count))
        assert len(seen) == count + shares[0].padding
        assert shares[0].padding < world_size


def test_a_global_batch_is_the_same_for_every_number_of_ranks() -> None:
    def global_batches(world_size: int) -> list[set[int]]:
        shares = [
            indices_of(Batches(Shuffled(64, 2), 8 // world_size, True, rank, world_size))
            for rank in range(world_size)
        ]
        return [{i for batch in step for i in batch} for step in zip(*shares, strict=True)]

    assert global_batches(1) == global_batches(2) == global_batches(4)


def test_shares_are_those_of_the_distributed_sampler() -> None:
    data = pytest.importorskip("torch.utils.data")
    for drop_last in (False, True):
        for rank in range(3):
            sampler = data.DistributedSampler(
                range(10), num_replicas=3, rank=rank, shuffle=False, drop_last=drop_last
            )
            batches = Batches(Sequential(10), 1, drop_last, rank, 3)
            assert [batch[0] for batch in indices_of(batches)] == list(sampler)


def test_a_sampler_decides_the_order() -> None:
    class Backwards:
        epoch = 0

        def __len__(self) -> int:
            return 3

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter([-1, 5 - self.epoch, 0])

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    batches = Batches(SamplerOrder(Backwards(), 10), 2)
    assert indices_of(batches, 0) == [[9, 5], [0]]
    assert indices_of(batches, 2) == [[9, 3], [0]]


def test_bad_samplers_are_refused() -> None:
    with pytest.raises(OptionError, match="generator has no length"):
        SamplerOrder((i for i in range(3)), 10)
    with pytest.raises(OptionError, match="yielded 10, but the dataset has 10 samples"):
        SamplerOrder([1, 10], 10).of(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is at least 1, not 0"),
        ({"batch_size": 1, "world_size": 0}, "world_size is at least 1"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank is 0 to 1, not 2"),
    ],
)
def test_bad_shares_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Batches(Sequential(5), **options)
