"""WebDataset: tar files with the members of each sample together.

``000017.jpg``, ``000017.cls``, ``000017.json`` are one sample.  Its key is the part before
the first dot of the file name, with folders; the part behind it, in lower case, is the name
of a member.  Source: the README of ``github.com/webdataset/webdataset`` and its
``tariterators.py``, whose grouping this follows.

No member is ever unpacked: workers read the images as pieces of the tar file.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias

from fastdata.errors import SourceError
from fastdata.schema import Schema

from .base import FieldSpec, Reject, reject_reason
from .reading.box_forms import BoxesOption, BoxNumbers
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start, other_compression
from .reading.exported import read_exported
from .reading.locations import files_at, first_bytes, map_files
from .reading.options import Option
from .reading.refusals import no_files
from .reading.small_memory import KeySet
from .reading.spans import MAX_RECORD, FileSpan
from .reading.tar.archive import BLOCK, Member, is_header, members
from .reading.tar.members import (
    ChosenMember,
    MembersReader,
    choose_members,
    main_suffixes,
    member_fields,
    parse_member,
)
from .scan import Found, Input, Row, Scan, ScanSource, read

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
        boxes: BoxesOption = (),
    ) -> None:
        paths, notes = files_at(location, _SUFFIXES), list[str]()
        if not paths:
            raise no_files(location, "tar files")
        codecs = ["auto" if it else "" for it in map_files(_is_compressed, paths)]
        exported = None if members else read_exported(paths, self.name)
        forms: dict[str, BoxNumbers] = {}

        def start_of(values: tuple[Any, ...]) -> dict[str, bytes]:
            return {suffix: read(at) for suffix, at in values[0].items()}

        scan = Scan(paths, _Archives().rows, codecs)
        first = scan.first(start_of, paths[0], "sample can be read")
        if exported is not None:
            chosen = {name: parse_member(text) for name, text in exported.stored_as.items()}
            resolved = exported.resolve_fields(fields, channels)
            known = {suffix for sample in first for suffix in sample}
            for entry in chosen.values():
                exported.check_place(";".join(entry.suffixes), entry.suffixes, known, paths[0])
        else:
            chosen = choose_members(members, first, notes, str(paths[0]))
            resolved, forms = member_fields(chosen, first, fields or {}, channels, boxes, notes)
        schema = Schema(named_classes(resolved, "label", classes), stored=exported is not None)
        entries = tuple(chosen.values())
        main = None if exported is None else main_suffixes(chosen)
        scan = Scan(paths, _Archives(entries, main).rows, codecs)
        reader = MembersReader(schema, entries)
        super().__init__(scan, schema, reader, notes=notes, exported=exported, box_forms=forms)


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


class _Archives(NamedTuple):
    """How the members of archives become rows.

    chosen: the members that are taken, in their order; without it a row is a dict of the first
        bytes of all members.
    main: the suffixes of an export's main image; its rows end with the sample's name and its JSON
        member.
    """

    chosen: tuple[ChosenMember, ...] | None = None
    main: Sequence[str] | None = None

    def rows(self, input: Input, start: int, stop: int | None) -> Iterator[Found]:
        """Yield the samples of an archive."""
        wanted = {suffix for entry in self.chosen or () for suffix in entry.suffixes} | {"json"}
        seen = KeySet() if stop is None else None
        begun = ""
        try:
            for key, group in itertools.groupby(_named(input, start, stop), itemgetter(0)):
                if key:
                    begun = f"/{key.decode('utf-8', 'replace')}"
                    is_new = seen is None or seen.add(key)
                    problem = "" if is_new else "its key has come before in this file"
                    yield self._row(input, begun[1:], problem, group, wanted)
                begun = ""
        except (OSError, SourceError) as error:
            # What came of the sample is there, but it may not be all.
            yield start, start, Reject(f"{input.shown}{begun}", reject_reason(input.path, error))

    def _row(
        self, input: Input, name: str, reason: str, group: Iterable[_Named], wanted: set[str]
    ) -> Found:
        """Return the row of a sample's members, or why it is not a sample."""
        found: dict[str, FileSpan | bytes] = {}
        begin, end, held = -1, 0, 0
        for _, suffix, member in group:
            begin, end = member.start if begin < 0 else begin, member.end
            if self.chosen is not None and suffix not in wanted:
                continue
            size = member.size if self.chosen is not None else min(member.size, _PEEK_BYTES)
            held += size if input.size is None else 0
            if member.kind != "file":
                reason = f"{suffix} is a {member.kind}, which is not read"
            elif suffix in found:
                reason = f"two members {suffix}"
            elif held > MAX_RECORD:
                reason = f"more than {MAX_RECORD:,} bytes"
            else:
                found[suffix] = input.piece(member.offset, size)
        values: list[Any] = [] if self.chosen is not None else [found]
        for entry in self.chosen or ():
            values.append(next((found[s] for s in entry.suffixes if s in found), None))
            if values[-1] is None and not reason:
                reason = f"the sample has no member {' or '.join(entry.suffixes)}"
        if self.main is not None:
            values += [f"{name}.{next((s for s in self.main if s in found), '')}"]
            values += [found.get("json")]
        key = f"{input.shown}/{name}"
        if reason:
            return begin, end, Reject(key, f"{reason} (the sample is at byte {begin:,})")
        return begin, end, Row(key, tuple(values))


_Named: TypeAlias = tuple[bytes, str, Member]


def _named(input: Input, start: int, stop: int | None) -> Iterator[_Named]:
    """Yield the members of samples: key, suffix and member; the end of an archive has no key."""
    for member in members(input, start, stop):
        if member.kind == "end":
            yield b"", "", member
        name = member.name  # archives of Windows may have backslashes
        name = name if b"/" in name else name.replace(b"\\", b"/")
        match = _NAME.fullmatch(name)
        if match is not None and not _META.match(name) and member.kind != "folder":
            yield match[1].removeprefix(b"./"), match[2].decode("utf-8", "replace").lower(), member
