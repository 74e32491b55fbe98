"""Proofs that a file or folder is a dataset or a list of rejects of fastdata, also a damaged one.

A shard has a footer, or the columns of ``docs/format.md`` under their names in its container.  A
folder is a dataset if its manifest or a shard in it is proven, and it has no foreign name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from pathlib import Path
from typing import Final

from fastdata.errors import FastdataError, SourceError
from fastdata.formats.layout import FOOTER_BYTES, MAGIC, is_container
from fastdata.formats.lmdb_pages import LmdbFile
from fastdata.formats.manifest import MANIFEST, Manifest
from fastdata.regular_files import read_piece
from fastdata.replacing import Kind, foreign_name

__all__ = ["DATASET", "REJECTS", "REJECTS_HEAD", "listed_shards"]

REJECTS_HEAD: Final = b"index,key,reason\n"

_SHARD = re.compile(r"shard-\d{5,}(-[0-9a-f]{16})?\.(lmdb|h5)")
_IN_HDF5 = b"columns\0header\0\0footer\0"
"""Names in the root group of a shard, near the start of its file."""

_IN_LMDB = {b"column/key.data", b"column/key.bounds", b"header"}
_MOST_KEYS = 1_000_000
"""Keys that are looked at in an LMDB file without a footer."""


def listed_shards(folder: Path) -> set[str]:
    """Return the names of the shards of a dataset; none if it has no intact manifest."""
    with contextlib.suppress(FastdataError, OSError):
        return {entry.file for entry in Manifest.read(folder).shards}
    return set()


def _start(path: Path, count: int = 1 << 14) -> bytes:
    """Return the first bytes of a file; none of a link or a special file."""
    return read_piece(path, count) if path.is_file() and not path.is_symlink() else b""


def _is_shard(path: Path) -> bool:
    start = _start(path)
    if not is_container(start):
        return False
    if read_piece(path, FOOTER_BYTES, at_end=True).startswith(MAGIC) or _IN_HDF5 in start:
        return True
    with contextlib.suppress(SourceError):
        keys = (getattr(one, "key", b"") for one in LmdbFile(path).entries())
        return _IN_LMDB.intersection(itertools.islice(keys, _MOST_KEYS)) == _IN_LMDB
    return False


def _no_dataset(path: Path) -> str:
    if path.is_file():
        no_shard = "is a file, not a dataset (if you gave a pattern, put it in quotes)"
        return "" if _is_shard(path) else no_shard
    listed, own = listed_shards(path), set[str]()
    for name in os.listdir(path):
        is_listed = name in listed and is_container(_start(path / name))  # it may be damaged
        if is_listed or (_SHARD.fullmatch(name) and _is_shard(path / name)):
            own |= {name, f"{name}-lock"}  # which LMDB's own tools add
    if not (listed or own):
        return f"is a directory, not a dataset (it has no {MANIFEST} of fastdata)"
    if listed or b'"fastdata"' in _start(path / MANIFEST, 64):
        own |= {MANIFEST, f"{MANIFEST}.new"}
    if _start(path / "rejects.csv").startswith(REJECTS_HEAD):
        own.add("rejects.csv")
    foreign = foreign_name(path, own)
    return f"has {foreign}, which does not belong to the dataset" if foreign else ""


def _no_rejects(path: Path) -> str:
    return "" if _start(path).startswith(REJECTS_HEAD) else "is not a list of rejects"


DATASET: Final = Kind("a dataset", _no_dataset)
"""A shard, or a folder of shards."""

REJECTS: Final = Kind("a list of rejects", _no_rejects)
"""The list of rejected samples beside a dataset."""
