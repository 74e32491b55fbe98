"""The image files of a list: by path, by name in a neighbouring folder, or by number.

If the names of a list are not paths from its folder, the neighbouring folders and the suffixes of
images are tried with the first names.  Ambiguous names are refused.
"""

from __future__ import annotations

import contextlib
import os
import string
from collections.abc import Iterable, Mapping
from pathlib import Path

from fastdata.errors import OptionError, SourceError

from ..image_files import BOTH_CASES, SUFFIXES, is_hidden, is_image_name
from ..locations import folders_in, printable, stat_of
from ..selection import joined
from .outside import OutsideFiles

__all__ = ["ImageFinder", "folder_named", "folders_of"]

_TRIED_NAMES = 32
_TRIED_FOLDERS = 64


class ImageFinder:
    """Finds the files of one column.

    images: a folder, from `root` or from where the program runs, or a pattern: ``{}`` stands for
        the name, ``{column}`` for another cell of the row, ``{:06}`` for a number of six digits.
    """

    def __init__(self, root: Path, images: str = "", suffix: str = "") -> None:
        self.root = root
        self._pattern = _parsed(images) if "{" in images else None
        self._folders = [""]
        if images and self._pattern is None:
            self._folders = [folder_named(root, images)]
        self._given, self._images = bool(images), images
        self._suffix = suffix
        self._suffixes: tuple[str, ...] = (suffix,)
        self.note = ""

    def locate(self, names: Iterable[str]) -> None:
        """Find out where files are, by the first names."""
        if self._pattern is not None:
            return
        tried = [name for name in names if name.strip()][:_TRIED_NAMES]
        if any(self.is_there(name) for name in tried) and self._only(tried):
            return
        folders = self._folders if self._given else [*self._folders, *self._beside()]
        suffixes = (self._suffix,) if self._suffix else ("", *BOTH_CASES)
        found: dict[str, dict[str, None]] = {}
        for name in tried:
            for folder in folders:
                for suffix in suffixes:
                    if suffix and not self._suffix and is_image_name(name):
                        continue
                    if self._exists(os.path.join(folder, name + suffix)):
                        found.setdefault(folder, {})[suffix] = None
        if len(found) > 1:
            raise SourceError(
                f"{self.root}: images called like {tried[0]!r} are in several folders: "
                f"{joined(folder or '.' for folder in found)}. Say which: --option images=FOLDER"
            )
        if not found:
            if tried and not self._is_name(tried[0]):
                raise SourceError(
                    f"{self.root}: no image is called like {tried[0]!r} there or in "
                    f"{joined(folder for folder in folders if folder)}, with any of "
                    f"{', '.join(SUFFIXES)} or without. Say where they are: --option images=FOLDER "
                    "(or a pattern, --option 'images=FOLDER/{}.jpg'), and which column names "
                    "them: --option columns=image=COLUMN"
                )
            return  # names of image files that are not there: every row becomes a reject
        ((folder, ends),) = found.items()
        for name in tried:
            self._one_of(folder, name, tuple(ends))
        self._folders, self._suffixes = [folder], tuple(ends)
        if not self._given and (folder or any(ends)):
            shown = " or ".join(os.path.join(folder, "{}" + end) for end in ends)
            self.note = f"images are {shown}, where {{}} is the name in the list"

    def _only(self, names: list[str]) -> bool:
        """Return whether names are those of files, and not also numbers of files."""
        return all(is_image_name(name) or self.is_there(name) for name in names)

    def _is_name(self, name: str) -> bool:
        return is_image_name(name) or bool(self._suffix)

    def is_there(self, name: str) -> bool:
        """Return whether a name is that of a file in the folders found."""
        return any(
            self._exists(os.path.join(folder, name + suffix))
            for folder in self._folders
            for suffix in self._suffixes
        )

    def _exists(self, name: str) -> bool:
        try:
            return os.path.isfile(os.path.join(self.root, name))
        except ValueError:  # a null byte
            return False

    def _beside(self) -> list[str]:
        """Return the folders next to the list, without those inside them."""
        try:
            names = folders_in(self.root)
        except OSError:
            return []
        return [name for name in names if not is_hidden(name)][:_TRIED_FOLDERS]

    def _one_of(self, folder: str, name: str, suffixes: Iterable[str]) -> str:
        """Return the file that a name without suffix stands for; the first if there is none."""
        files = [os.path.join(folder, name + suffix) for suffix in suffixes]
        there = [file for file in files if self._exists(file)]
        if len(there) > 1:
            raise SourceError(
                f"{self.root}: {name!r} may be {' or '.join(there)}. Say which: --option "
                f"suffix={os.path.splitext(there[0])[1]}"
            )
        return there[0] if there else files[0]

    def path(self, name: str, row: Mapping[str, str] | None = None) -> Path:
        """Return the file of a row.

        row: the other cells, by column, for a pattern.
        """
        if self._pattern is not None:
            found = "".join(_filled(part, name, row or {}) for part in self._pattern)
            return self.root / (found + self._suffix)
        if len(self._suffixes) > 1:
            return self.root / self._one_of(self._folders[0], name, self._suffixes)
        path = self.root / self._folders[0] / (name + self._suffixes[0])
        if self._suffixes[0] and not self._suffix and not path.is_file():
            # The first names had one suffix, and this one may have another.
            return self.root / self._one_of(self._folders[0], name, ("", *BOTH_CASES))
        return path

    def outside(
        self, column: str, folders: Iterable[str], rows: Iterable[Mapping[str, str]]
    ) -> list[str]:
        """Return the note on images outside the list's folder, or outside that of ``images=``.

        column: the column of the images.
        folders: all folders at the beginning of its cells.
        rows: all rows, as cells by column; read only if one of the folders is outside or has links.
        """
        given = self._pattern[0][0] if self._pattern else self._folders[0] if self._given else ""
        root = os.path.join(self.root, given)
        found = OutsideFiles(os.path.dirname(root) if self._pattern else root)
        start = os.path.join(self.root, self._folders[0], "")
        if self._pattern is None:
            places = (os.path.dirname(os.path.join(start, folder, "")) for folder in folders)
            if not any(map(found.may_hold_any, places)):
                return []
        for row in rows:
            name = row[column]
            if self._pattern is None:
                for suffix in self._suffixes:
                    found.see(os.path.join(start, name + suffix))
            else:
                with contextlib.suppress(ValueError):  # the row is rejected when it is read
                    found.see(os.fspath(self.path(name, row)))
        if not found.count:
            return []
        return [
            f"{found.count:,} files of {column!r} are outside of the list's folder, by their paths "
            f"or by links, as {printable(found.example)}"
        ]

    def stat(self, name: str, row: Mapping[str, str] | None = None) -> tuple[int, int]:
        """Return size and time of the file of a row; zeros where there is none."""
        try:
            return stat_of(self.path(name, row))
        except OptionError:
            raise
        except ValueError:  # the row is rejected when it is read
            return 0, 0


def folders_of(names: Iterable[str]) -> set[str]:
    """Return the folders that paths of a list begin with."""
    # "/a.jpg" is in "/", not in the list's folder.
    return {folder + sign for folder, sign, _ in (name.rpartition("/") for name in names)}


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
