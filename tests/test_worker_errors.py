"""Errors of workers: in their place, as themselves, and of workers that die."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from memory_data import MemoryData, digest
from process_helpers import kill_and_wait, wait_until
from samples import write_shard
from worker_helpers import (
    METHODS,
    PICTURES,
    RRC,
    damage_image,
    epochs_of,
    fail_at_seven,
    fail_unpicklably,
    float_if_odd,
    forked,
    invert,
    no_workers_soon,
    pictures,
    pids,
    slow,
    unchanged,
    workers,
)

from fastdata import transforms as T  # noqa: N812
from fastdata import waits
from fastdata.engine.stream import Stream
from fastdata.errors import OptionError, ShardCorruptError, WorkerError
from fastdata.loading import Loader, loader
from fastdata.processes.sharing import WorkerTraceback

# -- errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "transform", [RRC, [*RRC, T.ImageOnly(invert)]], ids=["direct", "callable"]
)
def test_a_corrupt_sample_is_an_error_in_its_place(
    tmp_path: Path, method: Any, transform: Any
) -> None:
    path = write_shard(tmp_path / "s.h5", pictures(60), PICTURES)
    damage_image(path, 33, 50)
    it = loader(
        path,
        batch_size=5,
        transform=transform,
        num_workers=3,
        worker_method=method,
        prefetch_factor=4,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)
    assert [next(epoch).label[0].item() for _ in range(6)] == [0, 5, 10, 15, 20, 25]
    where = r"s\.h5: .*'image' of sample 33 \(key 'picture/33'\)"
    with pytest.raises(ShardCorruptError, match=where) as caught:
        next(epoch)
    trace = "".join(traceback.format_exception(caught.value))
    assert "work.py" in trace, "where it happened in the worker"
    assert list(epoch) == []
    assert it.state_dict()["batch"] == 6
    del caught
    assert no_workers_soon()
    assert len(next(iter(it)).label) == 5


@pytest.mark.parametrize("method", METHODS)
def test_an_error_of_a_callable_is_itself_and_says_of_which_sample(
    small: Path, method: Any
) -> None:
    transform = [*RRC, T.PerSample(fail_at_seven)]
    it = loader(small, batch_size=3, transform=transform, num_workers=2, worker_method=method)
    labels: list[int] = []
    with pytest.raises(ZeroDivisionError, match="seven is not liked") as caught:
        labels.extend(label for batch in it for label in batch.label.tolist())
    assert labels == list(range(21))
    trace = "".join(traceback.format_exception(caught.value))
    assert "in fail_at_seven" in trace
    said = f"fastdata: in a transform of sample 21 ({small}, key 'picture/21')"
    assert said in trace
    # Python 3.10 has no notes: there, the message has it.
    notes = getattr(caught.value, "__notes__", caught.value.args)
    assert any(said in note for note in notes)
    assert (type(caught.value.__cause__) is WorkerTraceback) == (method == "process")


def test_an_error_that_cannot_be_sent_is_told_with_its_traceback(small: Path) -> None:
    it = forked(small, batch_size=4, transform=fail_unpicklably)
    with pytest.raises(WorkerError, match=r"cannot be sent: .*TwoArgumentsError: one and two") as c:
        next(iter(it))
    assert "in fail_unpicklably" in str(c.value.__cause__)


@pytest.mark.parametrize("method", METHODS)
def test_shapes_that_callables_leave_unequal_are_explained(small: Path, method: Any) -> None:
    it = loader(small, batch_size=6, transform=unchanged, num_workers=2, worker_method=method)
    with pytest.raises(OptionError, match=r"\(3, 40, 50\) uint8 and \(3, 41, 49\) uint8"):
        next(iter(it))


def test_shapes_that_change_from_batch_to_batch_are_taken(small: Path) -> None:
    """Each batch is of one shape, and not of the shape that was expected after the last."""
    order = [[n, n + 63] for n in (0, 1, 1, 5, 0)]  # sizes repeat every 63 samples
    found = {}
    for method in METHODS:
        it = loader(
            small, batch_sampler=order, transform=unchanged, num_workers=2, worker_method=method
        )
        batches = list(it)
        assert [tuple(batch.image.shape[2:]) for batch in batches] == [
            (40, 50), (41, 49), (41, 49), (45, 45), (40, 50),
        ]  # fmt: skip
        found[method] = digest(batches)
    assert len(set(found.values())) == 1


@pytest.mark.parametrize("method", METHODS)
def test_dtypes_that_change_from_batch_to_batch_are_taken(small: Path, method: Any) -> None:
    # All of one size after the crop; what a batch is expected to be was learned some before.
    order = [[0, 63], [1, 64], [1, 64], [2, 65]] * 3
    transform = [T.CenterCrop(30), T.PerSample(float_if_odd)]
    it = loader(
        small, batch_sampler=order, transform=transform, num_workers=2, worker_method=method
    )
    dtypes = [torch.uint8, torch.float32, torch.float32, torch.uint8] * 3
    [whole] = loader(small, batch_size=100, transform=T.CenterCrop(30), num_workers=0)
    for batch, dtype, indices in zip(it, dtypes, order, strict=True):
        assert batch.image.dtype == dtype
        assert torch.equal(batch.image, whole.image[indices].to(dtype))


def test_a_lambda_cannot_be_sent_to_processes_that_are_started(small: Path) -> None:
    with pytest.raises(OptionError, match=r'no lambda.*multiprocessing_context="fork"'):
        loader(
            small,
            transform=lambda image: image,
            num_workers=1,
            worker_method="process",
            multiprocessing_context="spawn",
        )


class HeldData(MemoryData):
    """Images that no worker gets before there is a file."""

    def __init__(self, count: int, released: Path) -> None:
        super().__init__(count)
        self.released, self.main = released, os.getpid()

    def _images(self, *arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() or os.getpid() != self.main:
            wait_until(self.released.exists)
        return super()._images(*arguments)


def waits_for_a_batch() -> bool:
    """Return whether the main thread has asked a loader for a batch."""
    main = threading.main_thread().ident
    assert main is not None
    frames = traceback.walk_stack(sys._current_frames()[main])
    return any(frame.f_code is Stream.__next__.__code__ for frame, _ in frames)


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_while_a_batch_is_waited_for(tmp_path: Path, method: Any) -> None:
    released = tmp_path / "released"
    it = loader(
        HeldData(400, released),
        batch_size=2,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)

    def interrupt() -> None:
        wait_until(waits_for_a_batch)
        os.kill(os.getpid(), signal.SIGINT)
        released.touch()  # or worker threads would not end

    thread = threading.Thread(target=interrupt)

    def train() -> None:
        thread.start()
        for _ in epoch:
            pass

    with pytest.raises(KeyboardInterrupt):
        train()
    thread.join()
    assert workers() == []
    assert list(epoch) == []


def interrupted_at(line: int, run: Callable[[], None]) -> bool:
    """Run with a Ctrl-C at the `line`-th line of the engine; return whether there were so many."""
    left = line

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(
            ("engine/loader.py", "engine/epoch.py", "engine/stream.py")
        ):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left <= 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("method", "lines"),
    [
        ("thread", range(3, 2000, 50)),
        pytest.param("thread", range(1, 2000, 5), marks=pytest.mark.soak),
        pytest.param("process", range(2, 2000, 41), marks=pytest.mark.soak),
    ],
)
def test_ctrl_c_at_any_line_leads_to_no_wrong_batch(method: Any, lines: range) -> None:
    """At most the batch that was on its way is lost: none twice, none of another epoch."""
    data = MemoryData(12)
    options = {"batch_size": 4, "shuffle": True, "transform": RRC}
    plain = loader(data, num_workers=0, **options)
    expected = [[digest([batch]) for batch in plain] for _ in range(3)]
    for line in lines:
        it = loader(
            data,
            num_workers=2,
            worker_method=method,
            multiprocessing_context="fork" if method == "process" else None,
            **options,
        )
        epochs: list[Any] = []
        seen: list[list[str]] = []

        def two_epochs(it: Loader = it, epochs: Any = epochs, seen: Any = seen) -> None:
            for _ in range(2):
                epochs.append(iter(it))
                seen.append([])
                for batch in epochs[-1]:
                    seen[-1].append(digest([batch]))

        struck = interrupted_at(line, two_epochs)
        if epochs:
            seen[-1] += [digest([batch]) for batch in epochs[-1]]  # the interrupted one goes on
        for made, whole in zip(seen, expected, strict=False):
            rest = iter(whole)
            assert all(one in rest for one in made), f"in order, after line {line}"
        it.set_epoch(2)
        assert [digest([batch]) for batch in it] == expected[2], f"after line {line}"
        it.close()
        del epochs
        assert no_workers_soon()
        if not struck:
            break
    assert not struck, "all lines were reached"


def test_ctrl_c_is_not_for_the_workers(small: Path) -> None:
    """A terminal sends it to all processes; the parent decides what becomes of its workers."""
    options = {"batch_size": 4, "sampler": range(24), "transform": [slow, *RRC]}
    it = forked(small, **options)
    epoch = iter(it)
    batches = [next(epoch)]
    for pid in pids():
        os.kill(pid, signal.SIGINT)
    batches += epoch
    assert digest(batches) == digest(loader(small, num_workers=0, **options))
    it.close()


@pytest.mark.parametrize("when", ["busy", "between epochs", "before the first batch"])
def test_a_killed_worker_is_an_error_and_the_loader_lives_on(small: Path, when: str) -> None:
    # Slow, or the other worker might be done with all of it before anybody has to wait.
    it = forked(small, batch_size=4, transform=[slow, *RRC])
    if when == "between epochs":
        same = [T.ImageOnly(unchanged), *RRC]
        expected = digest(epochs_of(small, same, 2, batch_size=4, shuffle=False, seed=0)[25:])
        assert len(list(it)) == 25
    epoch = iter(it)
    if when != "before the first batch":
        next(epoch)
    victim = pids()[1]
    os.kill(victim, signal.SIGKILL)
    killed = rf"fastdata-worker-\d \(pid {victim}\) was killed by SIGKILL.*out of memory"
    with pytest.raises(WorkerError, match=killed):
        for _ in epoch:
            pass
    assert workers() == []
    assert list(epoch) == []
    if when == "between epochs":
        it.set_epoch(1)
        assert digest(it) == expected
    else:
        assert len(list(it)) == 25
    it.close()


class BadAtFirst:
    """A sampler that yields what is no index when it is asked for the first time."""

    asked = 0

    def __len__(self) -> int:
        return 20

    def __iter__(self) -> Iterator[int]:
        self.asked += 1
        return iter(range(1000, 1020) if self.asked == 1 else range(20))


@pytest.mark.parametrize("method", METHODS)
def test_an_epoch_that_could_not_begin_is_still_to_come(small: Path, method: Any) -> None:
    options = {"batch_size": 4, "transform": RRC, "num_workers": 2, "worker_method": method}
    it = loader(small, sampler=BadAtFirst(), **options)
    with pytest.raises(OptionError, match="the sampler yielded 1000") as caught:
        next(iter(it))
    assert workers() == [], "although the error holds all frames"
    del caught
    assert digest(it) == digest(loader(small, sampler=range(20), **options))


def test_a_worker_that_dies_idle_is_an_error_of_the_next_batch(small: Path) -> None:
    """Also where that batch is made already, and the other worker makes all that follow."""
    it = forked(small, batch_size=4, prefetch_factor=3)
    epoch = iter(it)
    next(epoch)
    time.sleep(0.2)
    killed = pids()[0]
    kill_and_wait(killed)
    with pytest.raises(WorkerError, match=rf"\(pid {killed}\) was killed by SIGKILL"):
        next(epoch)
    assert no_workers_soon()
    assert len(next(iter(it)).label) == 4, "with new workers"


class Closed:
    """A transform that waits until a file is there."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        while not self.gate.exists():
            time.sleep(0.01)
        return image


@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_does_not_come_is_named_after_a_while(
    small: Path,
    tmp_path: Path,
    method: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(waits, "NEXT_SECONDS", 0.05)
    gate = tmp_path / "open"
    transform = [*RRC, Closed(gate)]
    options: dict[str, Any] = {"num_workers": 2, "worker_method": method}
    with loader(small, batch_size=20, transform=transform, **options) as it:
        opening = threading.Timer(0.5, gate.touch)
        opening.start()
        assert len(list(it)) == 5
        opening.join()
    kind = "threads" if method == "thread" else "processes"
    said = [record.message for record in caplog.records]
    expected = f"waiting for batch 0 of epoch 0 (20 samples; worker {kind}: 2) for"
    assert sum(expected in one for one in said) >= 2
