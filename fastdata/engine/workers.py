"""Workers: the caller itself, threads of this process, or other processes.

Decoding, resizing and copying release the GIL, so threads of the training process use all cores
without sending a batch anywhere.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import pickle
import queue
import signal
import sys
import threading
import weakref
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Literal, TypeAlias

import torch

from fastdata.engine.buffers import Slot
from fastdata.engine.contracts import Pending, Workers
from fastdata.errors import OptionError, WorkerError
from fastdata.formats.mapped import shortened_files
from fastdata.processes.pool import ProcessPool, SharedBlock, Ticket
from fastdata.processes.starting import Death, Role, UnpicklableWorkError, context_of
from fastdata.processes.worker import Work, have_one_opencv_thread
from fastdata.transforms.generators import allow_seeding_in_process, seeding_allowed
from fastdata.waits import join_threads

__all__ = [
    "DEFAULT_PREFETCH",
    "THREAD_NAME",
    "CallerWorkers",
    "ProcessWorkers",
    "ThreadWorkers",
    "WorkerMethod",
    "WorkerOptions",
    "choose_method",
]

THREAD_NAME = "fastdata-worker"

DEFAULT_PREFETCH = 2
"""Batches made ahead where nothing says otherwise, as in a stock `DataLoader`."""

_TICK_SECONDS = 1.0
"""Interval of checks that worker processes are alive."""

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)

WorkerMethod: TypeAlias = Literal["thread", "process"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Options of workers; by default batches are made in the calling thread.

    `prefetch_factor` batches are made ahead of the current one.  `persistent` workers stay for the
    next epoch.  `context` is the start method of processes, by default the platform's.
    """

    num_workers: int
    method: WorkerMethod = "thread"
    prefetch_factor: int = DEFAULT_PREFETCH
    persistent: bool = True
    context: str | BaseContext | None = None

    @property
    def ahead(self) -> int:
        """Batches that are being made behind the one that is waited for."""
        return self.prefetch_factor if self.num_workers else 0

    def __str__(self) -> str:
        if not self.num_workers:
            return "no workers"
        one, several = {"thread": ("thread", "threads"), "process": ("process", "processes")}[
            self.method
        ]
        return f"{self.num_workers} worker {one if self.num_workers == 1 else several}"

    def check_sent(self, transforms: object) -> None:
        """Raise `OptionError` if processes would have to be sent transforms that cannot be."""
        is_sent = context_of(self.context).get_start_method() != "fork"
        if self.num_workers and self.method == "process" and is_sent:
            try:
                pickle.dumps(transforms)
            except Exception as error:  # a user's object may raise anything
                raise _unsent(f"{type(error).__name__}: {error}") from error

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

    `calls_python` says whether Python functions of the user's run on each sample, `releases_lock`
    whether the compiled library does nearly all of the work, `context` how processes would be
    started.

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


def _unsent(why: object) -> OptionError:
    return OptionError(
        f"the dataset and transforms cannot be sent to worker processes: {why}. Define "
        "transforms at the top level of a module (no lambda, no local function), or use "
        'multiprocessing_context="fork" or worker_method="thread"'
    )


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

    def wait(self, task: Any, seconds: float) -> bool:
        """Return true: the caller does the task when it asks for the result."""
        return True

    def check(self) -> None:
        """Do nothing: the caller is the worker."""

    def close(self) -> None:
        """Do nothing, without workers."""


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
    """Threads, which start with the first tasks and end with `close` or with this object.

    No thread outlives it, except one whose task does not return when Python ends.  So they are
    daemons, which those of `ThreadPoolExecutor` are not.
    """

    def __init__(self, work: Work, num_workers: int) -> None:
        self._work = work
        # The threads must not know this object: they would keep it alive, and
        # then nothing would end them when the caller drops it.
        self._number = num_workers
        self._tasks: _Tasks = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Not __del__, which may run when Python ends, with modules that are gone already.
        self.close = weakref.finalize(self, _shut_down, self._tasks, self._threads)
        """End the threads, after the tasks they are at.  Idempotent."""

    def check(self) -> None:
        """Do nothing: a thread does not die before its process."""

    def submit(self, task: Any, slot: Slot | None) -> Future[Any]:
        """Give a task to the next free thread."""
        if not self.close.alive:
            raise WorkerError("these worker threads were closed")
        future: Future[Any] = Future()
        self._tasks.put((future, self._work, task, slot.memory if slot else None))
        if len(self._threads) < self._number:
            name = f"{THREAD_NAME}_{len(self._threads)}"
            thread = threading.Thread(target=_serve, args=(self._tasks,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        return future

    def wait(self, task: Future[Any], seconds: float) -> bool:
        """Wait at most that long for a task; return whether it has ended."""
        with contextlib.suppress(TimeoutError, FutureTimeoutError, CancelledError):
            task.exception(seconds)
        return task.done()

    def __str__(self) -> str:
        return f"worker threads: {self._number}"


_Tasks: TypeAlias = "queue.SimpleQueue[tuple[Future[Any], Work, Any, Any] | None]"
"""Each with its future and its memory; None ends the thread that takes it."""


def _serve(tasks: _Tasks) -> None:
    """Do tasks until there is a None, which is left for the other threads."""
    while (taken := tasks.get()) is not None:
        _do(*taken)
        del taken  # while waiting for the next
    tasks.put(None)


def _do(future: Future[Any], work: Work, task: Any, memory: Any) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work(task, memory))
    except BaseException as error:
        future.set_exception(error)
        del future, work, task, memory  # the error holds this frame


def _shut_down(tasks: _Tasks, threads: list[threading.Thread]) -> None:
    """Cancel the tasks that wait, and end the threads."""
    with contextlib.suppress(queue.Empty):
        while True:
            waiting = tasks.get_nowait()
            if waiting is not None:
                waiting[0].cancel()
    tasks.put(None)
    # The garbage collector runs in any thread; a worker cannot wait for
    # itself, and ends anyway when its task does.
    if not threading.current_thread().name.startswith(THREAD_NAME):
        join_threads(threads, "the worker threads of a loader (does a transform not return?)")


class ProcessWorkers:
    """A pool of processes whose tasks write to the memory of batches.

    They ignore Ctrl-C and compute on one thread each.  See `ProcessPool` for how they end.
    """

    def __init__(
        self, work: Work, num_workers: int, *, context: str | BaseContext | None = None
    ) -> None:
        try:
            self.pool = ProcessPool(work, num_workers, _ROLE, context=context)
        except UnpicklableWorkError as error:
            raise _unsent(error) from error.__cause__
        self.check, self.close = self.pool.check, self.pool.close

    @property
    def pids(self) -> list[int]:
        """The process IDs of the workers; empty after the end."""
        return self.pool.pids

    def submit(self, task: Any, slot: Slot | None = None) -> Ticket:
        """Give a task to whichever worker is idle; its slot is kept until the task is done."""
        if slot is None:
            return self.pool.submit(task)
        block = slot.block
        if block.descriptor is None:
            raise OptionError(f'a task\'s memory is of kind "shared", not {block}')
        return self.pool.submit(task, SharedBlock(block.number, block.descriptor, slot))

    def wait(self, task: Ticket, seconds: float) -> bool:
        """Wait at most that long for a task; return whether it has ended."""
        return task.wait(min(seconds, _TICK_SECONDS))

    def __str__(self) -> str:
        return f"worker processes: {len(self.pids)}"


def _set_up() -> None:
    """Leave the terminal's signals to the parent, and compute on one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    allow_seeding_in_process()
    # The garbage collector need not look through torch's half a million objects again.
    gc.freeze()
    have_one_opencv_thread()


def _explain_death(death: Death) -> str:
    """Return the cause of a worker's death, likely reasons and the remedy."""
    if death.start_error:
        return (
            f"{death}. Define transforms in a module that can be imported, or use "
            f'worker_method="thread".\n{death.start_error}'
        )
    number = death.signal
    if number is None and death.ready:
        return f"{death} while the loader needed it; was os._exit called in a transform?"
    if number is None:
        return (
            f"{death}; its own message is above, on standard error. In a script, use the loader "
            "under `if __name__ == '__main__':`; worker_method=\"thread\" does without processes"
        )
    if number == signal.SIGKILL:
        return (
            f"{death}. Most likely the system was out of memory (`dmesg` tells): use fewer "
            "workers, smaller batches or a smaller prefetch_factor"
        )
    if number == signal.SIGBUS:
        files = ", ".join(map(str, shortened_files()))
        which = f"{files} was cut short or overwritten" if files else "see standard error: which"
        return (
            f"{death}: a file that it reads through a memory map could not be read ({which}). "
            "Restore the file, or clear the cache that it is in (fastdata cache clear); put a new "
            "one in the place of one that is in use by renaming (mv), never by writing over it (cp)"
        )
    if number in _CRASHES:
        return (
            f"{death}. A library crashed, perhaps on one broken image: with num_workers=0 and "
            "`python -X faulthandler` you see where"
        )
    return f"{death}. Somebody has stopped it"


_ROLE = Role(
    name="fastdata-worker",
    set_up=_set_up,
    remedy=(
        "In a script, use the loader under `if __name__ == '__main__':`; "
        'worker_method="thread" works everywhere'
    ),
    explain_death=_explain_death,
)
