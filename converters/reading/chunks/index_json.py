"""The ``index.json`` of a folder of chunks: where it is, and what it names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdata.errors import SourceError

from ..json_files import read_object
from ..locations import path_inside, path_of

__all__ = ["count_of", "index_path", "inside", "list_of", "read_index"]

_INDEX_BYTES = 256 << 20
_LARGEST_COUNT = 1 << 30
"""Samples in a chunk: offsets are 32 bits wide, and each takes four of the chunk's bytes."""


def index_path(location: Any) -> Path | None:
    """Return the ``index.json`` that a location is, or has in it."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "index.json" if path.is_dir() else path
    return path if path.name == "index.json" and path.is_file() else None


def read_index(path: Path) -> Mapping[str, Any]:
    """Return what an index says.

    Raises
    ------
    SourceError
        If it is no JSON object, or too large.
    """
    return read_object(path, _INDEX_BYTES)


def inside(root: Path, name: Any, place: Path) -> Path:
    """Return the path of a file that data names, which is in the folder `root`.

    Raises
    ------
    SourceError
        If the name is none, or leads out of the folder.
    """
    try:
        return Path(path_inside(root, name))
    except SourceError as error:
        raise SourceError(f"{place}: {error}") from None


def list_of(entry: Any, name: str, kind: type | tuple[type, ...], place: Path) -> Sequence[Any]:
    """Return a list of the index all of whose entries are of one kind.

    Raises
    ------
    SourceError
    """
    found = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(found, list) or not all(isinstance(item, kind) for item in found):
        raise SourceError(f"{place}: {name!r} is {str(found)[:60]!r}, which is no such list")
    return found


def count_of(entry: Any, name: str, place: Path) -> int:
    """Return a number of samples.

    Raises
    ------
    SourceError
        If it is none that a chunk can have.
    """
    found = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < _LARGEST_COUNT:
        raise SourceError(f"{place}: {name!r} is {str(found)[:60]!r}, not a number of samples")
    return found
