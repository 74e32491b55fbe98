"""A folder of image files with a manifest (``format="folder"``).

::

    OUT/manifest.csv            one row per sample, one column per field
    OUT/manifest.schema.json    the types of the columns (``reading/cells.py``)
    OUT/<class>/<name>.jpg      the stored file, byte for byte; raw pixels as PNG

Without class numbers, or with several image fields, each image field has a
folder of its own, ``OUT/<field>/...``.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from pathlib import Path

import xxhash

from fastdata.dataset import Dataset
from fastdata.errors import OptionError
from fastdata.regular_files import open_regular
from fastdata.schema import ImageField, ScalarField

from ..reading.cells import ClassCells, cell_of, read_schema, schema_path, write_schema
from ..reading.text_lines import MOST_IN_CELL, csv_rows
from .base import Cut, Exporter, PackedSample, label_field
from .names import FileNames, folder_names, image_suffix, split_key

__all__ = ["MANIFEST", "FolderExporter", "files_in_manifest"]

MANIFEST = "manifest.csv"


class FolderExporter(Exporter):
    """Image files, and a CSV that lists them."""

    name = "folder"
    entry = MANIFEST

    def __init__(self, root: Path, dataset: Dataset, cut: Cut) -> None:
        super().__init__(root, dataset, cut)
        schema = self.schema
        self._names = FileNames()
        self._made: set[str] = set()
        self._label = label_field(schema)
        label = schema[self._label] if self._label else None
        self._classes = label.classes if isinstance(label, ScalarField) else None
        self._taken, self._unnamed = FileNames(), dict[int, str]()
        self._folders = folder_names(self._classes or (), self._taken)
        self._cells = {
            name: ClassCells(field.classes)
            for name, field in schema.items()
            if isinstance(field, ScalarField) and field.classes is not None
        }
        # One folder per class, as torchvision's ImageFolder takes it, or else
        # one folder per field.
        self._by_field = len(schema.images) > 1 or self._label is None

    def write(self, samples: Iterable[PackedSample]) -> None:
        manifest = self.root / MANIFEST
        with open(manifest, "x", newline="", encoding="utf-8") as file:
            # Text is quoted and numbers are not: no text can then be taken for
            # the end of a line or, by a reader that cares, for a number.
            rows = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            csv.writer(file, lineterminator="\n").writerow(self.schema)
            for sample in samples:
                row = self._row(sample)
                length, name = max((len(str(v)), n) for v, n in zip(row, self.schema, strict=True))
                if length > MOST_IN_CELL:
                    raise OptionError(
                        f"{sample.shard.path}: {sample} has more than {MOST_IN_CELL:,} characters "
                        f"in the field {name!r}, and no CSV with such a cell is read. "
                        "Export to parquet, webdataset or tfrecord"
                    )
                rows.writerow(row)
        write_schema(manifest, self.schema, _checksum_of(manifest))

    def _row(self, sample: PackedSample) -> list[str | int | float | bool]:
        key = sample.key
        class_name, class_folder = self._class(sample)
        row: list[str | int | float | bool] = []
        for name, field, value in sample.contents():
            if not isinstance(field, ImageField):
                row.append(cell_of(value, field, self._cells.get(name)))
                continue
            folders, stem = split_key(key, class_name)
            parts = [name] * self._by_field + [class_folder] * bool(class_folder) + folders
            path = self._names.claim(os.path.join(*parts), stem, image_suffix(value, key))
            self._write(path, value)
            row.append(path)
        return row

    def _class(self, sample: PackedSample) -> tuple[str | None, str]:
        """Return the class of a sample, if it has one, and the class's folder."""
        if self._label is None:
            return None, ""
        number = sample.value(self._label).item()
        if self._classes is None:
            return str(number), str(number)
        if 0 <= number < len(self._classes):
            return self._classes[number], self._folders[number]
        if number not in self._unnamed:
            (self._unnamed[number],) = folder_names([str(number)], self._taken)
        return None, self._unnamed[number]

    def _write(self, path: str, data: bytes | memoryview) -> None:
        folder = os.path.dirname(path)
        if folder not in self._made:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(self.root / path, "xb") as file:
            file.write(data)
        self.count(len(data))


def files_in_manifest(manifest: Path, exported: str) -> set[str]:
    """Return the files that an export has listed in its manifest; none if that was changed since.

    exported: the checksum of the manifest when it was exported.
    """
    schema = read_schema(manifest)
    if schema is None or _checksum_of(manifest) != exported:
        return set()
    rows = csv_rows(manifest)
    images = [place for place, name in enumerate(next(rows, [])) if name in schema.images]
    listed = {row[place] for row in rows for place in images}
    return {manifest.name, schema_path(manifest).name, *listed}


def _checksum_of(manifest: Path) -> str:
    found = xxhash.xxh3_64()
    with open(manifest, "rb", opener=open_regular) as file:
        while data := file.read(1 << 20):
            found.update(data)
    return found.hexdigest()
