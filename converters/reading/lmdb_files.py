"""What formats in LMDB files share: where the file is, an index of it, and samples by that.

Its pages are read by `fastdata.formats.lmdb_pages`.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastdata.errors import FastdataError, OptionError, SourceError, is_of_machine
from fastdata.formats.lmdb_pages import MAGIC, Entry, LmdbFile
from fastdata.formats.reader import ShardReader

from ..base import IndexedSource, Reject
from .fingerprints import FileSource
from .locations import first_bytes, path_of, printable
from .refusals import already_packed
from .small_memory import StringTable
from .spans import FileSpan, read_at
from .text_lines import text_lines

__all__ = [
    "META_INFO",
    "LmdbIndex",
    "LmdbSource",
    "first_values",
    "is_ours",
    "keys_of_meta_info",
    "lmdb_at",
    "missing_keys",
]

META_INFO = "meta_info.txt"
"""BasicSR's list of keys, beside ``data.mdb``."""
_PEEK = 16


def lmdb_at(location: Any) -> Path | None:
    """Return the data file of an LMDB at a location, a file or a folder; None if there is none."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "data.mdb" if path.is_dir() else path
    start = first_bytes(path, 32)
    magic = MAGIC.to_bytes(4, "little")
    return path if magic in (start[16:20], start[24:28]) else None


def first_values(path: Path, count: int = _PEEK) -> list[bytes]:
    """Return the first values of a file, as far as they can be read; empty if it is damaged."""
    found = []
    try:
        for entry in itertools.islice(LmdbFile(path).entries(), count):
            if isinstance(entry, Entry) and not entry.is_database:
                found.append(read_at(path, entry.offset, entry.length))
    except SourceError:
        pass
    return found


def is_ours(path: Path) -> bool:
    """Tell whether a file is a shard of fastdata's; raises what the machine lacks to read it."""
    try:
        for entry in itertools.islice(LmdbFile(path).entries(), _PEEK):
            if isinstance(entry, Entry) and entry.key.startswith(b"column/"):
                return ShardReader(path) is not None
    except FastdataError as error:
        if is_of_machine(error):
            raise
    return False


class LmdbIndex:
    """Keys and places of all values, of one database: some 30 bytes a value and its key."""

    def __init__(self, path: Path, database: str | None = None) -> None:
        self.path = path
        self.keys = StringTable()
        self._offsets, self._lengths = array("q"), array("q")
        self.rejects: dict[int, Reject] = {}
        file = LmdbFile(path)
        named = file.databases()
        if database is None and len(named) == 1:
            database = next(iter(named))
        if (database is None and named) or (database is not None and database not in named):
            raise OptionError(
                f"{path}: has the databases {', '.join(named) or 'without names only'}; choose "
                "one of them: --option database=NAME"
            )
        place = path.parent if path.name == "data.mdb" else path
        for entry in file.entries(named[database] if database is not None else None):
            if isinstance(entry, Entry):
                self.keys.append(entry.key.decode("utf-8", "backslashreplace"))
                self._offsets.append(entry.offset)
                self._lengths.append(entry.length)
            else:
                self.reject(f"{printable(place.name)}#{len(self)}", f"{path}: {entry}: damaged")

    def reject(self, key: str, reason: str) -> None:
        """Add what cannot be read."""
        self.rejects[len(self)] = Reject(key, reason)
        self.keys.append(key)
        self._offsets.append(0)
        self._lengths.append(0)

    def __len__(self) -> int:
        return len(self._offsets)

    def span(self, index: int) -> FileSpan:
        """Return where a value is."""
        return FileSpan(str(self.path), self._offsets[index], self._lengths[index])


class LmdbSource(FileSource, IndexedSource):
    """Values of an LMDB file, one a sample, in the order of their keys."""

    index: LmdbIndex

    def _open(self, location: Any, database: str | None, *others: str | None) -> None:
        """Look at the whole file, for its keys.

        Raises SourceError if there is no LMDB file, or it is fastdata's own.
        """
        path = lmdb_at(location)
        if path is None:
            raise SourceError(f"{location}: no LMDB there: no file, and no folder with data.mdb")
        if is_ours(path):
            raise already_packed(path)
        self.notes = []
        self.paths = [path, *(Path(other) for other in others if other is not None)]
        self.index = LmdbIndex(path, database)

    def key_at(self, index: int) -> str:
        return self.index.keys[index]


def missing_keys(keys: StringTable, wanted: Iterable[str]) -> list[str]:
    """Return those of some keys that are not in a table."""
    there = {keys[index] for index in range(len(keys))}
    return [key for key in wanted if key not in there]


def keys_of_meta_info(path: Path) -> list[str]:
    """Return the keys of BasicSR's list, lines like ``0001.png (480,480,3) 1``.

    Raises OptionError if it is no text.
    """
    lines = text_lines(path, "backslashreplace", OptionError)
    return [line.rsplit(" (", 1)[0].rsplit(".", 1)[0] for _, line in lines]
