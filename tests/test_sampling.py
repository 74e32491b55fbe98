"""Order, ranks and batches as pure functions."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_data import MemoryData

from fastdata.errors import OptionError
from fastdata.loading import loader
from fastdata.random import Draws
from fastdata.sampling import (
    Batches,
    BlockShuffle,
    BlockShuffled,
    Order,
    Sequential,
    Shuffled,
    Weighted,
    order_of,
)
from fastdata.sampling.shuffle import ROUNDS, Permutation

# No example has a time limit, for a machine may be busy.
QUICK = settings(deadline=None, max_examples=40)

RAW_WEIGHTS = [1.0, 0.0, 2.5, 3.0, 0.5]


def epoch_of(order: Order, epoch: int = 0) -> list[int]:
    return order.in_epoch(epoch)(np.arange(len(order))).tolist()  # type: ignore[no-any-return]


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
    order = Shuffled(1000, 1).in_epoch(0)(positions)
    np.testing.assert_array_equal(order, Shuffled(1000, 1).in_epoch(0)(positions))
    assert (order != Shuffled(1000, 1).in_epoch(1)(positions)).mean() > 0.9
    assert (order != Shuffled(1000, 2).in_epoch(0)(positions)).mean() > 0.9


def test_every_permutation_is_as_likely() -> None:
    seen = dict.fromkeys(permutations(range(5)), 0)
    for seed in range(40):
        for epoch in range(50):
            seen[tuple(epoch_of(Shuffled(5, seed), epoch))] += 1
    assert_as_likely(list(seen.values()), 2000 / 120)


@pytest.mark.parametrize("count", [6, 7, 8, 10])
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
    ],
    ids=lambda value: type(value).__name__,
)
def test_orders_never_change(order: Order, epoch: int, first: list[int]) -> None:
    # A place saved by one release is continued by the next.
    assert order.in_epoch(epoch)(np.arange(len(first))).tolist() == first


@pytest.mark.parametrize("order", [Shuffled(10**8, 0), BlockShuffled(10**8, 0, 128, 64)])
def test_memory_does_not_grow_with_the_dataset(order: Order) -> None:
    tracemalloc.start()
    try:
        epoch = Batches(order, 512, rank=3, world_size=8).in_epoch(0)
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockShuffle(block_size=0), "block_size=0 is not an integer from 1"),
        (lambda: BlockShuffle(window_blocks=2.0), r"window_blocks=2\.0 is not an integer from 1"),
        (lambda: BlockShuffled(5, 0, 1, 0), "window_blocks=0 is not an integer from 1"),
        (lambda: BlockShuffled(-1, 0, 1, 1), "count=-1 is not an integer from 0"),
        (lambda: Shuffled(2**62 + 1, 0), "count=4611686018427387905 is not an int"),
        (lambda: Sequential(True), "count=True is not an integer from 0"),
    ],
)
def test_bad_orders_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


# -- weights ------------------------------------------------------------------------


def test_samples_come_as_often_as_their_weights_say() -> None:
    order = Weighted(RAW_WEIGHTS, 0).in_epoch(0)(np.arange(20_000))
    counts = np.bincount(order, minlength=5)
    assert counts[1] == 0
    drawn = np.array(RAW_WEIGHTS) > 0
    assert_as_likely(counts[drawn], 20_000 * np.array(RAW_WEIGHTS)[drawn] / sum(RAW_WEIGHTS))


def test_neighbours_are_drawn_independently() -> None:
    pairs = np.zeros((2, 2))
    for epoch in range(5):
        order = Weighted([3, 1], 0).in_epoch(epoch)(np.arange(4000))
        np.add.at(pairs, (order[0::2], order[1::2]), 1)
    assert_as_likely(pairs, 10_000 * np.outer([0.75, 0.25], [0.75, 0.25]))


def test_a_weighted_draw_depends_on_seed_epoch_and_position_only() -> None:
    weights = np.arange(1.0, 50.0)
    epoch = np.array(epoch_of(Weighted(weights, 7), 3))
    places = np.array([40, 3, 3, 17])
    np.testing.assert_array_equal(Weighted(weights, 7).in_epoch(3)(places), epoch[places])
    assert epoch_of(Weighted(weights, 7), 4) != epoch.tolist()
    assert epoch_of(Weighted(weights, 8), 3) != epoch.tolist()


def test_weights_at_the_ends_may_be_0_and_scales_extreme() -> None:
    weights = np.array([0, 0, 1e300, 1e-300, 1e300, 0])
    assert set(Weighted(weights, 0).in_epoch(0)(np.arange(500)).tolist()) == {2, 4}


def test_the_last_bound_is_never_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounding can make the point the whole sum, behind which there is no sample.
    monkeypatch.setattr(Draws, "uniform", lambda self: np.ones((len(self.indices), 1)))
    assert epoch_of(Weighted([1, 2, 0, 0], 0)) == [1, 1, 1, 1]


def test_weights_are_copied() -> None:
    weights = np.ones(4)
    order = Weighted(weights, 0)
    before = epoch_of(order)
    weights[:] = [0, 0, 0, 1]
    assert epoch_of(order) == before
    assert len(order) == 4


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -2], r"at least 0, but that of sample 1 is -2\.0"),
        ([1, 1, np.nan], "finite and at least 0, but that of sample 2 is nan"),
        ([np.inf], "that of sample 0 is inf"),
        ([1e308, 1e308], "sum of the weights is infinite; scale them down"),
        ([0, 0], "all 2 weights are 0"),
        ([], "all 0 weights are 0"),
        ([[1, 2]], r"one number for each sample, not an array of shape \(1, 2\)"),
    ],
)
def test_bad_weights_are_refused(weights: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        loader(MemoryData(np.size(weights)), weights=weights)
