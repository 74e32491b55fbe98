"""Images with ``metadata.csv``, ``.jsonl`` or ``.parquet`` beside them: Hugging Face's ImageFolder.

::

    train/0.jpg
    train/metadata.jsonl   {"file_name": "0.jpg", "text": "a jay", "weight": 0.5}

Which files are metadata, and what ``file_name`` and ``*_file_name`` become: ``datasets``,
``packaged_modules/folder_based_builder/folder_based_builder.py``; splits are by the folders' names.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from fastdata.errors import FastdataError, MissingExtraError, OptionError, SourceError
from fastdata.schema import Field, ScalarField

from .base import FieldSpec, IndexedSource, Sample
from .reading.class_names import read_class_names
from .reading.field_names import safe_name
from .reading.fields import check_names
from .reading.fingerprints import hash_samples
from .reading.lists.image_finder import ImageFinder
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.text_table import TextTable, cell_of_value
from .reading.locations import folders_in, printable
from .reading.named_files import find_named
from .reading.options import ClassFile, Option
from .reading.selection import joined, left_out
from .reading.splits import split_classes, split_of
from .reading.tables.arrow_types import arrow, table_errors

__all__ = ["HfFolderSource"]

_NAME = "file_name"
_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class HfFolderSource(IndexedSource):
    """Rows of metadata files; ``file_name`` is ``image``, ``X_file_name`` the image ``X``."""

    name = "hf_folder"
    summary = "images with metadata.csv, .jsonl or .parquet, as Hugging Face's ImageFolder"
    parts = ("**/metadata.csv|**/metadata.jsonl|**/metadata.parquet",)

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return any(map(Metadata.names_files, metadata_files(Path(location))))

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        split: Annotated[
            str | None, Option("take only this split: train, validation, test")
        ] = None,
        classes: ClassFile = None,
    ) -> None:
        self.root, self.notes = Path(location), []
        self._tables = self._compared(metadata_files(self.root))
        titles = self._tables[0].columns
        lists = [t for t in titles if is_file_column(t.removesuffix("s")) and t.endswith("s")]
        self.notes += left_out("columns of several images a row", lists)
        if dict in self._tables[0].kinds.get("objects", ()) and "objects" not in (fields or {}):
            raise SourceError(
                f"{self._tables[0].path}: boxes in 'objects' are not read. Write a list with a row "
                "for each box (docs/converters/manifest.md); --field objects=string keeps the text"
            )
        self._kept = [k for k, title in enumerate(titles) if title not in lists]
        names = [_field_name(titles[k]) for k in self._kept]
        self._images = [k for k, at in enumerate(self._kept) if is_file_column(titles[at])]
        if not self._images:
            raise SourceError(f"{self._tables[0].path}: no column file_name or *_file_name")
        splits = {table.split or "other" for table in self._tables}
        if split is not None and split not in splits and "split" not in names:
            raise OptionError(f"split={split}: there are {joined(sorted(splits))} in {self.root}")
        self._several = "split" not in names and (len(splits) > 1 or split is not None)
        names += ["split"] * self._several
        if len(set(names)) < len(names):
            raise SourceError(f"{self._tables[0].path}: two columns become one field: {names}")
        check_names(fields or {}, names)
        known: dict[str, Field | str] = {
            names[k]: "mask" if "mask" in names[k].lower() else "image" for k in self._images
        }
        if self._several:
            known["split"] = ScalarField(classes=split_classes(sorted(splits)))
        main = next((k for k in self._images if titles[self._kept[k]] == _NAME), self._images[0])
        info = ListInfo(
            str(self._tables[0].path), names, main, {**known, **(fields or {})}, channels,
            read_class_names(classes) if classes is not None else None, self._kinds(),
            only=None if split is None else (names.index("split"), split),
        )  # fmt: skip
        self._rows = RowSamples(info, self._cells(), lambda name, main: _InsideFinder(self.root))
        if split is not None and self._several:
            self._rows.leave_out("split")
        self.notes += self._rows.notes
        self.schema = self._rows.schema
        self.num_samples = self._rows.num_samples

    # -- tables --------------------------------------------------------------------------

    def _compared(self, tables: list[Metadata]) -> list[Metadata]:
        """Return the tables, which have the same columns, with their splits."""
        if not tables:
            raise SourceError(f"{self.root}: no metadata.csv, .jsonl or .parquet there")
        for table in tables:
            table.split = split_of(table.path.relative_to(self.root))
            if set(table.columns) != set(tables[0].columns):
                raise SourceError(
                    f"{table.path}: its columns are {joined(table.columns)}; {tables[0].path} has "
                    f"{joined(tables[0].columns)}. Pack one folder at a time"
                )
        return tables

    def _kinds(self) -> list[set[type]] | None:
        """Return the types of columns; None of CSV, which does not tell."""
        if any(table.is_csv for table in self._tables):
            return None
        titles = self._tables[0].columns
        of = [set().union(*(t.kinds[titles[k]] for t in self._tables)) for k in self._kept]
        return of + [{str}] * self._several

    def _cells(self) -> Iterator[list[str]]:
        """Yield the rows of all tables, their files as paths below the root."""
        titles = self._tables[0].columns
        for table in self._tables:
            folder = os.path.relpath(table.path.parent, self.root)
            order = [table.columns.index(title) for title in titles]
            for row in table.rows():
                cells = [row[order[k]] for k in self._kept]
                for k in self._images:
                    cells[k] = os.path.normpath(os.path.join(folder, cells[k])) if cells[k] else ""
                yield cells + [table.split or "other"] * self._several

    # -- samples -------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self._rows.values(index))

    def key_at(self, index: int) -> str:
        return printable(self._rows.key_at(index))

    def fingerprints(self, limit: int | None = None) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return hash_samples(self.num_samples, limit, self._rows.parts)


class _InsideFinder(ImageFinder):
    """Files that metadata names: as they are named, and never outside of the folder."""

    def locate(self, name_at: Any, count: int) -> None:
        pass

    def path(self, name: str, row: Any = None) -> Path:
        return Path(find_named(self.root, name))


def _field_name(title: str) -> str:
    """Return the field of a column, as `datasets` names columns of files."""
    if is_file_column(title):
        return safe_name(title.removesuffix(_NAME).rstrip("_") or "image")
    return safe_name(title)


# -- its files --------------------------------------------------------------------------


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
            return True  # reading it raises that
        except (FastdataError, OSError, ValueError):
            return False

    @functools.cached_property
    def _text(self) -> TextTable:
        separator = "," if self.is_csv else None
        return TextTable(self.path, lambda cell: False, separator, True, exact=True)

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
