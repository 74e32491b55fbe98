"""List objects page by page, within limits.

obstore reads each page of a listing into memory.  A server could send a page without an end, so
the request is cancelled if this process grows too much meanwhile.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import obstore
import psutil

__all__ = ["ListingTooLargeError", "listed"]

PAGE_OBJECTS = 1000
"""Page size, the maximum of S3."""

MOST_OBJECTS = 20_000_000
"""Limit of a listing: 6 GB of names, sizes and tags."""

MOST_GROWTH_BYTES = 1 << 30
"""Limit of this process's growth during a page; a thousand keys of 1,024 bytes have 2 MB."""

_LOOK_SECONDS = 0.05


class ListingTooLargeError(Exception):
    """A listing exceeds a limit; the text completes "it ..."."""


def listed(store: Any, prefix: str | None) -> list[Any]:
    """Return obstore's metadata of all objects below a prefix; raises obstore's errors, too."""
    stop = threading.Event()
    # In a thread: the caller may run an event loop, as a notebook does.
    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(asyncio.run, _collect(store, prefix, stop)).result()
        finally:
            stop.set()  # after Ctrl-C, the pool waits for its thread


async def _collect(store: Any, prefix: str | None, stop: threading.Event) -> list[Any]:
    found: list[Any] = []
    pages = aiter(obstore.list(store, prefix, chunk_size=PAGE_OBJECTS))
    while (page := await _next_page(pages, stop)) is not None:
        found += page
        if len(found) > MOST_OBJECTS:
            raise ListingTooLargeError(f"lists more than {MOST_OBJECTS:,} objects")
    return found


async def _next_page(pages: AsyncIterator[Any], stop: threading.Event) -> Any:
    """Return a page; None after the last."""
    request = asyncio.ensure_future(_anext(pages))
    before = _resident_bytes()
    try:
        while not request.done():
            await asyncio.wait([request], timeout=_LOOK_SECONDS)
            if stop.is_set():
                raise ListingTooLargeError("was interrupted")
            if not request.done() and _resident_bytes() - before > MOST_GROWTH_BYTES:
                raise ListingTooLargeError(
                    f"answers a listing with more than {MOST_GROWTH_BYTES >> 20:,} MiB for "
                    f"{PAGE_OBJECTS:,} objects"
                )
        return request.result()
    finally:
        request.cancel()


async def _anext(pages: AsyncIterator[Any]) -> Any:
    return await anext(pages, None)


def _resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)
