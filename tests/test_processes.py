"""Worker processes: results, errors and deaths all arrive, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from fastdata.engine import sharing, worker
from fastdata.engine.buffers import BufferPool
from fastdata.engine.outcomes import WorkerTraceback
from fastdata.engine.processes import ProcessPool
from fastdata.errors import OptionError, ShardCorruptError, WorkerError

CONTEXTS = ["fork", "spawn", "forkserver"]
MOMENTS_SECONDS = 5.0


class OfTwoArgumentsError(Exception):
    """Cannot be unpickled: pickle passes one argument."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class WithPrefixError(Exception):
    """Makes a message of its argument, and so another one of its message."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class UnpicklableError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


class Bomb:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    raise ZeroDivisionError("while unpickling")


def call(message: Any, memory: NDArray[np.uint8] | None) -> Any:
    """The work of most tests: a message is a function and its arguments."""
    function, *arguments = message
    return function(memory, *arguments)


def echo(memory: Any, value: Any) -> Any:
    return value


def fill(memory: NDArray[np.uint8], start: int, stop: int, value: int) -> int:
    memory[start:stop] = value
    return len(memory)


def wait_for(memory: Any, seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def fail(memory: Any, error: type[BaseException], *arguments: Any) -> None:
    raise error(*arguments)


def fail_with_cause(memory: Any) -> None:
    try:
        fail(memory, KeyError, "inner")
    except KeyError as error:
        raise ShardCorruptError("outer") from error


def die(memory: Any, number: int) -> None:
    faulthandler.disable()  # pytest's would print a traceback
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(memory: Any, code: int) -> None:
    os._exit(code)


def give_generator(memory: Any) -> Any:
    return (i for i in range(3))


def give_bomb(memory: Any) -> Any:
    return Bomb()


def facts(memory: Any) -> dict[str, Any]:
    return {
        "threads": torch.get_num_threads(),
        "sigint": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "daemon": multiprocessing.current_process().daemon,
        "name": multiprocessing.current_process().name,
    }


def resize(memory: Any) -> int:
    import cv2

    return int(cv2.resize(np.full((500, 500), 7, np.uint8), (1000, 1000))[0, 0])


def files(memory: Any) -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def mapped(memory: Any) -> int:
    return maps_of(os.getpid())


@contextlib.contextmanager
def pool_of(num_workers: int = 2, context: str = "fork") -> Iterator[ProcessPool]:
    pool = ProcessPool(call, num_workers, context=context)
    try:
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="module", params=CONTEXTS)
def any_pool(request: pytest.FixtureRequest) -> Iterator[ProcessPool]:
    """A pool of two workers of every start method in turn, for all tests that leave it whole."""
    with pool_of(2, request.param) as pool:
        pool.submit((echo, 0)).result()
        yield pool


def wait_until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + MOMENTS_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(*pids: int) -> bool:
    return wait_until(lambda: not any(map(psutil.pid_exists, pids)))


# -- what is sent and comes back ----------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, 0, "text", {"a": [1, 2]}, b"x" * 65_000, b"x" * 65_536, b"y" * 70_000, b"z" * 9_000_000],
    ids=lambda value: f"{type(value).__name__}-{len(pickle.dumps(value))}",
)
def test_messages_and_results_of_any_size_arrive(any_pool: ProcessPool, value: Any) -> None:
    assert any_pool.submit((echo, value)).result() == value


def test_results_belong_to_their_tickets_in_any_order(any_pool: ProcessPool) -> None:
    tickets = [any_pool.submit((echo, value)) for value in range(50)]
    order = np.random.default_rng(0).permutation(50).tolist()
    assert [tickets[value].result() for value in order] == order
    assert tickets[7].result() == 7


def test_many_more_tasks_than_a_socket_holds(any_pool: ProcessPool) -> None:
    """Tasks and results would fill both sockets, with nobody reading either."""
    slot = BufferPool(1, kind="shared").take(3000)
    tickets = [
        any_pool.submit((fill, i, i + 1, i % 251), slot) if i % 2 else any_pool.submit((echo, i))
        for i in range(3000)
    ]
    assert [ticket.result() for ticket in tickets] == [3000 if i % 2 else i for i in range(3000)]
    assert slot.memory[1::2].tolist() == [i % 251 for i in range(1, 3000, 2)]


def test_large_messages_that_fill_the_socket(any_pool: ProcessPool) -> None:
    values = [bytes([i]) * 60_000 for i in range(40)]
    tickets = [any_pool.submit((echo, value)) for value in values]
    assert [ticket.result() for ticket in tickets] == values


def test_done_says_when_a_result_is_there() -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((wait_for, 0.2))
        assert not ticket.done()
        assert wait_until(ticket.done)
        assert ticket.result() == pool.pids[0]


def test_the_idle_worker_takes_the_next_task() -> None:
    with pool_of(2) as pool:
        slow = pool.submit((wait_for, 1.0))
        quick = {pool.submit((wait_for, 0.0)).result() for _ in range(20)}
        assert not slow.done()
        assert quick == set(pool.pids) - {slow.result()}


def test_a_pool_of_no_workers_is_refused() -> None:
    with pytest.raises(OptionError, match="1 worker or more, not 0"):
        ProcessPool(call, 0)


@pytest.mark.parametrize("context", ["threads", 3])
def test_an_unknown_context_is_refused(context: Any) -> None:
    with pytest.raises(OptionError, match=rf"'fork'.*or None, not {context!r}"):
        ProcessPool(call, 1, context=context)


def test_a_context_object_will_do() -> None:
    pool = ProcessPool(call, 1, context=multiprocessing.get_context("fork"))
    assert pool.submit((echo, 3)).result() == 3
    pool.close()


def test_a_worker_is_set_up_as_one_of_many(any_pool: ProcessPool) -> None:
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


def test_what_workers_write_is_seen_by_the_parent(any_pool: ProcessPool) -> None:
    memory = BufferPool(2, kind="shared")
    for _ in range(3):
        slots = [memory.take(10_000) for _ in range(3)]
        tickets = [
            any_pool.submit((fill, start, start + 1000, 10 * number + start // 1000), slot)
            for number, slot in enumerate(slots)
            for start in range(0, 10_000, 1000)
        ]
        assert {ticket.result() for ticket in tickets} == {10_000}
        for number, slot in enumerate(slots):
            expected = np.repeat(np.arange(10 * number, 10 * number + 10, dtype=np.uint8), 1000)
            np.testing.assert_array_equal(slot.memory, expected)
            slot.tensor.zero_()
        del slot, slots


def test_a_slot_is_kept_until_its_task_is_done() -> None:
    """However the caller forgets it: nobody else may get what a worker still writes to."""
    memory = BufferPool(4, kind="shared")
    with pool_of(1) as pool:
        pool.submit((wait_for, 0.2))
        pool.submit((fill, 0, 10, 1), memory.take(10))
        assert memory.in_use == 1
        assert pool.submit((echo, 2)).result() == 2
        assert memory.in_use == 0
        pool.submit((wait_for, 60))
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
    monkeypatch.setattr(worker, "_MAP_SECONDS", 0.3)
    monkeypatch.setattr(worker, "_TICK_SECONDS", 1)
    memory = BufferPool(4, kind="shared")
    with pool_of(1) as pool:
        before = pool.submit((mapped,)).result()
        old, other = memory.take(100), memory.take(100)
        for slot in (other, old):
            pool.submit((fill, 0, 100, 1), slot).result()
        deadline = time.monotonic() + 0.6
        while time.monotonic() < deadline:
            pool.submit((fill, 0, 100, 1), other).result()
        assert pool.submit((mapped,)).result() == before + 1
        assert wait_until(lambda: maps_of(pool.pids[0]) == before)


def maps_of(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:fastdata")


def test_workers_leave_dev_shm_alone(any_pool: ProcessPool) -> None:
    before = set(os.listdir("/dev/shm"))
    slot = BufferPool(1, kind="shared").take(1_000_000)
    any_pool.submit((fill, 0, 1_000_000, 1), slot).result()
    any_pool.submit((echo, b"x" * 1_000_000)).result()
    assert set(os.listdir("/dev/shm")) <= before


def test_private_memory_is_refused(any_pool: ProcessPool) -> None:
    with pytest.raises(OptionError, match=r'of kind "shared", not <Block .* 10 bytes of memory>'):
        any_pool.submit((echo, 1), BufferPool(1).take(10))


# -- errors -------------------------------------------------------------------------


def test_an_error_arrives_as_itself_with_its_traceback(any_pool: ProcessPool) -> None:
    with pytest.raises(ShardCorruptError, match=r"^sample 3 is corrupt$") as caught:
        any_pool.submit((fail, ShardCorruptError, "sample 3 is corrupt")).result()
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in fail\n    raise error(*arguments)" in str(caught.value.__cause__)
    assert any_pool.submit((echo, 1)).result() == 1


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
        time.sleep(0.3)
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
        refusing = RefusingSocket(pool._crew._tasks, errno.ETOOMANYREFS, 3)
        pool._crew._tasks = refusing  # type: ignore[assignment]
        assert pool.submit((fill, 0, 10, 3), slot).result() == 10
        assert refusing.times == 0


def test_a_task_that_cannot_be_sent_holds_nothing() -> None:
    memory = BufferPool(1, kind="shared")
    with pool_of(1) as pool:
        pool._crew._tasks = RefusingSocket(pool._crew._tasks, errno.ENOMEM, 1)  # type: ignore[assignment]
        with pytest.raises(OSError, match="Cannot allocate memory"):
            pool.submit((fill, 0, 10, 3), memory.take(10))
        assert memory.in_use == 0
        assert pool.submit((echo, 1)).result() == 1


# -- workers that die ---------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_worker_killed_at_work_is_an_error_within_moments(context: str) -> None:
    memory = BufferPool(2, kind="shared")
    with pool_of(2, context) as pool:
        done = pool.submit((echo, 5))
        done.result()
        pids = pool.pids
        waiting = [pool.submit((wait_for, 60), memory.take(10)) for _ in range(5)]
        start = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        for ticket in waiting:
            with pytest.raises(
                WorkerError,
                match=rf"fastdata-worker-1 \(pid {pids[1]}\) was killed by SIGKILL. Most likely "
                r"the system was out of memory .*fewer workers",
            ):
                ticket.result()
        assert time.monotonic() - start < MOMENTS_SECONDS
        assert all(ticket.done() for ticket in waiting)
        assert done.result() == 5
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            pool.submit((echo, 1))
        assert memory.in_use == 0
        assert gone(*pids)


def test_a_worker_killed_while_idle_is_an_error() -> None:
    with pool_of(2) as pool:
        finished = [pool.submit((echo, value)) for value in range(10)]
        time.sleep(0.3)
        waiting = pool.submit((wait_for, 60))
        time.sleep(0.1)
        idle = next(pid for pid in pool.pids if psutil.Process(pid).status() == "sleeping")
        os.kill(idle, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            waiting.result()
        assert [ticket.result() for ticket in finished] == list(range(10))


def test_what_a_worker_did_before_it_died_is_not_lost() -> None:
    class Late:
        """Looks only when result and death are both there."""

        def __init__(self, poll: Any) -> None:
            self.look = poll

        def poll(self, milliseconds: float) -> Any:
            time.sleep(0.5)
            return self.look.poll(milliseconds)

    with pool_of(1) as pool:
        pool._crew._poll = Late(pool._crew._poll)
        first, second = pool.submit((wait_for, 0.2)), pool.submit((leave, 3))
        pids = pool.pids
        assert first.result() == pids[0]
        with pytest.raises(WorkerError, match="exit code 3"):
            second.result()


def test_done_notices_a_death() -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((wait_for, 60))
        os.kill(pool.pids[0], signal.SIGKILL)
        assert wait_until(ticket.done)
        with pytest.raises(WorkerError, match="SIGKILL"):
            ticket.result()


@pytest.mark.parametrize(
    ("message", "match"),
    [
        ((die, signal.SIGSEGV), "killed by SIGSEGV. A library crashed.*faulthandler"),
        ((die, signal.SIGTERM), "killed by SIGTERM. Somebody"),
        ((die, signal.SIGRTMIN + 3), "killed by signal 37. Somebody"),
        ((leave, 0), "ended with exit code 0 while the loader needed it"),
        ((leave, 7), "ended with exit code 7 while"),
    ],
)
def test_every_end_of_a_worker_is_explained(message: Any, match: str) -> None:
    with pool_of(2) as pool, pytest.raises(WorkerError, match=match):
        pool.submit(message).result()


def fork_and_die(memory: NDArray[np.uint8]) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    memory[:8] = np.array([child], np.int64).view(np.uint8)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_death_is_noticed_while_a_child_of_the_worker_lives_on() -> None:
    slot = BufferPool(1, kind="shared").take(8)
    with pool_of(1) as pool:
        with pytest.raises(WorkerError, match="SIGKILL"):
            pool.submit((fork_and_die,), slot).result()
        child = int(slot.memory.view(np.int64)[0])
        assert psutil.pid_exists(child)
        os.kill(child, signal.SIGKILL)


def test_a_pool_works_where_children_reap_themselves() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pool_of(2) as pool:
            pids = pool.pids
            assert pool.submit((echo, 1)).result() == 1
            with pytest.raises(WorkerError, match="ended while the loader needed it"):
                pool.submit((leave, 3)).result()
        assert gone(*pids)
    finally:
        signal.signal(signal.SIGCHLD, before)


# -- how workers are started --------------------------------------------------------


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_work_that_cannot_be_pickled_is_refused_with_the_remedy(context: str) -> None:
    with pytest.raises(OptionError, match=r"no lambda.*multiprocessing_context=\"fork\""):
        ProcessPool(lambda message, memory: None, 1, context=context)


def test_forked_work_need_not_be_picklable() -> None:
    pool = ProcessPool(lambda message, memory: message + 1, 1, context="fork")
    assert pool.submit(1).result() == 2
    pool.close()


class BombWork(Bomb):
    def __call__(self, message: Any, memory: Any) -> None: ...


class LargeWork:
    def __init__(self) -> None:
        self.ballast = b"x" * 300_000

    def __call__(self, message: Any, memory: Any) -> int:
        return len(self.ballast)


def test_work_that_cannot_be_unpickled_is_explained() -> None:
    pool = ProcessPool(BombWork(), 2, context="forkserver")
    ticket = pool.submit(1)
    with pytest.raises(
        WorkerError, match=r"(?s)cannot be unpickled there.*ZeroDivisionError: while unpickling"
    ):
        ticket.result()
    pool.close()


def test_large_work_is_sent_to_every_worker() -> None:
    pool = ProcessPool(LargeWork(), 2, context="forkserver")
    assert pool.submit(1).result() == 300_000
    pool.close()


def run_script(
    tmp_path: Path, body: str, *arguments: str, head: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, str(script(tmp_path, body, head))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(tmp_path: Path, body: str, head: str = "") -> Path:
    path = tmp_path / "script.py"
    path.write_text(
        "import os, signal, sys, time\n"
        "from fastdata.engine.processes import ProcessPool\n"
        "from fastdata.engine.buffers import BufferPool\n"
        "def work(message, memory):\n"
        "    time.sleep(message)\n"
        "    return os.getpid()\n" + textwrap.dedent(head) + textwrap.dedent(body)
    )
    return path


def test_a_script_without_a_main_guard_is_told_so(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        pool = ProcessPool(work, 2, context="spawn")
        pool.submit(0).result()
        """,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "died with exit code 1 as it started" in last
    assert "if __name__ == '__main__':" in last
    assert "cannot be started here" in done.stderr


def test_processes_that_cannot_be_started_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")

    def refuse(process: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(context.Process, "start", refuse)
    with pytest.raises(WorkerError, match=r'temporarily unavailable.*worker_method="thread"'):
        ProcessPool(call, 2, context=context)


def test_a_pool_inside_a_daemonic_process_is_explained() -> None:
    def inside(end: Any) -> None:
        try:
            ProcessPool(call, 1, context="fork")
        except WorkerError as error:
            end.send(str(error))

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=inside, args=(there,), daemon=True)
    process.start()
    assert here.poll(MOMENTS_SECONDS)
    assert "daemonic processes are not allowed to have children" in here.recv()
    process.join()
    process.close()
    here.close()
    there.close()


def test_workers_forked_after_opencv_used_threads_do_not_hang() -> None:
    cv2 = pytest.importorskip("cv2")
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    cv2.resize(np.zeros((3000, 3000, 3), np.uint8), (4000, 4000))  # starts OpenCV's threads
    with pool_of(2) as pool:
        assert [pool.submit((resize,)).result() for _ in range(4)] == [7] * 4
    assert cv2.getNumThreads() == 2
    cv2.setNumThreads(threads)


def test_workers_forked_after_torch_used_threads_do_not_hang() -> None:
    torch.rand(600, 600) @ torch.rand(600, 600)
    with pool_of(2) as pool:
        assert pool.submit((facts,)).result()["threads"] == 1


def test_signals_wait_while_workers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new process would run the parent's handlers until it has its own."""
    context = multiprocessing.get_context("fork")
    start, masks = context.Process.start, []

    def observed(process: Any) -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        start(process)

    monkeypatch.setattr(context.Process, "start", observed)
    handler = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        with pool_of(1) as pool:
            found = pool.submit((facts,)).result()
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert masks[0] >= {signal.SIGINT, signal.SIGTERM}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert found["sigterm"]


def test_a_default_timeout_of_sockets_changes_nothing() -> None:
    socket.setdefaulttimeout(0.05)
    try:
        with pool_of(1) as pool:
            assert pool.submit((wait_for, 0.3)).result() == pool.pids[0]
            time.sleep(0.2)
            assert pool.submit((echo, 1)).result() == 1
    finally:
        socket.setdefaulttimeout(None)


# -- the end ------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_close_ends_workers_in_the_middle_of_long_work(context: str) -> None:
    with pool_of(2, context) as pool:
        finished = pool.submit((echo, 1))
        finished.result()
        waiting = [pool.submit((wait_for, 60)) for _ in range(8)]
        pids = pool.pids
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < MOMENTS_SECONDS
        assert not any(map(psutil.pid_exists, pids))
        assert pool.pids == []
        pool.close()
        for ticket in waiting:
            assert ticket.done()
            with pytest.raises(WorkerError, match="pool of worker processes was closed"):
                ticket.result()
        assert finished.result() == 1
        with pytest.raises(WorkerError, match="pool of worker processes was closed"):
            pool.submit((echo, 1))


def test_close_does_not_wait_for_tasks_nobody_has_begun() -> None:
    slot = BufferPool(1, kind="shared").take(100)
    slot.tensor.zero_()
    with pool_of(1) as pool:
        pool.submit((wait_for, 0.3))
        for number in range(50):
            pool.submit((fill, number, number + 1, 1), slot)
        pool.close()
    assert not slot.memory.any()


def test_close_in_a_thread_ends_the_workers() -> None:
    with pool_of(2) as pool:
        pids = pool.pids
        thread = threading.Thread(target=pool.close)
        thread.start()
        thread.join()
        assert gone(*pids)


def test_a_dropped_pool_ends_its_workers_at_once() -> None:
    gc.disable()
    try:
        pool = ProcessPool(call, 2, context="fork")
        pids = pool.pids
        ticket = pool.submit((wait_for, 60))
        del pool
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(WorkerError, match="was closed"):
            ticket.result()
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("context", "end"),
    [("fork", ""), ("forkserver", "pool.submit(60)")],
)
def test_an_interpreter_that_exits_leaves_and_prints_nothing(
    tmp_path: Path, context: str, end: str
) -> None:
    body = f"""
        if __name__ == "__main__":
            pool = ProcessPool(work, 2, context="{context}")
            slot = BufferPool(1, kind="shared").take(100)
            print(*{{pool.submit(0.1, slot).result() for _ in range(6)}})
            sys.stdout.flush()
            {end}
        """
    done = run_script(tmp_path, body, "-X", "dev", "-W", "error")
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(*map(int, done.stdout.split()))


def hold_a_pool(end: Any, context: str, message: Any) -> None:
    """Be the main function of a process that has a pool, and waits for it."""
    pool = ProcessPool(call, 2, context=context)
    pool.submit((echo, 0)).result()
    waiting = [pool.submit(message) for _ in range(5)]
    other = os.fork()
    if other == 0:
        time.sleep(60)
        os._exit(0)
    end.send((other, pool.pids))
    for ticket in waiting:
        ticket.result()
    time.sleep(60)


@contextlib.contextmanager
def process_with_a_pool(context: str, message: Any) -> Iterator[tuple[Any, list[int]]]:
    """A process, and the workers of its pool; another process has all that the pool has."""
    here, there = multiprocessing.Pipe()
    # A process that was forked cannot use the fork server of its parent.
    process = multiprocessing.get_context(context).Process(
        target=hold_a_pool, args=(there, context, message)
    )
    process.start()
    assert here.poll(30)
    other, pids = here.recv()
    try:
        yield process, pids
        assert psutil.pid_exists(other)
    finally:
        os.kill(other, signal.SIGKILL)
        process.kill()
        process.join()
        process.close()
        here.close()
        there.close()


@pytest.mark.parametrize(
    ("context", "message"),
    [("fork", (echo, 1)), ("fork", (wait_for, 60)), ("forkserver", (wait_for, 60))],
    ids=["idle", "at work", "forkserver"],
)
def test_workers_end_when_their_parent_is_killed(context: str, message: Any) -> None:
    """Also while another process holds whatever it inherited from the parent."""
    with process_with_a_pool(context, message) as (process, pids):
        assert len(pids) == 2
        assert all(map(psutil.pid_exists, pids))
        process.kill()  # and nobody waits for it: until then it is a zombie
        assert gone(*pids)


def test_workers_end_with_their_parent_where_pidfd_is_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pid: int) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with process_with_a_pool("fork", (wait_for, 60)) as (process, pids):
        process.kill()
        assert gone(*pids)


def test_ctrl_c_is_the_parents() -> None:
    """The terminal sends it to all of them."""
    with process_with_a_pool("fork", (wait_for, 60)) as (process, pids):
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
        assert all(map(psutil.pid_exists, pids))
        os.kill(process.pid, signal.SIGINT)
        assert gone(*pids)
        assert wait_until(lambda: process.exitcode == 1)


def test_a_forked_process_does_not_disturb_its_parents_pool(tmp_path: Path) -> None:
    body = """
        if __name__ == "__main__":
            pool = ProcessPool(work, 2, context="fork")
            pool.submit(0).result()
            ticket = pool.submit(0.5)
            for end in (lambda: os._exit(0), sys.exit, lambda: (pool.close(), os._exit(0))):
                child = os.fork()
                if child == 0:
                    for attempt in (lambda: pool.submit(0), ticket.result, ticket.done):
                        try:
                            attempt()
                        except Exception as error:
                            assert "belong to process" in str(error), error
                        else:
                            os._exit(9)
                    end()
                assert os.waitpid(child, 0)[1] == 0
            ticket.result()
            print(len({pool.submit(0.1).result() for _ in range(10)} | set(pool.pids)))
        """
    done = run_script(tmp_path, body)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_nothing_is_left_open_by_many_pools() -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pool_of(2) as pool:
            slot = BufferPool(1, kind="shared").take(100)
            pool.submit((fill, 0, 100, 1), slot).result()
            del slot
    assert set(os.listdir("/proc/self/fd")) == before


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


def test_a_full_socket_takes_nothing() -> None:
    here, there = sharing.socket_pair()
    here.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sharing.send(here, sharing.Packet(sent, 0, bytes(60_000)))
            sent += 1
    assert 1 < sent < 1000
    here.close()
    for ticket in range(sent):
        packet = sharing.receive(there)
        assert packet is not None
        assert packet.ticket == ticket
    assert sharing.receive(there) is None
    there.close()
