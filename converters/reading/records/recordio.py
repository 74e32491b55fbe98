"""The records of a RecordIO file of dmlc-core, which is MXNet's.

A record is one part or several, each

=======  ==================================================================
4 bytes  the magic number 0xced7230a, little-endian
4 bytes  in the upper 3 bits the part's kind, below them its length
length   the data, then zeros up to a multiple of 4
=======  ==================================================================

The kinds are 0, a whole record, and 1, 2, 3, the first, a middle and the last part: where the
magic number stands in the data at a multiple of 4, the writer leaves it out and begins a new
part.  So it stands nowhere else.  There are no checksums.  Source:
``dmlc-core/include/dmlc/recordio.h`` and ``src/recordio.cc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from fastdata.errors import SourceError

from ...base import Reject
from ...scan import Found, Input, Row, read
from ..locations import first_bytes
from ..spans import MAX_RECORD, FileSpan

__all__ = ["has_records", "record_of", "record_rows"]

_MAGIC = bytes.fromhex("0a23d7ce")
_LENGTH = (1 << 29) - 1
_NONE = 1 << 62
_MOST_PARTS = 64
"""Of a record: its data is cut only where it has the mark of a head by chance."""


def has_records(path: Path) -> bool:
    """Tell whether a file begins with a record."""
    return _kind(first_bytes(path, 8)) in (0, 1)


def record_rows(
    input: Input, start: int, stop: int | None, index: Iterable[int] = ()
) -> Iterator[Found]:
    """Yield the records of a file, each as one value, which `record_of` reads.

    index: where records begin, in ascending order.  Behind damage, reading goes on at the next.
    """
    assert input.size is not None
    if stop is not None:
        yield start, stop, Row(input.key(start), (input.piece(start, stop - start),))
        return
    at, size, positions = start, input.size, iter(index)
    following = next(positions, _NONE)
    while at < size:
        while following <= at:
            if following < at:
                yield _missing(input, following)
            following = next(positions, _NONE)
        end, reason = _end_of(input, at, size)
        if not reason and following < end and _kind(input.read(following, 8)) in (0, 1):
            reason = "its length is wrong: another begins within it"
        if reason:
            lost = "" if following < size else f"; the rest of {input.path} is lost"
            yield at, following, Reject(input.key(at), reason + lost)
            at = following
        else:
            yield at, end, Row(input.key(at), (input.piece(at, end - at),))
            at = end
    for position in chain([following] if following < _NONE else [], positions):
        yield _missing(input, position)


def record_of(piece: FileSpan | bytes) -> bytes:
    """Return the data of a record, its parts put together; raises SourceError for damage."""
    data = read(piece)
    parts = []
    at = 0
    while at + 8 <= len(data):
        count = int.from_bytes(data[at + 4 : at + 8], "little") & _LENGTH
        part = data[at + 8 : at + 8 + count]
        if _head_within(part):
            raise SourceError("its length is wrong: another record begins within it")
        parts.append(part)
        at += 8 + count + -count % 4
    return _MAGIC.join(parts)


def _missing(input: Input, position: int) -> Found:
    reason = "the index names a record here, and none begins"
    return position, position, Reject(input.key(position), reason)


def _kind(head: bytes) -> int:
    """Return the kind of the part that 8 bytes begin; -1 if they begin none."""
    return head[7] >> 5 if len(head) == 8 and head[:4] == _MAGIC else -1


def _end_of(input: Input, offset: int, size: int) -> tuple[int, str]:
    """Return where the record at `offset` ends, or what is wrong with it."""
    at, parts = offset, 0
    while at < size:
        head = input.read(at, 8)
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


def _head_within(data: bytes) -> bool:
    at = data.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0 and _kind(data[at : at + 8]) in (0, 1):
            return True
        at = data.find(_MAGIC, at + 1)
    return False
