"""Lanes: every sample once, whatever the number of ranks, and each block on one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pack_helpers import image_folder

import fastdata
from fastdata.errors import OptionError
from fastdata.sampling import Batches, BlockShuffle, BlockShuffled, order_of

QUICK = settings(max_examples=200, deadline=None)


def in_lanes(count: int, seed: int, batch: int, sample_bytes: float = 1 << 15) -> BlockShuffled:
    order = order_of("lanes", count, seed, batch, sample_bytes)
    assert isinstance(order, BlockShuffled)
    return order


def epoch_of(order: BlockShuffled, epoch: int = 0) -> list[int]:
    found: list[int] = order.in_epoch(epoch)(np.arange(len(order))).tolist()
    return found


orders = st.builds(
    lambda count, seed, size, window, lanes, share: BlockShuffled(
        count, seed, size, window, lanes, lanes * share
    ),
    st.integers(0, 300),
    st.integers(0, 2**64),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 9),
)


@QUICK
@given(order=orders, epoch=st.integers(0, 3))
def test_every_sample_comes_once(order: BlockShuffled, epoch: int) -> None:
    assert sorted(epoch_of(order, epoch)) == list(range(order.count))


@QUICK
@given(order=orders, places=st.lists(st.integers(0, 299), min_size=1, max_size=20))
def test_any_position_is_looked_up_by_itself(order: BlockShuffled, places: list[int]) -> None:
    places = [place for place in places if place < order.count]
    whole = epoch_of(order)
    found = order.in_epoch(0)(np.array(places, np.int64)).tolist()
    assert found == [whole[place] for place in places]


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_the_same_for_any_number_of_ranks(drop_last: bool) -> None:
    order = in_lanes(5003, 7, 96, sample_bytes=300_000)

    def batches(ranks: int) -> list[list[int]]:
        parts = [Batches(order, 96 // ranks, drop_last, rank, ranks) for rank in range(ranks)]
        epochs = [part.in_epoch(1) for part in parts]
        return [
            sorted(int(n) for one in epochs for n in set(one[number].tolist()))
            for number in range(len(epochs[0]))
        ]

    one = batches(1)
    whole = 5003 // 96
    for ranks in (2, 3, 4, 8, 12):
        found = batches(ranks)
        assert found[:whole] == one[:whole]
        assert [sorted(set(batch)) for batch in found[whole:]] == one[whole:]


def test_a_rank_has_blocks_of_its_own() -> None:
    order = BlockShuffled(64_000, 0, 100, 4, 16, 128)
    owners: dict[int, set[int]] = {}
    for rank in range(8):
        epoch = Batches(order, 16, rank=rank, world_size=8).in_epoch(0)
        for number in range(len(epoch)):
            for block in set((epoch[number] // 100).tolist()):
                owners.setdefault(block, set()).add(rank)
    # Only a block at the border of the lanes of two ranks is on both.
    shared = [block for block, ranks in owners.items() if len(ranks) > 1]
    assert len(owners) == 640
    assert len(shared) <= 7
    assert all(len(ranks) <= 2 for ranks in owners.values())


def test_no_more_blocks_are_in_use_at_once_than_the_windows_have() -> None:
    order = BlockShuffled(64_000, 3, 100, 4, 16, 128)
    blocks = np.array(epoch_of(order)) // 100
    first = np.full(640, -1)
    last = np.full(640, -1)
    for place, block in enumerate(blocks.tolist()):
        first[block] = place if first[block] < 0 else first[block]
        last[block] = place
    for place in range(0, 64_000, 1000):
        in_use = int(((first <= place) & (place <= last)).sum())
        assert in_use <= 16 * (4 + 2)  # a window of a lane may begin and end within a block


def test_windows_of_lanes_begin_at_other_places() -> None:
    order = BlockShuffled(64_000, 0, 100, 4, 16, 128)
    lookup: Any = order.in_epoch(0)
    starts, _ = lookup.window(np.arange(16), np.zeros(16, np.int64))
    assert len(set((starts % 4000).tolist())) == 16


def test_epochs_and_seeds_differ() -> None:
    order = in_lanes(1000, 1, 32)
    assert epoch_of(order, 0) != epoch_of(order, 1)
    assert epoch_of(order, 0) != epoch_of(in_lanes(1000, 2, 32), 0)
    assert epoch_of(order, 2) == epoch_of(in_lanes(1000, 1, 32), 2)


def dispersion(order: Any, classes: np.ndarray[Any, Any], batch: int) -> float:
    """Return the variance of the counts of classes in batches, over that of a full shuffle."""
    samples = order.in_epoch(0)(np.arange(len(order)))
    count = len(order) // batch
    kinds = int(classes.max()) + 1
    counts = np.stack(
        [
            np.bincount(classes[samples[n * batch : (n + 1) * batch]], minlength=kinds)
            for n in range(count)
        ]
    )
    share = np.bincount(classes, minlength=kinds) / len(classes)
    expected = batch * share * (1 - share) * (1 - batch / len(classes))
    return float((counts.var(axis=0, ddof=1) / expected).mean())


def test_batches_of_data_that_is_sorted_by_class_are_mixed() -> None:
    classes = np.repeat(np.arange(100), 1300)
    order = BlockShuffled(130_000, 0, 80, 32, 32, 1024)
    assert dispersion(order, classes, 1024) < 2.5  # 1 is a full shuffle; tar shards have 38


@pytest.mark.parametrize("count", [1, 2, 7, 63])
def test_few_samples_are_no_matter(count: int) -> None:
    for batch in (1, 3, 8, 64):
        order = in_lanes(count, 0, batch)
        assert sorted(epoch_of(order)) == list(range(count))


def test_sizes_are_chosen_by_the_dataset() -> None:
    large = in_lanes(1_281_167, 0, 1024, sample_bytes=110_000)
    assert (large.block_size, large.lanes, large.window_blocks) == (76, 64, 17)
    small = in_lanes(8000, 0, 256, sample_bytes=110_000)
    assert small.lanes * (small.window_blocks + 1) * small.block_size <= 8000 / 14


@pytest.mark.parametrize("machines", [125, 1000])
def test_many_machines_have_lanes_of_their_own(machines: int) -> None:
    order = in_lanes(1_281_167, 0, 256 * machines, sample_bytes=110_000)
    assert order.block_size == 76
    assert order.lanes >= machines
    read_by = np.zeros(-(-len(order) // 76), np.int64)
    steps = len(order) // (256 * machines)
    for rank in range(machines):
        batches = Batches(order, 256, True, rank, machines).in_epoch(0)
        read = np.concatenate([batches[step] for step in range(steps)])
        read_by[np.unique(read // 76)] += 1
    assert read_by.mean() < 1.1


def test_lanes_divide_the_batch_of_all_ranks() -> None:
    shuffle = BlockShuffle(10, 3, 64)
    found = {batch: order_of(shuffle, 1000, 0, batch).lanes for batch in (128, 100, 60, 7, 131)}
    assert found == {128: 64, 100: 50, 60: 60, 7: 7, 131: 1}
    with pytest.raises(OptionError, match="4 lanes do not divide a batch of 6 samples"):
        BlockShuffled(10, 0, 1, 1, 4, 6)
    with pytest.raises(OptionError, match="lanes=0 is not an integer from 1"):
        BlockShuffle(lanes=0)


def test_one_lane_is_what_blocks_always_were() -> None:
    plain = BlockShuffled(1003, 5, 16, 4)
    assert epoch_of(plain) == epoch_of(BlockShuffled(1003, 5, 16, 4, 1, 96))
    assert "lanes" not in plain.identity
    assert BlockShuffled(1003, 5, 16, 4, 8, 96).identity["lanes"] == 8


def test_a_loader_has_the_same_batches_for_any_workers_and_container(tmp_path: Path) -> None:
    folder = image_folder(tmp_path / "images", 60)
    batches = []
    for name, options in (
        ("a.lmdb", {"num_workers": 0}),
        ("a.h5", {"num_workers": 2, "worker_method": "thread"}),
    ):
        fastdata.pack(folder, tmp_path / name, size=32, num_workers=0, progress=False)
        with fastdata.loader(
            tmp_path / name, batch_size=8, shuffle="lanes", drop_last=True, **options
        ) as loader:
            batches.append([batch.label.tolist() for batch in loader])
    assert batches[0] == batches[1]
    assert batches[0] != [sorted(batch) for batch in batches[0]]


def test_memory_does_not_grow_with_the_dataset() -> None:
    order = in_lanes(10**9, 0, 1024)
    epoch = Batches(order, 128, True, 3, 8).in_epoch(0)
    last = epoch[len(epoch) - 1]
    assert len(set(last.tolist())) == 128
    assert last.max() < 10**9
