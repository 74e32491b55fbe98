"""Waits without a timeout, which log their reason.

Another process or machine may never answer.  After 10 seconds, and then every minute, the logger
"fastdata" warns with the reason of the wait.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Protocol, TypeVar

__all__ = ["join_threads", "result_of", "said_while", "wait_until"]

FIRST_SECONDS = 10.0
NEXT_SECONDS = 60.0
EXIT_SECONDS = 10.0
"""For threads that are at work when the interpreter ends."""

log = logging.getLogger("fastdata")

T_co = TypeVar("T_co", covariant=True)


class _Future(Protocol[T_co]):
    def result(self, timeout: float | None = None) -> T_co: ...

    def done(self) -> bool: ...


def wait_until(attempt: Callable[[float], bool], what: str | Callable[[], str]) -> None:
    """Call `attempt(seconds)`, which waits at most that long, until it returns true.

    `what` completes "waiting for ..."; a callable is called only for a warning.
    """
    wait = _Wait(what)
    while not attempt(max(0.0, wait.due - time.monotonic())):
        wait.warn_if_due()


def join_threads(threads: Collection[threading.Thread], what: str | Callable[[], str]) -> None:
    """Wait for daemon threads to end, as `wait_until` waits.

    As the interpreter ends it waits `EXIT_SECONDS` at most: they end with the process then.
    """

    def ended(seconds: float) -> bool:
        until = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    if threading.main_thread().is_alive():
        wait_until(ended, what)
    elif not ended(EXIT_SECONDS):
        _warn(what, EXIT_SECONDS, ", and ends without it")


@contextlib.contextmanager
def said_while(what: str | Callable[[], str]) -> Iterator[None]:
    """Log the warnings of `wait_until` while the block runs; for blocks that wait in one call.

    All such blocks of a process share one thread, which ends with the last of them.
    """
    global _is_watched
    number = next(_numbers)
    with _guard:
        _waits[number] = _Wait(what)
        if not _is_watched:
            _is_watched = True
            threading.Thread(target=_watch, name="fastdata waits", daemon=True).start()
    try:
        yield
    finally:
        with _guard:
            _waits.pop(number, None)


class _Wait:
    """A wait, and the time of its next warning."""

    def __init__(self, what: str | Callable[[], str]) -> None:
        self._what, self._began = what, time.monotonic()
        self.due = self._began + FIRST_SECONDS

    def warn_if_due(self) -> None:
        """Log a warning, if it is time for one."""
        now = time.monotonic()
        if now < self.due:
            return
        self.due = now + NEXT_SECONDS
        _warn(self._what, now - self._began)


def _warn(what: str | Callable[[], str], seconds: float, end: str = "") -> None:
    """Log a warning above the progress bars."""
    text = what if isinstance(what, str) else what()
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with contextlib.nullcontext() if tqdm is None else tqdm.external_write_mode(sys.stderr):
        log.warning("fastdata has been waiting for %s for %.0f s%s", text, seconds, end)


_LOOK_SECONDS = 0.1

_waits: dict[int, _Wait] = {}
_numbers = itertools.count()
_guard = threading.Lock()
_is_watched = False


def _watch() -> None:
    global _is_watched
    while True:
        time.sleep(_LOOK_SECONDS)
        with _guard:
            if not _waits:
                _is_watched = False
                return
            waits = list(_waits.values())
        for wait in waits:
            wait.warn_if_due()


def _after_fork() -> None:
    global _guard, _is_watched
    _guard, _is_watched = threading.Lock(), False
    _waits.clear()


os.register_at_fork(after_in_child=_after_fork)


def result_of(future: _Future[T_co], what: str | Callable[[], str]) -> T_co:
    """Return the result of a future, with the warnings of `wait_until`."""

    def attempt(seconds: float) -> bool:
        try:
            future.result(seconds)
        except (concurrent.futures.TimeoutError, TimeoutError):
            return future.done()
        except BaseException:
            if not future.done():
                raise  # Ctrl-C in this thread, not an error of the future
        return True

    if not future.done():
        wait_until(attempt, what)
    return future.result()
