"""WebDataset: tar files with the members of each sample together.

``000017.jpg``, ``000017.cls``, ``000017.json`` are one sample.  Its key is the part before
the first dot of the file name, with folders; the part behind it, in lower case, is the name
of a member.  Source: the README of ``github.com/webdataset/webdataset`` and its
``tariterators.py``, whose grouping this follows.

No member is ever unpacked: workers read the images as pieces of the tar file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import SourceError
from fastdata.schema import Schema

from .base import FieldSpec
from .reading.class_names import named_classes
from .reading.compression import compression_of, inflated_start, other_compression
from .reading.exported import read_exported
from .reading.locations import files_at, first_bytes, map_files
from .reading.options import Option
from .reading.refusals import no_files
from .reading.tar.archive import BLOCK, is_header
from .reading.tar.members import (
    MembersReader,
    choose_members,
    exported_members,
    main_suffixes,
    member_fields,
)
from .reading.tar.samples import PEEK_BYTES, sample_rows
from .scan import Scan, ScanSource, read

__all__ = ["WebDatasetSource"]

_SUFFIXES = (".tar", ".tgz")


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
        every = Scan(paths, sample_rows, codecs)
        first = every.first(_first_members, paths[0], "sample can be read")
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
            Scan(paths, partial(sample_rows, chosen=entries, main=main), codecs),
            schema,
            MembersReader(schema, entries),
            notes=notes,
            exported=exported,
        )


def _first_members(values: tuple[Any, ...]) -> dict[str, bytes]:
    """Return the first bytes of each member."""
    return {
        suffix: at[:PEEK_BYTES]
        if isinstance(at, bytes)
        else read(at._replace(length=min(at.length, PEEK_BYTES)))
        for suffix, at in values[0].items()
    }


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
