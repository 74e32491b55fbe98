"""Order, ranks and batches as pure functions."""

from __future__ import annotations

import json
import math
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations, zip_longest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.errors import OptionError
from fastdata.random import Draws
from fastdata.sampling import (
    Batches,
    BlockShuffle,
    BlockShuffled,
    Order,
    SampledBatches,
    SamplerOrder,
    Sequential,
    Shuffled,
    Weighted,
    order_of,
)
from fastdata.sampling.permutation import ROUNDS, Permutation

# No example has a time limit, for a machine may be busy.
QUICK = settings(deadline=None, max_examples=40)

RAW_WEIGHTS = [1.0, 0.0, 2.5, 3.0, 0.5]


def epoch_of(order: Order, epoch: int = 0) -> list[int]:
    return order.of(epoch)(np.arange(len(order))).tolist()  # type: ignore[no-any-return]


def indices_of(batches: Batches | SampledBatches, epoch: int = 0) -> list[list[int]]:
    return [batch.tolist() for batch in batches.of(epoch)]


def assert_as_likely(counts: Any, expected: Any) -> None:
    """Chi-square, at six standard deviations: chance fails it less than once in a million."""
    counts, expected = np.broadcast_arrays(np.asarray(counts, float), np.asarray(expected, float))
    freedom = counts.size - 1
    assert ((counts - expected) ** 2 / expected).sum() < freedom + 6 * math.sqrt(2 * freedom) + 6


# -- permutations -------------------------------------------------------------------


def feistel(x: int, count: int, keys: list[int]) -> int:
    """Permute one number with Python's integers, as the module says."""
    height = math.isqrt(count - 1) + 1
    height += height % 2
    width = -(-count // height)
    halves, sides = list(divmod(x, width)), (height, width)
    for number, key in enumerate(keys):
        mine, other = number % 2, 1 - number % 2
        word = (halves[other] ^ key) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % 2**64
        halves[mine] = (halves[mine] + ((word >> 32) * sides[mine] >> 32)) % sides[mine]
    x = halves[0] * width + halves[1]
    return x if x < count else feistel(x, count, keys)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 97, 10**4, 10**8, 2**62 - 1, 2**62])
def test_a_permutation_is_the_documented_one(count: int) -> None:
    keys = Draws(3, 1, 4, np.array([5])).bits(ROUNDS)[0]
    positions = np.linspace(0, count - 1, 30, dtype=np.float64).astype(np.int64) % count
    found = Permutation.drawn(count, 3, 1, 4, 5)(positions)
    assert found.dtype == np.int64
    assert found.tolist() == [feistel(x, count, keys.tolist()) for x in positions.tolist()]


@QUICK
@given(count=st.integers(0, 300), seed=st.integers(-5, 2**65), epoch=st.integers(0, 5))
def test_shuffle_is_a_permutation(count: int, seed: int, epoch: int) -> None:
    assert sorted(epoch_of(Shuffled(count, seed), epoch)) == list(range(count))


@pytest.mark.parametrize("count", [2**16 - 1, 2**16, 2**16 + 1, 10**6])
def test_a_large_shuffle_is_a_permutation(count: int) -> None:
    np.testing.assert_array_equal(np.sort(epoch_of(Shuffled(count, 0))), np.arange(count))


def test_shuffle_depends_on_seed_and_epoch_only() -> None:
    positions = np.arange(1000)
    order = Shuffled(1000, 1).of(0)(positions)
    np.testing.assert_array_equal(order, Shuffled(1000, 1).of(0)(positions))
    assert (order != Shuffled(1000, 1).of(1)(positions)).mean() > 0.9
    assert (order != Shuffled(1000, 2).of(0)(positions)).mean() > 0.9


def test_every_sample_is_as_likely_at_every_place() -> None:
    epochs = 1000
    places = np.zeros((6, 6))
    for epoch in range(epochs):
        places[np.arange(6), epoch_of(Shuffled(6, 0), epoch)] += 1
    assert_as_likely(places, epochs / 6)


def test_every_permutation_is_as_likely() -> None:
    seen = dict.fromkeys(permutations(range(5)), 0)
    for seed in range(40):
        for epoch in range(50):
            seen[tuple(epoch_of(Shuffled(5, seed), epoch))] += 1
    assert_as_likely(list(seen.values()), 2000 / 120)


@pytest.mark.parametrize("count", [5, 7, 8, 10])
def test_every_pair_of_neighbours_is_as_likely(count: int) -> None:
    epochs = 1000
    pairs = np.zeros((count - 1, count, count))
    for epoch in range(epochs):
        order = np.array(epoch_of(Shuffled(count, epoch % 7), epoch))
        pairs[np.arange(count - 1), order[:-1], order[1:]] += 1
    apart = ~np.eye(count, dtype=bool)
    for place in pairs:
        assert_as_likely(place[apart], epochs / apart.sum())
    assert_as_likely(pairs.sum(0)[apart], epochs * (count - 1) / apart.sum())


@pytest.mark.parametrize("change", ["epoch", "seed"])
def test_one_shuffle_says_nothing_of_the_next(change: str) -> None:
    joint = np.zeros((6, 6))
    before = 0
    for number in range(1001):
        seed, epoch = (number, 0) if change == "seed" else (0, number)
        now = epoch_of(Shuffled(6, seed), epoch)[2]
        joint[before, now] += number > 0
        before = now
    assert_as_likely(joint, 1000 / 36)


def test_large_shuffles_agree_in_no_more_places_than_chance_has_it() -> None:
    orders = np.array([epoch_of(Shuffled(20_000, 0), epoch) for epoch in range(40)])
    # Each of these counts is of a Poisson distribution of mean 1.
    kept = [(a == b).sum() for a, b in pairwise(orders)]
    stuck = [(order == np.arange(20_000)).sum() for order in orders]
    together = [(np.diff(order) == 1).sum() for order in orders]
    for counts in (kept, stuck, together):
        assert abs(np.mean(counts) - 1) < 5 / math.sqrt(len(counts))
    # Places far apart go where they like: no stripes.
    assert abs(np.corrcoef(orders[0], np.arange(20_000))[0, 1]) < 0.04
    assert abs(np.corrcoef(orders[0][:-1], orders[0][1:])[0, 1]) < 0.04


@pytest.mark.parametrize(
    ("order", "epoch", "first"),
    [
        (Shuffled(10, 0), 0, [8, 6, 2, 5, 7, 4, 1, 0, 3, 9]),
        (Shuffled(1000, 0), 0, [37, 931, 918, 855, 194, 353]),
        (Shuffled(50_000, 1), 2, [31981, 22241, 6269, 17830, 47860, 16181]),
        (Shuffled(10**8, 3), 90, [45522602, 40922036, 57206815, 86826233, 43799675]),
        (Shuffled(2**62, 7), 1, [2966398844628858396, 2629704067949686204]),
        (BlockShuffled(20, 0, 3, 2), 1, [4, 3, 7, 6, 8, 5, 16, 19]),
        (BlockShuffled(1000, 5, 16, 4), 1, [784, 782, 790, 786, 137, 772, 140, 798]),
        (BlockShuffled(10**8, 3, 128, 64), 1, [77275673, 59814823, 12931796, 23752305]),
        (Weighted(RAW_WEIGHTS, 4), 2, [2, 2, 2, 3, 3]),
        (Weighted(RAW_WEIGHTS, 4, 4, replacement=False), 2, [2, 3, 0, 4]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_orders_never_change(order: Order, epoch: int, first: list[int]) -> None:
    # A place saved by one release is continued by the next.
    assert order.of(epoch)(np.arange(len(first))).tolist() == first


@pytest.mark.parametrize("order", [Shuffled(10**8, 0), BlockShuffled(10**8, 0, 128, 64)])
def test_memory_does_not_grow_with_the_dataset(order: Order) -> None:
    tracemalloc.start()
    try:
        epoch = Batches(order, 512, rank=3, world_size=8).of(0)
        assert len({*epoch[0].tolist(), *epoch[len(epoch) - 1].tolist()}) > 512
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# -- blocks -------------------------------------------------------------------------


@QUICK
@given(
    count=st.integers(0, 200),
    block_size=st.integers(1, 40),
    window_blocks=st.integers(1, 9),
    seed=st.integers(0, 2**64),
)
def test_a_block_stays_within_a_window(
    count: int, block_size: int, window_blocks: int, seed: int
) -> None:
    order = np.array(epoch_of(BlockShuffled(count, seed, block_size, window_blocks)), np.int64)
    assert sorted(order.tolist()) == list(range(count))
    blocks = order // block_size
    window = block_size * window_blocks
    for block in range(-(-count // block_size)):
        places = np.flatnonzero(blocks == block)
        assert places.max() - places.min() < window
    for start in range(0, count, window):
        assert len(set(blocks[start : start + window].tolist())) <= 2 * window_blocks


def windows_of(order: list[int], block_size: int) -> list[set[int]]:
    """Cut an epoch wherever every block begun is finished: sets of blocks."""
    windows: list[set[int]] = []
    left: list[int] = []
    for sample in order:
        left.append(sample)
        blocks = {i // block_size for i in left}
        if len(left) == sum(i // block_size in blocks for i in order):
            windows.append(blocks)
            left = []
    return windows


@pytest.mark.parametrize("count", [480, 475])
def test_a_window_has_so_many_blocks_and_no_more(count: int) -> None:
    for epoch in range(20):
        windows = windows_of(epoch_of(BlockShuffled(count, 0, 10, 5), epoch), 10)
        assert sum(map(len, windows)) == 48
        assert max(map(len, windows)) == 5
        assert len(windows) >= 10


@pytest.mark.parametrize(
    ("count", "block_size", "window_blocks", "orders"),
    [
        (4, 1, 1, 24),  # only blocks are shuffled
        (4, 4, 1, 24),  # only samples are shuffled
        (4, 1, 2, 24),
        (4, 2, 1, 2 * 2 * 2),  # blocks, and samples of each
        (3, 2, 1, 2 * 2),  # the second block has one sample
        (5, 2, 1, 6 * 2 * 2),
        (6, 2, 2, 3 * 24 * 2),  # any block is alone in the second window
    ],
)
def test_every_block_shuffle_is_as_likely(
    count: int, block_size: int, window_blocks: int, orders: int
) -> None:
    seen: dict[tuple[int, ...], int] = {}
    epochs = max(200, 8 * orders)
    for epoch in range(epochs):
        order = tuple(epoch_of(BlockShuffled(count, 0, block_size, window_blocks), epoch))
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == orders
    assert_as_likely(list(seen.values()), epochs / orders)


def test_the_short_block_is_in_any_window() -> None:
    found = np.zeros(5)
    for epoch in range(200):
        order = epoch_of(BlockShuffled(99, 1, 10, 2), epoch)
        found[min(order.index(98) // 20, 4)] += 1
    assert_as_likely(found, 40)


def test_windows_are_shuffled_each_in_its_own_way() -> None:
    order = np.array(epoch_of(BlockShuffled(4096, 0, 4096, 1))).tolist()
    assert order != sorted(order)
    two = np.array(epoch_of(BlockShuffled(2048, 0, 1024, 1)))
    assert (two[:1024] % 1024 != two[1024:] % 1024).mean() > 0.9


@pytest.mark.parametrize(
    ("shuffle", "order"),
    [
        (False, Sequential(9)),
        (True, Shuffled(9, 4)),
        ("block", BlockShuffled(9, 4, 128, 64)),
        (BlockShuffle(), BlockShuffled(9, 4, 128, 64)),
        (BlockShuffle(block_size=2, window_blocks=3), BlockShuffled(9, 4, 2, 3)),
    ],
)
def test_shuffle_names_an_order(shuffle: Any, order: Order) -> None:
    assert order_of(shuffle, 9, 4) == order


@pytest.mark.parametrize("shuffle", ["blocks", 1, None, BlockShuffle])
def test_what_names_no_order_is_refused(shuffle: Any) -> None:
    with pytest.raises(OptionError, match='shuffle is False, True, "block" or a BlockShuffle'):
        order_of(shuffle, 9, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockShuffle(block_size=0), "block_size is an int from 1 to .*, not 0"),
        (lambda: BlockShuffle(window_blocks=2.0), r"window_blocks is an int from 1 .*, not 2\.0"),
        (lambda: BlockShuffled(5, 0, 1, 0), "window_blocks is an int from 1 .*, not 0"),
        (lambda: BlockShuffled(-1, 0, 1, 1), "count is an int from 0 .*, not -1"),
        (lambda: Shuffled(2**62 + 1, 0), r"count is an int from 0 to 2\*\*62, not 4611686018"),
        (lambda: Sequential(True), "count is an int from 0 .*, not True"),
    ],
)
def test_bad_orders_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


# -- weights ------------------------------------------------------------------------


def test_samples_come_as_often_as_their_weights_say() -> None:
    order = np.array(epoch_of(Weighted(RAW_WEIGHTS, 0, 20_000)))
    counts = np.bincount(order, minlength=5)
    assert counts[1] == 0
    drawn = np.array(RAW_WEIGHTS) > 0
    assert_as_likely(counts[drawn], 20_000 * np.array(RAW_WEIGHTS)[drawn] / sum(RAW_WEIGHTS))


def test_neighbours_are_drawn_independently() -> None:
    pairs = np.zeros((2, 2))
    for epoch in range(5):
        order = np.array(epoch_of(Weighted([3, 1], 0, 4000), epoch))
        np.add.at(pairs, (order[0::2], order[1::2]), 1)
    assert_as_likely(pairs, 10_000 * np.outer([0.75, 0.25], [0.75, 0.25]))


def test_a_weighted_draw_depends_on_seed_epoch_and_position_only() -> None:
    weights = np.arange(1.0, 50.0)
    epoch = np.array(epoch_of(Weighted(weights, 7), 3))
    places = np.array([40, 3, 3, 17])
    np.testing.assert_array_equal(Weighted(weights, 7, 1000).of(3)(places), epoch[places])
    assert epoch_of(Weighted(weights, 7), 4) != epoch.tolist()
    assert epoch_of(Weighted(weights, 8), 3) != epoch.tolist()


@pytest.mark.parametrize("replacement", [True, False])
def test_weights_at_the_ends_may_be_0_and_scales_extreme(replacement: bool) -> None:
    weights = np.array([0, 0, 1e300, 1e-300, 1e300, 0])
    order = Weighted(weights, 0, 2 if not replacement else 500, replacement=replacement)
    assert set(epoch_of(order)) == {2, 4}


def test_the_last_bound_is_never_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding can make the point the whole sum, behind which there is no sample.
    monkeypatch.setattr(Draws, "uniform", lambda self: np.ones((len(self.indices), 1)))
    assert epoch_of(Weighted([1, 2, 0, 0], 0, 3)) == [1, 1, 1]


def test_without_replacement_samples_are_drawn_one_after_another() -> None:
    weights = np.array([1.0, 2.0, 4.0, 0.0])
    epochs = 3000
    seen: dict[tuple[int, ...], int] = {}
    for epoch in range(epochs):
        drawn = tuple(epoch_of(Weighted(weights, 0, 2, replacement=False), epoch))
        seen[drawn] = seen.get(drawn, 0) + 1
    expected = {
        (a, b): epochs * weights[a] / 7 * weights[b] / (7 - weights[a])
        for a, b in permutations(range(3), 2)
    }
    assert seen.keys() == expected.keys()
    assert_as_likely([seen[pair] for pair in expected], list(expected.values()))


def test_without_replacement_nothing_comes_twice() -> None:
    order = Weighted(np.arange(100.0), 0, 99, replacement=False)
    assert sorted(epoch_of(order)) == list(range(1, 100))
    assert epoch_of(order) != epoch_of(order, 1)


def test_equal_keys_keep_the_order_of_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Draws, "uniform", lambda self: np.full((len(self.indices), 1), 0.5))
    order = Weighted(np.tile([1.0, 2.0], 200), 0, replacement=False)
    assert epoch_of(order) == [*range(1, 400, 2), *range(0, 400, 2)]


def test_weights_are_copied() -> None:
    weights = np.ones(4)
    order = Weighted(weights, 0)
    before = epoch_of(order)
    weights[:] = [0, 0, 0, 1]
    assert epoch_of(order) == before
    assert order.count == 4


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([1, -2],), {}, r"at least 0, but that of sample 1 is -2\.0"),
        (([1, 1, np.nan],), {}, "finite and at least 0, but that of sample 2 is nan"),
        (([np.inf],), {}, "that of sample 0 is inf"),
        (([1e308, 1e308],), {}, "sum of the weights is infinite; scale them down"),
        (([0, 0],), {}, "all 2 weights are 0"),
        (([],), {}, "all 0 weights are 0"),
        (([[1, 2]],), {}, r"one number for each sample, not an array of shape \(1, 2\)"),
        (([1, 2], 0), {}, "num_samples is an int from 1 .*, not 0"),
        (([1, 0],), {"replacement": False}, "2 samples .* but 1 of 2 weights are above 0"),
    ],
)
def test_bad_weights_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        Weighted(arguments[0], 0, *arguments[1:], **options)


# -- batches and ranks --------------------------------------------------------------


def test_batches_are_cut_in_order() -> None:
    assert indices_of(Batches(Sequential(7), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert indices_of(Batches(Sequential(7), 3, drop_last=True)) == [[0, 1, 2], [3, 4, 5]]


def test_what_does_not_divide_is_repeated_from_the_last_batch() -> None:
    ranks = [Batches(Sequential(10), 2, rank=rank, world_size=4) for rank in range(4)]
    assert [indices_of(rank) for rank in ranks] == [
        [[0, 4], [8]],
        [[1, 5], [9]],
        [[2, 6], [8]],
        [[3, 7], [9]],
    ]
    assert {rank.padding for rank in ranks} == {2}


def test_a_batch_is_found_without_those_before_it() -> None:
    batches = Batches(Shuffled(100, 3), 8)
    epoch = batches.of(5)
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
    expected = order.of(2)(positions[1::3])
    epoch = batches.of(2)
    for number in order_of_batch_lookups(batches):
        np.testing.assert_array_equal(epoch[number], expected[number * 100 : number * 100 + 100])
        assert epoch.samples_in(number) == len(epoch[number])


def test_a_batch_larger_than_what_is_looked_up_at_once_is_whole() -> None:
    assert [len(batch) for batch in Batches(Shuffled(25_000, 0), 10_000).of(0)] == [
        10_000,
        10_000,
        5_000,
    ]


def test_a_batch_is_the_callers_to_change() -> None:
    for batches in (Batches(Shuffled(100, 3), 8), SampledBatches([[1, 2], [3]], 5)):
        epoch = batches.of(0)
        before = epoch[1].tolist()
        epoch[1][:] = -1
        assert epoch[1].tolist() == before


def test_threads_find_the_same_batches() -> None:
    batches = Batches(Shuffled(100_000, 3), 128)
    expected = indices_of(batches)
    epoch = batches.of(0)
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
        assert [share.of(0).samples_in(k) for k in range(len(share))] == list(map(len, batches))
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
        assert [share.of(0).samples_in(k) for k in range(len(share))] == list(map(len, batches))
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
    data = pytest.importorskip("torch.utils.data")
    for rank in range(3):
        sampler = data.DistributedSampler(
            range(10), num_replicas=3, rank=rank, shuffle=False, drop_last=drop_last
        )
        batches = Batches(Sequential(10), 1, drop_last, rank, 3)
        found, expected = [batch[0] for batch in indices_of(batches)], list(sampler)
        assert len(found) == len(expected)
        # Only what is repeated is another: torch takes it from the beginning of the epoch.
        assert found[:3] == expected[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is an int from 1 .*, not 0"),
        ({"batch_size": 2.0}, r"batch_size is an int from 1 .*, not 2\.0"),
        ({"batch_size": 1, "world_size": 0}, "world_size is an int from 1"),
        ({"batch_size": 1, "rank": 2, "world_size": 2}, "rank is 0 to 1, not 2"),
        ({"batch_size": 1, "rank": -1, "world_size": 2}, "rank is an int from 0 .*, not -1"),
        ({"batch_size": 1, "drop_last": True, "even": False}, "drop_last=True leaves samples out"),
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


def test_a_sampler_decides_the_order() -> None:
    batches = Batches(SamplerOrder(Backwards(), 10), 2)
    assert indices_of(batches, 0) == [[9, 5], [0]]
    assert indices_of(batches, 2) == [[9, 3], [0]]


def test_samplers_may_yield_any_kind_of_integer() -> None:
    torch = pytest.importorskip("torch")
    assert epoch_of(SamplerOrder([np.int32(2), torch.tensor(1), 0], 3)) == [2, 1, 0]
    assert indices_of(SampledBatches([torch.tensor([2, 1]), np.array([0])], 3)) == [[2, 1], [0]]


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
        SamplerOrder(sampler, 10).of(0)


def test_a_batch_sampler_decides_the_batches() -> None:
    batches = SampledBatches([[3, 1, 1], [0], [4, 2]], 5)
    epoch = batches.of(0)
    assert indices_of(batches) == [[3, 1, 1], [0], [4, 2]]
    assert [epoch.samples_in(number) for number in range(3)] == [3, 1, 2]
    assert all(batch.dtype == np.int64 for batch in epoch)
    assert (len(batches), len(epoch), batches.padding, batches.samples) == (3, 3, 0, None)
    with pytest.raises(IndexError, match="batch 3 of an epoch of 3"):
        epoch[3]


def test_torchs_batch_sampler_gets_the_epoch_to_its_sampler() -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = data.DistributedSampler(range(20), num_replicas=2, rank=1, seed=5)
    batches = SampledBatches(data.BatchSampler(sampler, 4, drop_last=False), 20)
    for epoch in (3, 0):
        found = indices_of(batches, epoch)
        sampler.set_epoch(epoch)
        assert [i for batch in found for i in batch] == list(sampler)
        assert list(map(len, found)) == [4, 4, 2]


def test_a_batch_sampler_gets_the_epoch() -> None:
    class Growing(Backwards):
        def __iter__(self) -> Iterator[Any]:
            return iter([[0]] * 2 + [list(range(self.epoch + 1))])

    assert indices_of(SampledBatches(Growing(), 10), 4)[2] == [0, 1, 2, 3, 4]


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
        SampledBatches(sampler, 10).of(0)


def test_samplers_have_a_length_and_keep_to_it() -> None:
    with pytest.raises(OptionError, match="sampler generator has no length"):
        SamplerOrder((i for i in range(3)), 10)
    with pytest.raises(OptionError, match="batch_sampler generator has no length"):
        SampledBatches(([i] for i in range(3)), 10)

    class Short(Backwards):
        def __len__(self) -> int:
            return 4

    with pytest.raises(OptionError, match="yielded 3 indices, but its length is 4"):
        SamplerOrder(Short(), 10).of(0)


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
    Batches(Weighted(np.ones(60), 0, 50), 4),
    Batches(Weighted(np.arange(60), 0), 4),
    Batches(Weighted(np.ones(60), 0, replacement=False), 4),
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


def test_different_orders_draw_differently() -> None:
    assert epoch_of(Shuffled(64, 0)) != epoch_of(BlockShuffled(64, 0, 64, 1))
