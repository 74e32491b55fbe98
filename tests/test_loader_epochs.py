"""The epochs of a loader: workers ahead of them, leaving and resuming, threads and memory."""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import threading
import time
from typing import Any

import pytest
import torch
from memory_data import MemoryData, digest
from worker_helpers import worker_threads

from fastdata import transforms as T  # noqa: N812
from fastdata.engine import workers as engine_workers
from fastdata.errors import OptionError
from fastdata.loading import Loader, loader

RRC = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# What processes do is seen in test_workers.py and its neighbours.
pytestmark = pytest.mark.usefixtures("workers_are_threads")


# -- threads ------------------------------------------------------------------------


def test_work_goes_on_while_nobody_asks() -> None:
    data = MemoryData(100)
    it = iter(loader(data, batch_size=5, transform=RRC, num_workers=2, prefetch_factor=3))
    deadline = time.monotonic() + 30
    while len(data.reads) < 15 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(data.reads) == list(range(15))
    next(it)
    while len(data.reads) < 20 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(data.reads) == list(range(20))
    del it


def test_an_epoch_of_which_all_batches_were_counted_leaves_its_workers_to_the_next() -> None:
    # As Lightning does: it holds the iterator until it has the next one, and never sees the end.
    it = loader(MemoryData(10), batch_size=2, transform=RRC, num_workers=3)
    held = []
    for _ in range(3):
        held.append(iter(it))
        for _ in range(len(it)):
            next(held[-1])
        assert len(worker_threads()) == 3
    assert [next(one, None) for one in held] == [None] * 3
    assert len(worker_threads()) == 3


def test_break_leaves_no_threads() -> None:
    it = loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=3)
    for _ in it:
        assert worker_threads()
        break
    assert worker_threads() == []
    assert len(list(it)) == 50


def test_an_exception_in_the_training_loop_leaves_no_threads() -> None:
    def train() -> None:
        for _ in loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=3):
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()
    gc.collect()
    assert worker_threads() == []


@pytest.mark.parametrize("options", [{"persistent_workers": False}, {"sampler": [3, 1]}])
def test_an_epoch_that_is_not_joined_to_the_next_leaves_no_threads(options: dict[str, Any]) -> None:
    it = loader(MemoryData(10), transform=RRC, num_workers=3, **options)
    list(it)
    assert worker_threads() == []


@pytest.mark.parametrize("device", [None, "meta"])
def test_a_loader_that_is_dropped_leaves_no_threads(device: str | None) -> None:
    it = loader(MemoryData(10), batch_size=2, transform=RRC, num_workers=3, device=device)
    list(it)
    assert len(worker_threads()) == 3, "they have begun the next epoch"
    del it
    assert worker_threads() == []


def test_workers_begin_the_next_epoch_before_it_is_asked_for() -> None:
    data = MemoryData(20)
    it = loader(data, batch_size=5, shuffle=True, transform=RRC, num_workers=2)
    list(it)
    deadline = time.monotonic() + 30
    while len(data.reads) < 30 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert len(data.reads) == 30, "two batches are made ahead"
    assert digest(it) == digest(fresh_epoch(1))
    it.close()


def fresh_epoch(epoch: int) -> Loader:
    it = loader(MemoryData(20), batch_size=5, shuffle=True, transform=RRC, num_workers=0)
    it.set_epoch(epoch)
    return it


@pytest.mark.parametrize("num_workers", [0, 2])
def test_another_epoch_can_be_chosen_after_the_next_was_begun(num_workers: int) -> None:
    it = loader(MemoryData(20), batch_size=5, shuffle=True, transform=RRC, num_workers=num_workers)
    list(it)
    it.set_epoch(7)
    assert digest(it) == digest(fresh_epoch(7))
    it.set_epoch(1)
    assert digest(it) == digest(fresh_epoch(1))
    it.close()


def test_close_ends_all_iterators_and_can_be_repeated() -> None:
    with loader(MemoryData(100), batch_size=2, transform=RRC, num_workers=2) as it:
        one, two = iter(it), iter(it)
        next(one)
        next(two)
        assert len(worker_threads()) == 4
    assert worker_threads() == []
    assert list(one) == []
    it.close()
    with pytest.raises(OptionError, match="loader is closed"):
        iter(it)


def test_two_iterators_at_once_are_two_epochs() -> None:
    def fresh() -> Loader:
        return loader(MemoryData(30), batch_size=4, shuffle=True, transform=RRC, num_workers=2)

    it = fresh()
    both = list(zip(it, it, strict=True))
    expected = fresh()
    assert digest(one for one, _ in both) == digest(expected)
    assert digest(two for _, two in both) == digest(expected)


def test_process_wide_thread_settings_are_left_alone() -> None:
    cv2 = pytest.importorskip("cv2")
    before = cv2.getNumThreads(), torch.get_num_threads()
    inside = []
    list(loader(MemoryData(9), transform=[lambda image: image, *RRC], num_workers=2))
    worker = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
    worker.start()
    worker.join()
    assert (cv2.getNumThreads(), torch.get_num_threads()) == before
    assert inside == [before[1]]


# -- resume -------------------------------------------------------------------------


def resumable(**options: Any) -> Loader:
    defaults = {"batch_size": 4, "shuffle": True, "seed": 3, "transform": RRC, "num_workers": 2}
    return loader(MemoryData(30), **{**defaults, **options})


@pytest.mark.parametrize(
    ("epochs_done", "batches_done", "dropped"),
    [(0, 0, False), (0, 5, True), (2, 1, True), (2, 8, False)],
)
def test_resume_yields_what_an_uninterrupted_run_would(
    epochs_done: int, batches_done: int, dropped: bool
) -> None:
    def run(it: Loader, epochs: int) -> list[Any]:
        return [batch for _ in range(epochs) for batch in it]

    whole = run(resumable(), 4)
    it = resumable()
    run(it, epochs_done)
    part = iter(it)
    for _ in range(batches_done):
        next(part)
    if dropped:
        del part
    state = json.loads(json.dumps(it.state_dict()))

    resumed = resumable(num_workers=0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest = run(resumed, 4 - epochs_done)[: 32 - 8 * epochs_done - batches_done]
    assert digest(rest) == digest(whole[8 * epochs_done + batches_done :][: len(rest)])
    assert len(rest) == 32 - 8 * epochs_done - batches_done


def test_every_rank_has_the_same_state() -> None:
    states = []
    for rank in range(2):
        it = resumable(rank=rank, world_size=2)
        next(iter(it))
        states.append(it.state_dict())
    assert states[0] == states[1]
    assert states[0]["batch"] == 1


# -- memory ---------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("transform", [RRC, [*RRC, T.Normalize(MEAN, STD)]])
def test_memory_of_batches_goes_round_without_the_garbage_collector(
    num_workers: int, transform: Any
) -> None:
    it = loader(MemoryData(80), batch_size=4, transform=transform, num_workers=num_workers)
    gc.disable()
    try:
        addresses = {batch.image.data_ptr() for _ in range(3) for batch in it}
    finally:
        gc.enable()
    # Two ahead, one being made, one in the loop, and one just let go.
    assert len(addresses) <= 5


def test_batches_outlive_their_loader() -> None:
    def kept(num_workers: int) -> list[Any]:
        return list(loader(MemoryData(30), batch_size=4, transform=RRC, num_workers=num_workers))

    batches = kept(2)
    kept(2)
    assert digest(batches) == digest(kept(0))


# -- what "auto" means ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_workers", "calls_python", "context", "expected"),
    [
        (0, True, "fork", "thread"),
        (1, True, "fork", "process"),
        (1, True, "spawn", "process"),
        (1, False, "fork", "thread"),
        (2, False, "fork", "process"),
        (2, False, "spawn", "thread"),
        (2, False, multiprocessing.get_context("forkserver"), "thread"),
        (2, True, "spawn", "process"),
    ],
)
def test_processes_are_taken_where_they_are_forked_or_callables_need_them(
    monkeypatch: pytest.MonkeyPatch,
    num_workers: int,
    calls_python: bool,
    context: Any,
    expected: str,
) -> None:
    monkeypatch.undo()
    chosen = engine_workers.choose_method(num_workers, calls_python=calls_python, context=context)
    assert chosen == expected


def test_threads_are_taken_where_the_compiled_library_does_the_work() -> None:
    chosen = engine_workers.choose_method(8, calls_python=False, releases_lock=True, context="fork")
    assert chosen == "thread"


def test_a_free_threaded_interpreter_takes_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert engine_workers.choose_method(8, calls_python=False, context="fork") == "thread"
