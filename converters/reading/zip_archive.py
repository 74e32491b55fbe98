"""Zip archives as a row of members: where each is, in a few numbers.

``zipfile`` keeps some 700 bytes a member, 10 GB for ImageNet-21k; here a member is a name (only
ever compared, never opened) and the five numbers that its worker needs.  Source: PKWARE's
APPNOTE.TXT 6.3.9, sections 4.3 to 4.5.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fastdata.errors import SourceError

from .spans import check_length, read_at

__all__ = ["ZipMember", "is_zip", "zip_members"]

_END = struct.Struct("<4s4HIIH")
_END64_PLACE = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_COMMENT = 0xFFFF
_MOST = 0xFFFFFFFF
"""Stands for a number that the record of zip64 has."""
_STORED, _DEFLATED = 0, 8
_STEP = 1 << 20
_ENCRYPTED = 0x1
_UTF8 = 0x800
_GBK = re.compile(b"([\\x00-\\x7f]|[\\xb0-\\xf7][\\xa1-\\xfe])*")
"""Characters of GB2312, the common ones of GBK."""


class ZipMember(NamedTuple):
    """A member of an archive, which these numbers are enough to read."""

    offset: int  # of its header
    packed: int  # packed, size: bytes in the archive, and of the content
    size: int
    crc: int  # CRC-32 of the content
    method: int  # 0 for stored, 8 for deflated; others are not read, -1 stands for encrypted

    def problem(self) -> str:
        """Say why it cannot be read; empty if it can."""
        if self.method < 0:
            return "it is encrypted, which is not read"
        if self.method not in (_STORED, _DEFLATED):
            return f"it is compressed by method {self.method}; deflated and stored ones are read"
        return ""

    def start(self, path: str | Path) -> int:
        """Return where its content begins, packed or not."""
        head = read_at(path, self.offset, _LOCAL.size)
        signature, *_, name_length, extra_length = _LOCAL.unpack(head)
        if signature != b"PK\3\4":
            raise SourceError(f"{path}: no member begins at byte {self.offset:,}: it is damaged")
        return int(self.offset + _LOCAL.size + name_length + extra_length)

    def read(self, path: str | Path) -> bytes:
        """Return the content; no more is inflated than the directory says that there is."""
        if problem := self.problem():
            raise SourceError(problem)
        name = os.fspath(path)
        check_length(self.size, name, self.offset)
        data = read_at(path, self.start(path), self.packed)
        if self.method == _DEFLATED:
            inflater = zlib.decompressobj(-15)
            try:
                data = inflater.decompress(data, self.size + 1)
            except zlib.error as error:
                raise SourceError(f"cannot be inflated: {error}") from error
        if len(data) != self.size or zlib.crc32(data) != self.crc:
            raise SourceError(
                f"it has not the {self.size:,} bytes, or not the checksum, that {name} says"
            )
        return data


def is_zip(start: bytes) -> bool:
    """Tell whether a file with these first bytes is a zip archive with something in it."""
    return start.startswith(b"PK\3\4")


def zip_members(path: Path) -> Iterator[tuple[str, ZipMember]]:
    """Yield name and place of the members of an archive, in the order of its directory."""
    encoding = ""
    for raw, is_utf8, member in _members(path):
        if not (is_utf8 or raw.isascii() or encoding):
            encoding = _encoding([name for name, told, _ in _members(path) if not told])
        name = raw.decode("utf-8" if is_utf8 or raw.isascii() else encoding, "surrogateescape")
        # Archives of Windows may have backslashes.
        yield name if "/" in name else name.replace("\\", "/"), member


def _encoding(names: list[bytes]) -> str:
    """Return the encoding of names without the flag for UTF-8.

    It is code page 437 by the standard, GBK in archives of Chinese systems, UTF-8 in many.
    """
    with contextlib.suppress(UnicodeDecodeError):
        b"\0".join(names).decode()
        return "utf-8"
    return "gbk" if all(map(_GBK.fullmatch, names)) else "cp437"


def _members(path: Path) -> Iterator[tuple[bytes, bool, ZipMember]]:
    """Yield each member's name, whether it is marked as UTF-8, and its place."""
    start, size, count, moved = _directory(path)
    end, total = start + size, path.stat().st_size
    data, begin, at, found, taken = b"", start, 0, 0, 0
    while found < count:
        if len(data) - at < _ENTRY.size + 3 * _COMMENT and begin + len(data) < end:
            begin, data = begin + at, b""
            data, at = read_at(path, begin, min(_STEP, end - begin)), 0
        if len(data) - at < _ENTRY.size or data[at : at + 4] != b"PK\1\2":
            raise _damaged(path, f"its directory ends after {found:,} of {count:,} members")
        (_, _, _, flags, method, _, _, crc, packed, length, name_length, extra_length,
         comment_length, _, _, _, offset) = _ENTRY.unpack_from(data, at)  # fmt: skip
        at += _ENTRY.size
        raw = data[at : at + name_length]
        extra = data[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        if at > len(data):
            raise _damaged(path, "its directory ends within a member's name")
        if _MOST in (packed, length, offset):
            length, packed, offset = _long_numbers(path, extra, length, packed, offset)
        # Deflating makes nothing smaller than a thousandth.
        if max(packed, offset) > total or length > 1100 * (packed + 1):
            raise _damaged(path, f"a member claims {length:,} bytes, {packed:,} in the archive")
        taken += packed
        if taken > total:
            raise _damaged(path, "its members overlap: several claim the same bytes")
        method = -1 if flags & _ENCRYPTED else method
        place = ZipMember(offset + moved, packed, length, crc, method)
        yield raw, bool(flags & _UTF8), place
        found += 1


def _directory(path: Path) -> tuple[int, int, int, int]:
    """Return where the directory is, its size, its members, and by how much offsets are off."""
    total = path.stat().st_size
    tail = read_at(path, max(0, total - _COMMENT - _END.size), min(total, _COMMENT + _END.size))
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise _damaged(path, "there is no directory at its end: it is cut short, or no zip")
    _, disk, first, _, count, size, offset, _ = _END.unpack_from(tail, at)
    end = total - len(tail) + at
    if disk != first or disk not in (0, 0xFFFF):
        raise SourceError(f"{path}: one volume of several. Join them: zip -s 0 {path} --out ONE")
    if end >= _END64_PLACE.size + _END64.size:
        mark, *_ = _END64_PLACE.unpack(read_at(path, end - _END64_PLACE.size, _END64_PLACE.size))
        if mark == b"PK\6\7":
            end -= _END64_PLACE.size + _END64.size
            record = _END64.unpack(read_at(path, end, _END64.size))
            if record[0] != b"PK\6\6":
                raise _damaged(path, "the record of its directory is missing")
            count, size, offset = record[-3:]
    place = end - size
    if place < offset or count * _ENTRY.size > size:
        raise _damaged(path, f"its directory claims {count:,} members in {size:,} bytes")
    return place, size, count, place - offset


def _long_numbers(
    path: Path, extra: bytes, length: int, packed: int, offset: int
) -> tuple[int, int, int]:
    """Return the numbers of a member, those in its zip64 record put in."""
    while len(extra) >= 4:
        kind, size = struct.unpack_from("<HH", extra)
        values, extra = extra[4 : 4 + size], extra[4 + size :]
        if kind == 1:
            numbers = [length, packed, offset]
            for index, number in enumerate(numbers):
                if number == _MOST and len(values) >= 8:
                    numbers[index] = int.from_bytes(values[:8], "little")
                    values = values[8:]
            return numbers[0], numbers[1], numbers[2]
    raise _damaged(path, "a member has no zip64 record, and should have")


def _damaged(path: Path, reason: str) -> SourceError:
    return SourceError(f"{path}: {reason}")
