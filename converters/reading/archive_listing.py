"""What is in a tar or zip archive of images, whichever it is: names, problems and places."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastdata.errors import SourceError

from .class_folders import common_top
from .compression import compression_of, inflated_start
from .forward_reader import ForwardReader
from .locations import first_bytes, printable
from .small_memory import KeySet, StringTable
from .tar.archive import BLOCK, is_header, members
from .zip_archive import is_zip, zip_members

__all__ = ["archive_entries", "archive_kind", "refuse_groups"]

Entry = tuple[str, str, Iterable[int]]
"""Name, why it cannot be read (empty if it can), and place; a folder's name ends in a slash."""


def archive_kind(path: Path) -> str:
    """Return what an archive is: "tar", "gzip" (of tar), "zip", or "" for none."""
    start = first_bytes(path)
    if is_zip(start):
        return "zip"
    if is_header(start[:BLOCK]):
        return "tar"
    is_gzip = compression_of(start) == "gzip" and is_header(inflated_start(start, BLOCK))
    return "gzip" if is_gzip else ""


def archive_entries(path: Path, kind: str) -> Iterator[Entry]:
    """Yield files and folders, but for what Macs put beside them; names without ``./``."""
    for name, problem, place in _zipped(path) if kind == "zip" else _tarred(path, kind):
        parts = [part for part in name.split("/")[:-1] if part not in ("", ".")]
        last = name.rpartition("/")[2]
        if "__MACOSX" in parts or last.startswith("._") or last == ".DS_Store":
            continue
        if ".." in parts:
            problem = "a name with .. in it is not taken"
        yield "/".join([*parts, last]), problem, place


def _tarred(path: Path, kind: str) -> Iterator[Entry]:
    with ForwardReader(path, compressed=kind == "gzip") as front:
        for member in members(front):
            name = os.fsdecode(member.name)
            is_folder = member.kind == "folder"
            problem = "" if member.kind == "file" else f"a {member.kind}, which is not read"
            name += "/" * (is_folder and not name.endswith("/"))
            yield name, problem, (member.offset, member.size)


def _zipped(path: Path) -> Iterator[Entry]:
    for name, member in zip_members(path):
        yield name, member.problem(), member


def refuse_groups(place: str, images: StringTable, others: list[str]) -> None:
    """Refuse a tar file in which members of one name but for the suffix may be one sample."""
    keys, names = KeySet(), KeySet()
    beside = {_key(name) for name in others}
    for name in map(images.__getitem__, range(len(images))):
        key = _key(name)
        # A name that stands twice is another matter.
        is_new = names.add(os.fsencode(name))
        if key in beside or (is_new and not keys.add(os.fsencode(key))):
            folder = "/".join(key.split("/")[: common_top(images)]) or "."
            raise SourceError(
                f"{place}: there are several members called {printable(key)}, with one suffix and "
                "another. If they are one sample: --format webdataset. If one is a picture of a "
                "class folder and the other something beside it, extract the archive and pack the "
                f"folder {printable(folder)}"
            )


def _key(name: str) -> str:
    """Return the name before its first dot, by which WebDataset groups; or before a number."""
    folder, _, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    if any(letter.isdigit() for letter in suffix):  # img.0001.jpg: none of WebDataset's
        stem = os.path.splitext(file)[0]
    return f"{folder}/{stem}" if stem else name
