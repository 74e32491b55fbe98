"""Memory of batches and statistics, over all kinds of worker."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from memory_data import digest
from worker_helpers import (
    METHODS,
    RRC,
    in_use_soon,
    invert,
    no_workers_soon,
)

from fastdata import transforms as T  # noqa: N812
from fastdata.engine import epoch as engine_epoch
from fastdata.engine.contracts import Request
from fastdata.engine.stream import Stream
from fastdata.loading import loader

# -- memory of batches ------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "transform", [RRC, [*RRC, T.ImageOnly(invert)]], ids=["direct", "callable"]
)
def test_a_hundred_batches_that_are_kept_are_never_overwritten(
    small: Path, method: Any, transform: Any
) -> None:
    it = loader(
        small, batch_size=1, transform=transform, num_workers=2, worker_method=method, seed=2
    )
    batches = list(it)
    first = digest(batches)
    assert len({batch.image.data_ptr() for batch in batches}) == 100
    in_use = it.stats().buffers_in_use
    assert 100 <= in_use + (transform is not RRC) <= 103, "and two of the next epoch"
    list(it)
    list(it)
    assert digest(batches) == first
    it.close()
    assert digest(batches) == first
    assert first == digest(loader(small, batch_size=1, transform=transform, num_workers=0, seed=2))


VIEWS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda image: image[1:, :, 3:7],
    "array": lambda image: image.numpy()[0],
    "stack": lambda image: torch.stack([image[0], image[-1]]),
    "storage": lambda image: torch.empty(0, dtype=torch.uint8).set_(image.untyped_storage()),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)),
    "permuted": lambda image: image.permute(0, 2, 3, 1).numpy().reshape(-1)[::5],
    "from_numpy": lambda image: torch.from_numpy(image.numpy()),
    "dlpack": lambda image: np.from_dlpack(image),
}


def copied(view: Any) -> np.ndarray[Any, Any]:
    """Return what a view shows now."""
    return view.copy() if isinstance(view, np.ndarray) else view.numpy().copy()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("view", list(VIEWS))
def test_one_view_keeps_the_whole_batch(small: Path, method: Any, view: str) -> None:
    it = loader(
        small, batch_size=10, transform=RRC, num_workers=2, worker_method=method, shuffle=True
    )
    views = [VIEWS[view](batch.image) for batch in it]
    values = [copied(view) for view in views]
    for _ in range(3):
        list(it)
    it.close()
    assert no_workers_soon()
    for view_now, value in zip(views, values, strict=True):
        np.testing.assert_array_equal(copied(view_now), value)
    assert len({value.tobytes() for value in values}) == len(values)


@pytest.mark.parametrize("method", METHODS)
def test_batches_outlive_loader_and_workers_and_can_be_written_to(small: Path, method: Any) -> None:
    def made() -> list[Any]:
        it = loader(small, batch_size=16, transform=RRC, num_workers=2, worker_method=method)
        return [next(epoch) for epoch in [iter(it)] for _ in range(5)]

    batches, others = made(), made()
    assert no_workers_soon()
    assert digest(batches) == digest(others)
    for batch in batches:
        batch.image.fill_(7)
    assert digest(others) == digest(made())


@pytest.mark.parametrize("method", METHODS)
def test_memory_goes_round(small: Path, method: Any) -> None:
    it = loader(small, batch_size=8, transform=RRC, num_workers=2, worker_method=method)
    addresses = {batch.image.data_ptr() for _ in range(4) for batch in it}
    # Two ahead, one being made, one in the loop, and one just let go.
    assert len(addresses) <= 5
    kept_now = list(it)
    assert it.stats().buffers_in_use >= len(kept_now) == 13
    del kept_now
    assert in_use_soon(it, 2), "those of the next epoch"
    it.close()
    assert in_use_soon(it, 0)


# -- statistics -------------------------------------------------------------------------


class Clock:
    """Takes the place of the loop's clock: a second passes with each look at it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        patch.setattr(engine_epoch, "time", SimpleNamespace(perf_counter=self._look))

    def _look(self) -> float:
        self.now += 1
        return self.now


@pytest.mark.parametrize("method", METHODS)
def test_stats_tell_what_was_read_and_waited_for(
    mixed: dict[str, Path], method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    it = loader(
        mixed["lmdb"],
        batch_size=8,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        prefetch_factor=3,
        drop_last=True,
    )
    before = it.stats()
    assert before == type(before)(), "nothing is counted before the first iterator"
    epoch = iter(it)
    for number in range(1, 6):
        deadline = time.monotonic() + 30
        stream = epoch._stream or it._passes._idle[0]  # type: ignore[attr-defined,index]
        while stream.ready < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        next(epoch)
        stats = it.stats()
        assert (stats.batches, stats.samples) == (number, 8 * number)
        assert stats.ready_batches == 3, "the loop asked when all were ready"
        lengths = [
            it.dataset._images(name, range(8 * number)).lengths.sum() for name in ("image", "mask")
        ]
        assert stats.bytes_read == sum(lengths)
        assert stats.wait_seconds == number
        # It took a second to start the workers, and to begin the epoch; the loop is at a step.
        assert stats.seconds == 3 + 12 * (number - 1)
        clock.now += 10
    clock.now += 100
    later = it.stats()
    assert later.seconds == stats.seconds, "up to the last batch"
    assert later.skipped_samples == 0
    assert list(epoch) == []
    clock.now += 100
    next(iter(it))
    assert it.stats().batches == 6
    assert it.stats().seconds == later.seconds + 3, "the time between epochs is nobody's"
    it.close()


class _Held:
    """Workers that do what they are told to have done."""

    def __init__(self) -> None:
        self.finished: set[int] = set()

    def check(self) -> None: ...

    def submit(self, task: int, slot: Any) -> Any:
        return SimpleNamespace(done=lambda: task in self.finished, result=lambda: task)

    def wait(self, task: Any, seconds: float) -> bool:
        return True

    def close(self) -> None:
        pass


def test_a_batch_is_ready_when_all_its_parts_are() -> None:
    held = _Held()

    def prepare(request: Any) -> Any:
        first = 2 * request.number
        return SimpleNamespace(tasks=lambda: [first, first + 1], slot=None, finish=list)

    stream = Stream(prepare, held, ahead=3)
    stream.begin(Request(0, np.arange(2), number=number) for number in range(5))
    counts = []
    for finished in ({2}, {1}, {3}, {0}, {4, 5}):
        held.finished |= finished
        counts.append(stream.ready)
    assert counts == [0, 0, 0, 2, 3], "the second waits for the first"
    assert list(stream) == [[2 * number, 2 * number + 1] for number in range(5)]
    stream.close()


def test_waiting_is_what_the_loop_does_not_do_itself(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    it = loader(small, batch_size=20, transform=RRC, num_workers=0)
    for _ in it:
        clock.now += 20
    stats = it.stats()
    assert stats.wait_seconds == 5
    assert 80 <= stats.seconds - stats.wait_seconds < 100, "four pauses between five batches"
    assert stats.ready_batches == 0, "nothing is made ahead"
    assert stats.images_per_second == 100 / stats.seconds
