"""The pages of an LMDB file, read without LMDB.

fastdata reads values by their offsets in the file, which LMDB does not return.  The library
also trusts every pointer in a file (damage ends the process), may write a lock file, must not
open a file twice, and does not survive a fork.  This module reads the pages of the B+ tree
with ``pread``, and checks every pointer.  The file must not be written to meanwhile.

Source: ``MDB_meta``, ``MDB_page`` and ``MDB_node`` in ``mdb.c`` of LMDB 0.9 and 1.0;
little-endian, 64-bit.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

__all__ = ["MAGIC", "Entry", "LmdbFile"]

MAGIC = 0xBEEFC0DE
"""Begins a meta page, behind the page header; the first page of a file is one."""

_HEADER_BYTES = {1: 16, 3: 24}
"""Size of a page header by the version of the format: LMDB 0.9, and 1.0."""

_META = struct.Struct("<II8x8x48s48sQQ")
"""Magic, version, the free list and the main database, last page, transaction."""

_DATABASE = struct.Struct("<IHHQQQQQ")
"""Padding (of the free list: the page size), flags, depth, three counts, entries, root."""

_PAGE = struct.Struct("<Q2xHHH")
"""Page header of LMDB 0.9: page number, flags, begin and end of the free space."""

_NODE = struct.Struct("<HHHH")
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 0x01, 0x02, 0x04, 0x08
_BIG_VALUE, _SUB_DATABASE, _DUPLICATES = 0x01, 0x02, 0x04
_INTEGER_KEY, _NO_SUBDIR = 0x08, 0x4000
"""Flags of the free list, which includes those of the environment."""

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
    """Parse a meta page of this version of the format; None if it is not one."""
    data = page[_HEADER_BYTES[version] :]
    if len(data) < _META.size:
        return None
    magic, found, free_list, main, last_page, transaction = _META.unpack_from(data)
    if (magic, found) != (MAGIC, version):
        return None
    page_bytes = _DATABASE.unpack(free_list)[0]
    return _Meta(transaction, version, page_bytes, last_page, _Database.unpack(main))


class _DamagedError(Exception):
    """A damaged page; the text is the reason."""


class LmdbFile:
    """One LMDB file, which does not stay open; `SourceError` for any other file."""

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

    def entries(self) -> Iterator[Entry | str]:
        """Yield the entries of the main database in the order of the keys.

        No value is read.  A str is the reason why an entry or a page cannot be read.
        """
        database = self._meta.main
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

    # -- checks before the library writes --------------------------------------------------------

    def damage(self, most_map_bytes: int, is_freed: Callable[[bytes], bool]) -> str | None:
        """Return why the library must not open the file for writing; None if it may.

        Checks every page that it follows: the meta pages, both trees, the free list, and the first
        pages of large values that will be deleted or overwritten (`is_freed`, by key).  Values are
        not read.  Only for files of LMDB 0.9.
        """
        try:
            with open(self.path, "rb", buffering=0, opener=open_regular) as file:
                self._check_trees(file, most_map_bytes, is_freed)
        except (_DamagedError, struct.error, IndexError, OverflowError) as error:
            return str(error) or type(error).__name__
        return None

    def _check_trees(
        self, file: BinaryIO, most_map_bytes: int, is_freed: Callable[[bytes], bool]
    ) -> None:
        header = self._header_bytes
        for number in range(2):
            page = os.pread(file.fileno(), self._page_bytes, number * self._page_bytes)
            flags = _PAGE.unpack_from(page)[1]
            meta = _read_meta(page, 1)
            map_bytes = int.from_bytes(page[header + 16 : header + 24], "little")
            if flags != _META_PAGE or meta is None or meta.page_bytes != self._page_bytes:
                raise _DamagedError(f"meta page {number} is damaged")
            if meta.transaction == self._meta.transaction:
                records = page[header + 24 : header + 24 + 2 * _DATABASE.size]
            if map_bytes % self._page_bytes or not map_bytes <= most_map_bytes:
                raise _DamagedError(f"meta page {number} has a map of {map_bytes:,} bytes")
        if self.data_end > most_map_bytes:
            raise _DamagedError(f"it has a last page {self._meta.last_page:,}")
        used = bytearray(self._meta.last_page + 1)
        used[0] = used[1] = 1
        free_list, main = records[: _DATABASE.size], records[_DATABASE.size :]
        for _ in self._sound_nodes(file, main, used, is_freed):
            pass
        for value in self._sound_nodes(file, free_list, used, None):
            pages = struct.unpack(f"<{len(value) // 8}Q", value)
            if len(value) % 8 or not pages or pages[0] != len(pages) - 1:
                raise _DamagedError("the list of free pages is damaged")
            before = len(used)
            for page in pages[1:]:
                if not page < before:
                    raise _DamagedError("the list of free pages is not in order")
                self._use(used, page, 1)
                before = page

    def _sound_nodes(
        self,
        file: BinaryIO,
        record: bytes,
        used: bytearray,
        is_freed: Callable[[bytes], bool] | None,
    ) -> Iterator[bytes]:
        """Walk a tree; raise `_DamagedError` if a page could mislead the library.

        Without `is_freed` it is the free list, with numbers as keys, and its values are yielded.
        """
        numbers = is_freed is None
        _, flags, depth, *counts, entries, root = _DATABASE.unpack(record)
        if flags & ~_NO_SUBDIR != (_INTEGER_KEY if numbers else 0):
            raise _DamagedError("the flags of a database are damaged")
        if root == _NO_ROOT:
            return
        found = [0, 0, 0, 0]  # branches, leaves, overflow pages, entries
        last: bytes | None = None
        stack: list[tuple[int, int, bytes]] = [(root, 1, b"")]
        while stack:
            number, level, least = stack.pop()
            self._use(used, number, 1)
            if least and last is not None and least <= last:
                raise _DamagedError(f"page {number:,} stands in the wrong place")
            page = os.pread(file.fileno(), self._page_bytes, number * self._page_bytes)
            own, kind, lower, upper = _PAGE.unpack_from(page)
            count = (lower - self._header_bytes) >> 1
            wanted = _LEAF if level == depth else _BRANCH
            if own != number or kind != wanted or not count > 0 or not lower <= upper <= len(page):
                raise _DamagedError(f"page {number:,} is damaged")
            found[kind - 1] += 1
            children: list[tuple[int, int, bytes]] = []
            taken: list[tuple[int, int]] = []
            for at, pointer in enumerate(
                struct.unpack_from(f"<{count}H", page, self._header_bytes)
            ):
                low, high, flags, key_bytes = _NODE.unpack_from(page, pointer)
                start = pointer + _NODE.size
                end = start + key_bytes
                key = page[start:end]
                if numbers:
                    key = key[::-1]  # big-endian numbers compare as bytes
                if kind == _BRANCH:
                    # The first key of a branch is not used.
                    if at and numbers and key_bytes != 8:
                        raise _DamagedError(f"a key of page {number:,} is damaged")
                    children.append(
                        (low | high << 16 | flags << 32, level + 1, key if at else least)
                    )
                else:
                    length = low | high << 16
                    if flags not in (0, _BIG_VALUE) or (numbers and key_bytes != 8):
                        raise _DamagedError(f"an entry of page {number:,} is damaged")
                    if last is not None and last >= key:
                        raise _DamagedError(f"keys of page {number:,} are not in order")
                    if at == 0 and least > key:
                        raise _DamagedError(f"page {number:,} stands in the wrong place")
                    last = key
                    found[3] += 1
                    value = page[end : end + length]
                    if flags:
                        (first,) = struct.unpack_from("<Q", page, end)
                        pages = -(-(self._header_bytes + length) // self._page_bytes)
                        self._use(used, first, pages)
                        found[2] += pages
                        if is_freed is None or is_freed(key):
                            head = os.pread(
                                file.fileno(), self._header_bytes, first * self._page_bytes
                            )
                            own, kind_of, low, high = _PAGE.unpack(head)
                            if (own, kind_of, low | high << 16) != (first, _OVERFLOW, pages):
                                raise _DamagedError(f"page {first:,} is damaged")
                        if numbers:
                            offset = first * self._page_bytes + self._header_bytes
                            value = os.pread(file.fileno(), length, offset)
                    end += 8 if flags else length
                    if numbers:
                        yield value
                if pointer < upper or end > len(page):
                    raise _DamagedError(f"an entry of page {number:,} is beyond its end")
                taken.append((pointer, end))
            taken.sort()
            if any(one[1] > other[0] for one, other in itertools.pairwise(taken)):
                raise _DamagedError(f"entries of page {number:,} overlap")
            stack += reversed(children)
        if found != [*counts, entries]:
            raise _DamagedError("the counts of a database are damaged")

    def _use(self, used: bytearray, first: int, count: int) -> None:
        """Mark pages as used; a page must not be used twice."""
        if first + count > len(used) or any(used[first : first + count]):
            raise _DamagedError(f"page {first:,} is beyond the end of the file, or used twice")
        used[first : first + count] = b"\1" * count


def _text_of(key: bytes) -> str:
    return key.decode("utf-8", "replace")
