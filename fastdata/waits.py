"""Wait without a limit, and say after a while what for.

A wait for another process or machine can last for ever.  After 10 seconds, and then every
minute, a warning of the logger "fastdata" says what is waited for.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

__all__ = ["result_of", "said_while", "wait_until"]

FIRST_SECONDS = 10.0
NEXT_SECONDS = 60.0

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


@contextlib.contextmanager
def said_while(what: str | Callable[[], str]) -> Iterator[None]:
    """Say what is waited for as `wait_until` does, while the block waits in one call.

    This takes a thread: for calls that are few.
    """
    ended = threading.Event()
    thread = threading.Thread(target=wait_until, args=(ended.wait, what), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
