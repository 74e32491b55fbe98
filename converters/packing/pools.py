"""What Ctrl-C and lost processes do to a `ProcessPoolExecutor` of the caller's.

Its messages go through pipes that all of its processes share.  A process that is interrupted
halfway through a message spoils the pipe, and Python's thread waits for the rest for ever, as other
processes can still write to it (seen in Python 3.11).
"""

from __future__ import annotations

import concurrent.futures.process
import contextlib
import multiprocessing
import multiprocessing.queues
import signal
import threading
import time
from collections.abc import Collection
from concurrent.futures import Executor, Future, wait
from functools import partial
from types import CodeType, FrameType
from typing import Any

from fastdata.errors import WorkerError

__all__ = ["LostProcesses", "interrupt_tasks_only"]

_NOTICE_SECONDS = 0.5
"""Within which an executor notices the death of one of its processes."""
_LEAVE_SECONDS = 2.0
"""For a pool that has lost a process to fail its tasks."""
_TICK_SECONDS = 0.1

_process: Any = concurrent.futures.process
_WORKER: CodeType = _process._process_worker.__code__
"""The loop of a process of the pool, which takes tasks, calls them and sends results."""
_MESSAGES: tuple[CodeType, ...] = (
    _process._sendback_result.__code__,
    multiprocessing.queues.Queue.get.__code__,
    multiprocessing.queues.SimpleQueue.put.__code__,
)
"""What it calls to take and to send."""


def interrupt_tasks_only() -> None:
    """Have Ctrl-C interrupt tasks of this process of a pool, and never its messages.

    Of other processes and threads, and where Ctrl-C is ignored, it changes nothing.
    """
    before = signal.getsignal(signal.SIGINT)
    if (
        multiprocessing.parent_process() is not None
        and threading.current_thread() is threading.main_thread()
        and callable(before)
        and getattr(before, "func", None) is not _interrupt_task
    ):
        signal.signal(signal.SIGINT, partial(_interrupt_task, before))


def _interrupt_task(before: Any, number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C as before, unless the loop of the pool is at a message."""
    called: FrameType | None = None
    while frame is not None and frame.f_code is not _WORKER:
        called, frame = frame, frame.f_back
    if frame is None or (called is not None and called.f_code not in _MESSAGES):
        before(number, called)


class LostProcesses:
    """Ends a pool one of whose processes died while it sent a result; other executors have none."""

    def __init__(self, executor: Executor) -> None:
        self._executor: Any = executor
        self._since: float | None = None

    def check(self) -> None:
        """Raise `WorkerError` if there is such a process, which the pool has had time to notice."""
        if self._is_unnoticed():
            self._end()
            raise WorkerError(
                "a process of the executor died while it sent a result. Run the same command "
                "again, with a new executor: it continues"
            )

    def cancel(self, pending: Collection[Future[Any]]) -> None:
        """Cancel tasks that are not wanted any more, unless the pool is about to fail them.

        A Ctrl-C may have ended its processes, too.  Cancelled tasks would then fail in Python's
        thread, which would never end.
        """
        began = time.monotonic()
        while pending and self._processes():
            if not wait(pending, _TICK_SECONDS).not_done:
                return
            if self._is_unnoticed():
                self._end()
            if time.monotonic() > began + (_LEAVE_SECONDS if self._has_lost() else _NOTICE_SECONDS):
                break
        if not self._has_lost():
            for future in pending:
                future.cancel()

    def _processes(self) -> list[Any]:
        return list((getattr(self._executor, "_processes", None) or {}).values())

    def _has_lost(self) -> bool:
        return any(process.exitcode for process in self._processes())

    def _is_unnoticed(self) -> bool:
        """Return whether a process has died, and the pool has had time to notice."""
        if not self._has_lost():
            return False
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now > self._since + _NOTICE_SECONDS

    def _end(self) -> None:
        for process in self._processes():
            process.kill()
        with contextlib.suppress(AttributeError, OSError):
            self._executor._result_queue._writer.close()  # now the thread reads the end of the file
