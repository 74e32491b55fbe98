"""Members of a tar archive that are one sample: those with one key, one behind the other."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass

from fastdata.errors import SourceError

from ...base import Reject
from ..forward_reader import ForwardReader
from ..small_memory import KeySet
from ..spans import MAX_RECORD, FileSpan
from .archive import members

__all__ = ["PEEK_BYTES", "Group", "groups"]

PEEK_BYTES = 16 << 20
"""Bytes of a member by which its kind is recognised."""

# Unlike webdataset's, this takes no ``._0.jpg`` (of a Mac's archives) in a folder for a member.
_NAME = re.compile(rb"((?:.*/)?[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")


@dataclass(slots=True)
class Group:
    """Members with one key, one behind the other."""

    key: bytes
    start: int  # start, end: in bytes
    end: int
    members: dict[str, FileSpan | bytes]  # by their suffixes
    problem: str = ""  # why they are no sample
    held: int = 0  # bytes of members that are in memory


def groups(
    front: ForwardReader,
    wanted: Container[str] | None,
    start: int = 0,
    stop: int | None = None,
    seen: KeySet | None = None,
) -> Iterator[Group | Reject]:
    """Yield the samples of an archive, or of a part of it, and where there is damage.

    wanted: suffixes of the members that are taken.  Without it all are, and of those in a
        compressed archive no more than the first `PEEK_BYTES`.
    seen: keys that have come already: a group whose key is one of them has a problem.
    """
    group: Group | None = None
    try:
        for member in members(front, start, stop):
            match = _NAME.fullmatch(member.name)
            if match is None or _META.match(member.name) or member.kind == "folder":
                continue
            key, suffix = match[1].removeprefix(b"./"), match[2].decode("utf-8", "replace")
            suffix = suffix.lower()
            if group is None or key != group.key:
                if group is not None:
                    yield group
                group = Group(key, member.start, member.end, {})
                if seen is not None and not seen.add(key):
                    group.problem = "its key has come before in this file, not just before it"
            group.end = member.end
            if wanted is not None and suffix not in wanted:
                continue
            if member.kind != "file":
                group.problem = f"{suffix} is a {member.kind}, which is not read"
            elif suffix in group.members:
                group.problem = f"two members {suffix}"
            elif front.size is not None:
                group.members[suffix] = FileSpan(front.name, member.offset, member.size)
            elif wanted is None:
                data = front.read(member.offset, min(member.size, PEEK_BYTES))
                group.members[suffix] = data
            elif group.held + member.size > MAX_RECORD:
                group.problem = f"more than {MAX_RECORD:,} bytes"
            else:
                data = front.read(member.offset, member.size)
                if len(data) < member.size:
                    raise SourceError(f"{front.name}: ends within a member at {member.offset}")
                group.members[suffix] = data
                group.held += member.size
    except SourceError as error:
        # What came of the group is there, but it may not be all.
        yield Reject(group.key.decode("utf-8", "replace") if group else "", str(error))
        return
    if group is not None:
        yield group
