"""The pages of an LMDB file, read without LMDB.

LMDB hands out values, but not where they are in the file, which is how fastdata reads them.
The library also believes every pointer in a file (damage ends the process), may write a
lock file beside it, and must not open a file twice nor go through a fork.  Here the pages of
the B+ tree are read with ``pread``, and every pointer is checked before it is followed.  The
file must not be written to meanwhile.

Source: ``MDB_meta``, ``MDB_page`` and ``MDB_node`` in ``mdb.c`` of LMDB 0.9 and 1.0;
little-endian, 64-bit.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

__all__ = ["MAGIC", "Entry", "LmdbFile"]

MAGIC = 0xBEEFC0DE
"""Of a meta page, the first of which begins the file, behind the header of a page."""

_HEADER_BYTES = {1: 16, 3: 24}
"""Of a page, by the version of the format: LMDB 0.9, and 1.0."""

_META = struct.Struct("<II8x8x48s48sQQ")
"""Magic, version, the free list and the main database, last page, transaction."""

_DATABASE = struct.Struct("<IHHQQQQQ")
"""Padding (of the free list: the page size), flags, depth, three counts, entries, root."""

_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF = 0x01, 0x02
_BIG_VALUE, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_NO_ROOT = 2**64 - 1
_PAGE_SIZES = range(512, 65537)
_MAX_DEPTH = 64


class Entry(NamedTuple):
    """A key, and where its value is in the file, in bytes.

    Where `is_database`, the value is the record of the database that has the key as its name.
    """

    key: bytes
    offset: int
    length: int
    is_database: bool = False


class _Database(NamedTuple):
    flags: int
    entries: int
    root: int

    @classmethod
    def unpack(cls, data: bytes) -> _Database:
        _, flags, _, _, _, _, entries, root = _DATABASE.unpack(data)
        return cls(flags, entries, root)


class _Meta(NamedTuple):
    transaction: int
    version: int
    page_bytes: int
    last_page: int
    main: _Database


def _read_meta(page: bytes, version: int) -> _Meta | None:
    """Return what a meta page of this version of the format says; None if it is none."""
    data = page[_HEADER_BYTES[version] :]
    if len(data) < _META.size:
        return None
    magic, found, free_list, main, last_page, transaction = _META.unpack_from(data)
    if (magic, found) != (MAGIC, version):
        return None
    page_bytes = _DATABASE.unpack(free_list)[0]
    return _Meta(transaction, version, page_bytes, last_page, _Database.unpack(main))


class LmdbFile:
    """One LMDB file, of which nothing stays open; `SourceError` if it is none that is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            self._size = os.fstat(file.fileno()).st_size
            start = file.read(2 * _PAGE_SIZES[-1])
        firsts = (_read_meta(start, version) for version in _HEADER_BYTES)
        first = next((meta for meta in firsts if meta is not None), None)
        if first is None or first.page_bytes not in _PAGE_SIZES:
            raise SourceError(f"{path}: no LMDB file, or of a machine that is not 64-bit")
        # Transactions write the two meta pages in turn.
        second = _read_meta(start[first.page_bytes :], first.version)
        self._meta = first if second is None else max(first, second)
        self._page_bytes = first.page_bytes
        self._header_bytes = _HEADER_BYTES[first.version]

    @property
    def data_end(self) -> int:
        """Length of the file in bytes as LMDB uses it."""
        return (self._meta.last_page + 1) * self._page_bytes

    def databases(self) -> dict[str, _Database]:
        """Return the databases that have names."""
        databases = {}
        if 0 < self._meta.main.entries < 1000:
            for entry in self.entries():
                if isinstance(entry, Entry) and entry.is_database:
                    with open(self.path, "rb", opener=open_regular) as file:
                        file.seek(entry.offset)
                        data = file.read(_DATABASE.size)
                    databases[_text_of(entry.key)] = _Database.unpack(data)
        return databases

    def entries(self, database: _Database | None = None) -> Iterator[Entry | str]:
        """Yield what a database has, by default the main one, in the order of its keys.

        No value is read.  A str says why an entry, or a page of them, cannot be read.
        """
        database = database or self._meta.main
        if database.flags & _DUPLICATES:
            raise SourceError(
                f"{self.path}: a database with several values a key, which is not read"
            )
        count = 0
        with open(self.path, "rb", buffering=0, opener=open_regular) as file:
            for entry in self._walk(file, database.root):
                count += isinstance(entry, Entry)
                yield entry
        if count < database.entries:
            missing = database.entries - count
            yield f"{missing:,} of {database.entries:,} entries are not there"

    def _walk(self, file: BinaryIO, root: int) -> Iterator[Entry | str]:
        stack = [] if root == _NO_ROOT else [(root, 0)]
        visited = bytearray(self._size // self._page_bytes // 8 + 1)
        # Offsets in pages of LMDB 1.0 are counted from behind the header.
        base = 0 if self._meta.version == 1 else self._header_bytes
        while stack:
            number, depth = stack.pop()
            page = b""
            if (number + 1) * self._page_bytes <= self._size and depth < _MAX_DEPTH:
                page = os.pread(file.fileno(), self._page_bytes, number * self._page_bytes)
            if len(page) < self._page_bytes or visited[number >> 3] >> (number & 7) & 1:
                yield f"page {number:,} is beyond the end of the file, or stands twice in the tree"
                continue
            visited[number >> 3] |= 1 << (number & 7)
            flags, lower = struct.unpack_from("<HH", page, self._header_bytes - 6)
            count = (lower + base - self._header_bytes) >> 1
            if flags not in (_BRANCH, _LEAF) or not 0 <= count <= self._page_bytes // 2 - 12:
                yield f"page {number:,} is neither branch nor leaf"
                continue
            pointers = struct.unpack_from(f"<{count}H", page, self._header_bytes)
            if flags == _LEAF:
                for pointer in pointers:
                    yield self._leaf_entry(page, number, base + pointer)
                continue
            children: list[tuple[int, int]] = []
            for pointer in pointers:
                start = base + pointer + _NODE.size
                if start > len(page):
                    yield f"an entry of page {number:,} is beyond its end"
                    continue
                low, high, top, key_bytes = _NODE.unpack_from(page, base + pointer)
                if start + key_bytes > len(page):
                    yield f"a key of page {number:,} is beyond its end"
                    continue
                children.append((low | high << 16 | top << 32, depth + 1))
            stack += reversed(children)

    def _leaf_entry(self, page: bytes, number: int, start: int) -> Entry | str:
        """Return the entry at an offset of a leaf page."""
        if start + _NODE.size > len(page):
            return f"an entry of page {number:,} is beyond its end"
        low, high, flags, key_bytes = _NODE.unpack_from(page, start)
        length = low | high << 16
        value = start + _NODE.size + key_bytes
        key = page[start + _NODE.size : value]
        if self._meta.version != 1:
            value += key_bytes & 1  # LMDB 1.0 has values at even offsets
        if value > len(page):
            return f"a key of page {number:,} is beyond its end"
        if not flags & _BIG_VALUE:
            if value + length <= len(page):
                offset = number * self._page_bytes + value
                return Entry(key, offset, length, bool(flags & _SUB_DATABASE))
            end = "its page's end"
        elif value + 8 > len(page):
            return f"an entry of page {number:,} is beyond its end"
        else:
            first_page = int.from_bytes(page[value : value + 8], "little")
            offset = first_page * self._page_bytes + self._header_bytes
            if offset + length <= self._size:
                return Entry(key, offset, length)
            end = "the file's end"
        return f"the value of key {_text_of(key)!r} is beyond {end}"


def _text_of(key: bytes) -> str:
    return key.decode("utf-8", "replace")
