"""Batches of an order, by ranks, and samplers of the user's."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_data import MemoryData
from torch.utils.data import BatchSampler, DistributedSampler

from fastdata.errors import OptionError
from fastdata.loading import loader
from fastdata.sampling import (
    Batches,
    BlockShuffle,
    BlockShuffled,
    SampledBatches,
    SamplerOrder,
    Sequential,
    Shuffled,
    Weighted,
    order_of,
)

# No example has a time limit, for a machine may be busy.
QUICK = settings(deadline=None, max_examples=40)


def loaded(count: int, epoch: int = 0, **options: Any) -> list[list[int]]:
    """Return which samples are in the batches of a loader's epoch."""
    with loader(MemoryData(count, size=(4, 4)), num_workers=0, **options) as it:
        it.set_epoch(epoch)
        return [(batch.label // 3).tolist() for batch in it]


def indices_of(batches: Batches | SampledBatches, epoch: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches.in_epoch(epoch)]


def test_what_does_not_divide_is_repeated_from_the_last_batch() -> None:
    ranks = [Batches(Sequential(10), 2, rank=rank, world_size=4) for rank in range(4)]
    assert [indices_of(rank) for rank in ranks] == [
        [[0, 1], [8]],
        [[2, 3], [9]],
        [[4, 5], [8]],
        [[6, 7], [9]],
    ]
    assert {rank.padding for rank in ranks} == {2}


def test_a_batch_is_found_without_those_before_it() -> None:
    batches = Batches(Shuffled(100, 3), 8)
    epoch = batches.in_epoch(5)
    np.testing.assert_array_equal(epoch[9], indices_of(batches, 5)[9])
    for number in (13, -1):
        with pytest.raises(IndexError, match=f"batch {number} of an epoch of 13"):
            epoch[number]
        with pytest.raises(IndexError, match=f"batch {number} of an epoch of 13"):
            epoch.samples_in(number)


def order_of_batch_lookups(batches: Batches) -> list[int]:
    numbers = np.random.default_rng(0).permutation(len(batches)).tolist()
    return [*numbers, *numbers[:20]]


def test_batches_far_apart_are_those_of_the_epoch() -> None:
    # More than are looked up at once, in any order, with a short one at the end.
    order = Shuffled(70_001, 3)
    batches = Batches(order, 100, rank=1, world_size=3)
    positions = np.arange(70_002)
    positions[-1] = 69_900 + 0  # one is missing to 3 ranks: the last batch's first again
    blocks = [positions[at + 100 : at + 200] for at in range(0, 69_900, 300)]
    expected = order.in_epoch(2)(np.concatenate([*blocks, positions[69_900:].reshape(3, -1)[1]]))
    epoch = batches.in_epoch(2)
    for number in order_of_batch_lookups(batches):
        np.testing.assert_array_equal(epoch[number], expected[number * 100 : number * 100 + 100])
        assert epoch.samples_in(number) == len(epoch[number])


def test_a_batch_larger_than_what_is_looked_up_at_once_is_whole() -> None:
    assert [len(batch) for batch in Batches(Shuffled(25_000, 0), 10_000).in_epoch(0)] == [
        10_000,
        10_000,
        5_000,
    ]


def test_a_batch_is_the_callers_to_change() -> None:
    for batches in (Batches(Shuffled(100, 3), 8), SampledBatches([[1, 2], [3]], 5)):
        epoch = batches.in_epoch(0)
        before = epoch[1].tolist()
        epoch[1][:] = -1
        assert epoch[1].tolist() == before


def test_threads_find_the_same_batches() -> None:
    batches = Batches(Shuffled(100_000, 3), 128)
    expected = indices_of(batches)
    epoch = batches.in_epoch(0)
    wrong: list[int] = []

    def read(start: int) -> None:
        for number in [*range(start, len(epoch), 4), *range(start, len(epoch), 64)]:
            if epoch[number].tolist() != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@QUICK
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
    for batches, share in zip(steps, shares, strict=True):
        assert len(batches) == len(share)
        assert share.samples == sum(map(len, batches))
        assert [share.in_epoch(0).samples_in(k) for k in range(len(share))] == list(
            map(len, batches)
        )
    # In step: the ranks' batches are of one size.
    assert all(len({len(b) for b in step}) == 1 for step in zip(*steps, strict=True))
    seen = sorted(i for batches in steps for batch in batches for i in batch)
    if drop_last:
        assert len(set(seen)) == len(seen)
        assert all(len(batch) == batch_size for batches in steps for batch in batches)
        assert count - len(seen) < batch_size * world_size
        assert shares[0].padding == 0
    else:
        assert set(seen) == set(range(count))
        assert len(seen) == count + shares[0].padding
        assert shares[0].padding < world_size


@QUICK
@given(count=st.integers(0, 60), batch_size=st.integers(1, 9), world_size=st.integers(1, 7))
def test_an_uneven_epoch_is_each_sample_once(count: int, batch_size: int, world_size: int) -> None:
    shares = [
        Batches(Shuffled(count, 1), batch_size, rank=rank, world_size=world_size, even=False)
        for rank in range(world_size)
    ]
    steps = [indices_of(share) for share in shares]
    for batches, share in zip(steps, shares, strict=True):
        assert [len(batches), sum(map(len, batches))] == [len(share), share.samples]
        assert all(batches)
        assert share.padding == 0
        assert [share.in_epoch(0).samples_in(k) for k in range(len(share))] == list(
            map(len, batches)
        )
    assert sorted(i for b in steps for batch in b for i in batch) == list(range(count))
    assert max(map(len, steps)) - min(map(len, steps)) <= 1


SPLITS = st.sampled_from([1, 2, 3, 4, 6, 12])


@QUICK
@given(
    count=st.integers(0, 80),
    splits=st.tuples(SPLITS, SPLITS),
    cut=st.sampled_from([(True, True), (False, True), (False, False)]),
    shuffle=st.sampled_from([False, True, BlockShuffle(4, 3)]),
)
def test_a_global_batch_is_the_same_for_every_number_of_ranks(
    count: int, splits: tuple[int, int], cut: tuple[bool, bool], shuffle: Any
) -> None:
    drop_last, even = cut

    def shares(world_size: int) -> list[Batches]:
        order = order_of(shuffle, count, 2)
        size = 12 // world_size
        return [
            Batches(order, size, drop_last, rank, world_size, even) for rank in range(world_size)
        ]

    def global_batches(world_size: int) -> list[set[int]]:
        steps = zip_longest(*map(indices_of, shares(world_size)), fillvalue=[])
        return [{i for batch in step for i in batch} for step in steps]

    first, second = splits
    assert global_batches(first) == global_batches(second)
    both = shares(first) + shares(second)
    assert all(share.identity == both[0].identity for share in both)
    if even:
        assert len({len(share) for share in both}) == 1


@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_those_of_the_distributed_sampler(drop_last: bool) -> None:
    for rank in range(3):
        share: dict[str, Any] = {"rank": rank, "drop_last": drop_last}
        sampler = DistributedSampler(range(10), num_replicas=3, shuffle=False, **share)  # type: ignore[arg-type]
        batches, expected = loaded(10, world_size=3, **share), list(sampler)
        found = [sample for batch in batches for sample in batch]
        assert len(found) == len(expected)
        # Only what is repeated is another: torch takes it from the beginning of the epoch.
        assert found[:3] == expected[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 2.0}, r"batch_size=2\.0 is not an integer from 1 to"),
        ({"batch_size": 1, "world_size": 0}, "world_size=0 is not an integer from 1"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank is 0 to 1, not 2"),
        ({"batch_size": 1, "rank": -1, "world_size": 2}, "rank=-1 is not an integer from 0"),
    ],
)
def test_bad_shares_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Batches(Sequential(5), **options)


# -- samplers of the user's ---------------------------------------------------------


class Backwards:
    epoch = 0

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter([-1, 5 - self.epoch, 0])

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Endless:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield 1


class EndlessBatches(Endless):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield [1]


def test_samplers_may_yield_any_kind_of_integer() -> None:
    sampler = [np.int32(2), torch.tensor(1), 0]
    assert loaded(3, sampler=sampler, batch_size=3) == [[2, 1, 0]]
    assert loaded(3, batch_sampler=[torch.tensor([2, 1]), np.array([0])]) == [[2, 1], [0]]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ([1, 10], "yielded 10, but the dataset has 10 samples$"),
        ([1, -11], "yielded -11, but the dataset has 10 samples$"),
        ([1, 0.5], r"yielded 0\.5, which is not an index"),
        ([[1, 2]], r"yielded \[1, 2\], which is not an index"),
        (Endless(), "yielded more than 3 indices, but its length is 3"),
    ],
)
def test_bad_samplers_are_refused(sampler: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loaded(10, sampler=sampler)


def test_a_batch_sampler_decides_the_batches() -> None:
    batches = SampledBatches([[3, 1, 1], [0], [4, 2]], 5)
    epoch = batches.in_epoch(0)
    assert indices_of(batches) == [[3, 1, 1], [0], [4, 2]]
    assert [epoch.samples_in(number) for number in range(3)] == [3, 1, 2]
    assert all(batch.dtype == np.int64 for batch in epoch)
    assert (len(batches), len(epoch), batches.padding, batches.samples) == (3, 3, 0, None)
    with pytest.raises(IndexError, match="batch 3 of an epoch of 3"):
        epoch[3]


def test_torchs_batch_sampler_gets_the_epoch_to_its_sampler() -> None:
    sampler = DistributedSampler(range(20), num_replicas=2, rank=1, seed=5)  # type: ignore[arg-type]
    batch_sampler = BatchSampler(sampler, 4, drop_last=False)
    for epoch in (3, 0):
        found = loaded(20, epoch, batch_sampler=batch_sampler)
        sampler.set_epoch(epoch)
        assert [i for batch in found for i in batch] == list(sampler)
        assert list(map(len, found)) == [4, 4, 2]


def test_a_batch_sampler_gets_the_epoch() -> None:
    class Growing(Backwards):
        def __iter__(self) -> Iterator[Any]:
            return iter([[0]] * 2 + [list(range(self.epoch + 1))])

    assert loaded(10, 4, batch_sampler=Growing())[2] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ([[1], [2, 10]], "in batch 1, yielded 10, but the dataset has 10 samples$"),
        ([[1, -1]], "in batch 0, yielded -1, .* 10 samples; negative indices are not taken"),
        ([[1, 0.5]], r"yielded 0\.5, which is not an index"),
        ([[1], []], "in batch 1, yielded no samples; leave empty batches out"),
        ([1, 2], r"yielded 1, but a batch is a list .* is a sampler \(sampler=...\)"),
        (EndlessBatches(), "yielded more than 3 batches, but its length is 3"),
    ],
)
def test_bad_batch_samplers_are_refused(sampler: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loaded(10, batch_sampler=sampler)


def test_samplers_have_a_length_and_keep_to_it() -> None:
    with pytest.raises(OptionError, match="sampler generator has no length"):
        loaded(10, sampler=(i for i in range(3)))
    with pytest.raises(OptionError, match="batch_sampler generator has no length"):
        loaded(10, batch_sampler=([i] for i in range(3)))

    class Short(Backwards):
        def __len__(self) -> int:
            return 4

    with pytest.raises(OptionError, match="yielded 3 indices, but its length is 4"):
        loaded(10, sampler=Short())


# -- what makes a place in an epoch mean something ------------------------------------

DIFFERENT: list[Batches | SampledBatches] = [
    Batches(Sequential(60), 4),
    Batches(Sequential(61), 4),
    Batches(Sequential(60), 5),
    Batches(Sequential(60), 4, rank=1, world_size=2),
    Batches(Sequential(60), 4, drop_last=True),
    Batches(Sequential(60), 4, even=False),
    Batches(Shuffled(60, 0), 4),
    Batches(Shuffled(60, 1), 4),
    Batches(BlockShuffled(60, 0, 4, 3), 4),
    Batches(BlockShuffled(60, 1, 4, 3), 4),
    Batches(BlockShuffled(60, 0, 3, 3), 4),
    Batches(BlockShuffled(60, 0, 4, 4), 4),
    Batches(Weighted(np.ones(60), 0), 4),
    Batches(Weighted(np.ones(60), 1), 4),
    Batches(Weighted(np.ones(50), 0), 4),
    Batches(Weighted(np.arange(60), 0), 4),
    Batches(Weighted(np.arange(60) + 0.5, 0), 4),
    Batches(SamplerOrder(list(range(60)), 60), 4),
    Batches(SamplerOrder(tuple(range(60)), 60), 4),
    SampledBatches([[1, 2], [3]], 60),
    SampledBatches([[1, 2], [3], [4]], 60),
    SampledBatches(((1, 2), (3,)), 60),
]


def test_identities_differ_where_batches_do() -> None:
    texts = [json.dumps(batches.identity, sort_keys=True) for batches in DIFFERENT]
    assert len(set(texts)) == len(texts)
    assert [json.loads(text) for text in texts] == [batches.identity for batches in DIFFERENT]


def test_an_identity_names_what_it_is_of() -> None:
    assert Batches(BlockShuffled(60, 7, 4, 3), 4, rank=1, world_size=2).identity == {
        "order": "BlockShuffled",
        "samples": 60,
        "seed": 7,
        "block_size": 4,
        "window_blocks": 3,
        "global_batch_size": 8,
        "drop_last": False,
        "even": True,
    }
