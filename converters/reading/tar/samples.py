"""The samples of a WebDataset archive: runs of members with one key.

The key is the part of a member's name before the first dot of the file name, with folders; the
part behind it, in lower case, is the suffix.  Source: ``tariterators.py`` of
``github.com/webdataset/webdataset``, whose grouping this follows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fastdata.errors import SourceError

from ...base import Reject, reject_reason
from ...scan import Found, Input, Row
from ..small_memory import KeySet
from ..spans import MAX_RECORD, FileSpan
from .archive import Member, members
from .members import ChosenMember

__all__ = ["PEEK_BYTES", "sample_rows"]

# Unlike webdataset's, this takes no ``._0.jpg`` (of a Mac's archives) in a folder for a member.
_NAME = re.compile(rb"((?:.*/)?[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")
PEEK_BYTES = 16 << 20
"""Bytes of a member for recognising its kind."""


class _Group:
    """Members with one key, one behind the other."""

    __slots__ = ("end", "held", "key", "members", "problem", "start")

    def __init__(self, key: bytes, start: int) -> None:
        self.key, self.start, self.end = key, start, start
        self.members: dict[str, FileSpan | bytes] = {}
        self.problem = ""
        self.held = 0


def sample_rows(
    input: Input,
    start: int,
    stop: int | None,
    chosen: Sequence[ChosenMember] | None = None,
    main: Sequence[str] | None = None,
) -> Iterator[Found]:
    """Yield the samples of an archive, with the members that `chosen` names, in its order.

    Without `chosen` a row has the first bytes of all members, by suffix.  `main` has the suffixes
    of an export's main image; its rows end with the sample's name and its JSON member.
    """
    wanted = None if chosen is None else {s for entry in chosen for s in entry.suffixes}
    if wanted is not None and main is not None:
        wanted.add("json")
    seen = KeySet() if stop is None else None
    group: _Group | None = None
    try:
        for member in members(input, start, stop):
            match = _NAME.fullmatch(member.name)
            if match is None or _META.match(member.name) or member.kind == "folder":
                continue
            key, suffix = match[1].removeprefix(b"./"), match[2].decode("utf-8", "replace").lower()
            if group is None or key != group.key:
                if group is not None:
                    yield _found(input, group, chosen, main)
                group = _Group(key, member.start)
                if seen is not None and not seen.add(key):
                    group.problem = "its key has come before in this file, not just before it"
            group.end = member.end
            if wanted is None or suffix in wanted:
                _take(input, group, member, suffix, PEEK_BYTES if wanted is None else MAX_RECORD)
    except (OSError, SourceError) as error:
        # What came of the group is there, but it may not be all.
        at = start if group is None else group.start
        name = "" if group is None else f"/{group.key.decode('utf-8', 'replace')}"
        yield at, at, Reject(f"{input.shown}{name}", reject_reason(input.path, error))
        return
    if group is not None:
        yield _found(input, group, chosen, main)


def _take(input: Input, group: _Group, member: Member, suffix: str, most: int) -> None:
    """Add a member to its group, at most its first bytes if the archive is compressed."""
    if member.kind != "file":
        group.problem = f"{suffix} is a {member.kind}, which is not read"
    elif suffix in group.members:
        group.problem = f"two members {suffix}"
    else:
        size = member.size if input.size is not None else min(member.size, most)
        group.held += size if input.size is None else 0
        if group.held > MAX_RECORD:
            group.problem = f"more than {MAX_RECORD:,} bytes"
        else:
            group.members[suffix] = input.piece(member.offset, size)


def _found(
    input: Input,
    group: _Group,
    chosen: Sequence[ChosenMember] | None,
    main: Sequence[str] | None,
) -> Found:
    """Return the row of a group, or why it is not a sample."""
    name = group.key.decode("utf-8", "replace")
    key, reason = f"{input.shown}/{name}", group.problem
    found = group.members
    values: list[object] = []
    if chosen is None:
        values.append(found)
    for entry in chosen or ():
        suffix = next((s for s in entry.suffixes if s in found), None)
        if suffix is None:
            reason = reason or f"there is no member {' or '.join(entry.suffixes)}"
        else:
            values.append(found[suffix])
    if reason:
        reason = f"{reason} (the sample is at byte {group.start:,})"
        return group.start, group.end, Reject(key, reason)
    if main is not None:
        values += [f"{name}.{next((s for s in main if s in found), '')}", found.get("json")]
    return group.start, group.end, Row(key, tuple(values))
