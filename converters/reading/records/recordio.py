"""The records of a RecordIO file of dmlc-core, which is MXNet's.

A record is one part or several, each

=======  ==================================================================
4 bytes  the magic number 0xced7230a, little-endian
4 bytes  in the upper 3 bits the part's kind, below them its length
length   the data, then zeros up to a multiple of 4
=======  ==================================================================

The kinds are 0, a whole record, and 1, 2, 3, the first, a middle and the last part: where the
magic number stands in the data at a multiple of 4, the writer leaves it out and begins a new
part.  So it stands nowhere else, and behind damage the next record can be found.  There are
no checksums.  Source: ``dmlc-core/include/dmlc/recordio.h`` and ``src/recordio.cc``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular

from ..locations import first_bytes
from ..spans import MAX_RECORD, read_at

__all__ = ["Damage", "RecordSpan", "has_records", "scan_records"]

_MAGIC = bytes.fromhex("0a23d7ce")
_LENGTH = (1 << 29) - 1
_FIRST_WINDOW, _WINDOW = 1 << 9, 1 << 20
_MOST_PARTS = 64
"""Of a record: its data is cut only where it has the mark of a head by chance."""


class Damage(NamedTuple):
    """A place where a record should be and none can be read."""

    offset: int  # the next record is at `end`, or the file ends there
    end: int
    reason: str


def has_records(path: Path) -> bool:
    """Tell whether a file begins with a record."""
    return _kind(first_bytes(path, 8)) in (0, 1)


def scan_records(path: Path) -> Iterator[tuple[int, int] | Damage]:
    """Yield where the records of a file are: offset and length, heads and padding included."""
    size = path.stat().st_size
    with open(path, "rb", buffering=0, opener=open_regular) as raw:
        file = raw.fileno()
        last: tuple[int, int] | None = None
        offset = 0
        while offset < size:
            end, reason = _end_of(file, offset, size)
            if not reason:
                if last is not None:
                    yield last
                last = (offset, end - offset)
                offset = end
                continue
            # Either there is damage here, or the record before claims too many bytes.
            following = _next_head(file, (last[0] if last else offset) + 4, size)
            if last is not None and following < offset:
                yield Damage(last[0], following, "its length is wrong: another begins within it")
            else:
                if last is not None:
                    yield last
                following = _next_head(file, offset + 4, size)
                yield Damage(offset, following, reason)
            last, offset = None, following
        if last is not None:
            yield last


class RecordSpan(NamedTuple):
    """A record whose place is known; `length` has heads and padding, in bytes."""

    path: str
    offset: int
    length: int

    def read(self) -> bytes:
        """Return the data, its parts put together; raises SourceError for damage."""
        data = read_at(self.path, self.offset, self.length)
        parts = []
        at = 0
        while at + 8 <= self.length:
            count = int.from_bytes(data[at + 4 : at + 8], "little") & _LENGTH
            part = data[at + 8 : at + 8 + count]
            if _head_within(part):
                raise SourceError("its length is wrong: another record begins within it")
            parts.append(part)
            at += 8 + count + -count % 4
        return _MAGIC.join(parts)


def _kind(head: bytes) -> int:
    """Return the kind of the part that 8 bytes begin; -1 if they begin none."""
    return head[7] >> 5 if len(head) == 8 and head[:4] == _MAGIC else -1


def _end_of(file: int, offset: int, size: int) -> tuple[int, str]:
    """Return where the record at `offset` ends, or what is wrong with it."""
    at, parts = offset, 0
    while at < size:
        head = os.pread(file, 8, at)
        if len(head) < 8:
            return at, f"the file ends {8 - len(head)} bytes before the record's head does"
        kind = _kind(head)
        if kind not in ((0, 1) if at == offset else (2, 3)):
            expected = "record begins" if at == offset else "part of the record goes on"
            return at, f"no {expected} at byte {at:,}"
        length = int.from_bytes(head[4:], "little") & _LENGTH
        end = at + 8 + length
        if end > size:
            return at, f"the file ends within the record's {length:,} bytes"
        if end - offset > MAX_RECORD:
            return at, f"the record claims more than {MAX_RECORD:,} bytes"
        parts += 1
        if parts > _MOST_PARTS:
            return at, f"the record has more than {_MOST_PARTS} parts"
        at = min(end + -length % 4, size)
        if kind in (0, 3):
            return at, ""
    return at, "the file ends before the last part of the record"


def _next_head(file: int, offset: int, size: int) -> int:
    """Return where the first record at or behind `offset` begins; `size` if none does."""
    offset += -offset % 4
    window = _FIRST_WINDOW  # as damage may be followed by damage
    while offset < size:
        words = np.frombuffer(_aligned(os.pread(file, window + 4, offset)), "<u4")
        found = _heads(words)
        if len(found):
            return offset + 4 * int(found[0])
        offset += window
        window = min(2 * window, _WINDOW)
    return size


def _heads(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers of the words with which a record begins."""
    magic = int.from_bytes(_MAGIC, "little")
    return np.flatnonzero((words[:-1] == magic) & (words[1:] >> 29 <= 1))


def _aligned(data: bytes) -> bytes:
    return data[: len(data) & ~3]


def _head_within(data: bytes) -> bool:
    # A search by bytes first: it is faster, and nearly always finds nothing.
    return _MAGIC in data and len(_heads(np.frombuffer(_aligned(data), "<u4"))) > 0
