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
from .reading.image_files import has_own_images
from .reading.lists.image_finder import ImageFinder
from .reading.lists.list_table import ListTable, Table
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.text_table import TextTable, cell_of_value, cells_of
from .reading.locations import folders_in, printable
from .reading.named_files import find_named
from .reading.options import ClassFile, Option
from .reading.selection import joined, left_out
from .reading.splits import split_classes, split_of
from .reading.tables.arrow_fields import arrow, table_errors

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
        root = Path(location)
        found = metadata_files(root)
        described = {path.parent for path in found}
        # Folders beside those with metadata may have images that nothing describes.
        return any(map(names_files, found)) and (
            root in described or not any(has_own_images(f) for f in _places(root) - described)
        )

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
        files = metadata_files(self.root)
        if not files:
            raise SourceError(f"{self.root}: no metadata.csv, .jsonl or .parquet there")
        tables = {os.path.relpath(path.parent, self.root): read_table(path) for path in files}
        splits = {
            folder: split_of(table.path.relative_to(self.root)) or "other"
            for folder, table in tables.items()
        }
        names = sorted(set(splits.values()))
        first = next(iter(tables.values()))
        images = list(filter(is_file_column, first.columns))
        if not images:
            raise SourceError(f"{first.path}: no column file_name or *_file_name")
        if dict in (first.kinds or {}).get("objects", ()) and "objects" not in (fields or {}):
            raise SourceError(
                f"{first.path}: boxes in 'objects' are not read. Write a list with a row for each "
                "box (docs/converters/manifest.md); --field objects=string keeps the text"
            )
        several = len(names) > 1 or split is not None
        table = ListTable(tables, splits if several else None, images, chosen=True)
        if split is not None and split not in names and "split" not in first.columns:
            raise OptionError(f"split={split}: there are {joined(names)} in {self.root}")
        lists = [t for t in table.titles if t.endswith("s") and is_file_column(t[:-1])]
        self.notes += left_out("columns of several images a row", lists)
        kept = [k for k, title in enumerate(table.titles) if title not in lists]
        columns = [_field_name(table.titles[k]) for k in kept]
        if len(set(columns)) < len(columns):
            raise SourceError(f"{first.path}: two columns become one field: {columns}")
        check_names(fields or {}, columns)
        known: dict[str, Field | str] = {
            name: "mask" if "mask" in name.lower() else "image" for name in map(_field_name, images)
        }
        if several and "split" not in first.columns:
            known["split"] = ScalarField(classes=split_classes(names))
        main = columns.index(_field_name(_NAME if _NAME in images else images[0]))
        info = ListInfo(
            str(first.path), columns, main,
            {**known, **(fields or {})}, channels,
            read_class_names(classes) if classes is not None else None,
            table.kinds and [table.kinds[k] for k in kept],
            only=None if split is None else (columns.index("split"), split),
        )  # fmt: skip
        rows = map(cells_of(kept), table.rows())
        self._rows = RowSamples(info, rows, lambda name, main: _InsideFinder(self.root))
        if split is not None and "split" in known:
            self._rows.leave_out("split")
        self.notes += self._rows.notes
        self.schema = self._rows.schema
        self.num_samples = self._rows.num_samples

    # -- samples -------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Sample:
        return Sample(self.key_at(index), self._rows.values(index))

    def key_at(self, index: int) -> str:
        return printable(self._rows.key_at(index).replace("\\", "/"))

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


class ParquetTable:
    """Rows of a Parquet file as cells; see `TextTable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.columns = list(arrow(".parquet").read_schema(path).names)
        except table_errors() as error:
            raise SourceError(f"{path}: {error}") from error

    @functools.cached_property
    def kinds(self) -> dict[str, set[type]]:
        """The types of values in each column."""
        kinds: dict[str, set[type]] = {name: set() for name in self.columns}
        for row in self._objects():
            for name, value in row.items():
                kinds[name].add(type(value))
        return kinds

    def __iter__(self) -> Iterator[list[str]]:
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


def read_table(path: Path) -> Table:
    """Return the rows of a metadata file."""
    if path.suffix == ".parquet":
        return ParquetTable(path)
    separator = "," if path.suffix == ".csv" else None
    return TextTable(path, lambda cell: False, separator, True, exact=True)


def names_files(path: Path) -> bool:
    """Tell whether a metadata file has a column of file names."""
    try:
        return any(map(is_file_column, read_table(path).columns))
    except MissingExtraError:
        return True  # reading it raises that
    except (FastdataError, OSError, ValueError):
        return False


def is_file_column(title: str) -> bool:
    """Tell whether a column names files."""
    return title == "file_name" or title.endswith("_file_name")


def _places(root: Path) -> set[Path]:
    """Return the folders that metadata may lie in."""
    inner = {root / name for name in folders_in(root)}
    data = root / "data"
    return {root, *inner, *({data / name for name in folders_in(data)} if data in inner else ())}


def metadata_files(root: Path) -> list[Path]:
    """Return the metadata files of a folder, of folders in it, and of those in ``data``."""
    found = []
    for folder in sorted(_places(root), key=lambda path: (len(path.parts), path)):
        there = [folder / name for name in _NAMES if (folder / name).is_file()]
        if len(there) > 1:
            raise SourceError(
                f"{folder}: has {' and '.join(path.name for path in there)}; keep the one that "
                "is meant"
            )
        found += there
    return found
