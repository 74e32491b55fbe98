"""WebDataset: tar files with the members of each sample together.

``000017.jpg``, ``000017.cls``, ``000017.json`` are one sample.  Its key is the part before
the first dot of the file name, with folders; the part behind it, in lower case, is the name
of a member.  Source: the README of ``github.com/webdataset/webdataset`` and its
``tariterators.py``, whose grouping this follows.

No member is ever unpacked: workers read the images as pieces of the tar file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Schema

from .base import FieldSpec, Reject, reject_reason
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start, other_compression
from .reading.exported import read_exported
from .reading.locations import files_at, first_bytes, map_files
from .reading.options import Option
from .reading.refusals import no_files
from .reading.small_memory import KeySet
from .reading.spans import MAX_RECORD, FileSpan
from .reading.tar.archive import BLOCK, BehindEndError, Member, is_header, members
from .reading.tar.members import (
    ChosenMember,
    MembersReader,
    choose_members,
    exported_members,
    main_suffixes,
    member_fields,
)
from .scan import Found, Input, Row, Scan, ScanSource, read_start

__all__ = ["WebDatasetSource"]

_SUFFIXES = (".tar", ".tgz")
_PEEK_BYTES = 16 << 20
"""Bytes of a member for recognising its kind."""

# Unlike webdataset's, this takes no ``._0.jpg`` (of a Mac's archives) in a folder for a member.
_NAME = re.compile(rb"((?:.*/)?[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")


class WebDatasetSource(ScanSource):
    """Shards of WebDataset, plain or gzip'd; a sample is the members with one key."""

    name = "webdataset"
    summary = "WebDataset tar files, plain or gzip'd"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        if not files:
            return False
        start = first_bytes(files[0])
        if other_compression(start):
            return ".tar" in files[0].name  # opening it says what to do
        return is_header(start[:BLOCK]) or is_header(inflated_start(start, BLOCK))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        members: Annotated[
            tuple[str, ...],
            Option("field=suffix, field=suffix;suffix, field=json:key; default: as usual"),
        ] = (),
        classes: Annotated[
            str | None, Option("a file with names of classes 0, 1, ...; cls may then hold them too")
        ] = None,
    ) -> None:
        paths, notes = files_at(location, _SUFFIXES), list[str]()
        if not paths:
            raise no_files(location, "tar files")
        codecs = ["auto" if it else "" for it in map_files(_is_compressed, paths)]
        exported = None if members else read_exported(paths, self.name)

        def start_of(values: tuple[Any, ...]) -> dict[str, bytes]:
            return {suffix: read_start(at, _PEEK_BYTES) for suffix, at in values[0].items()}

        first = Scan(paths, _rows, codecs).first(start_of, paths[0], "sample can be read")
        if exported is not None:
            chosen = exported_members(exported)
            resolved = exported.resolve_fields(fields, channels)
            known = {suffix for sample in first for suffix in sample}
            for entry in chosen.values():
                exported.check_place(";".join(entry.suffixes), entry.suffixes, known, paths[0])
        else:
            chosen = choose_members(members, first, notes, str(paths[0]))
            resolved = member_fields(chosen, first, fields or {}, channels)
        schema = Schema(named_classes(resolved, "label", classes), stored=exported is not None)
        entries = tuple(chosen.values())
        main = None if exported is None else main_suffixes(chosen)
        super().__init__(
            Scan(paths, partial(_rows, chosen=entries, main=main), codecs),
            schema,
            MembersReader(schema, entries),
            notes=notes,
            exported=exported,
        )


def _is_compressed(path: Path) -> bool:
    start = first_bytes(path)
    if is_header(start[:BLOCK]):
        return False
    if other := other_compression(start):
        raise SourceError(
            f"{path}: compressed by {other}, which is not read. Decompress it: images hardly "
            "become smaller, and workers can then read them from the file themselves."
        )
    return compression_of(start) != ""


class _Group:
    """Members with one key, one behind another."""

    def __init__(self, key: bytes, start: int, problem: str) -> None:
        self.key, self.start, self.end, self.problem = key, start, start, problem
        self.members: dict[str, FileSpan | bytes] = {}
        self.held = 0  # bytes of members that are in memory


def _rows(
    input: Input,
    start: int,
    stop: int | None,
    chosen: Sequence[ChosenMember] | None = None,
    main: Sequence[str] | None = None,
) -> Iterator[Found]:
    """Yield the samples of an archive, with the members that `chosen` names, in its order.

    Without `chosen` a row is a dict of the first bytes of all members.  `main` has the suffixes of
    an export's main image; its rows end with the sample's name and its JSON member.
    """
    wanted = {suffix for entry in chosen or () for suffix in entry.suffixes} | {"json"}
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
                    yield _row_of(input, group, chosen, main)
                is_new = seen is None or seen.add(key)
                problem = "" if is_new else "its key has come before in this file"
                group = _Group(key, member.start, problem)
            group.end = member.end
            if chosen is None or suffix in wanted:
                _take(input, group, member, suffix, MAX_RECORD if chosen else _PEEK_BYTES)
    except (OSError, SourceError) as error:
        if group is not None and isinstance(error, BehindEndError):
            yield _row_of(input, group, chosen, main)
            group = None
        # What came of the group is there, but it may not be all.
        name = "" if group is None else f"/{group.key.decode('utf-8', 'replace')}"
        yield start, start, Reject(f"{input.shown}{name}", reject_reason(input.path, error))
        return
    if group is not None:
        yield _row_of(input, group, chosen, main)


def _take(input: Input, group: _Group, member: Member, suffix: str, most: int) -> None:
    """Add a member to its group; of a compressed archive, `most` bytes at most."""
    if member.kind != "file":
        group.problem = f"{suffix} is a {member.kind}, which is not read"
    elif suffix in group.members:
        group.problem = f"two members {suffix}"
    else:
        size = min(member.size, most) if input.size is None else member.size
        group.held += size if input.size is None else 0
        if group.held > MAX_RECORD:
            group.problem = f"more than {MAX_RECORD:,} bytes"
        else:
            group.members[suffix] = input.piece(member.offset, size)


def _row_of(
    input: Input,
    group: _Group,
    chosen: Sequence[ChosenMember] | None,
    main: Sequence[str] | None,
) -> Found:
    """Return the row of a group, or why it is not a sample."""
    found, name = group.members, group.key.decode("utf-8", "replace")
    places = [next((found[s] for s in e.suffixes if s in found), None) for e in chosen or ()]
    reason = group.problem
    if None in places and not reason and chosen is not None:
        reason = f"there is no member {' or '.join(chosen[places.index(None)].suffixes)}"
    if reason:
        reason = f"{reason} (the sample is at byte {group.start:,})"
        return group.start, group.end, Reject(f"{input.shown}/{name}", reason)
    about: tuple[Any, ...] = () if chosen is not None else (found,)
    if main is not None:
        about = f"{name}.{next((s for s in main if s in found), '')}", found.get("json")
    return group.start, group.end, Row(f"{input.shown}/{name}", (*places, *about))
