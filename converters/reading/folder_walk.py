"""Folders below a folder, links followed, and none of them round in a circle."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import SourceError

__all__ = ["folders_in", "walk"]


def walk(folder: Path, loops: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder below one, itself included, with the files in it; links are followed.

    A link that leads to a folder above itself is added to `loops`.  A folder to which several
    links lead is yielded as often.
    """
    above = frozenset(_place(parent) for parent in folder.absolute().parents)
    if _place(folder) in above:
        raise SourceError(
            f"{folder} is a link to {folder.resolve()}, a folder above it, not to a class folder. "
            "Remove the link."
        )
    above |= {_place(parent) for parent in [folder, *folder.resolve().parents]}
    waiting = [(str(folder), above)]
    while waiting:
        path, above = waiting.pop()
        files = []
        with os.scandir(path) as entries:
            for entry in entries:
                if not _is_folder(entry):
                    files.append(entry.name)
                elif _place(entry.path) in above:
                    loops.append(os.path.relpath(entry.path, folder.parent))
                else:
                    waiting.append((entry.path, above | {_place(entry.path)}))
        yield path, files


def _place(path: str | Path) -> tuple[int, int]:
    """Return what two names of one folder have in common."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether it is a folder or a link to one; a link to itself is none."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False


def folders_in(path: Path) -> list[str]:
    """Return the names of the folders in a folder, sorted."""
    return sorted(entry.name for entry in os.scandir(path) if _is_folder(entry))
