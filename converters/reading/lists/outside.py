"""Images of a list that are outside its folder: allowed, with a note."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["OutsideFiles"]


class OutsideFiles:
    """Counts files that are not below a folder, by their paths or by links.

    Each folder is scanned once, instead of a call per file.
    """

    def __init__(self, folder: Path | str) -> None:
        self._root = os.path.realpath(folder)
        self._folders: dict[str, tuple[bool, frozenset[str]]] = {}
        self.count, self.example = 0, ""

    def may_hold_any(self, folder: str) -> bool:
        """Return whether a file in this folder may be outside: the folder is, or has links."""
        inside, links = self._look(folder)
        return not inside or bool(links)

    def _look(self, folder: str) -> tuple[bool, frozenset[str]]:
        if folder not in self._folders:
            links: frozenset[str] = frozenset()
            with contextlib.suppress(OSError, ValueError), os.scandir(folder) as entries:
                links = frozenset(entry.name for entry in entries if entry.is_symlink())
            self._folders[folder] = self._is_inside(folder), links
        return self._folders[folder]

    def see(self, path: str) -> None:
        """Look at one file, which need not exist."""
        folder, name = os.path.split(path)
        inside, links = self._look(folder)
        if not inside or (name in links and not self._is_inside(path)):
            self.count += 1
            self.example = self.example or path

    def _is_inside(self, path: str) -> bool:
        try:
            real = os.path.realpath(path)
        except ValueError:  # a null byte: such a row is a reject
            return True
        return os.path.commonpath((real, self._root)) == self._root
