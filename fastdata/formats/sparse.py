"""The columns of a remote shard: some bytes per sample, and no images."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from fastdata.errors import FormatError, ShardCorruptError
from fastdata.formats.layout import FOOTER_BYTES, Header, checksum, unpack_footer
from fastdata.formats.reader import ShardReader
from fastdata.own_files import open_own_file
from fastdata.storage import Entry, Store

__all__ = ["columns_only"]

GAP_BYTES = 1 << 14
"""Columns with smaller gaps are read in one request: requests to a store take long."""

TAIL_BYTES = 1 << 16
"""Read at the end of a shard, for the footer and most headers in one request."""

LARGEST_READ = 1 << 24
"""Maximum of one request, which is in memory as a whole."""

_REPAIR = (
    "The object is damaged, also when it is read again: restore it from a copy, or pack it again"
)


def columns_only(store: Store, entry: Entry, folder: Path) -> Path:
    """Return a file for `ShardReader` with at least the header and the columns of a shard.

    It is the shard itself if that is a file, else a sparse file of its length in `folder`.  The
    columns are compared with their checksums; damaged ones are fetched once more.  Raises
    `StorageError`, `FormatError` and `ShardCorruptError`, and leaves no file then.
    """
    if store.is_local:
        return store.path(entry.key)
    path = folder / os.path.basename(entry.key)
    for is_last in (False, True):
        try:
            _copy(store, entry, path)
            break
        except BaseException as error:
            path.unlink(missing_ok=True)
            if is_last or not isinstance(error, (FormatError, ShardCorruptError)):
                raise
    return path


def _copy(store: Store, entry: Entry, path: Path) -> None:
    key, size, tag = entry.key, entry.size, entry.tag
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
        raise FormatError(f"{url}: the header's checksum does not match. {_REPAIR}")
    columns = Header.from_bytes(header, url).columns
    ends = {name: column.offset + column.nbytes for name, column in columns.items()}
    for name in columns:
        if ends[name] > end:
            raise ShardCorruptError(
                f"{url}: column {name!r} ends beyond the end of the object. {_REPAIR}"
            )
    ranges = _joined((one.offset, ends[name]) for name, one in columns.items() if one.nbytes)
    with open_own_file(path, "xb", buffering=0) as file:
        file.truncate(size)
        os.pwrite(file.fileno(), header, offset)
        os.pwrite(file.fileno(), footer, end)
        for start, stop in ranges:
            # Allocated first: a full disk fails before the download.
            os.posix_fallocate(file.fileno(), start, stop - start)
            for at in range(start, stop, LARGEST_READ):
                data = memoryview(store.read(key, at, min(at + LARGEST_READ, stop), tag=tag))
                while data:
                    written = os.pwrite(file.fileno(), data, at)
                    data, at = data[written:], at + written
    reader = ShardReader(path)
    for name in columns:
        if not reader.column_is_intact(name):
            raise ShardCorruptError(
                f"{url}: the checksum of column {name!r} does not match. {_REPAIR}"
            )


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return sorted ranges, merged where the gaps are small."""
    found: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        first, reached = found[-1] if found else (start, start)
        if found and start <= reached + GAP_BYTES and stop - first <= LARGEST_READ:
            found[-1] = first, max(reached, stop)
        else:
            found.append((start, stop))
    return found
