"""Worker processes: results and errors all arrive, and memory is shared."""

from __future__ import annotations

import errno
import gc
import mmap
import multiprocessing
import os
import pickle
import resource
import select
import socket
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from process_helpers import (
    CONTEXTS,
    FOREVER,
    Bomb,
    OfTwoArgumentsError,
    UnpicklableError,
    WithPrefixError,
    call,
    echo,
    facts,
    fail,
    fail_with_cause,
    files,
    fill,
    give_bomb,
    give_generator,
    mapped,
    maps_of,
    pool_of,
    wait_for,
    wait_for_file,
    wait_until,
)

from fastdata.engine.buffers import BufferPool
from fastdata.engine.workers import ProcessWorkers
from fastdata.errors import OptionError, ShardCorruptError, WorkerError
from fastdata.processes import sharing, worker


@pytest.fixture(scope="module", params=CONTEXTS)
def any_pool(request: pytest.FixtureRequest) -> Iterator[ProcessWorkers]:
    """A pool of two workers of every start method in turn, for all tests that leave it whole."""
    with pool_of(2, request.param) as pool:
        pool.submit((echo, 0)).result()
        yield pool


# -- what is sent and comes back ----------------------------------------------------


def test_messages_and_results_of_any_size_arrive(any_pool: ProcessWorkers) -> None:
    for value in (None, {"a": [1]}, *(b"x" * n for n in (65_000, 65_536, 70_000, 9_000_000))):
        assert any_pool.submit((echo, value)).result() == value


def test_results_belong_to_their_tickets_in_any_order(any_pool: ProcessWorkers) -> None:
    tickets = [any_pool.submit((echo, value)) for value in range(50)]
    order = np.random.default_rng(0).permutation(50).tolist()
    assert [tickets[value].result() for value in order] == order
    assert tickets[7].result() == 7


def test_many_more_tasks_than_a_socket_holds(any_pool: ProcessWorkers) -> None:
    """Tasks and results would fill both sockets, with nobody reading either."""
    slot = BufferPool(1, kind="shared").take(3000)
    tickets = [
        any_pool.submit((fill, i, i + 1, i % 251), slot) if i % 2 else any_pool.submit((echo, i))
        for i in range(3000)
    ]
    assert [ticket.result() for ticket in tickets] == [3000 if i % 2 else i for i in range(3000)]
    assert slot.memory[1::2].tolist() == [i % 251 for i in range(1, 3000, 2)]


def test_large_messages_that_fill_the_socket(any_pool: ProcessWorkers) -> None:
    values = [bytes([i]) * 60_000 for i in range(40)]
    tickets = [any_pool.submit((echo, value)) for value in values]
    assert [ticket.result() for ticket in tickets] == values


def test_done_says_when_a_result_is_there(tmp_path: Path) -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((wait_for_file, tmp_path / "go"))
        assert not ticket.done()
        (tmp_path / "go").touch()
        assert wait_until(ticket.done)
        assert ticket.result() == pool.pids[0]


def test_the_idle_worker_takes_the_next_task(tmp_path: Path) -> None:
    with pool_of(2) as pool:
        slow = pool.submit((wait_for_file, tmp_path / "go"))
        quick = {pool.submit((wait_for, 0.0)).result() for _ in range(20)}
        assert not slow.done()
        (tmp_path / "go").touch()
        assert quick == set(pool.pids) - {slow.result()}


def test_a_pool_of_no_workers_is_refused() -> None:
    with pytest.raises(OptionError, match="1 worker or more, not 0"):
        ProcessWorkers(call, 0)


@pytest.mark.parametrize("context", ["threads", 3])
def test_an_unknown_context_is_refused(context: Any) -> None:
    with pytest.raises(OptionError, match=rf"'fork'.*or None, not {context!r}"):
        ProcessWorkers(call, 1, context=context)


def test_a_context_object_will_do() -> None:
    pool = ProcessWorkers(call, 1, context=multiprocessing.get_context("fork"))
    assert pool.submit((echo, 3)).result() == 3
    pool.close()


def test_a_worker_is_set_up_as_one_of_many(any_pool: ProcessWorkers) -> None:
    found = any_pool.submit((facts,)).result()
    assert found.pop("name").startswith("fastdata-worker-")
    assert found == {
        "threads": 1,
        "sigint": True,
        "sigterm": True,
        "blocked": set(),
        "daemon": True,
    }


# -- shared memory ------------------------------------------------------------------


def test_a_slot_is_kept_until_its_task_is_done(tmp_path: Path) -> None:
    """However the caller forgets it: nobody else may get what a worker still writes to."""
    memory = BufferPool(4, kind="shared")
    with pool_of(1) as pool:
        pool.submit((wait_for_file, tmp_path / "go"))
        pool.submit((fill, 0, 10, 1), memory.take(10))
        assert memory.in_use == 1
        (tmp_path / "go").touch()
        assert pool.submit((echo, 2)).result() == 2
        assert memory.in_use == 0
        pool.submit((wait_for, FOREVER))
        pool.submit((fill, 0, 10, 1), memory.take(10))
        assert memory.in_use == 1
    assert memory.in_use == 0


def test_a_block_is_mapped_once_a_worker() -> None:
    memory = BufferPool(4, kind="shared")
    with pool_of(1) as pool:
        before = pool.submit((mapped,)).result(), pool.submit((files,)).result()
        slots = [memory.take(100) for _ in range(3)]
        for slot in slots * 5:
            pool.submit((fill, 0, 100, 1), slot).result()
        assert pool.submit((mapped,)).result() == before[0] + 3
        assert pool.submit((files,)).result() == before[1]


def test_a_worker_lets_go_of_blocks_it_has_not_seen_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether it is busy with other blocks or has nothing to do."""
    now = np.frombuffer(mmap.mmap(-1, 8), np.float64)  # one clock for both processes
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    memory = BufferPool(4, kind="shared")
    with pool_of(1) as pool:
        before = pool.submit((mapped,)).result()
        old, other = memory.take(100), memory.take(100)
        for slot in (other, old):
            pool.submit((fill, 0, 100, 1), slot).result()
        for _ in range(4):
            now[0] += worker._MAP_SECONDS / 2
            pool.submit((fill, 0, 100, 1), other).result()
        assert pool.submit((mapped,)).result() == before + 1
        now[0] += 2 * worker._MAP_SECONDS
        assert wait_until(lambda: maps_of(pool.pids[0]) == before)


def test_private_memory_is_refused(any_pool: ProcessWorkers) -> None:
    with pytest.raises(OptionError, match=r'of kind "shared", not <Block .* 10 bytes of memory>'):
        any_pool.submit((echo, 1), BufferPool(1).take(10))


# -- errors -------------------------------------------------------------------------


def test_the_traceback_tells_of_causes() -> None:
    with pool_of(1) as pool, pytest.raises(ShardCorruptError, match="outer") as caught:
        pool.submit((fail_with_cause,)).result()
    assert "KeyError: 'inner'" in str(caught.value.__cause__)


@pytest.mark.parametrize(
    ("error", "arguments", "expected", "match"),
    [
        (OSError, (2, "gone", "x.jpg"), FileNotFoundError, "gone: 'x.jpg'"),
        (KeyError, ("name",), KeyError, "^'name'$"),
        (SystemExit, (3,), SystemExit, "^3$"),
        (KeyboardInterrupt, (), KeyboardInterrupt, "^$"),
        (WithPrefixError, ("image",), WithPrefixError, "^no image$"),
        (
            OfTwoArgumentsError,
            ("one", "two"),
            WorkerError,
            "cannot be sent: .*OfTwo.*: one and two",
        ),
        (UnpicklableError, ("text",), WorkerError, "cannot be sent: .*UnpicklableError: text"),
    ],
)
def test_errors_of_all_kinds_arrive(
    error: type[BaseException], arguments: Any, expected: type[BaseException], match: str
) -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((fail, error, *arguments))
        with pytest.raises(expected, match=match) as caught:
            ticket.result()
        assert "in fail" in str(caught.value.__cause__)
        with pytest.raises(expected, match=match):
            ticket.result()
        assert pool.submit((echo, 1)).result() == 1


@pytest.mark.parametrize(
    ("message", "error", "match"),
    [
        ((give_generator,), TypeError, "generator"),
        ((give_bomb,), WorkerError, "result cannot be unpickled here: ZeroDivisionError"),
        ((echo, Bomb()), ZeroDivisionError, "while unpickling"),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_its_task(
    message: Any, error: type[Exception], match: str
) -> None:
    with pool_of(1) as pool:
        with pytest.raises(error, match=match):
            pool.submit(message).result()
        assert pool.submit((echo, 1)).result() == 1


def test_a_message_that_cannot_be_pickled_is_refused_and_holds_nothing() -> None:
    memory = BufferPool(1, kind="shared")
    with pool_of(1) as pool:
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            pool.submit(lambda: 1, memory.take(10))
        assert memory.in_use == 0
        assert pool.submit((echo, 1)).result() == 1


def test_an_error_is_not_kept_alive_by_its_traceback() -> None:
    gc.disable()
    try:
        with pool_of(1) as pool:
            ticket = pool.submit((fail, WithPrefixError, "image"))
            with pytest.raises(WithPrefixError):
                ticket.result()
            alive = weakref.ref(ticket)
            del ticket
            assert alive() is None
    finally:
        gc.enable()


def test_results_that_need_a_descriptor_too_many_are_explained() -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((echo, b"x" * 200_000))
        select.select([pool.pool._crew._results], [], [])
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = os.open("/dev/null", os.O_RDONLY)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
        try:
            with pytest.raises(WorkerError, match=r"too many open files.*ulimit -n"):
                ticket.result()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert pool.submit((echo, 1)).result() == 1


def starve(memory: Any) -> None:
    """Leave this process no descriptor but one."""
    os.close(spare := os.open("/dev/null", os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, 10_000))


def test_a_worker_without_descriptors_says_so() -> None:
    slot = BufferPool(1, kind="shared").take(10)
    with pool_of(1) as pool:
        pool.submit((starve,)).result()
        for _ in range(3):  # with room for one of two files, which must not be leaked
            with pytest.raises(OSError, match="Too many open files in a worker process"):
                pool.submit((echo, b"x" * 70_000), slot).result()
        assert pool.submit((echo, b"x" * 70_000)).result() == b"x" * 70_000


class RefusingSocket:
    """Sends only after it has refused as often as told."""

    def __init__(self, end: socket.socket, number: int, times: int) -> None:
        self.end, self.number, self.times = end, number, times

    def sendmsg(self, *arguments: Any) -> int:
        if self.times > 0:
            self.times -= 1
            raise OSError(self.number, os.strerror(self.number))
        return self.end.sendmsg(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.end, name)


def test_a_limit_on_files_under_way_is_waited_out() -> None:
    slot = BufferPool(1, kind="shared").take(10)
    with pool_of(1) as pool:
        refusing = RefusingSocket(pool.pool._crew._tasks, errno.ETOOMANYREFS, 3)
        pool.pool._crew._tasks = refusing  # type: ignore[assignment]
        assert pool.submit((fill, 0, 10, 3), slot).result() == 10
        assert refusing.times == 0


def test_a_task_that_cannot_be_sent_holds_nothing() -> None:
    memory = BufferPool(1, kind="shared")
    with pool_of(1) as pool:
        pool.pool._crew._tasks = RefusingSocket(pool.pool._crew._tasks, errno.ENOMEM, 1)  # type: ignore[assignment]
        with pytest.raises(OSError, match="Cannot allocate memory"):
            pool.submit((fill, 0, 10, 3), memory.take(10))
        assert memory.in_use == 0
        assert pool.submit((echo, 1)).result() == 1


# -- packets ------------------------------------------------------------------------


def test_a_packet_arrives_whole_with_its_files() -> None:
    here, there = sharing.socket_pair()
    file = sharing.new_file(10)
    for payload in (b"", b"x", b"y" * 65_536, b"z" * 65_537):
        for descriptor in (None, file):
            sharing.send(here, sharing.Packet(2**40, -1, payload, descriptor))
            packet = sharing.receive(there)
            assert packet is not None
            assert packet[:3] == (2**40, -1, payload)
            assert (packet.descriptor is None) == (descriptor is None)
            if packet.descriptor is not None:
                assert os.path.sameopenfile(packet.descriptor, file)
                assert not os.get_inheritable(packet.descriptor)
                os.close(packet.descriptor)
    os.close(file)
    here.close()
    assert sharing.receive(there) is None
    there.close()
