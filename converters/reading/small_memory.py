"""Strings and keys in little memory: a listing of millions of files stays small."""

from __future__ import annotations

from array import array

import xxhash

__all__ = ["KeySet", "StringTable"]


class StringTable:
    """Append-only; file names that are no UTF-8 survive (surrogateescape)."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("Q", [0])

    def append(self, text: str) -> None:
        """Add a string at the end."""
        self._data += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = self._data[self._ends[index] : self._ends[index + 1]]
        return part.decode("utf-8", "surrogateescape")


class KeySet:
    """The hashes of keys, in a table with open addressing.

    Two keys are taken for one where 64 bits of their hashes agree: of ten million keys, with
    a chance of one in 300,000.
    """

    def __init__(self) -> None:
        self._table = array("Q", [0]) * 64
        self._count = 0

    def add(self, key: bytes) -> bool:
        """Remember a key; tell whether it is new."""
        if 2 * self._count >= len(self._table):
            self._grow()
        return self._put(xxhash.xxh3_64_intdigest(key) or 1)

    def _put(self, value: int) -> bool:
        table, mask = self._table, len(self._table) - 1
        at = value & mask
        while table[at]:
            if table[at] == value:
                return False
            at = (at + 1) & mask
        table[at] = value
        self._count += 1
        return True

    def _grow(self) -> None:
        old = self._table
        self._table = array("Q", [0]) * (2 * len(old))
        self._count = 0
        for value in old:
            if value:
                self._put(value)
