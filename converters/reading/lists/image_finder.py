"""The image files of a list: by path, by name in the folders around the list, or by number.

If the names of a list are not paths from its folder, some names from all over the list are tried in
the folders in it, in folders of these and in ``../images``: with the suffixes of images, and
without their first folders.  A name that is found twice is refused.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import xxhash

from fastdata.errors import OptionError, SourceError

from ..image_files import BOTH_CASES, SUFFIXES, is_hidden, is_image_name
from ..locations import folders_in, stat_of
from ..named_files import find_named
from ..selection import joined

__all__ = ["ImageFinder", "folder_named"]

_TRIED_NAMES = (32, 400)
_TRIED_FOLDERS = 128
_MOST_PARTS = 8
_PICTURES = re.compile(r"(jpeg|png)?(images?|imgs?|photos?|pictures?)", re.IGNORECASE)
"""Folders beside the list's that are looked into."""


class ImageFinder:
    """Finds the files of one column.

    images: a folder, from `root` or from where the program runs, or a pattern: ``{}`` stands for
        the name, ``{column}`` for another cell of the row, ``{:06}`` for a number of six digits.
    note: where images are, if that is not the list's folder.
    found: whether one of the names tried is that of a file.
    """

    def __init__(self, root: Path, images: str = "", suffix: str = "") -> None:
        self.root = root
        self._pattern = _parsed(images) if "{" in images else None
        self._folders = [folder_named(root, images) if images and self._pattern is None else ""]
        self._given, self._suffix = bool(images), suffix
        self._suffixes: tuple[str, ...] = (suffix,)
        self._skipped = 0  # folders at the start of each name that are not there
        self._index: _FolderIndex | None = None
        self.note, self.found = "", False

    def locate(self, name_at: Callable[[int], str], count: int) -> None:
        """Find out where files are, by some of the names."""
        if self._pattern is not None:
            return
        tried = [""]
        for most in _TRIED_NAMES:
            places = range(0, count, max(1, -(-count // most)))
            tried = [name for name in map(name_at, places) if name.strip()]
            self.found = any(map(self.is_there, tried))
            if self.found and all(is_image_name(name) or self.is_there(name) for name in tried):
                return
            for folders in self._stages():
                found = self._among(folders, tried)
                if found:
                    self._take(found, folders, tried, map(name_at, range(count)))
                    return
        if tried and not (is_image_name(tried[0]) or self._suffix):
            raise SourceError(
                f"{self.root}: no image is called like {tried[0]!r} there or in folders around "
                f"it, with any of {', '.join(SUFFIXES)} or without. Say where they are: --option "
                "images=FOLDER (or a pattern, --option 'images=FOLDER/{}.jpg'), and which column "
                "names them: --option columns=image=COLUMN"
            )
        # Else these are names of image files that are not there: every row becomes a reject.

    def _stages(self) -> Iterator[list[str]]:
        """Yield folders that are tried together, the nearest first."""
        if self._given:
            yield self._folders
            return
        inside = _inside(self.root, [""])
        yield ["", *inside]
        yield _inside(self.root, inside)
        beside = _inside(self.root, [".."])
        yield ["..", *(name for name in beside if _PICTURES.fullmatch(name[3:]))]

    def _among(self, folders: list[str], tried: list[str]) -> dict[str, dict[str, None]]:
        """Return the folders with files of the names, and the suffixes that names lack there."""
        for skipped in range(_MOST_PARTS):
            self._skipped = skipped
            found: dict[str, dict[str, None]] = {}
            for name in tried:
                if name.count("/") + name.count("\\") < skipped:
                    continue
                for suffix in self._lacking(name):
                    # Without its first folders, a name is only looked for beside the list.
                    for folder in folders if not skipped else folders[:1]:
                        if self._exists(folder, name + suffix):
                            found.setdefault(folder, {})[suffix] = None
            if found:
                return found
        self._skipped = 0
        return {}

    def _lacking(self, name: str) -> tuple[str, ...]:
        if self._suffix:
            return (self._suffix,)
        return ("",) if is_image_name(name) else ("", *BOTH_CASES)

    def _take(
        self,
        found: Mapping[str, Mapping[str, None]],
        folders: list[str],
        tried: list[str],
        names: Iterator[str],
    ) -> None:
        """Take the folders in which the images are.

        names: all of them.
        """
        self.found = True
        ends = dict.fromkeys(suffix for suffixes in found.values() for suffix in suffixes)
        self._folders, self._suffixes = list(found), tuple(ends)
        above: set[str] = set()
        if self._skipped:
            above.update(name[: -len(self._inner(name))] for name in names)
        if len(above) > 1:
            raise SourceError(
                f"{self.root}: the folders {joined(sorted(above), 5)} of the list are not there, "
                "and names may be alike without them. Say where they are: --option images=FOLDER"
            )
        if len(found) > 1:
            self._index = _FolderIndex(self.root, folders, self._ends())
            self._folders = self._index.check(names)
        else:
            for name in tried:
                self._one_of(self._folders[0], self._inner(name))
        if not self._given and (self._folders != [""] or any(ends) or self._skipped):
            name = "{}" if not self._skipped else f"{{}} without {self._skipped} folders"
            shown = (os.path.join(f, name + end) for f in self._folders for end in ends)
            self.note = f"images are {joined(shown, 3)}, where {{}} is the name in the list"

    def _ends(self) -> tuple[str, ...]:
        return (self._suffix,) if self._suffix else ("", *BOTH_CASES)

    def is_there(self, name: str) -> bool:
        """Return whether a name is that of a file in the folders found."""
        return any(
            self._exists(folder, name + suffix)
            for folder in self._folders
            for suffix in self._suffixes
        )

    def _inner(self, name: str) -> str:
        """Return a name without the folders that are not there."""
        if not self._skipped:
            return name
        return name.replace("\\", "/").split("/", self._skipped)[-1]

    def _exists(self, folder: str, name: str) -> bool:
        try:
            return os.path.isfile(self._file(folder, self._inner(name)))
        except ValueError:  # a null byte
            return False

    def _file(self, folder: str, name: str) -> str:
        """Return the path of a file, which may be named as another system would."""
        literal = os.path.join(self.root, folder, name)
        if (name.isascii() and "\\" not in name) or os.path.isfile(literal):
            return literal
        try:
            return find_named(self.root / folder, name.strip("\ufeff"))
        except SourceError:  # it leads out of the folder
            return literal

    def _one_of(self, folder: str, name: str) -> str:
        """Return the file that a name stands for, with any suffix that it may lack."""
        there: list[str] = []
        for suffixes in (self._suffixes, self._lacking(name)):
            files = [self._file(folder, name + suffix) for suffix in suffixes]
            there = there or [file for file in files if os.path.isfile(file)]
        if len(there) > 1:
            shown = " or ".join(os.path.relpath(file, self.root) for file in there)
            raise SourceError(
                f"{self.root}: {name!r} may be {shown}. Say which: --option "
                f"suffix={os.path.splitext(there[0])[1]}"
            )
        if there or self._suffix or is_image_name(name):
            return [*there, files[0]][0]
        return files[0] + self._suffixes[0]

    def path(self, name: str, row: Mapping[str, str] | None = None) -> Path:
        """Return the file of a row.

        row: the other cells, by column, for a pattern.
        """
        if self._pattern is not None:
            found = "".join(_filled(part, name, row or {}) for part in self._pattern)
            return self.root / (found + self._suffix)
        name, folder = self._inner(name), self._folders[0]
        if self._index is not None:
            folder = self._index.folder_of(name)
        path = self._file(folder, name + self._suffixes[0])
        if len(self._suffixes) > 1 or (self._suffixes[0] and not os.path.isfile(path)):
            # The first names had one suffix, and this one may have another.
            return Path(self._one_of(folder, name))
        return Path(path)

    def stat(self, name: str, row: Mapping[str, str] | None = None) -> tuple[int, int]:
        """Return size and time of the file of a row; zeros where there is none."""
        try:
            return stat_of(self.path(name, row))
        except OptionError:
            raise
        except ValueError:  # the row is rejected when it is read
            return 0, 0


class _FolderIndex:
    """Which of several folders a file is in, by the hash of its name: 10 bytes a file."""

    def __init__(self, root: Path, folders: list[str], suffixes: tuple[str, ...]) -> None:
        self._root, self._all, self._suffixes = root, folders, suffixes
        hashes, places = [], []
        for number, folder in enumerate(folders):
            with os.scandir(os.path.join(root, folder)) as entries:
                names = [entry.name for entry in entries if is_image_name(entry.name)]
            hashes += [_hash(name) for name in names]
            places += [number] * len(names)
        found = np.array(hashes, np.uint64)
        order = np.argsort(found, kind="stable")
        self._hashes, self._places = found[order], np.array(places, np.uint16)[order]

    def _places_of(self, name: str) -> list[int]:
        if "/" in name:
            files = (os.path.join(self._root, folder, name) for folder in self._all)
            return [k for k, file in enumerate(files) if os.path.isfile(file)]
        found = set()
        for suffix in ("",) if is_image_name(name) else self._suffixes:
            at = np.searchsorted(self._hashes, np.uint64(_hash(name + suffix)), side="left")
            while at < len(self._hashes) and self._hashes[at] == _hash(name + suffix):
                found.add(int(self._places[at]))
                at += 1
        return sorted(found)

    def check(self, names: Iterator[str]) -> list[str]:
        """Return the folders in which the names are; refuse a name that is in two of them."""
        used = set()
        for name in names:
            found = self._places_of(name)
            if len(found) > 1:
                shown = joined(self._all[place] or "." for place in found)
                raise SourceError(
                    f"{self._root}: images called like {name!r} are in several folders: {shown}. "
                    "Say which: --option images=FOLDER"
                )
            used.update(found)
        return [self._all[place] for place in sorted(used)]

    def folder_of(self, name: str) -> str:
        found = self._places_of(name)
        return self._all[found[0]] if found else ""


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))


def _inside(root: Path, folders: list[str]) -> list[str]:
    """Return the folders in some folders, as far as these can be listed."""
    found = []
    for folder in folders:
        try:
            names = folders_in(root / folder)
        except OSError:
            continue
        found += [os.path.join(folder, name) for name in names if not is_hidden(name)]
    return found[:_TRIED_FOLDERS]


def folder_named(root: Path, images: str) -> str:
    """Return the folder that the option ``images=`` names, from `root` or from where this runs."""
    if (root / images).is_dir():
        return images
    if os.path.isdir(images):
        return os.path.abspath(images)
    raise OptionError(f"images={images}: no such folder in {root} or the working directory")


def _parsed(pattern: str) -> list[tuple[str, str | None, str]]:
    """Return text, column and format of each part of a pattern."""
    try:
        parts = list(string.Formatter().parse(pattern))
    except ValueError as error:
        raise OptionError(f"images={pattern}: {error}") from error
    return [(text, column, form or "") for text, column, form, _ in parts]


def _filled(part: tuple[str, str | None, str], name: str, row: Mapping[str, str]) -> str:
    text, column, form = part
    if column is None:
        return text
    if column and column not in row:
        raise OptionError(f"images: there is no column {column!r}; there are {joined(row)}")
    cell = row[column] if column else name
    if not form:
        return text + cell
    try:
        return text + format(int(cell), form)
    except ValueError:
        raise ValueError(
            f"{cell[:60]!r} is not a number, which the pattern {{:{form}}} needs"
        ) from None
