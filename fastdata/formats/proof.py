"""Tells fastdata's datasets and lists of rejects from the files of others, also damaged ones.

A shard has a footer, or the columns of ``docs/format.md`` under their names in its container.  A
folder is a dataset if its manifest or a shard in it is proven, and it has no foreign name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path

from fastdata.errors import FastdataError, SourceError
from fastdata.formats.layout import FOOTER_BYTES, MAGIC, is_container
from fastdata.formats.lmdb_pages import LmdbFile
from fastdata.formats.manifest import MANIFEST, Manifest
from fastdata.regular_files import read_piece
from fastdata.replacing import Kind, foreign_name

__all__ = ["DATASET", "REJECTS", "REJECTS_HEAD", "listed_shards"]

REJECTS_HEAD = b"index,key,reason\n"

_SHARD = re.compile(r"shard-\d{5,}(-[0-9a-f]{16})?\.(lmdb|h5)")

_NAMES_IN_HDF5 = b"columns\0header\0\0footer\0"
"""The names in the root group of a shard, near the start of its file."""

_COLUMNS_IN_LMDB = {b"column/key.data", b"column/key.bounds", b"header"}

_MOST_KEYS = 1_000_000
"""Keys that are looked at in an LMDB file without a footer."""


def _is_shard(path: Path) -> bool:
    start = read_piece(path, 1 << 14)
    if not is_container(start):
        return False
    if read_piece(path, FOOTER_BYTES, at_end=True).startswith(MAGIC) or _NAMES_IN_HDF5 in start:
        return True
    with contextlib.suppress(SourceError):
        keys = (getattr(one, "key", b"") for one in LmdbFile(path).entries())
        found = _COLUMNS_IN_LMDB.intersection(itertools.islice(keys, _MOST_KEYS))
        return found == _COLUMNS_IN_LMDB
    return False


def _has_in_start(path: Path, text: bytes, count: int) -> bool:
    with contextlib.suppress(OSError):
        return text in read_piece(path, count)
    return False


def listed_shards(folder: Path) -> set[str]:
    """Return the names of the shards of a dataset; none if it has no intact manifest."""
    with contextlib.suppress(FastdataError, OSError):
        return {entry.file for entry in Manifest.read(folder).shards}
    return set()


def _no_dataset(path: Path) -> str:
    if not path.is_dir():
        return (
            ""
            if _is_shard(path)
            else ("is a file, not a dataset (if you gave a pattern, put it in quotes)")
        )
    listed, own = listed_shards(path), {f"{MANIFEST}.new"}
    for name in os.listdir(path):
        file = path / name
        if file.is_symlink() or not file.is_file():
            continue
        is_listed = name in listed and is_container(read_piece(file, 32))  # it may be damaged
        if is_listed or (_SHARD.fullmatch(name) and _is_shard(file)):
            own |= {name, f"{name}-lock"}  # which LMDB's own tools add
    if not listed and len(own) == 1:
        return f"is a directory, not a dataset (it has no {MANIFEST} of fastdata)"
    if listed or _has_in_start(path / MANIFEST, b'"fastdata"', 64):
        own.add(MANIFEST)
    if not _no_rejects(path / "rejects.csv"):
        own.add("rejects.csv")
    foreign = foreign_name(path, own)
    return f"has {foreign}, which does not belong to the dataset" if foreign else ""


def _no_rejects(path: Path) -> str:
    is_list = _has_in_start(path, REJECTS_HEAD, len(REJECTS_HEAD))
    return "" if is_list else "is not a list of rejects"


DATASET = Kind("a dataset", _no_dataset)
"""A shard, or a folder of shards."""

REJECTS = Kind("a list of rejects", _no_rejects)
"""The list of rejected samples beside a dataset."""
