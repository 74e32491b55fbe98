"""LMDB files of others, read without LMDB.

The library maps a file, believes every pointer in it (damage ends the process), may write a
lock file beside it, and must not open a file twice nor go through a fork.  Here the pages of
its B+ tree are read with ``pread`` and checked; what is kept is where values are, and workers
read them.  A file must not be written to meanwhile.

Source: ``MDB_meta``, ``MDB_page`` and ``MDB_node`` in ``mdb.c`` of LMDB 0.9 and 1.0;
little-endian, 64-bit.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..locations import first_bytes, path_of, printable

__all__ = ["Entry", "LmdbFile", "lmdb_at"]

_MAGIC = 0xBEEFC0DE
_HEADERS = {1: 16, 3: 24}
"""Bytes of a page's head by the version of the format: LMDB 0.9, and 1.0."""
_META = struct.Struct("<II8x8x48s48sQQ")
_DATABASE = struct.Struct("<IHHQQQQQ")
"""Padding (of the free list: the page size), flags, depth, three counts, entries, root."""
_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF = 0x01, 0x02
_BIG, _SUB, _DUPLICATES = 0x01, 0x02, 0x04
_EMPTY = 2**64 - 1
_PAGE_SIZES = range(512, 65537)
_DEEPEST = 64


class Entry(NamedTuple):
    """A key, and where its value is.

    Attributes
    ----------
    key : bytes
    offset, length : int
        In bytes, in the file.
    is_database : bool
        Whether the value is a database of that name.
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


def lmdb_at(location: Any) -> Path | None:
    """Return the data file of an LMDB at a location, a file or a folder; None if there is none."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "data.mdb" if path.is_dir() else path
    start = first_bytes(path, 32)
    magic = _MAGIC.to_bytes(4, "little")
    return path if magic in (start[16:20], start[24:28]) else None


class LmdbFile:
    """One LMDB file; keeps no file open.

    Raises
    ------
    SourceError
        If it is no LMDB file, or of another kind than is known.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = path.stat().st_size
        start = first_bytes(path, 1 << 17)
        metas = []
        page = 0
        for header in _HEADERS.values():
            found = _meta(start[header:])
            if found is not None and _HEADERS.get(found[0]) == header:
                self._header, page = header, found[1]
                second = _meta(start[page + header :])
                metas = [found[2:]] + ([second[2:]] if second is not None else [])
        if not metas or page not in _PAGE_SIZES:
            raise SourceError(f"{path}: no LMDB file, or of a machine that is not 64-bit")
        self._page = page
        self._main: _Database = max(metas, key=lambda meta: meta[0])[1]

    def databases(self) -> dict[str, _Database]:
        """Return the databases that have names."""
        found = {}
        if 0 < self._main.entries < 1000:
            for entry in self.entries():
                if isinstance(entry, Entry) and entry.is_database:
                    with open(self.path, "rb", opener=open_regular) as file:
                        file.seek(entry.offset)
                        data = file.read(_DATABASE.size)
                    found[printable(os.fsdecode(entry.key))] = _Database.unpack(data)
        return found

    def entries(self, database: _Database | None = None) -> Iterator[Entry | str]:
        """Yield what a database has, in the order of its keys, without reading values.

        Text in the place of an entry says what is damaged.
        """
        database = database or self._main
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
            yield f"{database.entries - count:,} of {database.entries:,} entries are not there"

    def _walk(self, file: Any, root: int) -> Iterator[Entry | str]:
        stack = [] if root == _EMPTY else [(root, 0)]
        seen = bytearray(self._size // self._page // 8 + 1)
        while stack:
            number, depth = stack.pop()
            page = b""
            if (number + 1) * self._page <= self._size and depth < _DEEPEST:
                page = os.pread(file.fileno(), self._page, number * self._page)
            if len(page) < self._page or seen[number >> 3] >> (number & 7) & 1:
                yield f"page {number:,} is beyond the end of the file, or stands twice in the tree"
                continue
            seen[number >> 3] |= 1 << (number & 7)
            base = 0 if self._header == 16 else self._header
            flags, lower = struct.unpack_from("<HH", page, self._header - 6)
            count = (lower + base - self._header) >> 1
            if flags not in (_BRANCH, _LEAF) or not 0 <= count <= self._page // 2 - 12:
                yield f"page {number:,} is neither branch nor leaf"
                continue
            places = struct.unpack_from(f"<{count}H", page, self._header)
            nodes = [self._node(page, number, base + place) for place in places]
            if flags == _LEAF:
                yield from nodes
                continue
            below: list[tuple[int, int]] = []
            for place, node in zip(places, nodes, strict=True):
                if isinstance(node, str):
                    yield node
                    continue
                low, high, top, _ = _NODE.unpack_from(page, base + place)
                below.append((low | high << 16 | top << 32, depth + 1))
            stack += reversed(below)

    def _node(self, page: bytes, number: int, place: int) -> Entry | str:
        """Return an entry of a page, or what is wrong with it."""
        if place + _NODE.size > len(page):
            return f"an entry of page {number:,} is beyond its end"
        low, high, flags, key_bytes = _NODE.unpack_from(page, place)
        data = place + _NODE.size + key_bytes
        key = page[place + _NODE.size : data]
        if self._header == 24:
            data += key_bytes & 1  # LMDB 1.0 has values at even places
        if data > len(page):
            return f"a key of page {number:,} is beyond its end"
        leaf = struct.unpack_from("<H", page, self._header - 6)[0] == _LEAF
        if not leaf:
            return Entry(key, 0, 0)
        length = low | high << 16
        if flags & _BIG:
            if data + 8 > len(page):
                return f"an entry of page {number:,} is beyond its end"
            offset = int.from_bytes(page[data : data + 8], "little") * self._page + self._header
            if offset + length > self._size:
                return f"the value of key {printable(os.fsdecode(key))!r} is beyond the file's end"
            return Entry(key, offset, length)
        if data + length > len(page):
            return f"the value of key {printable(os.fsdecode(key))!r} is beyond its page's end"
        return Entry(key, number * self._page + data, length, bool(flags & _SUB))


def _meta(data: bytes) -> tuple[int, int, int, _Database] | None:
    """Return version, page size, transaction and main database of a meta page."""
    if len(data) < _META.size:
        return None
    magic, version, free, main, _, transaction = _META.unpack_from(data)
    if magic != _MAGIC:
        return None
    page_bytes = _DATABASE.unpack(free)[0]
    return version, page_bytes, transaction, _Database.unpack(main)
