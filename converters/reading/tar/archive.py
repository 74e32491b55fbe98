"""Tar archives as a row of members: where each is, without keeping a list of them.

``tarfile`` remembers every member it has seen, and unpacks by name; its parser of headers alone
takes three times as long a member.  Here a member is a name (only ever compared, never opened),
a place and a size.

A header is a block of 512 bytes (name, size in octal or base 256, checksum, kind); the
member's bytes follow, filled up to whole blocks; two blocks of zeros end the archive.
Before the header there may be others that say more of the member: a long name (GNU's
``L``), or records ``LENGTH KEY=VALUE`` (pax's ``x``).  Sources: POSIX.1-2017, ``pax``,
sections "ustar Interchange Format" and "pax Extended Header"; the manual of GNU tar, "Basic
Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastdata.errors import SourceError

from ..forward_reader import ForwardReader

__all__ = ["BLOCK", "Member", "is_header", "members"]

BLOCK = 512
_LARGEST_EXTRA = 1 << 20
"""Bytes of a long name, or of pax records; more is damage."""
_LONGEST_NAME = 1 << 14
"""Bytes; Linux opens paths of 4,096."""
_END = bytes(BLOCK)
_KINDS = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "link",
    b"2": "link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "pipe",
    b"S": "sparse file",
}


class Member(NamedTuple):
    """A member of an archive."""

    name: bytes
    kind: str  # "file", or what else it is; "end" for the end mark of an archive
    start: int  # of its first header, in bytes
    offset: int  # offset, size: of its content
    size: int

    @property
    def end(self) -> int:
        """Where the next member starts."""
        return self.offset + _blocks(self.size)


def is_header(block: bytes) -> bool:
    """Tell whether these 512 bytes are the header of a member."""
    return len(block) == BLOCK and block != _END and not _damage(block)


def members(front: ForwardReader, start: int = 0, stop: int | None = None) -> Iterator[Member]:
    """Yield the members of an archive, or those between two places.

    Archives one behind the other (``cat a.tar b.tar``) are all read, which other tools
    do not by default.
    """
    offset = begin = start
    name: bytes | None = None
    sparse = ended = False
    while stop is None or offset < stop:
        block = front.read(offset, BLOCK)
        if not block and ended:
            return
        if len(block) < BLOCK:
            raise _damaged(front, offset, "the file ends without the end mark of an archive")
        if block == _END and offset == begin:
            if not ended:
                yield Member(b"", "end", offset, offset, 0)
            ended, offset = True, offset + BLOCK
            begin = offset
            continue
        reason = _damage(block) or ("" if block != _END else "a header is missing")
        if reason:
            raise _damaged(front, offset, reason)
        ended = False
        kind, length = block[156:157], _number(block[124:136])
        if kind in b"xgLKXN" and kind != b"\0":
            if length > _LARGEST_EXTRA:
                raise _damaged(front, offset, f"a long name or pax records of {length:,} bytes")
            text = front.read(offset + BLOCK, length)
            if len(text) < length:
                raise _damaged(front, offset, "the file ends within a long name or pax records")
            if kind == b"L":
                name = text.partition(b"\0")[0]
            elif kind in b"xX":
                records = _pax(text)
                if records is None:
                    raise _damaged(front, offset, "pax records that are none")
                name = records.get(b"path", name)
                sparse = any(key.startswith(b"GNU.sparse") for key in records)
                if b"size" in records:
                    raise _damaged(front, offset, "a member of more than 8 GB, which is not read")
            offset += BLOCK + _blocks(length)
            continue
        if not 0 <= length < 1 << 60:
            raise _damaged(front, offset, f"a member of {length:,} bytes")
        what = "sparse file" if sparse else _KINDS.get(kind, f"member of kind {kind!r}")
        if kind == b"S" and block[482]:
            raise _damaged(front, offset, "a sparse file of many pieces, which is not read")
        found = name if name is not None else _name(block)
        if len(found) > _LONGEST_NAME:
            raise _damaged(front, offset, f"a member's name of {len(found):,} bytes")
        if what == "file" and found.endswith(b"/"):
            what = "folder"
        if what in ("link", "device", "folder", "pipe"):
            length = 0  # whatever the header says, none follow
        member = Member(found, what, begin, offset + BLOCK, length)
        if front.size is not None and member.offset + length > front.size:
            raise _damaged(front, offset, f"the file ends within a member of {length:,} bytes")
        yield member
        offset = begin = member.end
        name, sparse = None, False


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _damaged(front: ForwardReader, offset: int, reason: str) -> SourceError:
    return SourceError(f"{reason}, at byte {offset:,}; the rest of {front.name} is lost")


def _damage(block: bytes) -> str:
    """Say what is wrong with a header, if anything is."""
    if block == _END:
        return ""
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * 32:
        return "the checksum of a header is wrong"
    return "" if _number(block[124:136]) >= 0 else "a header's size is no number"


def _number(field: bytes) -> int:
    """Return a number of a header; -1 where it is none."""
    if field[0] & 0x80:  # base 256, for what has no room in octal
        value = int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
        return value if field[0] == 0x80 else -1
    text = field.strip(b" \0")
    if not text:
        return 0
    return int(text, 8) if text.isdigit() and not set(text) & set(b"89") else -1


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    if block[257:263] == b"ustar\0":  # not GNU's magic, where other things are here
        prefix = block[345:500].partition(b"\0")[0]
        return prefix + b"/" + name if prefix else name
    return name


def _pax(text: bytes) -> dict[bytes, bytes] | None:
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(text) and text[at]:
        digits, space, _ = text[at : at + 20].partition(b" ")
        if not space or not digits.isdigit():
            return None
        length = int(digits)
        record = text[at + len(digits) + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if at + length > len(text) or not equals or record[-1:] != b"\n":
            return None
        records[key] = value
        at += length
    return records
