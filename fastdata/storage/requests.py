"""Make requests of obstore, within limits of memory and time.

obstore reads a page of a listing, and the body of an error, whole.  A server could send them
without an end.  So requests are made in an event loop, where they can be cancelled: once this
process has grown too much, or after some time.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import re
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import Any, TypeVar

import obstore
import psutil

__all__ = ["GrowthError", "LimitError", "answered", "listed"]

PAGE_OBJECTS = 1000
"""What S3 sends at once, and at most."""

MOST_OBJECTS = 20_000_000
"""Limit of a listing: 6 GB of names, sizes and tags."""

PAGE_SECONDS = 600.0
"""Limit of the time for a page: a server may send empty ones without an end."""

MOST_GROWTH_BYTES = 1 << 30
"""Limit of this process's growth during a request, without the body that was asked for; a thousand
keys of 1,024 bytes have 2 MB."""

_LOOK_SECONDS = 0.05

_SIGNED = re.compile(r"(?<=\S)\?[^\s\"'>)]*")

Result = TypeVar("Result")


class LimitError(Exception):
    """An answer exceeds a limit; the text completes "the server ..."."""


class GrowthError(LimitError):
    """This process has grown too much during a request, which may have another cause."""


def answered(
    request: Callable[[], Awaitable[Result]], what: str, seconds: float = float("inf")
) -> Result:
    """Return what a request of obstore gives; `LimitError` if it takes too much for `what`."""
    loop = _running_loop()
    answer: Future[Result] = Future()
    asked: list[asyncio.Future[Result]] = []

    def ask() -> None:
        asked.append(asyncio.ensure_future(request(), loop=loop))
        asked[0].add_done_callback(partial(_pass_on, answer))

    ends, before = time.monotonic() + seconds, 0
    loop.call_soon_threadsafe(ask)
    try:
        while not answer.done():
            with contextlib.suppress(NotYet):
                return answer.result(_LOOK_SECONDS)
            size = psutil.Process().memory_info().rss
            before = before or size
            if size - before > MOST_GROWTH_BYTES:
                raise GrowthError(f"sends more than {MOST_GROWTH_BYTES >> 20:,} MiB for {what}")
            if time.monotonic() > ends:
                raise LimitError(f"has not sent {what} within {seconds:.0f} s")
        return answer.result()
    finally:
        if not answer.done():
            loop.call_soon_threadsafe(lambda: [one.cancel() for one in asked])


def _pass_on(answer: Future[Any], asked: asyncio.Future[Any]) -> None:
    if asked.cancelled():
        answer.cancel()
    elif (error := asked.exception()) is not None:
        # obstore keeps its own until it is used again, and that what a traceback of it sees.
        answer.set_exception(type(error)(*map(_unsigned, error.args)))
    else:
        answer.set_result(asked.result())


def _unsigned(text: Any) -> Any:
    """Return an argument of an error without queries of URLs, which may have signatures."""
    return _SIGNED.sub("?...", text) if isinstance(text, str) else text


def listed(store: Any, prefix: str | None) -> list[Any]:
    """Return what obstore says of all objects below a prefix."""
    found: list[Any] = []
    pages = aiter(obstore.list(store, prefix, chunk_size=PAGE_OBJECTS))
    what = f"{PAGE_OBJECTS:,} objects"
    while (page := answered(lambda: anext(pages, None), what, PAGE_SECONDS)) is not None:
        found += page
        if len(found) > MOST_OBJECTS:
            raise LimitError(f"lists more than {MOST_OBJECTS:,} objects")
    return found


_loop: asyncio.AbstractEventLoop | None = None
_making = threading.Lock()


def _running_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of this process's requests; a thread runs it until the process ends."""
    global _loop
    with _making:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            thread = threading.Thread(target=_loop.run_forever, name="fastdata requests")
            thread.daemon = True
            thread.start()
            atexit.register(_end, _loop, thread)
    return _loop


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """End the requests of threads that the process does not wait for."""

    def end() -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(_LOOK_SECONDS, loop.stop)  # obstore tells of what was cancelled just before

    if thread.is_alive():  # not in a forked process
        loop.call_soon_threadsafe(end)
        thread.join()
        loop.close()
