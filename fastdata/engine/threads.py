"""Workers that are threads of this process, and the one that is the caller itself.

Decoding, resizing and copying release the GIL, so threads of the training
process use all cores without sending a batch anywhere.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastdata.engine.buffers import Slot
from fastdata.engine.job import Pending, Work
from fastdata.transforms.generators import lend_generators

__all__ = ["THREAD_NAME", "CallerWorkers", "ThreadWorkers"]

THREAD_NAME = "fastdata-worker"


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
        with lend_generators():
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
