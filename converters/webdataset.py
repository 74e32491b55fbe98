"""WebDataset: tar files with the members of each sample together.

``000017.jpg``, ``000017.cls``, ``000017.json`` are one sample.  Its key is the part before
the first dot of the file name, with folders; the part behind it, in lower case, is the name
of a member.  Source: the README of ``github.com/webdataset/webdataset`` and its
``tariterators.py``, whose grouping this follows.

No member is ever unpacked: workers read the images as pieces of the tar file.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Schema

from .base import FieldSpec, Reject, Sample
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start, other_compression
from .reading.exported import read_exported
from .reading.forward_reader import ForwardReader
from .reading.locations import files_at, first_bytes, map_files, printable
from .reading.options import Option
from .reading.refusals import no_files
from .reading.scanned import Place, ScannedSource
from .reading.small_memory import KeySet
from .reading.spans import MAX_RECORD, FileSpan, read_at
from .reading.tar.archive import BLOCK, is_header, members
from .reading.tar.members import (
    FieldMembers,
    Members,
    choose_members,
    exported_members,
    main_suffixes,
    member_fields,
)

__all__ = ["WebDatasetSource"]

_SUFFIXES = (".tar", ".tgz")
_PEEK = 16
_PEEK_BYTES = 16 << 20
"""Bytes of a member for recognising its kind."""

# Unlike webdataset's, this takes no ``._0.jpg`` (of a Mac's archives) in a folder for a member.
_NAME = re.compile(rb"((?:.*/)?[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")


class WebDatasetSource(ScannedSource):
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
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "tar files")
        self._compressed = map_files(_is_compressed, self.paths)
        self._wanted: frozenset[str] | None = None
        exported = None if members else read_exported(self.paths, self.name)
        first = self._first_samples()
        if exported is not None:
            chosen = exported_members(exported)
            resolved = exported.resolve_fields(fields, channels)
            self.packed_with, self.beside = exported.packed_with, [exported.path]
            known = {suffix for sample in first for suffix in sample}
            for entry in chosen.values():
                exported.check_place(";".join(entry.suffixes), entry.suffixes, known, self.paths[0])
        else:
            chosen = choose_members(members, first, self.notes, str(self.paths[0]))
            resolved = member_fields(chosen, first, fields or {}, channels)
        stored = exported is not None
        self.schema = Schema(named_classes(resolved, "label", classes), stored=stored)
        self._field_members = FieldMembers(self.schema, tuple(chosen.values()), stored)
        self._main = main_suffixes(chosen)
        wanted = {suffix for entry in chosen.values() for suffix in entry.suffixes}
        self._wanted = frozenset(wanted | {"json"} if stored else wanted)

    def _first_samples(self) -> list[dict[str, bytes]]:
        """Return the members of the first samples."""
        found: list[dict[str, bytes]] = []
        failure = "there is no sample in the files"
        for file, path in enumerate(self.paths):
            with self._opened(file) as front:
                for group in _groups(front, self._wanted):
                    if isinstance(group, Reject):
                        failure = group.reason
                        continue
                    if group.problem:
                        failure = group.problem
                        continue
                    found.append({s: _content(path, at) for s, at in group.members.items()})
                    if len(found) == _PEEK:
                        return found
        if not found:
            raise SourceError(f"{self.paths[0]}: nothing can be read: {failure}")
        return found

    def _opened(self, file: int) -> ForwardReader:
        return ForwardReader(self.paths[file], compressed=self._compressed[file])

    def samples_of(self, file: int) -> Iterator[Sample | Reject]:
        path = printable(str(self.paths[file]))
        try:
            with self._opened(file) as front:
                for group in _groups(front, self._wanted, seen=KeySet()):
                    yield self._sample(file, group)
        except (OSError, SourceError) as error:
            yield Reject.of(path, error)

    def scan(self, file: int) -> Iterator[Place | Reject]:
        with self._opened(file) as front:
            for group in _groups(front, self._wanted, seen=KeySet()):
                sample = self._sample(file, group)
                if isinstance(sample, Reject) or isinstance(group, Reject):
                    yield Reject(*sample)
                else:
                    yield Place(file, group.start, group.end - group.start)

    def at(self, place: Place) -> Sample | Reject:
        with ForwardReader(self.paths[place.file], compressed=False) as front:
            stop = place.offset + place.length
            return self._sample(place.file, next(_groups(front, self._wanted, place.offset, stop)))

    def compressed(self, file: int) -> bool:
        return self._compressed[file]

    def _sample(self, file: int, group: _Group | Reject) -> Sample | Reject:
        shard = printable(self.paths[file].name)
        if isinstance(group, Reject):
            return Reject(f"{shard}/{group.key}" if group.key else shard, group.reason)
        name = group.key.decode("utf-8", "replace")
        key = f"{shard}/{name}"
        places: list[FileSpan | bytes] = []
        reason = group.problem
        for entry in self._field_members.chosen:
            here = [group.members[s] for s in entry.suffixes if s in group.members]
            if here:
                places.append(here[0])
            elif not reason:
                reason = f"there is no member {' or '.join(entry.suffixes)}"
        if reason:
            return Reject(key, f"{reason} (the sample is at byte {group.start:,})")
        if not self._field_members.exported:
            return Sample(key, Members(tuple(places), self._field_members))
        name += "." + next((s for s in self._main if s in group.members), "")
        document = group.members.get("json")
        return Sample(key, Members(tuple(places), self._field_members, name, document))


def _content(path: Path, at: FileSpan | bytes) -> bytes:
    if isinstance(at, bytes):
        return at
    return read_at(path, at.offset, min(at.length, _PEEK_BYTES))


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


@dataclass(slots=True)
class _Group:
    """Members with one key, one behind the other."""

    key: bytes
    start: int  # start, end: in bytes
    end: int
    members: dict[str, FileSpan | bytes]  # by their suffixes
    problem: str = ""  # why they are not a sample
    held: int = 0  # bytes of members that are in memory


def _groups(
    front: ForwardReader,
    wanted: Container[str] | None,
    start: int = 0,
    stop: int | None = None,
    seen: KeySet | None = None,
) -> Iterator[_Group | Reject]:
    """Yield the samples of an archive or of a part of it, and rejects for damage.

    wanted: suffixes of the members to take; by default all, in a compressed archive only the first
        `_PEEK_BYTES` of each.
    seen: keys of earlier groups: a group with one of them has a problem.
    """
    group: _Group | None = None
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
                group = _Group(key, member.start, member.end, {})
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
                data = front.read(member.offset, min(member.size, _PEEK_BYTES))
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
        yield Reject.of(group.key.decode("utf-8", "replace") if group else "", error)
        return
    if group is not None:
        yield group
