"""Which images of a list are outside its folder: allowed in the user's own list, and said."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["OutsideFiles"]


class OutsideFiles:
    """Counts files that are not below a folder, by their paths or by links.

    Each folder is looked through once: files are not asked for one by one.
    """

    def __init__(self, folder: Path | str) -> None:
        self._root = os.path.realpath(folder)
        self._folders: dict[str, tuple[bool, frozenset[str]]] = {}
        self.count, self.example = 0, ""

    def see(self, path: str) -> None:
        """Look at one file, which need not exist."""
        folder, name = os.path.split(path)
        found = self._folders.get(folder)
        if found is None:
            found = self._folders[folder] = self._is_inside(folder), frozenset(_links(folder))
        inside, links = found
        if not inside or (name in links and not self._is_inside(path)):
            self.count += 1
            self.example = self.example or path

    def _is_inside(self, path: str) -> bool:
        try:
            real = os.path.realpath(path)
        except ValueError:  # a null byte: such a row is a reject
            return True
        return os.path.commonpath((real, self._root)) == self._root


def _links(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries if entry.is_symlink())
    except (OSError, ValueError):
        return
