"""Metadata files of Hugging Face's ImageFolder: where they are, their columns and rows."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from fastdata.errors import FastdataError, MissingExtraError, SourceError

from ..tables.arrow_types import arrow, table_errors
from .text_table import TextTable, cell_of_value

__all__ = ["Metadata", "is_file_column", "metadata_files"]

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
    return [root / name for name in sorted(e.name for e in os.scandir(root) if e.is_dir())]
