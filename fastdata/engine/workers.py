"""Which workers there are: the caller itself, threads of this process, or other processes.

Decoding, resizing and copying release the GIL, so threads of the training process use all cores
without sending a batch anywhere.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeAlias

from fastdata.engine.buffers import Slot
from fastdata.engine.job import Pending, Work, Workers
from fastdata.engine.process_workers import ProcessWorkers
from fastdata.transforms.generators import seeding_allowed

__all__ = [
    "THREAD_NAME",
    "CallerWorkers",
    "ThreadWorkers",
    "WorkerMethod",
    "WorkerOptions",
    "choose_method",
]

THREAD_NAME = "fastdata-worker"

WorkerMethod: TypeAlias = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How batches are made.

    Attributes
    ----------
    num_workers : int
        0 makes them in the calling thread.
    method : {"thread", "process"}
    prefetch_factor : int
        Batches made ahead of the one that is waited for.
    persistent : bool
        Whether workers outlive an epoch, and go on with the next.
    context : str or multiprocessing context, optional
        How processes are started; the default is the platform's.
    """

    num_workers: int
    method: WorkerMethod = "thread"
    prefetch_factor: int = 2
    persistent: bool = True
    context: str | BaseContext | None = None

    @property
    def ahead(self) -> int:
        """Batches in the making behind the one that is waited for."""
        return self.prefetch_factor if self.num_workers else 0

    def start(self, work: Work) -> Workers:
        """Return workers that do `work`."""
        if self.num_workers == 0:
            return CallerWorkers(work)
        if self.method == "thread":
            return ThreadWorkers(work, self.num_workers)
        return ProcessWorkers(work, self.num_workers, context=self.context)


def choose_method(
    num_workers: int,
    *,
    calls_python: bool,
    releases_lock: bool = False,
    context: str | BaseContext | None = None,
) -> WorkerMethod:
    """Return what ``worker_method="auto"`` means.

    Parameters
    ----------
    num_workers : int
    calls_python : bool
        Whether Python functions of the user's run on each sample.
    releases_lock : bool
        Whether the compiled library does nearly all of the work.
    context : str or multiprocessing context, optional
        How processes would be started.

    Notes
    -----
    What the compiled library does scales with threads as with processes, and they
    start at once and share all memory.  Callables are for processes, even for one: only there
    can the generators be seeded that they draw from (`fastdata.transforms.generators`), so that
    batches are the same for any number of workers.  Other Python code runs in one thread at a
    time, except in a free-threaded interpreter, and threads that wait for each other
    lose more than that time: without that library, two processes make 1.1 times as
    many JPEGs as two threads, 1.2 times as many raw images that are resized, and 1.6
    times as many raw ones of 32 x 32 (``docs/design/loading.md``).  Processes that
    are not forked take seconds to start, and a script that is made for them: only
    callables are worth that without being asked for.
    """
    if calls_python and num_workers:
        return "process"
    if num_workers <= 1 or releases_lock or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return "thread"
    return "process" if _forks(context) else "thread"


def _forks(context: str | BaseContext | None) -> bool:
    """Return whether processes are started by fork."""
    method = context.get_start_method() if isinstance(context, BaseContext) else context
    return (method or multiprocessing.get_start_method(allow_none=False)) == "fork"


class CallerWorkers:
    """Does each task when its result is asked for, in the thread that asks."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def submit(self, task: Any, slot: Slot | None) -> Pending:
        """Return the task as one that is still to be done."""
        return _Later(self._work, task, slot)

    def check(self) -> None:
        """Do nothing: nobody can die."""

    def close(self) -> None:
        """Do nothing: there is nobody to end."""


class _Later:
    """A task that is done when its result is asked for, once."""

    def __init__(self, work: Work, task: Any, slot: Slot | None) -> None:
        self._work, self._task, self._slot = work, task, slot

    def done(self) -> bool:
        return False

    def result(self) -> Any:
        with seeding_allowed():
            return self._work(self._task, self._slot.memory if self._slot else None)


class ThreadWorkers:
    """A pool of threads.

    They start with the first task and end with `close` or with this object;
    no thread outlives it.

    Parameters
    ----------
    work : Work
    num_workers : int
    """

    def __init__(self, work: Work, num_workers: int) -> None:
        self._work = work
        # The threads must not know this object: they would keep it alive, and
        # then nothing would end them when the caller drops it.
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix=THREAD_NAME)
        # Not __del__, which may run when Python ends, with modules that are gone already.
        self.close = weakref.finalize(self, _shut_down, self._pool)
        """End the threads, after the tasks they are at.  Idempotent."""

    def check(self) -> None:
        """Do nothing: a thread does not die before its process."""

    def submit(self, task: Any, slot: Slot | None) -> Future[Any]:
        """Give a task to the next free thread."""
        return self._pool.submit(self._work, task, slot.memory if slot else None)


def _shut_down(pool: ThreadPoolExecutor) -> None:
    # The garbage collector runs in any thread; a worker cannot wait for
    # itself, and ends anyway when its task does.
    wait = not threading.current_thread().name.startswith(THREAD_NAME)
    pool.shutdown(wait=wait, cancel_futures=True)
