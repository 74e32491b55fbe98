"""Hugging Face's ImageFolder: images with ``metadata.csv``, ``.jsonl`` or ``.parquet``.

::

    train/0.jpg
    train/metadata.jsonl   {"file_name": "0.jpg", "text": "a jay", "weight": 0.5}

Which files are metadata, and what ``file_name`` and ``*_file_name`` become: ``datasets``,
``packaged_modules/folder_based_builder/folder_based_builder.py``; splits are by the folders' names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from fastdata.errors import FastdataError, MissingExtraError, SourceError
from fastdata.schema import Field

from .base import FieldSpec
from .manifest import ManifestSource
from .reading.class_names import read_class_names
from .reading.field_names import safe_name
from .reading.fields import check_names
from .reading.image_files import has_own_images
from .reading.lists.image_finder import ImageFinder
from .reading.lists.list_table import ListTable
from .reading.lists.row_samples import ListInfo, RowSamples
from .reading.lists.text_table import TextTable
from .reading.locations import folders_in
from .reading.named_files import find_named
from .reading.options import ClassFile, Option
from .reading.splits import split_of

__all__ = ["HfFolderSource"]

_NAME = "file_name"
_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


class HfFolderSource(ManifestSource):
    """Rows of metadata files; ``file_name`` is ``image``, ``X_file_name`` the image ``X``."""

    name = "hf_folder"
    summary = "images with metadata.csv, .jsonl or .parquet, as Hugging Face's ImageFolder"
    parts = ("**/metadata.csv|**/metadata.jsonl|**/metadata.parquet",)
    general = False

    @classmethod
    def recognises(cls, location: Any) -> bool:
        root = Path(location)
        found = metadata_files(root)
        described = {path.parent for path in found}
        # Other folders may have images without metadata.
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
        tables = {
            os.path.relpath(path.parent, self.root): TextTable(path, exact=True)
            for path in metadata_files(self.root)
        }
        if not tables:
            raise SourceError(f"{self.root}: no metadata.csv, .jsonl or .parquet there")
        splits = {
            folder: split_of(table.path.relative_to(self.root)) or "other"
            for folder, table in tables.items()
        }
        first = next(iter(tables.values()))
        images = list(filter(is_file_column, first.columns))
        if not images:
            raise SourceError(f"{first.path}: no column file_name or *_file_name")
        if dict in (first.kinds or {}).get("objects", ()) and "objects" not in (fields or {}):
            raise SourceError(
                f"{first.path}: boxes in 'objects' are not read. Write a list with a row for each "
                "box (docs/converters/manifest.md); --field objects=string keeps the text"
            )
        several = len(set(splits.values())) > 1 or split is not None
        table = ListTable(tables, splits if several else None, images, chosen=True)
        columns = list(map(_field_name, table.titles))
        if len(set(columns)) < len(columns):
            raise SourceError(f"{first.path}: two columns become one field: {columns}")
        check_names(fields or {}, columns)
        known: dict[str, Field | str] = {
            name: "mask" if "mask" in name.lower() else "image" for name in map(_field_name, images)
        }
        main = columns.index(_field_name(_NAME if _NAME in images else images[0]))
        info = ListInfo(
            str(first.path), columns, main, {**known, **(fields or {})}, channels,
            lambda main: _InsideFinder(self.root),
            read_class_names(classes) if classes is not None else None, table.kinds, split,
        )  # fmt: skip
        self.take(RowSamples(info, table.rows()))


class _InsideFinder(ImageFinder):
    """Files that metadata names: as they are named, and never outside of the folder."""

    def locate(self, name_at: Any, count: int) -> None:
        pass

    def path(self, name: str) -> Path:
        return Path(find_named(self.root, name))


def _field_name(title: str) -> str:
    """Return the field of a column, as `datasets` names columns of files."""
    if is_file_column(title):
        return safe_name(title.removesuffix(_NAME).rstrip("_") or "image")
    return safe_name(title)


# -- its files --------------------------------------------------------------------------


def names_files(path: Path) -> bool:
    """Tell whether a metadata file has a column of file names."""
    try:
        return any(map(is_file_column, TextTable(path, exact=True).columns))
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
    """Return the metadata files of a folder, its folders, and the folders in ``data``."""
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
