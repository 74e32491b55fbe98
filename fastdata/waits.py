"""Wait without a limit, and say after a while what for.

A wait for another process or machine can last for ever.  After 10 seconds, and then every
minute, a warning of the logger "fastdata" says what is waited for.
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
    """Call `attempt(seconds)` until it returns true; it waits at most that long.

    `what` completes "waiting for ..."; a callable is asked only when there is something to say.
    """
    began = time.monotonic()
    pause = FIRST_SECONDS
    until = began + pause
    while not attempt(max(0.0, until - time.monotonic())):
        if time.monotonic() < until:
            continue
        said = what if isinstance(what, str) else what()
        _say(f"has been waiting for {said} for {time.monotonic() - began:.0f} s")
        pause = NEXT_SECONDS
        until = time.monotonic() + pause


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
        said = what if isinstance(what, str) else what()
        _say(f"has been waiting for {said} for {EXIT_SECONDS:.0f} s, and ends without")


@contextlib.contextmanager
def said_while(what: str | Callable[[], str]) -> Iterator[None]:
    """Say what is waited for as `wait_until` does, while the block waits in one call.

    All such blocks of a process share one thread, which ends when there are none.
    """
    global _is_watched
    number = next(_numbers)
    with _guard:
        _blocks[number] = _Block(what)
        if not _is_watched:
            _is_watched = True
            threading.Thread(target=_watch, name="fastdata waits", daemon=True).start()
    try:
        yield
    finally:
        with _guard:
            _blocks.pop(number, None)


class _Block:
    """A block that may wait, and when there is something to say of it."""

    def __init__(self, what: str | Callable[[], str]) -> None:
        self.what, self.began = what, time.monotonic()
        self.until = self.began + FIRST_SECONDS


_LOOK_SECONDS = 0.1

_blocks: dict[int, _Block] = {}
_numbers = itertools.count()
_guard = threading.Lock()
_is_watched = False


def _watch() -> None:
    global _is_watched
    while True:
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        with _guard:
            if not _blocks:
                _is_watched = False
                return
            due = [block for block in _blocks.values() if block.until <= now]
        for block in due:
            block.until = now + NEXT_SECONDS
            said = block.what if isinstance(block.what, str) else block.what()
            _say(f"has been waiting for {said} for {now - block.began:.0f} s")


def _after_fork() -> None:
    global _guard, _is_watched
    _guard, _is_watched = threading.Lock(), False
    _blocks.clear()


os.register_at_fork(after_in_child=_after_fork)


def _say(text: str) -> None:
    """Log a warning above the progress bars."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with contextlib.nullcontext() if tqdm is None else tqdm.external_write_mode(sys.stderr):
        log.warning("%s", text)


def result_of(future: _Future[T_co], what: str | Callable[[], str]) -> T_co:
    """Return the result of a future of `concurrent.futures`, as `wait_until` waits."""

    def attempt(seconds: float) -> bool:
        try:
            future.result(seconds)
        except (concurrent.futures.TimeoutError, TimeoutError):
            return future.done()
        except BaseException:
            if not future.done():
                raise  # Ctrl-C here, no failure of the future
        return True

    if not future.done():
        wait_until(attempt, what)
    return future.result()
