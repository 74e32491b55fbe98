"""However a loader ends, nothing of it is left."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_data import MemoryData
from warm_python import WarmPython
from worker_helpers import (
    METHODS,
    RRC,
    forked,
    has_ended,
    no_workers_soon,
    pids,
    workers,
)

from fastdata import transforms as T  # noqa: N812
from fastdata import waits
from fastdata.engine.stream import Stream
from fastdata.loading import Loader, loader

# -- every end --------------------------------------------------------------------------


def _break(it: Loader) -> None:
    for _ in it:
        break


def _fresh_iterators(it: Loader) -> None:
    first = iter(it)
    next(first)
    second = iter(it)  # and `first` is still alive
    next(second)
    del first
    third = iter(it)
    next(third)


def _an_exception(it: Loader) -> None:
    def train() -> None:
        for _ in it:
            raise RuntimeError("loss is nan")

    with pytest.raises(RuntimeError, match="loss is nan"):
        train()


def _ctrl_c(it: Loader) -> None:
    def train() -> None:
        for _ in it:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()


def _close_in_the_middle(it: Loader) -> None:
    iterator = iter(it)
    next(iterator)
    it.close()
    it.close()
    assert workers() == []
    assert list(iterator) == []


def _whole_epochs(it: Loader) -> None:
    assert [len(list(it)) for _ in range(2)] == [25, 25]


def _never_iterated(it: Loader) -> None:
    iter(it)


def _never_even_begun(it: Loader) -> None:
    it.stats()


def _another_epoch(it: Loader) -> None:
    list(it)
    it.set_epoch(5)
    next(iter(it))
    it.load_state_dict(it.state_dict())
    next(iter(it))


def _a_generator_left_alone(it: Loader) -> None:
    def labels() -> Iterator[Any]:
        for batch in it:
            yield batch.label

    next(labels())


def _a_cycle(it: Loader) -> None:
    iterator = iter(it)
    next(iterator)
    cycle: list[Any] = [iterator]
    cycle.append(cycle)
    it._myself = it  # type: ignore[attr-defined]


def _a_cycle_that_a_thread_collects(it: Loader) -> None:
    gc.disable()
    try:
        _a_cycle(it)
        it._myself = None  # type: ignore[attr-defined]
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join()
    finally:
        gc.enable()
    next(iter(it))


def _the_last_reference_in_a_thread(it: Loader) -> None:
    held = [iter(it)]
    next(held[0])
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert len(list(it)) == 25


ENDS = [
    _break,
    _fresh_iterators,
    _an_exception,
    _ctrl_c,
    _close_in_the_middle,
    _whole_epochs,
    _never_iterated,
    _never_even_begun,
    _another_epoch,
    _a_generator_left_alone,
    _a_cycle,
    _a_cycle_that_a_thread_collects,
    _the_last_reference_in_a_thread,
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [True, False], ids=["persistent", "not persistent"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__[1:])
def test_nothing_is_left_at_the_end(
    small: Path, end: Callable[[Loader], None], method: Any, persistent: bool
) -> None:
    """Descriptors too, which the fixture `no_leaks` looks for."""
    end(
        loader(
            small,
            batch_size=4,
            shuffle=True,
            transform=RRC,
            num_workers=2,
            worker_method=method,
            persistent_workers=persistent,
            multiprocessing_context="fork" if method == "process" else None,
        )
    )
    assert no_workers_soon()


def test_processes_stay_for_the_next_epoch_and_after_a_break(small: Path) -> None:
    it = forked(small, batch_size=20)
    list(it)
    first = pids()
    assert len(first) == 2
    _break(it)
    list(it)
    it.set_epoch(9)
    list(it)
    assert pids() == first
    it.close()
    assert pids() == []


def test_processes_that_shall_not_persist_are_new_in_each_epoch(small: Path) -> None:
    it = forked(small, batch_size=20, persistent_workers=False)
    seen = []
    for _ in range(2):
        for _ in it:
            seen.append(tuple(pids()))
        assert pids() == []
    # They end with the last batch, of which the loop may have seen none of them any more.
    assert len(set(filter(None, seen))) == 2


@pytest.mark.parametrize("method", METHODS)
def test_epochs_join(method: Any) -> None:
    """The first batch of an epoch is made while the last one of the epoch before is in use."""
    it = loader(
        MemoryData(40),
        batch_size=10,
        transform=RRC,
        num_workers=2,
        worker_method=method,
        multiprocessing_context="fork" if method == "process" else None,
    )
    epoch = iter(it)
    next(epoch)
    stream: Stream = epoch._stream  # type: ignore[attr-defined]
    for _ in range(3):
        next(epoch)
    deadline = time.monotonic() + 30
    while stream.ready < 2 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert stream.ready == 2, "two batches of the next epoch"
    assert list(epoch) == []
    following = iter(it)
    assert stream.ready == 2
    next(following)
    assert following._stream is stream  # type: ignore[attr-defined]
    it.close()


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_an_interpreter_that_just_ends_leaves_nothing(
    small: Path, method: str, warm_python: WarmPython
) -> None:
    context = "fork" if method == "process" else None
    script = f"""
import fastdata, sys
from worker_helpers import RRC, worker_processes
if __name__ == "__main__":
    it = fastdata.loader({str(small)!r}, batch_size=4, transform=RRC, num_workers=2,
                         worker_method={method!r}, multiprocessing_context={context!r})
    epoch = iter(it)
    batch = next(epoch)
    print(*[process.pid for process in worker_processes()])
    sys.exit(3)
"""
    done = warm_python.run(script)
    assert (done.returncode, done.stderr) == (3, "")
    assert all(has_ended(int(pid)) for pid in done.stdout.split())


# -- a transform that does not return ---------------------------------------------------


class OnWarning(logging.Handler):
    """Sets an event with the first warning."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__(logging.WARNING)
        self.event = event

    def emit(self, record: logging.LogRecord) -> None:
        self.event.set()


def _closed(it: list[Loader]) -> None:
    it[0].close()


def _left(it: list[Loader]) -> None:
    with it[0]:
        pass


def _collected(it: list[Loader]) -> None:
    it.clear()
    gc.collect()


@pytest.mark.parametrize("end", [_closed, _left, _collected], ids=lambda end: end.__name__[1:])
def test_an_end_that_waits_for_a_stuck_thread_says_so(
    small: Path,
    end: Callable[[list[Loader]], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(waits, "FIRST_SECONDS", 0.05)
    begun, released = threading.Event(), threading.Event()

    def stuck(image: Any) -> Any:
        begun.set()
        released.wait()
        return image

    it = [loader(small, 4, transform=[T.ImageOnly(stuck)], num_workers=2, worker_method="thread")]
    iter(it[0])
    begun.wait()
    handler = OnWarning(released)
    logging.getLogger("fastdata").addHandler(handler)
    try:
        end(it)
    finally:
        logging.getLogger("fastdata").removeHandler(handler)
    assert "waiting for the worker threads of a loader (does a transform not" in caplog.text
    assert no_workers_soon()


@pytest.mark.parametrize("kept", ["it = ", ""], ids=["kept", "dropped"])
def test_an_interpreter_ends_whatever_a_thread_does(
    small: Path, warm_python: WarmPython, kept: str
) -> None:
    script = f"""
import fastdata, sys, threading
from fastdata import transforms as T, waits
begun = threading.Event()
def stuck(image):
    begun.set()
    threading.Event().wait()
waits.EXIT_SECONDS = 0.05
loader = fastdata.loader({str(small)!r}, batch_size=4, transform=[T.ImageOnly(stuck)],
                         num_workers=2, worker_method="thread")
{kept}iter(loader)
begun.wait()
sys.exit(3)
"""
    done = warm_python.run(script)
    assert done.returncode == 3
    assert (
        "for the worker threads of a loader (does a transform not return?) for 0 s" in done.stderr
    )


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_killed_parent_vanish(
    small: Path, context: str, warm_python: WarmPython
) -> None:
    script = f"""
import fastdata, os, signal
from worker_helpers import RRC, worker_processes, slow
if __name__ == "__main__":
    it = fastdata.loader({str(small)!r}, batch_size=4, transform=[slow, *RRC], num_workers=2,
                         worker_method="process", multiprocessing_context={context!r})
    other = fastdata.loader({str(small)!r}, batch_size=4, transform=RRC, num_workers=1,
                         worker_method="process", multiprocessing_context="fork")
    epochs = [iter(it), iter(other)]
    batches = [next(epoch) for epoch in epochs]
    workers = [process.pid for process in worker_processes()]
    bystander = os.fork()  # holds copies of all sockets
    if not bystander:
        for descriptor in 0, 1, 2:
            os.close(descriptor)
        signal.pause()
    print(bystander, *workers, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = warm_python.run(script)
    bystander, *workers_of_it = map(int, done.stdout.split())
    try:
        assert done.returncode == -signal.SIGKILL
        assert [has_ended(pid) for pid in workers_of_it] == [True] * 3
    finally:
        os.kill(bystander, signal.SIGKILL)
