"""Batches in the order of their requests, made ahead by workers.

A stream knows no epochs: it takes requests, endless if epochs join, and makes
a fixed number of batches ahead.  It can be restarted with the same workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Any

from fastdata.engine.contracts import Job, Pending, Prepare, Request, Workers
from fastdata.engine.work import ReadAheadTask
from fastdata.waits import wait_until

__all__ = ["Stream"]


class Stream(Iterator[Any]):
    """Batches made ahead.

    Parameters
    ----------
    prepare : Prepare
        Called in the thread that iterates.
    workers : Workers
        Closed with the stream.
    ahead : int
        Batches that are being made behind the one that is waited for; 0 makes each
        when it is asked for.
    read_ahead : int
        Samples beyond these whose bytes are asked for from the disk.

    Attributes
    ----------
    request : Request or None
        What the batch that was taken last is the answer to.

    Notes
    -----
    For one thread at a time.  An error of a batch, whether in `prepare` or in
    a worker, is raised in its place: after all batches before it, as itself,
    with its traceback.
    """

    def __init__(
        self, prepare: Prepare, workers: Workers, *, ahead: int, read_ahead: int = 0
    ) -> None:
        self._prepare = prepare
        self._workers = workers
        self._ahead = ahead
        self._read_ahead = read_ahead
        self.request: Request | None = None
        self._requests: Iterator[Request] = iter(())
        self._announced: deque[Request] = deque()
        self._announced_samples = 0
        self._pending: deque[tuple[Request, Job | None, list[Pending]]] = deque()

    def begin(self, requests: Iterable[Request]) -> None:
        """Drop the batches that are being made, and make those of `requests`."""
        self.stop()
        self._requests = iter(requests)
        for _ in range(self._ahead):
            self._submit()

    def stop(self) -> None:
        """Drop the batches that are being made; the workers stay."""
        self._requests = iter(())
        self._announced.clear()
        self._announced_samples = 0
        for *_, tasks in self._pending:
            for task in tasks:
                cancel = getattr(task, "cancel", None)
                if cancel is not None:
                    cancel()
        self._pending.clear()

    @property
    def ready(self) -> int:
        """Batches that are made and not yet taken: that many can be taken without waiting."""
        made = (all(task.done() for task in tasks) for *_, tasks in self._pending)
        return sum(takewhile(bool, made))

    def _next_request(self) -> Request | None:
        """Return the next request, and have those behind it read."""
        # Two at a time: the lead grows, but the first batch does not wait for it.
        for _ in range(2):
            if self._announced and self._announced_samples >= self._read_ahead:
                break
            request = next(self._requests, None)
            if request is None:
                break
            if self._read_ahead:
                self._workers.submit(ReadAheadTask(request.indices), None)
            self._announced.append(request)
            self._announced_samples += len(request.indices)
        if not self._announced:
            return None
        request = self._announced.popleft()
        self._announced_samples -= len(request.indices)
        return request

    def _submit(self) -> None:
        request = self._next_request()
        if request is None:
            return
        try:
            job = self._prepare(request)
            tasks = [self._workers.submit(task, job.slot) for task in job.tasks()]
        except Exception as error:
            self._pending.append((request, None, [_Failed(error)]))
        else:
            self._pending.append((request, job, tasks))

    def __next__(self) -> Any:
        self._submit()
        if not self._pending:
            raise StopIteration
        self._workers.check()
        self.request, job, tasks = self._pending.popleft()
        # Tasks go as they are done: one that failed would hold the error that
        # holds this frame.
        results = []
        while tasks:
            if not tasks[0].done():
                wait_until(partial(self._workers.wait, tasks[0]), self._wanted)
            results.append(tasks.pop(0).result())
        assert job is not None, "a job that could not be prepared has a failed task"
        return job.finish(results)

    def _wanted(self) -> str:
        """Return the name of the current batch for a warning."""
        request = self.request
        assert request is not None, "a task is waited for"
        samples = len(request.indices)
        batch = f"batch {request.number} of epoch {request.epoch}"
        return f"{batch} ({samples} samples; {self._workers})"

    def close(self) -> None:
        """End the workers.  Idempotent."""
        self.stop()
        self._workers.close()


class _Failed:
    """A task of a batch that could not even be planned."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        raise self._error
