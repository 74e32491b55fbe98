"""The records of a RecordIO file of dmlc-core, which is MXNet's.

A record is one part or several, each

=======  ==================================================================
4 bytes  the magic number 0xced7230a, little-endian
4 bytes  in the upper 3 bits the part's kind, below them its length
length   the data, then zeros up to a multiple of 4
=======  ==================================================================

The kinds are 0, a whole record, and 1, 2, 3, the first, a middle and the last part.  If the data
has the magic number at a multiple of 4, the writer leaves it out and begins a new part.  Records
have no checksums.  The data of a record with an image is

=======  ==================================================================
4 bytes  count of labels, or 0
4 bytes  the label, float32, if the count is 0
16 bytes the number of the image, and 0
4 each   the labels, float32
rest     an image file
=======  ==================================================================

An ``.idx`` beside the file has a line for each record: its number, a tab, and its first byte.

Source: ``include/dmlc/recordio.h`` and ``src/recordio.cc`` of dmlc-core; ``pack`` and ``unpack``
in ``python/mxnet/recordio.py`` of MXNet.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError

from ...base import Reject
from ...scan import Found, Input, Row, read
from ..locations import first_bytes
from ..spans import MAX_RECORD, FileSpan
from ..text_lines import text_lines

__all__ = ["has_records", "read_index", "record_of", "record_rows", "unpack"]

_MAGIC = bytes.fromhex("0a23d7ce")
_LENGTH = (1 << 29) - 1
_LABELS = struct.Struct("<If16x")
_MOST_PARTS = 64
"""Parts of a record: the data is cut only where it has the magic number by chance."""


def has_records(path: Path) -> bool:
    """Tell whether a file begins with a record."""
    return _kind(first_bytes(path, 8)) in (0, 1)


def record_rows(
    input: Input, start: int, stop: int | None, index: Sequence[int] = ()
) -> Iterator[Found]:
    """Yield the records of a file, each as one value, which `record_of` reads.

    index: where records begin, in ascending order.  Behind damage, reading goes on at the next.
    """
    assert input.size is not None
    if stop is not None:
        yield start, stop, Row(input.key(start), (input.piece(start, stop - start),))
        return
    at, size, positions, following = start, input.size, iter(index), start
    while at < size:
        if following <= at:
            following = next((position for position in positions if position > at), size)
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
    for position in index[bisect_left(index, size) :]:
        reason = "the index names a record here, and the file ends before"
        yield position, position, Reject(input.key(position), reason)


def record_of(piece: FileSpan | bytes) -> bytes:
    """Return the data of a record, its parts put together; raises SourceError for damage."""
    data, parts, at = read(piece), list[bytes](), 0
    while at + 8 <= len(data):
        count = int.from_bytes(data[at + 4 : at + 8], "little") & _LENGTH
        part = data[at + 8 : at + 8 + count]
        if _has_magic(part):
            raise SourceError("its length is wrong: another record begins within it")
        parts.append(part)
        at += 8 + count + -count % 4
    return _MAGIC.join(parts)


def unpack(data: bytes) -> tuple[np.ndarray[Any, np.dtype[np.float32]], bytes]:
    """Return the labels and the image file of a record.

    Raises ValueError if it is too short for its head, or for its labels.
    """
    if len(data) < _LABELS.size:
        raise ValueError(f"a record of {len(data)} bytes is too short for a label and an image")
    count, label = _LABELS.unpack_from(data)
    if not count:
        return np.array([label], np.float32), data[_LABELS.size :]
    end = _LABELS.size + 4 * count
    if end > len(data):
        raise ValueError(f"the record claims {count:,} labels in its {len(data):,} bytes")
    return np.frombuffer(data[_LABELS.size : end], "<f4"), data[end:]


def read_index(path: Path) -> Sequence[int]:
    """Return where the records begin that an index names, in ascending order.

    Raises SourceError if a line is not a number and a position.
    """
    positions = array("q")
    for number, line in text_lines(path):
        try:
            _, position = line.split("\t")
            positions.append(int(position))
        except (ValueError, OverflowError):
            raise SourceError(
                f"{path}, line {number}: {line[:60]!r} is not a key and a position with a tab "
                "between them. Move the file away: the records can be read without it"
            ) from None
    return array("q", np.sort(np.array(positions, np.int64)).tobytes())


def _kind(head: bytes) -> int:
    """Return the kind of the part that 8 bytes begin; -1 if they begin none."""
    return head[7] >> 5 if len(head) == 8 and head[:4] == _MAGIC else -1


def _end_of(input: Input, offset: int, size: int) -> tuple[int, str]:
    """Return the end of the record at `offset`, or the damage."""
    at = offset
    for number in range(_MOST_PARTS):
        head = input.read(at, 8)
        if len(head) < 8:
            return at, f"the file ends {8 - len(head)} bytes before the record's head does"
        kind = _kind(head)
        if kind not in ((2, 3) if number else (0, 1)):
            expected = "part of the record goes on" if number else "record begins"
            return at, f"no {expected} at byte {at:,}"
        length = int.from_bytes(head[4:], "little") & _LENGTH
        end = at + 8 + length
        if end > size:
            return at, f"the file ends within the record's {length:,} bytes"
        if end - offset > MAX_RECORD:
            return at, f"the record claims more than {MAX_RECORD:,} bytes"
        at = min(end + -length % 4, size)
        if kind in (0, 3):
            return at, ""
    return at, f"the record has more than {_MOST_PARTS} parts"


def _has_magic(data: bytes) -> bool:
    at = data.find(_MAGIC)
    while at >= 0:
        if at % 4 == 0:
            return True
        at = data.find(_MAGIC, at + 1)
    return False
