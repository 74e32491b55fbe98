"""The list that lies beside the images of a folder, if there is exactly one."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from fastdata.errors import FastdataError, MissingExtraError, SourceError

from ..image_files import is_image_name
from ..locations import folders_in
from ..selection import joined
from ..small_memory import KeySet
from ..tables.arrow_types import arrow, table_errors
from .columns import image_column
from .text_table import JSON_SUFFIXES, TextTable, cell_of_value

__all__ = [
    "Metadata",
    "has_own_images",
    "images_not_listed",
    "is_file_column",
    "list_of_folder",
    "lists_of_folder",
    "metadata_files",
]

_SUFFIXES = (".csv", ".tsv", ".txt", *JSON_SUFFIXES)
_LOOKED_AT = 5
_MOST_LISTS = 20


def has_own_images(folder: Path) -> bool:
    """Tell whether there are image files directly in a folder."""
    with os.scandir(folder) as entries:
        return any(is_image_name(entry.name) and not entry.is_dir() for entry in entries)


def lists_of_folder(folder: Path) -> list[Path]:
    """Return the files in a folder of images that name some of these, in sorted order."""
    if not has_own_images(folder):
        return []
    names = sorted(e.name for e in os.scandir(folder) if e.name.lower().endswith(_SUFFIXES))
    # A text file for each image is no list of them.
    return [folder / name for name in names[:_MOST_LISTS] if _names_images(folder / name)]


def list_of_folder(folder: Path) -> Path | None:
    """Return the one such file; None where there are none or several."""
    found = lists_of_folder(folder)
    return found[0] if len(found) == 1 else None


def images_not_listed(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the note on images of a folder that a list does not name, in a list."""
    known = KeySet()
    for name in names:
        known.add(os.path.normpath(name).encode("utf-8", "surrogateescape"))
    images = (e.name for e in os.scandir(folder) if is_image_name(e.name))
    left = sorted(n for n in images if known.add(n.encode("utf-8", "surrogateescape")))
    if not left:
        return []
    return [f"{len(left):,} image files that it does not name left out: {joined(left, 3)}"]


def _names_images(path: Path) -> bool:
    """Tell whether one of the first rows names an image beside the file."""

    def is_there(cell: str) -> bool:
        return is_image_name(cell) and os.path.isfile(path.parent / cell)

    try:
        table = TextTable(path, is_there)
        image = image_column(table.columns)
        return any(is_there(row[image]) for row in itertools.islice(table, _LOOKED_AT))
    except (FastdataError, OSError, ValueError):
        return False


# -- metadata of Hugging Face's ImageFolder ---------------------------------------------


_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class Metadata:
    """One such file.

    split: of the folder that it is in; set by the source.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.split = path, ""
        self.is_csv = path.suffix == ".csv"

    def names_files(self) -> bool:
        """Tell whether it has a column of file names."""
        try:
            return any(map(is_file_column, self.columns))
        except MissingExtraError:
            return True  # which is said when it is read
        except (FastdataError, OSError, ValueError):
            return False

    @functools.cached_property
    def _text(self) -> TextTable:
        return TextTable(self.path, lambda cell: False, "," if self.is_csv else None, True)

    @property
    def columns(self) -> list[str]:
        if self.path.suffix != ".parquet":
            return self._text.columns
        try:
            return list(arrow(".parquet").read_schema(self.path).names)
        except table_errors() as error:
            raise SourceError(f"{self.path}: {error}") from error

    @functools.cached_property
    def kinds(self) -> dict[str, set[type]]:
        """The types of values in each column; nothing of CSV."""
        if self.path.suffix != ".parquet":
            return self._text.kinds or {}
        kinds: dict[str, set[type]] = {name: set() for name in self.columns}
        for row in self._objects():
            for name, value in row.items():
                kinds[name].add(type(value))
        return kinds

    def rows(self) -> Iterator[list[str]]:
        """Yield the rows as cells."""
        if self.path.suffix != ".parquet":
            yield from self._text
            return
        for row in self._objects():
            yield [cell_of_value(row.get(name)) for name in self.columns]

    def _objects(self) -> Iterator[dict[str, object]]:
        try:
            with arrow(".parquet").ParquetFile(self.path) as file:
                for batch in file.iter_batches(batch_size=1000, use_threads=False):
                    batch.validate(full=True)
                    yield from batch.to_pylist()
        except table_errors() as error:
            raise SourceError(f"{self.path}: {error}") from error


def is_file_column(title: str) -> bool:
    """Tell whether a column names files."""
    return title == "file_name" or title.endswith("_file_name")


def metadata_files(root: Path) -> list[Metadata]:
    """Return the metadata files of a folder, of folders in it, and of those in ``data``."""
    folders = [root, *_folders(root)]
    folders += _folders(root / "data") if (root / "data").is_dir() else []
    found = []
    for folder in folders:
        there = [folder / name for name in _NAMES if (folder / name).is_file()]
        if len(there) > 1:
            raise SourceError(
                f"{folder}: has {' and '.join(path.name for path in there)}; keep the one that "
                "is meant"
            )
        found += there
    return [Metadata(path) for path in found]


def _folders(root: Path) -> list[Path]:
    return [root / name for name in folders_in(root)]
