"""Memory of batches comes back by itself, and never while somebody looks at it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.engine import buffers
from fastdata.engine.buffers import BufferPool, Kind, Slot
from fastdata.errors import WorkerError

KINDS = ["private", "shared"]
NBYTES = 2 * 3 * 4 * 5 * 4


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    value: Kind = request.param
    return value


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def shared_mappings() -> int:
    with open("/proc/self/maps") as file:
        return sum("memfd:fastdata" in line for line in file)


# -- what a slot is -----------------------------------------------------------------


def test_a_slot_is_cut_into_tensors_like_any(kind: Kind) -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        slot = BufferPool(keep=1, kind=kind).take(64 + 120 * dtype.itemsize)
        assert slot.tensor.data_ptr() % 64 == 0
        tensor = slot.tensor[64:].view(dtype).view(2, 3, 4, 5)
        assert tensor.is_contiguous()
        assert torch.equal(tensor.fill_(1), torch.ones((2, 3, 4, 5), dtype=dtype))


def test_an_empty_slot_is_a_slot(kind: Kind) -> None:
    pool = BufferPool(keep=1, kind=kind)
    slot = pool.take(0)
    assert slot.tensor.shape == (0,)
    del slot
    assert pool.unused == 1


# -- when it comes back -------------------------------------------------------------


def batch_of(slot: Slot) -> torch.Tensor:
    return slot.tensor.view(torch.float32).view(2, 4, 5, 3).permute(0, 3, 1, 2)


COPIES: list[Callable[[Slot], Any]] = [
    lambda slot: torch.stack([batch_of(slot)]),
    lambda slot: torch.cat([batch_of(slot), batch_of(slot)]),
    lambda slot: batch_of(slot).clone(),
    lambda slot: batch_of(slot).numpy().copy(),
    lambda slot: copy.deepcopy(batch_of(slot)),
    lambda slot: pickle.loads(pickle.dumps(batch_of(slot))),
    lambda slot: slot.block,
    lambda slot: None,
]


def test_copies_do_not_keep_memory(kind: Kind) -> None:
    for copied in COPIES:
        check_copy(kind, copied)


def check_copy(kind: Kind, copied: Callable[[Slot], Any]) -> None:
    pool = BufferPool(keep=4, kind=kind)
    slot = pool.take(NBYTES)
    batch_of(slot).fill_(3)
    kept = copied(slot)
    del slot
    assert pool.in_use == 0
    pool.take(NBYTES).tensor.zero_()
    if isinstance(kept, (torch.Tensor, np.ndarray)):
        assert (np.asarray(kept) == 3).all()


# -- which block is taken -----------------------------------------------------------


def test_a_short_last_batch_neither_allocates_nor_evicts(kind: Kind) -> None:
    pool = BufferPool(keep=3, kind=kind)
    numbers = set()
    for _ in range(3):
        held: list[Slot] = []
        for nbytes in (1000, 1000, 1000, 1000, 130):
            held.append(pool.take(nbytes))
            assert held[-1].tensor.shape == (nbytes,)
            numbers.add(held[-1].block.number)
            del held[:-2]
        del held
    assert len(numbers) == 3


def test_a_block_made_for_a_short_batch_serves_a_full_one(kind: Kind) -> None:
    pool = BufferPool(keep=3, kind=kind)
    full = pool.take(1000)
    short = pool.take(10)
    number = short.block.number
    del short
    assert pool.take(1000).block.number == number
    assert full.block.number != number


def test_a_block_too_small_is_not_taken(kind: Kind) -> None:
    pool = BufferPool(keep=3, kind=kind)
    pool.take(10)
    slot = pool.take(11)
    slot.tensor.fill_(1)
    assert slot.block.nbytes >= 11
    assert pool.unused == 1


def test_a_pool_grows_while_batches_are_kept_and_shrinks_after(kind: Kind) -> None:
    pool = BufferPool(keep=4, kind=kind)
    before = descriptors()
    kept = []
    for value in range(100):
        slot = pool.take(5000)
        slot.tensor.fill_(value)
        kept.append(slot.tensor[7:].numpy() if value % 2 else slot.tensor[7:])
        del slot
    for _ in range(20):
        pool.take(5000).tensor.fill_(255)
    assert pool.in_use == 100
    for value, tensor in enumerate(kept):
        assert (np.asarray(tensor) == value).all()
    del tensor
    kept.clear()
    assert (pool.in_use, pool.unused) == (0, 4)
    assert len(descriptors() - before) == (4 if kind == "shared" else 0)


def test_the_oldest_unused_block_is_freed_first(kind: Kind) -> None:
    pool = BufferPool(keep=2, kind=kind)
    slots = [pool.take(10) for _ in range(4)]
    numbers = [slot.block.number for slot in slots]
    while slots:
        del slots[0]
    assert pool.unused == 2
    taken = [pool.take(10), pool.take(10)]
    assert [slot.block.number for slot in taken] == [numbers[3], numbers[2]]


@settings(max_examples=60, deadline=None)
@given(
    keep=st.integers(0, 4),
    steps=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 5)), max_size=40),
)
def test_no_two_slots_alive_share_memory(keep: int, steps: list[tuple[int, int]]) -> None:
    pool = BufferPool(keep)
    held: list[tuple[int, torch.Tensor]] = []
    for value, (nbytes, drop) in enumerate(steps):
        tensor = pool.take(nbytes).tensor
        held.append((value % 251, tensor.fill_(value % 251)))
        del tensor
        del held[drop : drop + drop % 3]
        assert pool.in_use == len(held)
        assert pool.unused <= keep
        for expected, kept in held:
            assert (kept == expected).all()
        if held:
            del kept


# -- the end ------------------------------------------------------------------------


def test_batches_outlive_their_pool(kind: Kind) -> None:
    before = descriptors(), shared_mappings()
    pool = BufferPool(keep=4, kind=kind)
    closed, dropped = pool.take(100).tensor.fill_(5), pool.take(100).tensor.fill_(6)
    pool.take(100)
    state = weakref.ref(pool)
    pool.close()
    pool.close()
    assert (pool.in_use, pool.unused) == (2, 0)
    assert (closed == 5).all()
    del closed
    assert (pool.in_use, pool.unused) == (1, 0)
    del pool
    assert state() is None
    assert (dropped == 6).all()
    del dropped
    assert (descriptors(), shared_mappings()) == before


def test_shared_memory_takes_nothing_of_dev_shm() -> None:
    def mapped() -> set[str]:  # files that are removed have their former names
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.partition("/dev/shm")[2] for line in maps}

    before = mapped()
    slot = BufferPool(keep=1, kind="shared").take(8_000_000)
    slot.tensor.fill_(1)
    assert mapped() <= before


def test_without_memfd_shared_memory_is_an_unlinked_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pool = BufferPool(keep=1, kind="shared")
    slot = pool.take(5000)
    slot.tensor.fill_(3)
    assert slot.block.descriptor is not None
    assert os.pread(slot.block.descriptor, 9, 4000) == b"\x03" * 9
    assert os.listdir(tmp_path) == []


def test_running_out_of_descriptors_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = BufferPool(keep=1, kind="shared")
    kept = pool.take(10)

    def full(nbytes: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(buffers, "new_file", full)
    with pytest.raises(
        WorkerError, match=r"another batch of 10 bytes .*Too many.*; 1 batches are in use.*ulimit"
    ):
        pool.take(10)
    assert kept.tensor.shape == (10,)


def test_a_forked_process_neither_takes_nor_returns_its_parents_blocks(kind: Kind) -> None:
    pool = BufferPool(keep=4, kind=kind)
    held = [pool.take(100)]
    free = pool.take(100)
    numbers = {held[0].block.number, free.block.number}
    del free
    child = os.fork()
    if child == 0:
        taken = [pool.take(100)]
        held.clear()
        taken += [pool.take(100) for _ in range(2)]
        wrong = numbers & {slot.block.number for slot in taken}
        os._exit(bool(wrong) + 2 * (pool.in_use != 3))
    assert os.waitpid(child, 0)[1] == 0
    assert (pool.in_use, pool.unused) == (1, 1)


# -- threads and the garbage collector ----------------------------------------------


def test_batches_that_die_in_threads_and_in_the_collector_come_back(kind: Kind) -> None:
    pool = BufferPool(keep=3, kind=kind)
    wrong = []

    class Cycle:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.me = tensor, self

    def work(seed: int) -> None:
        draw = np.random.default_rng(seed)
        held: list[Any] = []
        for _ in range(300):
            value = int(draw.integers(256))
            tensor = pool.take(int(draw.integers(1, 400))).tensor.fill_(value)
            held.append((value, Cycle(tensor) if draw.random() < 0.3 else tensor))
            del tensor
            if len(held) > 4:
                value, kept = held.pop(int(draw.integers(len(held))))
                kept = kept.tensor if isinstance(kept, Cycle) else kept
                if not (kept == value).all():
                    wrong.append(value)

    threshold = gc.get_threshold()
    gc.set_threshold(5)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert wrong == []
    assert pool.in_use == 0
    assert pool.unused <= 3


def test_memory_goes_round_without_the_garbage_collector(kind: Kind) -> None:
    pool = BufferPool(keep=2, kind=kind)
    gc.disable()
    try:
        numbers = {pool.take(100).block.number for _ in range(10)}
    finally:
        gc.enable()
    assert len(numbers) == 1


# -- pinned -------------------------------------------------------------------------


def test_pinned_memory_is_counted_while_any_view_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory that is not, where there is no GPU: who counts is the same."""
    if not torch.cuda.is_available():
        empty = torch.empty
        monkeypatch.setattr(torch, "empty", lambda n, dtype, pin_memory: empty(n, dtype=dtype))
    pool = BufferPool(keep=2, kind="pinned")
    slot = pool.take(256)
    assert slot.tensor.is_pinned() == torch.cuda.is_available()
    part = slot.tensor[64:].view(torch.float32)
    storage = slot.tensor.untyped_storage().data_ptr()
    assert part.untyped_storage().data_ptr() == storage  # by which torch knows copies under way
    del slot
    assert (pool.in_use, pool.unused) == (1, 0)
    array = part.numpy()[3:]
    del part
    assert pool.in_use == 1
    del array
    assert (pool.in_use, pool.unused) == (0, 0)
