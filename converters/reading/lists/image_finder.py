"""The image files of a list: by path, or by name in the folders around the list.

If the names in a list are not paths from its folder, a sample is looked for in the folders below
that folder, two levels deep, and in ``../images``: with the suffixes of images, and
without the first folders of the name.  A name that is found twice is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from fastdata.errors import OptionError, SourceError

from ..image_files import BOTH_CASES, SUFFIXES, is_hidden, is_image_name
from ..locations import folders_in, stat_of
from ..named_files import find_named
from ..selection import joined

__all__ = ["ImageFinder"]

_TRIED_NAMES = (32, 400)
_TRIED_FOLDERS = 128
_MOST_PARTS = 8
_PICTURES = re.compile(r"(jpeg|png)?(images?|imgs?|photos?|pictures?)", re.IGNORECASE)
"""Folders next to the list's folder that may have the images."""


class ImageFinder:
    """Finds the files of one column.

    images: a folder, from `root` or from where the program runs.
    note: where images are, if that is not the list's folder.
    """

    def __init__(self, root: Path, images: str = "") -> None:
        self.root, self.note, self._given = root, "", bool(images)
        if not (root / images).is_dir():
            if not os.path.isdir(images):
                raise OptionError(
                    f"images={images}: no such folder in {root} or the working directory"
                )
            images = os.path.abspath(images)
        self._folders = [images]
        self._all = self._folders  # these and others that a name may be in
        self._suffixes: tuple[str, ...] = ("",)
        self._skipped = 0  # folders at the start of each name that are not there

    def locate(self, name_at: Callable[[int], str], count: int) -> None:
        """Find out where files are, by some of the names."""
        tried = [""]
        for most in _TRIED_NAMES:
            places = range(0, count, max(1, -(-count // most)))
            tried = [name for name in map(name_at, places) if name.strip()]
            found_some = any(map(self.is_there, tried))
            if found_some and all(is_image_name(name) or self.is_there(name) for name in tried):
                return
            for folders in self._stages():
                found = self._among(folders, tried)
                if found:
                    self._take(found, folders, tried, map(name_at, range(count)))
                    return
        if tried and not is_image_name(tried[0]):
            raise SourceError(
                f"{self.root}: no image is called like {tried[0]!r} there or in folders around "
                f"it, with any of {', '.join(SUFFIXES)} or without. Say where they are: --option "
                "images=FOLDER, and which column names them: --option columns=image=COLUMN"
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
                for suffix in _lacking(name):
                    # Without its first folders, a name is only looked for in the list's folder.
                    for folder in folders if not skipped else folders[:1]:
                        if self._exists(folder, name + suffix):
                            found.setdefault(folder, {})[suffix] = None
            if found:
                return found
        self._skipped = 0
        return {}

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
        ends = dict.fromkeys(suffix for suffixes in found.values() for suffix in suffixes)
        self._folders, self._suffixes = list(found), tuple(ends)
        self._all = folders if len(found) > 1 else self._folders
        above: set[str] = set()
        if self._skipped:
            above.update(name[: -len(self._inner(name))] for name in names)
        if len(above) > 1:
            raise SourceError(
                f"{self.root}: the folders {joined(sorted(above), 5)} of the list do not exist, "
                "and two names may be equal without them. Where are they: --option images=FOLDER"
            )
        for name in tried:
            self.path(name)
        if not self._given and (self._folders != [""] or any(ends) or self._skipped):
            name = "{}" if not self._skipped else f"{{}} without {self._skipped} folders"
            shown = (os.path.join(f, name + end) for f in self._folders for end in ends)
            self.note = f"images are {joined(shown, 3)}, where {{}} is the name in the list"

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

    def path(self, name: str) -> Path:
        """Return the file that a name stands for."""
        inner = self._inner(name)
        literal = self._file(self._folders[0], inner + self._suffixes[0])
        if len(self._folders) == len(self._suffixes) == 1 and (
            not self._suffixes[0] or os.path.isfile(literal)
        ):
            return Path(literal)
        # The first names had some folders and suffixes, and this one may have another.
        for folders, suffixes in ((self._folders, self._suffixes), (self._all, _lacking(name))):
            files = (self._file(folder, inner + end) for folder in folders for end in suffixes)
            if there := list(filter(os.path.isfile, files)):
                break
        if len(there) > 1:
            shown = " or ".join(os.path.relpath(file, self.root) for file in there)
            raise SourceError(
                f"{self.root}: {name!r} may be {shown}. Say in which folder images are, --option "
                "images=FOLDER, or write their suffixes into the list"
            )
        return Path(there[0] if there else literal)

    def stat(self, name: str) -> tuple[int, int]:
        """Return size and time of the file of a name; zeros where there is none."""
        try:
            return stat_of(self.path(name))
        except ValueError:  # the row is rejected when it is read
            return 0, 0


def _lacking(name: str) -> tuple[str, ...]:
    """Return the suffixes that a name may lack."""
    return ("",) if is_image_name(name) else ("", *BOTH_CASES)


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
