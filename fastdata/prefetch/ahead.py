"""Items that are pulled from a source before they are wanted, and handed out in its order.

`Ahead` pulls in the thread that asks, `Background` in a thread of its own.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from fastdata.errors import WorkerError
from fastdata.waits import join_threads, wait_until

__all__ = ["Ahead", "Background", "ItemQueue"]

WAKE_SECONDS = 1.0
"""How often a thread that waits for the other one looks for itself."""

Pull: TypeAlias = Callable[[], tuple[Any, Any]]
"""Returns the next item and its tag; raises `StopIteration` after the last one."""


class _Entry(NamedTuple):
    """An item and its tag, or the error that ends the source: `StopIteration` at its end."""

    item: Any = None
    tag: Any = None
    error: BaseException | None = None


class ItemQueue(ABC):
    """A bounded queue of items; `tag` is the tag of the one that was handed out last.

    An error of a source, or of `finish`, is raised in its place: after all items before it.  It is
    then the end.  For one thread at a time.
    """

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self.tag: Any = None

    @abstractmethod
    def _fill(self) -> None:
        """Have an entry."""

    def finish(self, item: Any) -> Any:
        """Return the value to deliver for an item; called at delivery."""
        return item

    def at_end(self) -> None:  # noqa: B027  (a subclass need not have it)
        """Clean up after the last item, or for `close`, which drops the remaining items."""

    @property
    def items(self) -> list[Any]:
        """The items that were pulled and not yet handed out."""
        return [entry.item for entry in self._entries if entry.error is None]

    @property
    def waiting(self) -> int:
        """How many these are."""
        return len(self._entries) - self._ended

    @property
    def _ended(self) -> bool:
        """Whether nothing more is pulled."""
        return bool(self._entries) and self._entries[-1].error is not None

    def __next__(self) -> Any:
        # All pulling is done before an item is taken out: where Ctrl-C strikes, none is lost.
        self._fill()
        entry = self._entries[0]
        if entry.error is not None:
            self._end()
            try:
                raise entry.error
            finally:
                del entry  # its error holds this frame, by its traceback
        try:
            finished = self.finish(entry.item)
        except Exception:
            self._end()
            raise
        self.tag = entry.tag
        # Last of all: where Ctrl-C strikes before, the item is still there.
        self._remove()
        return finished

    def _remove(self) -> None:
        self._entries.popleft()

    def drop(self) -> None:
        """Forget the items; the source may be pulled from again."""
        self._entries.clear()

    def close(self) -> None:
        """Forget the items, for good.  Idempotent."""
        self._end()

    def _end(self) -> None:
        try:
            self.at_end()
        finally:
            self._entries.clear()
            self._entries.append(_Entry(error=StopIteration()))


class Ahead(ItemQueue):
    """A queue that is filled by the thread that takes the items out.

    `depth` items are pulled behind the one that is handed out.

    A subclass has `pull`, and perhaps `finish`, `may_pull` and `at_end`.  (As callbacks they would
    make a reference cycle with the owner of the queue, which would then live, with its workers,
    until the next garbage collection.)
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self._depth = depth

    @abstractmethod
    def pull(self) -> tuple[Any, Any]:
        """Return the next item and its tag; raise `StopIteration` after the last one."""

    def may_pull(self) -> bool:
        """Return whether to pull another item now, if none has to be."""
        return True

    def _fill(self) -> None:
        """Have an entry, and pull others that may be pulled now."""
        entries = self._entries
        while not self._ended and len(entries) <= self._depth:
            if entries and not self.may_pull():
                break
            try:
                entries.append(_Entry(*self.pull()))
            except StopIteration:
                entries.append(_Entry(error=StopIteration()))
            except Exception as error:
                entries.append(_Entry(error=error))


class Background(ItemQueue):
    """A queue that is filled by a thread; at most `depth` items wait.

    `pull` is called in the thread, and must not know this object, which ends the thread when it
    dies.  Not to be used in a forked process: the thread is not there, which is an error.
    """

    def __init__(self, pull: Pull, depth: int) -> None:
        super().__init__()
        self._shared = _Shared(self._entries, depth)
        self.thread = threading.Thread(
            target=_run, args=(pull, self._shared), name="fastdata prefetch", daemon=True
        )
        weakref.finalize(self, self._shared.stop).atexit = False
        _running[self.thread] = self._shared
        self.thread.start()

    def _fill(self) -> None:
        """Wait until there is an entry."""
        shared, entries = self._shared, self._entries
        if entries and entries[0].error is not None:
            return
        if threading.current_thread() is self.thread and not entries:
            raise WorkerError("a source cannot wait for a batch that is made of its own")
        # The last thing that the thread makes is an error or the end, whatever happens to it.
        if shared.has_thread and not entries:
            wait_until(shared.wait_for_entry, "the thread that makes the next batch")
        if not shared.has_thread:
            self._end()
            raise WorkerError(
                "the thread that prefetches is gone: this process was forked after it had been "
                "started. Make a new iterator here"
            )

    def _remove(self) -> None:
        self._shared.take()

    def _end(self) -> None:
        """End the thread after its current item."""
        self._shared.stop()
        if self._shared.has_thread and threading.current_thread() is not self.thread:
            join_threads([self.thread], "the thread that makes the next batch to end")
        # An error holds, by its traceback, the frames it was raised to, and with them this object.
        super()._end()


class _Shared:
    """What both threads have.

    Entries are in a deque, and the queues only wake the thread that waits: Ctrl-C may strike the
    consumer anywhere, and Python's own conditions do not survive that.  A wake-up that is
    lost costs `WAKE_SECONDS`.
    """

    def __init__(self, entries: deque[_Entry], depth: int) -> None:
        self.entries = entries
        self.filled: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.stopped = False
        self._depth = depth
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._owner = os.getpid()

    @property
    def has_thread(self) -> bool:
        """Whether this process is the one that has the thread."""
        return os.getpid() == self._owner

    def stop(self) -> None:
        self.stopped = True
        self._room.put(None)

    def put(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self.filled.put(None)

    def take(self) -> None:
        _drain(self.filled)
        self.entries.popleft()
        self._room.put(None)

    def wait_for_entry(self, seconds: float) -> bool:
        """Wait at most that long; return whether there is an entry."""
        _sleep(self.filled, seconds)
        return bool(self.entries)

    def wait_for_room(self) -> bool:
        """Wait until another item may be made; return whether one is still wanted."""
        while not self.stopped and len(self.entries) >= self._depth:
            _sleep(self._room)
        _drain(self._room)
        return not self.stopped


def _sleep(wakes: queue.SimpleQueue[None], seconds: float = WAKE_SECONDS) -> None:
    with suppress(queue.Empty):
        wakes.get(timeout=min(seconds, WAKE_SECONDS))


def _drain(wakes: queue.SimpleQueue[None]) -> None:
    with suppress(queue.Empty):
        while True:
            wakes.get_nowait()


_running: weakref.WeakKeyDictionary[threading.Thread, _Shared] = weakref.WeakKeyDictionary()
"""Threads that were started, each until it has released its source: torch's code too, perhaps."""


def _run(pull: Pull, shared: _Shared) -> None:
    """Pull until the end, or until the queue is closed."""
    try:
        while shared.wait_for_room():
            try:
                shared.put(_Entry(*pull()))  # no name of its own: items are the consumer's alone
            except StopIteration:
                shared.put(_Entry(error=StopIteration()))
                return
    except BaseException as error:
        shared.put(_Entry(error=error))


@atexit.register
def _end_threads() -> None:
    """End all threads before the interpreter does.

    One that is in the middle of torch's code then could not come back, and C++ would abort
    the program.
    """
    running = dict(_running)
    for shared in running.values():
        shared.stop()
    join_threads(running, "the threads that prefetch to end")
