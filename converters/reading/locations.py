"""Locations of a source's files: a file, a folder of files, or a pattern.

A pattern has the wildcards of a shell, ``*``, ``?`` and ``[]``, and braces:
``train-{00000..00146}.tar``, ``{a,b}.tfrecord``.  All names of braces must exist; a wildcard
matches existing files.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import bracex

from fastdata.errors import ResourceLimitError, SourceError, StorageError
from fastdata.regular_files import mirror_of, read_piece
from fastdata.waits import said_while

from .image_files import is_hidden, is_image_name

__all__ = [
    "files_at",
    "first_bytes",
    "folder_at",
    "folders_in",
    "is_folder",
    "is_pattern",
    "last_bytes",
    "map_files",
    "path_inside",
    "path_of",
    "printable",
    "stat_of",
]

T = TypeVar("T")

_LIMIT = 1_000_000
"""Files that one pattern may stand for."""

_REQUESTS = 16
"""Objects of a store that are looked at at once."""


def path_of(location: Any) -> Path | None:
    """Return the path that a location is; None of anything else, an iterable say."""
    return Path(location) if isinstance(location, (str, os.PathLike)) else None


def folder_at(location: Any) -> Path | None:
    """Return the folder that a location is; None if it is none."""
    path = path_of(location)
    return path if path is not None and path.is_dir() else None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell whether it is a folder or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def folders_in(folder: str | Path) -> list[str]:
    """Return the names of the folders in a folder, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if not is_hidden(e.name) and is_folder(e))


def is_pattern(location: Any) -> bool:
    """Tell whether a path that does not exist stands for others."""
    if not isinstance(location, (str, os.PathLike)) or os.path.exists(location):
        return False
    text = os.fspath(location)
    return isinstance(text, str) and (glob.has_magic(text) or ("{" in text and "}" in text))


def files_at(location: Any, suffixes: Iterable[str] = ()) -> list[Path]:
    """Return the files of a location, in sorted order; none if it is not a path.

    location: a file, a folder (the files directly in it) or a pattern.
    suffixes: of the files that are taken from a folder; all if empty.  A name with another suffix
        behind it (``a.tfrecord-00000-of-00010``, ``a.tar.gz``) counts too.
    """
    path = path_of(location)
    if path is None:
        return []
    if path.is_file():
        return [path]
    if path.is_dir():
        wanted = tuple(suffixes)
        with os.scandir(path) as found:
            entries = (e for e in found if not wanted or _has_suffix(e.name, wanted))
            names = sorted(e.name for e in entries if not is_hidden(e.name) and e.is_file())
        return [path / name for name in names]
    if not is_pattern(location):
        return []
    return _expanded(os.fspath(location))


def _has_suffix(name: str, wanted: tuple[str, ...]) -> bool:
    if is_image_name(name):  # a folder may have a million
        return False
    lowered = name.lower()
    return any(lowered.endswith(s) or f"{s}-" in lowered or f"{s}." in lowered for s in wanted)


def _expanded(pattern: str) -> list[Path]:
    try:
        names = bracex.expand(pattern, limit=_LIMIT, keep_escapes=True)
    except bracex.ExpansionLimitException as error:
        raise SourceError(f"{pattern}: stands for more than {_LIMIT:,} files") from error
    found: list[Path] = []
    missing: list[str] = []
    for name in names:
        if glob.has_magic(name):
            found += sorted(Path(p) for p in glob.glob(name, recursive=True) if os.path.isfile(p))
        elif os.path.isfile(name):
            found.append(Path(name))
        else:
            missing.append(name)
    if missing and (found or len(names) > len(missing)):
        raise SourceError(
            f"{pattern}: {len(missing):,} of the files that it names are missing, the first "
            f"{missing[0]}. Bring them, or name only existing files."
        )
    return list(dict.fromkeys(found))


def first_bytes(path: Path, count: int = 4096) -> bytes:
    """Return the start of a file, to recognise it by; empty where it cannot be read."""
    return _piece(path, count, at_end=False)


def last_bytes(path: Path, count: int) -> bytes:
    """Return the end of a file; empty where it cannot be read."""
    return _piece(path, count, at_end=True)


def _piece(path: Path, count: int, *, at_end: bool) -> bytes:
    try:
        return read_piece(path, count, at_end=at_end)
    except (ResourceLimitError, StorageError):
        raise
    except OSError:
        return b""


def map_files(function: Callable[[Path], T], paths: Sequence[Path]) -> list[T]:
    """Return the result of a function for each file, from its first or last bytes.

    Files in a store are read concurrently.
    """
    if not paths or mirror_of(paths[0]) is None:
        return list(map(function, paths))
    waiting = said_while(f"pieces of {len(paths):,} objects of a store")
    with waiting, ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(function, paths))


def printable(path: str) -> str:
    """Return a file name as valid Unicode, whatever bytes it has."""
    return os.fsencode(path).decode("utf-8", "replace")


def stat_of(path: Path | str) -> tuple[int, int]:
    """Return size and modification time (ns) of a file; zeros where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null byte
        return 0, 0
    return status.st_size, status.st_mtime_ns


# -- files that data names --------------------------------------------------------------


def path_inside(folder: Path | str, name: object) -> str:
    """Return the path of a file that data names, relative to a folder.

    Links in the folder are the user's own, and are followed.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise SourceError(f"{str(name)[:80]!r} is no name of a file")
    # Not by pathlib, which takes three times as long and interns every part of every name.
    parts = name.split("/")
    if not parts[0] or ".." in parts or not set(parts) - {"", "."}:
        raise SourceError(f"the file name {name[:200]!r} leads outside of its folder")
    return os.path.join(folder, name)
