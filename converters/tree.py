"""A source as a tree of folders: on a disk, in an archive, or below the URL of a store.

A tree lists a folder when it is asked for it, and keeps the list.  It never shows hidden files:
names that begin with a dot, and what operating systems leave behind.  Reading of class folders
(`folder.py`) and their recognition (`detect.py`) see only trees, so all three kinds of places give
the same classes, numbers and order of images.
"""

from __future__ import annotations

import abc
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastdata.errors import SourceError
from fastdata.regular_files import read_regular

from .reading.image_files import is_hidden, is_image_name
from .reading.locations import first_bytes, is_folder, stat_of
from .reading.small_memory import StringTable

__all__ = ["DiskTree", "Folder", "ListedTree", "Tree", "join"]


class Folder:
    """What is in one folder: sorted names.

    The names of images are one text; a list takes four times the memory.

    rows: for each image, its number in the archive or the store; empty on a disk.
    """

    def __init__(self) -> None:
        self.folders: list[str] = []
        self.others: list[str] = []
        self.rows: array[int] = array("q")
        self.count = 0
        self._images = ""

    @property
    def images(self) -> list[str]:
        """Names of the images."""
        return self._images.split("/") if self.count else []

    def set_images(self, names: Sequence[str]) -> None:
        """Keep the names of the images."""
        self.count, self._images = len(names), "/".join(names)


class Tree(abc.ABC):
    """Folders by their path from the top, ``a/b``; the top is "".

    place: the location, for messages.
    hidden: how many hidden files and folders were left out, by name.
    """

    place: str
    hidden: Counter[str]

    @abc.abstractmethod
    def folder(self, name: str) -> Folder:
        """Return the content of a folder."""

    @abc.abstractmethod
    def read(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the content of some files; None if one cannot be read."""

    def head(self, name: str, size: int) -> bytes | None:
        """Return the first bytes of a file; None if it cannot be read."""
        (data,) = self.read([name])
        return None if data is None else data[:size]

    def names(self, depth: int = 3) -> list[str]:
        """Return the paths of folders and of files other than images, down to a depth."""
        found, waiting = list[str](), [""]
        for name in waiting:
            folder = self.folder(name)
            found += [join(name, one) for one in (*folder.folders, *folder.others)]
            if name.count("/") + 2 < depth + bool(not name):
                waiting += [join(name, one) for one in folder.folders]
        return found

    def below(self, name: str) -> Iterator[str]:
        """Yield a folder and all folders below it, sorted by path."""
        found, waiting = [], [name]
        while waiting:
            found.append(waiting.pop())
            waiting += [join(found[-1], inner) for inner in self.folder(found[-1]).folders]
        yield from sorted(found)

    def count(self, name: str) -> int:
        """Return the number of images in a folder and below it."""
        return sum(self.folder(one).count for one in self.below(name))


def join(folder: str, name: str) -> str:
    """Return the path of something in a folder."""
    return f"{folder}/{name}" if folder else name


class DiskTree(Tree):
    """A folder on a disk; links are followed.

    loops: links to a folder above themselves; they are left out.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.place = root, os.fspath(root)
        self.hidden, self.loops = Counter(), list[str]()
        above = frozenset(map(_identity, root.absolute().parents))
        if _identity(root) in above:
            raise SourceError(
                f"{root} is a link to {root.resolve()}, a folder above it, not to a class folder. "
                "Remove the link."
            )
        self._above = {"": above | frozenset(map(_identity, [root, *root.resolve().parents]))}
        self._folders: dict[str, Folder] = {}

    def folder(self, name: str) -> Folder:
        if name not in self._folders:
            self._folders[name] = self._listed(name)
        return self._folders[name]

    def _listed(self, name: str) -> Folder:
        found, images = Folder(), list[str]()
        above = self._above[name]
        with os.scandir(os.path.join(self.place, name)) as entries:
            for entry in entries:
                if is_hidden(entry.name):
                    self.hidden[entry.name] += 1
                elif is_folder(entry):
                    here = _identity(entry.path)
                    if here in above:
                        self.loops.append(entry.path)
                        continue
                    self._above[join(name, entry.name)] = above | {here}
                    found.folders.append(entry.name)
                else:
                    (images if is_image_name(entry.name) else found.others).append(entry.name)
        found.folders.sort()
        found.others.sort()
        found.set_images(sorted(images))
        return found

    def head(self, name: str, size: int) -> bytes | None:
        path = Path(self.place, name)
        data = first_bytes(path, size)
        return data if data or stat_of(path)[0] == 0 else None

    def read(self, names: Sequence[str]) -> list[bytes | None]:
        return list(map(self._read, names))

    def _read(self, name: str) -> bytes | None:
        try:
            return read_regular(os.path.join(self.place, name))
        except (OSError, SourceError):
            return None


def _identity(path: str | Path) -> tuple[int, int]:
    """Return what two names of one folder have in common."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


class ListedTree(Tree):
    """A tree made of a list of names, those of an archive or a store."""

    def __init__(self, place: str) -> None:
        self.place, self.hidden = place, Counter()
        self._folders = {"": Folder()}
        self._other_rows: dict[str, int] = {}
        self._names, self._rows = StringTable(), array("q")

    def add(self, name: str, row: int) -> None:
        """Add a file; the name of a folder ends in a slash."""
        *parents, last = name.split("/")
        hidden = next(filter(is_hidden, (*parents, last)), None)
        if hidden is not None:
            self.hidden[hidden] += 1
            return
        folder = self._folder("/".join(parents))
        if is_image_name(last):
            folder.rows.append(len(self._rows))
            self._names.append(last)
            self._rows.append(row)
        elif last:
            folder.others.append(last)
            self._other_rows[name] = row

    def _folder(self, name: str) -> Folder:
        found = self._folders.get(name)
        if found is None:
            found = self._folders[name] = Folder()
            above, _, last = name.rpartition("/")
            self._folder(above).folders.append(last)
        return found

    def finish(self) -> None:
        """Sort all names; images of one name stay in the order in which they were added."""
        for found in self._folders.values():
            found.folders.sort()
            found.others.sort()
            found.rows = array("q", sorted(found.rows, key=self._names.__getitem__))
            found.set_images([self._names[at] for at in found.rows])
            found.rows = array("q", map(self._rows.__getitem__, found.rows))
        self._names, self._rows = StringTable(), array("q")

    def folder(self, name: str) -> Folder:
        return self._folders[name]

    def row_of(self, name: str) -> int:
        """Return the number of a file."""
        if name in self._other_rows:
            return self._other_rows[name]
        folder, _, file = name.rpartition("/")
        found = self._folders[folder]
        return found.rows[found.images.index(file)]
