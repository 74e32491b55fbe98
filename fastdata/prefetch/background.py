"""Batches made in a thread, ahead of the loop: prefetching where there is no device to move to."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from fastdata.errors import WorkerError
from fastdata.prefetch.ahead import Pulled

__all__ = ["Background"]

LOOK_SECONDS = 1.0
"""How often a waiting consumer looks whether the thread is alive."""

EXIT_SECONDS = 5.0
"""How long the end of the program waits for threads that are making a batch."""

_END = object()

_running: dict[threading.Thread, _Shared] = {}
"""Threads that were started, each until it ends."""


class Background:
    """Hands out batches that a thread pulls and transforms before.

    Parameters
    ----------
    pull : callable
        As of `fastdata.prefetch.ahead.Ahead`; called in the thread.
    depth : int
        Batches that are made and wait, at most.

    Attributes
    ----------
    tag : Any
        That of the batch that was handed out last.

    Notes
    -----
    An error is raised in its place, as itself; it is then the end.  For one thread at a
    time.  Not to be used in a forked process: the thread is not there, which is an error.
    """

    def __init__(self, pull: Callable[[], Pulled], depth: int) -> None:
        self.tag: Any = None
        self._shared = _Shared(depth)
        self._ended = False
        self._owner = os.getpid()
        self._thread = threading.Thread(
            target=_run, args=(pull, self._shared), name="fastdata prefetch", daemon=True
        )
        weakref.finalize(self, self._shared.stop).atexit = False
        _running[self._thread] = self._shared
        self._thread.start()

    @property
    def ready(self) -> int:
        """Batches that are made and wait."""
        return self._shared.made.qsize()

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        batch, tag, error = self._wait()
        if error is not None or batch is _END:
            self.close()
            if error is None:
                raise StopIteration
            raise error
        self._shared.room.release()
        self.tag = tag
        return batch

    def _wait(self) -> tuple[Any, Any, BaseException | None]:
        while True:
            try:
                return self._shared.made.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                if os.getpid() != self._owner or not self._thread.is_alive():
                    self._ended = True
                    raise WorkerError(
                        "the thread that prefetches is gone: this process was forked after it "
                        "had been started. Make a new iterator here"
                    ) from None

    def close(self) -> None:
        """End the thread, once it has made what it is making.  Idempotent."""
        self._ended = True
        self._shared.stop()
        if os.getpid() == self._owner and threading.current_thread() is not self._thread:
            self._thread.join()


class _Shared:
    """What both threads have."""

    def __init__(self, depth: int) -> None:
        self.made: queue.SimpleQueue[tuple[Any, Any, BaseException | None]] = queue.SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True
        self.room.release()


def _run(pull: Callable[[], Pulled], shared: _Shared) -> None:
    """Pull until the end, or until nobody wants any more."""
    try:
        while True:
            shared.room.acquire()
            if shared.stopped:
                return
            try:
                batch, transform, tag = pull()
            except StopIteration:
                shared.made.put((_END, None, None))
                return
            shared.made.put((transform(batch) if transform else batch, tag, None))
            del batch  # the consumer's alone
    except BaseException as error:
        shared.made.put((None, None, error))
    finally:
        _running.pop(threading.current_thread(), None)


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does.

    One that is in the middle of torch's code then could not come back, and C++ would abort
    the program.
    """
    running = dict(_running)
    for shared in running.values():
        shared.stop()
    deadline = time.monotonic() + EXIT_SECONDS
    for thread in running:
        thread.join(max(0.0, deadline - time.monotonic()))
