"""Runs jobs on threads, some batches ahead, and hands results out in order.

Decoding, resizing and copying release the GIL, so threads of the training
process use all cores without sending a batch anywhere.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fastdata.engine.job import Job, Prepare, Request

__all__ = ["ThreadRun", "run_in_caller"]

THREAD_NAME = "fastdata-worker"


def run_in_caller(prepare: Prepare, requests: Iterable[Request]) -> Iterator[Any]:
    """Make each batch when it is asked for, in the calling thread."""
    for request in requests:
        yield _make(prepare, request)


def _make(prepare: Prepare, request: Request) -> Any:
    """Return one batch.  A function, as what it names is gone when it returns."""
    job = prepare(request)
    for piece in job.pieces():
        piece()
    return job.finish()


class ThreadRun(Iterator[Any]):
    """Batches in the order of their requests, made ahead by threads of its own.

    Work begins at construction.  The threads end with the last batch, with
    the first error, with `close` and with this object: none outlives it.

    Parameters
    ----------
    prepare : Prepare
        Called in the thread that iterates.
    requests : iterable of Request
    num_workers : int
    ahead : int
        Batches in the making behind the one that is waited for.

    Notes
    -----
    An error of a batch, whether in `prepare` or in a worker, is raised in its
    place: after all batches before it, as itself, with its traceback.
    """

    def __init__(
        self, prepare: Prepare, requests: Iterable[Request], *, num_workers: int, ahead: int
    ) -> None:
        self._prepare = prepare
        self._requests = iter(requests)
        self._pending: deque[tuple[Job | None, list[Future[None]]]] = deque()
        # The workers must not know this object: they would keep it alive, and
        # then nothing would end them when the caller drops it.
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix=THREAD_NAME)
        for _ in range(ahead):
            self._submit()

    def _submit(self) -> None:
        request = next(self._requests, None)
        if request is None:
            return
        try:
            job = self._prepare(request)
        except Exception as error:
            failed: Future[None] = Future()
            failed.set_exception(error)
            self._pending.append((None, [failed]))
        else:
            self._pending.append((job, [self._pool.submit(piece) for piece in job.pieces()]))

    def __next__(self) -> Any:
        self._submit()
        if not self._pending:
            self.close()
            raise StopIteration
        job, futures = self._pending.popleft()
        try:
            while futures:  # none is kept: it would hold the error that holds this frame
                futures.pop(0).result()
            assert job is not None, "a job that could not be prepared has a failed future"
            return job.finish()
        except BaseException:  # Ctrl-C too: nothing would be left to end the threads
            self.close()
            raise

    def close(self) -> None:
        """End the threads, after the pieces they are at.  Idempotent."""
        self._requests = iter(())
        self._pending.clear()
        # The garbage collector runs in any thread; a worker cannot wait for
        # itself, and ends anyway when its piece does.
        wait = not threading.current_thread().name.startswith(THREAD_NAME)
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def __del__(self) -> None:
        if hasattr(self, "_pool"):
            self.close()
