"""WebDataset: tar files in which the members of a sample stand together.

``000017.jpg``, ``000017.cls``, ``000017.json`` are one sample, whose key is what is before
the first dot of the file name, folders included, and whose members are called by what is
behind it, in lower case.  Source: the README of ``github.com/webdataset/webdataset`` and its
``tariterators.py``, whose grouping this follows.

No member is ever unpacked: workers read the images as pieces of the tar file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import Schema

from .base import Deferred, FieldSpec, Reject, Sample
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start, other_compression
from .reading.forward_reader import ForwardReader
from .reading.key_set import KeySet
from .reading.locations import files_at, first_bytes, printable
from .reading.refusals import no_files
from .reading.scanned import Place, ScannedSource
from .reading.spans import MAX_RECORD, FileSpan, read_at
from .reading.splits import has_images
from .reading.tar.archive import BLOCK, is_header, members
from .reading.tar.member_choice import Chosen, choose
from .reading.tar.member_values import settle, value_of

__all__ = ["WebDatasetSource"]

_SUFFIXES = (".tar", ".tgz")
# Unlike webdataset's, this takes no ``._0.jpg`` (of a Mac's archives) in a folder for a member.
_NAME = re.compile(rb"((?:.*/)?[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(rb"__[^/]*__($|/)")
_PEEK = 16
_PEEK_BYTES = 16 << 20


class WebDatasetSource(ScannedSource):
    """Shards of WebDataset, plain or gzip'd; a sample is the members with one key.

    Parameters
    ----------
    members : tuple of str
        What is taken: ``field=suffix``, ``field=suffix;suffix`` where samples have one or the
        other, ``field=json:key`` for an entry of a JSON member (``json:a.b`` for one inside
        another).  Default: images, ``cls`` as ``label``, and text, JSON (whole, as text),
        ``npy`` and numbers under the names they have.
    classes : str, optional
        A text file with the names of classes 0, 1, ..., one a line; ``cls`` may then hold
        names too.
    """

    name = "webdataset"
    summary = "WebDataset tar files, plain or gzip'd"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        files = files_at(location, _SUFFIXES)
        if not files:
            return False
        if Path(location).is_dir() and has_images(Path(location)):
            return False  # archives beside images, which are the dataset
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
        members: tuple[str, ...] = (),
        classes: str | None = None,
    ) -> None:
        self.notes = []
        self.paths = files_at(location, _SUFFIXES)
        if not self.paths:
            raise no_files(location, "tar files")
        self._compressed = [_is_compressed(path) for path in self.paths]
        self._wanted: frozenset[str] | None = None
        first = self._first_samples()
        chosen = choose(members, first, self.notes, str(self.paths[0]))
        settled = settle(chosen, first, fields or {}, channels)
        self.schema = Schema(named_classes(settled, "label", classes))
        self._plan = Plan(self.schema, tuple(chosen.values()))
        self._wanted = frozenset(suffix for entry in chosen.values() for suffix in entry.suffixes)

    def _first_samples(self) -> list[dict[str, bytes]]:
        """Return the members of the first samples."""
        found: list[dict[str, bytes]] = []
        failure = "there is no sample in the files"
        for file, path in enumerate(self.paths):
            with self._opened(file) as front:
                for group in self._groups(front):
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
                for group in self._groups(front, seen=KeySet()):
                    yield self._sample(file, group)
        except (OSError, SourceError) as error:
            yield Reject(path, str(error))

    def scan(self, file: int) -> Iterator[Place | Reject]:
        with self._opened(file) as front:
            for group in self._groups(front, seen=KeySet()):
                sample = self._sample(file, group)
                if isinstance(sample, Reject) or isinstance(group, Reject):
                    yield Reject(*sample)
                else:
                    yield Place(file, group.start, group.end - group.start)

    def at(self, place: Place) -> Sample | Reject:
        with ForwardReader(self.paths[place.file], compressed=False) as front:
            stop = place.offset + place.length
            return self._sample(place.file, next(self._groups(front, place.offset, stop)))

    def compressed(self, file: int) -> bool:
        return self._compressed[file]

    def _sample(self, file: int, group: Group | Reject) -> Sample | Reject:
        shard = printable(self.paths[file].name)
        if isinstance(group, Reject):
            return Reject(f"{shard}/{group.key}" if group.key else shard, group.reason)
        key = f"{shard}/{group.key.decode('utf-8', 'replace')}"
        places: list[FileSpan | bytes] = []
        reason = group.problem
        for entry in self._plan.chosen:
            here = [group.members[s] for s in entry.suffixes if s in group.members]
            if here:
                places.append(here[0])
            elif not reason:
                reason = f"there is no member {' or '.join(entry.suffixes)}"
        if reason:
            return Reject(key, f"{reason} (the sample is at byte {group.start:,})")
        return Sample(key, Members(tuple(places), self._plan))

    def _groups(
        self,
        front: ForwardReader,
        start: int = 0,
        stop: int | None = None,
        seen: KeySet | None = None,
    ) -> Iterator[Group | Reject]:
        """Yield the samples of an archive, or of a part of it, and where there is damage."""
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
                    group = Group(key, member.start, member.end, {}, "", 0)
                    if seen is not None and not seen.add(key):
                        group.problem = "its key has come before in this file, not just before it"
                group.end = member.end
                if self._wanted is not None and suffix not in self._wanted:
                    continue
                if member.kind != "file":
                    group.problem = f"{suffix} is a {member.kind}, which is not read"
                elif suffix in group.members:
                    group.problem = f"two members {suffix}"
                elif front.size is not None:
                    group.members[suffix] = FileSpan(front.name, member.offset, member.size)
                elif self._wanted is None:
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
            # What came of the group is there, but who knows whether it is all.
            yield Reject(group.key.decode("utf-8", "replace") if group else "", str(error))
            return
        if group is not None:
            yield group


class Group:
    """Members with one key, one behind the other."""

    __slots__ = ("end", "held", "key", "members", "problem", "start")

    def __init__(
        self,
        key: bytes,
        start: int,
        end: int,
        members: dict[str, FileSpan | bytes],
        problem: str,
        held: int,
    ) -> None:
        self.key, self.start, self.end = key, start, end
        self.members, self.problem, self.held = members, problem, held


class Plan(NamedTuple):
    """Which member of a sample each field is read from."""

    schema: Schema
    chosen: tuple[Chosen, ...]


class Members(Deferred):
    """The members of a sample, in the schema's order: places, or what was inflated."""

    def __init__(self, places: tuple[FileSpan | bytes, ...], plan: Plan) -> None:
        self.places, self.plan = places, plan

    def load(self) -> tuple[Any, ...]:
        """Return values; images are left as they are."""
        columns = zip(self.plan.schema.items(), self.plan.chosen, self.places, strict=True)
        return tuple(value_of(at, field, entry, name) for (name, field), entry, at in columns)


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
