"""Where an LMDB file is; its pages are read by `fastdata.formats.lmdb_pages`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.formats.lmdb_pages import MAGIC

from ..locations import first_bytes, path_of

__all__ = ["lmdb_at"]


def lmdb_at(location: Any) -> Path | None:
    """Return the data file of an LMDB at a location, a file or a folder; None if there is none."""
    path = path_of(location)
    if path is None:
        return None
    path = path / "data.mdb" if path.is_dir() else path
    start = first_bytes(path, 32)
    magic = MAGIC.to_bytes(4, "little")
    return path if magic in (start[16:20], start[24:28]) else None
