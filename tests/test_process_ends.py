"""Worker processes: how they start, and that every end of one is noticed and leaves nothing."""

from __future__ import annotations

import contextlib
import errno
import gc
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from process_helpers import (
    FOREVER,
    Bomb,
    call,
    die,
    echo,
    facts,
    gone,
    leave,
    pool_of,
    resize,
    wait_for,
    wait_for_file,
    wait_until,
)
from warm_python import WarmPython

from fastdata.engine.buffers import BufferPool
from fastdata.engine.workers import ProcessWorkers
from fastdata.errors import WorkerError

# -- workers that die ---------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_worker_killed_at_work_is_an_error_at_once(context: str) -> None:
    """Tasks that others are at are not waited for: they never end."""
    memory = BufferPool(2, kind="shared")
    with pool_of(2, context) as pool:
        done = pool.submit((echo, 5))
        done.result()
        pids = pool.pids
        waiting = [pool.submit((wait_for, FOREVER), memory.take(10)) for _ in range(5)]
        os.kill(pids[1], signal.SIGKILL)
        for ticket in waiting:
            with pytest.raises(
                WorkerError,
                match=rf"fastdata-worker-1 \(pid {pids[1]}\) was killed by SIGKILL. Most likely "
                r"the system was out of memory .*fewer workers",
            ):
                ticket.result()
        assert all(ticket.done() for ticket in waiting)
        assert done.result() == 5
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            pool.submit((echo, 1))
        assert memory.in_use == 0
        assert gone(*pids)


def wait_as_told(memory: NDArray[np.uint8]) -> None:
    memory.view(np.int64)[0] = os.getpid()
    time.sleep(FOREVER)


def test_a_worker_killed_while_idle_is_an_error() -> None:
    slot = BufferPool(1, kind="shared").take(8)
    busy = slot.memory.view(np.int64)
    busy[0] = 0
    with pool_of(2) as pool:
        finished = [pool.submit((echo, value)) for value in range(10)]
        waiting = pool.submit((wait_as_told,), slot)
        wait_until(lambda: busy[0] != 0 and all(ticket.done() for ticket in finished))
        [idle] = set(pool.pids) - {int(busy[0])}
        os.kill(idle, signal.SIGKILL)
        with pytest.raises(WorkerError, match="killed by SIGKILL"):
            waiting.result()
        assert [ticket.result() for ticket in finished] == list(range(10))


def test_what_a_worker_did_before_it_died_is_not_lost(tmp_path: Path) -> None:
    class Late:
        """Looks only when result and death are both there."""

        def __init__(self, poll: Any, pid: int) -> None:
            self.look, self.pid = poll, pid

        def poll(self, milliseconds: float) -> Any:
            gone(self.pid)
            return self.look.poll(milliseconds)

    with pool_of(1) as pool:
        pids = pool.pids
        first = pool.submit((wait_for_file, tmp_path / "go"))
        second = pool.submit((leave, 3))
        pool.pool._crew._poll = Late(pool.pool._crew._poll, pids[0])
        (tmp_path / "go").touch()
        assert first.result() == pids[0]
        with pytest.raises(WorkerError, match="exit code 3"):
            second.result()


def test_done_notices_a_death() -> None:
    with pool_of(1) as pool:
        ticket = pool.submit((wait_for, FOREVER))
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
        time.sleep(FOREVER)
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


def test_forked_work_need_not_be_picklable() -> None:
    pool = ProcessWorkers(lambda message, memory: message + 1, 1, context="fork")
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
    pool = ProcessWorkers(BombWork(), 2, context="forkserver")
    with pytest.raises(
        WorkerError, match=r"(?s)cannot be unpickled there.*ZeroDivisionError: while unpickling"
    ):
        pool.submit(1).result()  # the first of them may be gone before anything is submitted
    pool.close()


def test_large_work_is_sent_to_every_worker() -> None:
    pool = ProcessWorkers(LargeWork(), 2, context="forkserver")
    assert pool.submit(1).result() == 300_000
    pool.close()


def script(body: str) -> str:
    return (
        "import os, signal, sys, time\n"
        "from fastdata.engine.workers import ProcessWorkers\n"
        "from fastdata.engine.buffers import BufferPool\n"
        "def work(message, memory):\n"
        "    time.sleep(message)\n"
        "    return os.getpid()\n" + textwrap.dedent(body)
    )


def test_a_script_without_a_main_guard_is_told_so(warm_python: WarmPython) -> None:
    done = warm_python.run(
        script(
            """
            pool = ProcessWorkers(work, 1, context="spawn")
            pool.submit(0).result()
            """
        )
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
        ProcessWorkers(call, 2, context=context)


def test_a_pool_inside_a_daemonic_process_is_explained() -> None:
    def inside(end: Any) -> None:
        try:
            ProcessWorkers(call, 1, context="fork")
        except WorkerError as error:
            end.send(str(error))

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=inside, args=(there,), daemon=True)
    process.start()
    assert "daemonic processes are not allowed to have children" in here.recv()
    process.join()
    process.close()
    here.close()
    there.close()


def test_a_process_that_the_user_forks_after_opencv_used_threads_can_start_workers() -> None:
    cv2 = pytest.importorskip("cv2")
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)
    cv2.resize(np.zeros((3000, 3000, 3), np.uint8), (4000, 4000))  # starts OpenCV's threads
    time.sleep(0.2)  # they look for more work, and sleep then

    def resize_in_a_worker(end: Any) -> None:
        with pool_of(1) as pool:
            end.send((pool.submit((resize,)).result(), cv2.getNumThreads()))

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=resize_in_a_worker, args=(there,))
    process.start()
    try:
        assert here.poll(60), "the process hangs"
        assert here.recv() == (7, 2)
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()
        there.close()
    assert cv2.getNumThreads() == 2
    cv2.setNumThreads(threads)


def test_forks_of_several_threads_leave_opencv_its_threads() -> None:
    cv2 = pytest.importorskip("cv2")
    threads = cv2.getNumThreads()
    cv2.setNumThreads(2)

    def fork(_: int) -> None:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(cv2.getNumThreads())
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(fork, range(8)))
    assert cv2.getNumThreads() == 2
    cv2.setNumThreads(threads)


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
        waiting = [pool.submit((wait_for, FOREVER)) for _ in range(8)]
        pids = pool.pids
        pool.close()
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


def test_a_dropped_pool_ends_its_workers_at_once() -> None:
    gc.disable()
    try:
        pool = ProcessWorkers(call, 2, context="fork")
        pids = pool.pids
        ticket = pool.submit((wait_for, FOREVER))
        del pool
        assert not any(map(psutil.pid_exists, pids))
        with pytest.raises(WorkerError, match="was closed"):
            ticket.result()
    finally:
        gc.enable()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("context", "end"),
    [("fork", ""), ("forkserver", "pool.submit(60)")],
)
def test_an_interpreter_that_exits_leaves_and_prints_nothing(
    tmp_path: Path, context: str, end: str
) -> None:
    body = f"""
        if __name__ == "__main__":
            pool = ProcessWorkers(work, 2, context="{context}")
            slot = BufferPool(1, kind="shared").take(100)
            print(*{{pool.submit(0.1, slot).result() for _ in range(6)}})
            sys.stdout.flush()
            {end}
        """
    path = tmp_path / "script.py"
    path.write_text(script(body))
    command = [sys.executable, "-X", "dev", "-W", "error", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert gone(*map(int, done.stdout.split()))


def hold_a_pool(end: Any, context: str, message: Any) -> None:
    """Be the main function of a process that has a pool, and waits for it."""
    pool = ProcessWorkers(call, 2, context=context)
    pool.submit((echo, 0)).result()
    waiting = [pool.submit(message) for _ in range(5)]
    other = os.fork()
    if other == 0:
        time.sleep(FOREVER)
        os._exit(0)
    end.send((other, pool.pids))
    for ticket in waiting:
        ticket.result()
    time.sleep(FOREVER)


@contextlib.contextmanager
def process_with_a_pool(context: str, message: Any) -> Iterator[tuple[Any, list[int]]]:
    """A process, and the workers of its pool; another process has all that the pool has."""
    here, there = multiprocessing.Pipe()
    # A process that was forked cannot use the fork server of its parent.
    process = multiprocessing.get_context(context).Process(
        target=hold_a_pool, args=(there, context, message)
    )
    process.start()
    there.close()  # so that the end of the process is the end of what it sends
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


@pytest.mark.parametrize(
    ("context", "message"),
    [("fork", (echo, 1)), ("fork", (wait_for, FOREVER)), ("forkserver", (wait_for, FOREVER))],
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
    with process_with_a_pool("fork", (wait_for, FOREVER)) as (process, pids):
        process.kill()
        assert gone(*pids)


def test_ctrl_c_is_the_parents() -> None:
    """The terminal sends it to all of them."""
    with process_with_a_pool("fork", (wait_for, FOREVER)) as (process, pids):
        for pid in pids:
            os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
        assert all(map(psutil.pid_exists, pids))
        os.kill(process.pid, signal.SIGINT)
        assert gone(*pids)
        assert wait_until(lambda: process.exitcode == 1)


def test_a_forked_process_does_not_disturb_its_parents_pool(warm_python: WarmPython) -> None:
    body = """
        if __name__ == "__main__":
            pool = ProcessWorkers(work, 2, context="fork")
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
    done = warm_python.run(script(body))
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
