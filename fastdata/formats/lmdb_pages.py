"""Where LMDB put things: walk the B+ tree of an LMDB 0.9 file.

LMDB hands out values but not their place in the file, and fastdata reads
shards by file offset.  This follows the pages of a closed, sealed file, as
the structures of LMDB 0.9's ``mdb.c`` (``MDB_meta``, ``MDB_page``,
``MDB_node``) describe them: little-endian, 64-bit, one database.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Value", "data_end", "walk"]

_PAGE_HEADER_BYTES = 16
_MAGIC = 0xBEEFC0DE
_NO_ROOT = 2**64 - 1
_BRANCH, _LEAF = 0x01, 0x02
_BIG_DATA = 0x01
_META = struct.Struct("<II8x8xI44x40xQQQ")
"""magic, version, page size (the free list's md_pad), root, last page, transaction."""
_NODE = struct.Struct("<HHHH")


class Value(NamedTuple):
    """A key and where in the file its value's bytes are."""

    key: bytes
    offset: int
    length: int


class _Meta(NamedTuple):
    page_bytes: int
    root: int
    last_page: int


def _meta(file: memoryview) -> _Meta:
    """Return the newer of the two meta pages."""
    newest = (-1, _Meta(0, 0, 0))
    page_bytes = 0
    for position in (0, None):
        start = (page_bytes if position is None else 0) + _PAGE_HEADER_BYTES
        if len(file) < start + _META.size:
            raise ValueError("not an LMDB file: it is too short")
        magic, version, size, root, last, transaction = _META.unpack_from(file, start)
        if magic != _MAGIC or version != 1:
            raise ValueError("not an LMDB 0.9 file")
        page_bytes = size
        newest = max(newest, (transaction, _Meta(size, root, last)))
    return newest[1]


def data_end(file: Any) -> int:
    """Return the length of the file in bytes as LMDB uses it."""
    meta = _meta(memoryview(file))
    return (meta.last_page + 1) * meta.page_bytes


def walk(file: Any) -> Iterator[Value]:
    """Yield every key of the main database, in order, with its value's place.

    Parameters
    ----------
    file : bytes-like
        The whole file, e.g. a memory map.

    Raises
    ------
    ValueError
        If it is not an LMDB 0.9 file.
    """
    view = memoryview(file)
    meta = _meta(view)
    stack = [] if meta.root == _NO_ROOT else [meta.root]
    while stack:
        start = stack.pop() * meta.page_bytes
        flags, lower = struct.unpack_from("<HH", view, start + 10)
        count = (lower - _PAGE_HEADER_BYTES) >> 1
        pointers = struct.unpack_from(f"<{count}H", view, start + _PAGE_HEADER_BYTES)
        if flags & _BRANCH:
            for pointer in reversed(pointers):
                low, high, top, _ = _NODE.unpack_from(view, start + pointer)
                stack.append(low | high << 16 | top << 32)
        elif flags & _LEAF:
            for pointer in pointers:
                low, high, node_flags, key_bytes = _NODE.unpack_from(view, start + pointer)
                key_start = start + pointer + _NODE.size
                data = key_start + key_bytes
                key = bytes(view[key_start:data])
                if node_flags & _BIG_DATA:
                    (page,) = struct.unpack_from("<Q", view, data)
                    data = page * meta.page_bytes + _PAGE_HEADER_BYTES
                yield Value(key, data, low | high << 16)
        else:
            raise ValueError(f"page at byte {start} is neither branch nor leaf")
