"""The columns of a shard that is not on this machine: some bytes a sample, and no image."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fastdata.errors import FormatError
from fastdata.formats.layout import FOOTER_BYTES, Header, checksum, unpack_footer
from fastdata.storage import Entry, Store

__all__ = ["columns_only"]

GAP_BYTES = 1 << 14
"""Columns that are so close to each other are read at once: in a store, each request takes long."""

TAIL_BYTES = 1 << 16
"""At the end of a shard that are read at once, as most headers are there with the footer."""

LARGEST_READ = 1 << 24
"""Bytes that are read at once at most, where they are of several columns."""


def columns_only(store: Store, entry: Entry, folder: Path) -> Path:
    """Return a file that `ShardReader` reads, in which all but columns and header may be missing.

    It is the shard itself where that is a file, and else a sparse one of its length in `folder`.
    Raises `StorageError`, and what opening a damaged shard does.
    """
    key, size, tag = entry.key, entry.size, entry.tag
    if store.is_local:
        return store.path(key)
    url = store.url_of(key)
    if size < FOOTER_BYTES:
        raise FormatError(f"{url}: {size} bytes are too few for a shard")
    end, tail_start = size - FOOTER_BYTES, max(0, size - TAIL_BYTES)
    tail = bytes(store.read(key, tail_start, size, tag=tag))
    footer = tail[-FOOTER_BYTES:]
    offset, length, expected = unpack_footer(footer, size, url)
    if offset >= tail_start:
        header = tail[offset - tail_start : offset - tail_start + length]
    else:
        header = bytes(store.read(key, offset, offset + length, tag=tag))
    if checksum(header) != expected:
        raise FormatError(f"{url}: the header's checksum does not match")
    ranges = _joined(
        (column.offset, column.offset + column.nbytes)
        for column in Header.from_bytes(header, url).columns.values()
        if column.nbytes and column.offset + column.nbytes <= end
    )
    pieces = [(offset, header), (end, footer)]
    read = store.read_ranges(key, ranges, tag=tag)
    pieces += [(start, bytes(data)) for (start, _), data in zip(ranges, read, strict=True)]
    path = folder / os.path.basename(key)
    with open(path, "xb", buffering=0) as file:
        file.truncate(size)
        for start, data in pieces:
            file.seek(start)
            file.write(data)
    return path


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges, ascending, as fewer ones with what is between them."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        first, reached = found[-1] if found else (start, start)
        if found and start <= reached + GAP_BYTES and stop - first <= LARGEST_READ:
            found[-1] = first, max(reached, stop)
        else:
            found.append((start, stop))
    return found
