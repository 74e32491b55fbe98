"""Batches made in a thread, ahead of the loop: prefetching where there is no device to move to."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from fastdata.errors import WorkerError
from fastdata.prefetch.ahead import Pulled

__all__ = ["Background"]

LOOK_SECONDS = 1.0
"""How often a waiting consumer looks whether the thread is alive."""

EXIT_SECONDS = 5.0
"""How long the end of the program waits for threads that are making a batch."""

_END = object()

_Made: TypeAlias = "tuple[Any, Any, BaseException | None]"
"""A batch and its tag, or an error."""

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
        self.thread = threading.Thread(
            target=_run, args=(pull, self._shared), name="fastdata prefetch", daemon=True
        )
        weakref.finalize(self, self._shared.stop).atexit = False
        _running[self.thread] = self._shared
        self.thread.start()

    @property
    def ready(self) -> int:
        """Batches that are made and wait."""
        return len(self._shared.made)

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        batch, tag, error = self._wait()
        if error is not None or batch is _END:
            self.close()
            if error is None:
                raise StopIteration
            raise error
        self.tag = tag
        # Last of all: where Ctrl-C strikes before, the batch is still there.
        self._shared.take()
        return batch

    def _wait(self) -> _Made:
        """Return the next batch, which stays where it is."""
        shared = self._shared
        # The last thing that the thread makes is the end, whatever happens to it.
        while shared.here and not shared.made:
            if threading.current_thread() is self.thread:
                raise WorkerError("a source cannot wait for a batch that is made of its own")
            _sleep(shared.filled)
        if not shared.here:
            self._ended = True
            raise WorkerError(
                "the thread that prefetches is gone: this process was forked after it had been "
                "started. Make a new iterator here"
            )
        return shared.made[0]

    def close(self) -> None:
        """End the thread, once it has made what it is making.  Idempotent."""
        self._ended = True
        self._shared.stop()
        if self._shared.here and threading.current_thread() is not self.thread:
            self.thread.join()
        # An error holds, by its traceback, whoever it was raised to, and with it this object.
        self._shared.made.clear()


class _Shared:
    """What both threads have.

    Batches are in a deque, and the queues only wake who waits: Ctrl-C may strike the
    consumer anywhere, and Python's own conditions do not survive that.  A wake-up that is
    lost costs `LOOK_SECONDS`.
    """

    def __init__(self, depth: int) -> None:
        self.made: deque[_Made] = deque()
        self.filled: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.stopped = False
        self._depth = depth
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._owner = os.getpid()

    @property
    def here(self) -> bool:
        """Whether this process is the one that has the thread."""
        return os.getpid() == self._owner

    def stop(self) -> None:
        self.stopped = True
        self._room.put(None)

    def put(self, made: _Made) -> None:
        self.made.append(made)
        self.filled.put(None)

    def take(self) -> None:
        _drain(self.filled)
        self.made.popleft()
        self._room.put(None)

    def wait_for_room(self) -> bool:
        """Wait until another batch may be made; return whether one is still wanted."""
        while not self.stopped and len(self.made) >= self._depth:
            _sleep(self._room)
        _drain(self._room)
        return not self.stopped


def _sleep(wakes: queue.SimpleQueue[None]) -> None:
    with suppress(queue.Empty):
        wakes.get(timeout=LOOK_SECONDS)


def _drain(wakes: queue.SimpleQueue[None]) -> None:
    with suppress(queue.Empty):
        while True:
            wakes.get_nowait()


def _run(pull: Callable[[], Pulled], shared: _Shared) -> None:
    """Pull until the end, or until nobody wants any more."""
    try:
        while shared.wait_for_room():
            try:
                batch, transform, tag = pull()
            except StopIteration:
                shared.put((_END, None, None))
                return
            shared.put((transform(batch) if transform else batch, tag, None))
            del batch  # the consumer's alone
    except BaseException as error:
        shared.put((None, None, error))
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
