"""What tests of worker processes share: the work that they do, and whether they are still there.

Everything here is at the top level of a module, so that spawned processes find it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import multiprocessing
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from fastdata.engine.workers import ProcessWorkers
from fastdata.errors import ShardCorruptError

CONTEXTS = ["fork", "spawn", "forkserver"]
FOREVER = 600.0
"""Seconds that no test lasts: pytest ends one that waits for a task that sleeps so long."""
CHILD_SECONDS = 60.0
"""After which a forked process counts as hanging."""


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns, or the error that it raises, in a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def answer() -> None:
        try:
            there.send(work())
        except Exception as error:
            there.send(error)

    child = context.Process(target=answer)
    child.start()
    try:
        assert here.poll(CHILD_SECONDS), "the forked process hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


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


def wait_for_file(memory: Any, path: Path) -> int:
    """Be at work until the test makes a file."""
    wait_until(path.exists)
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
    time.sleep(FOREVER)


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
def pool_of(num_workers: int = 2, context: str = "fork") -> Iterator[ProcessWorkers]:
    pool = ProcessWorkers(call, num_workers, context=context)
    try:
        yield pool
    finally:
        pool.close()


def wait_until(condition: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Return whether a condition comes true; without a limit pytest's own one ends the wait."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(*pids: int, seconds: float = math.inf) -> bool:
    """Wait until processes are dead, and return whether they are.

    Those of a dead parent stay zombies until init looks, for seconds; our own would be leaks.
    """
    return wait_until(lambda: not any(map(_lives, pids)), seconds)


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def kill_and_wait(pid: int) -> None:
    """Kill a process; return when all its threads are dead: its first is a zombie before."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [])
    os.close(descriptor)


def maps_of(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:fastdata")
