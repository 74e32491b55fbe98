"""`export`: from a dataset back to image files and a manifest.

The inverse of a pack, for looking at data, mending it, or leaving fastdata::

    OUT/manifest.csv            a row a sample, a column a field
    OUT/manifest.schema.json    what the columns are (``cells.py``)
    OUT/<class>/<name>.jpg      the stored file, byte for byte; raw pixels as PNG

Without class numbers, or with several image fields, each image field has a
folder of its own, ``OUT/<field>/...``.  Everything is written in ``OUT.exporting`` and
gets its name once it is complete.
"""

from __future__ import annotations

import csv
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from fastdata.codecs.encode import encode_png
from fastdata.codecs.image import orientation_of
from fastdata.dataset import Dataset
from fastdata.dataset import open as open_dataset
from fastdata.errors import DestinationExistsError, OptionError, full_disk_explained
from fastdata.formats.reader import ShardReader
from fastdata.schema import ImageField, ScalarField, Schema

from ..packing.boxes import picture_of, turn_boxes
from ..reading.cells import cell_of, schema_path, write_schema
from .names import FileNames, folder_names, image_suffix, split_key
from .workplace import own_workplace, publish

__all__ = ["ExportReport", "export"]

_MAKE_ROOM = "Make room and run the same command again."

MANIFEST = "manifest.csv"
_LABELS = ("label", "class", "target")


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The outcome of `export`.

    Attributes
    ----------
    path : Path
        The folder.
    num_samples, num_files : int
        Rows of the manifest, and image files.
    file_bytes : int
        Of the image files.
    seconds : float
    """

    path: Path
    num_samples: int
    num_files: int
    file_bytes: int
    seconds: float

    @property
    def manifest_path(self) -> Path:
        """The CSV that lists the files; `fastdata.pack` takes it."""
        return self.path / MANIFEST

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "path": str(self.path),
            "manifest_path": str(self.manifest_path),
            "num_samples": self.num_samples,
            "num_files": self.num_files,
            "file_bytes": self.file_bytes,
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.num_samples:,} samples, {self.num_files:,} image files, "
            f"{self.file_bytes / 1e6:,.1f} MB\n"
            f"pack it again: fastdata pack {self.manifest_path} NEW.lmdb"
        )


def export(
    dataset: Dataset | str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write a dataset, or a part of one, to files.

    Parameters
    ----------
    dataset : Dataset or path-like
        E.g. ``fastdata.open("train.lmdb")[:100]``.
    destination : path-like
        A folder, made here.
    overwrite : bool
        Replace an earlier export.  Any other folder is left alone.
    progress : bool, optional
        A progress bar on standard error; by default where that is a terminal.

    Returns
    -------
    ExportReport

    Raises
    ------
    DestinationExistsError, DestinationLockedError
        If the destination is there already, or is being written by another.
    ShardCorruptError
        If a stored image does not match its checksum; nothing is left behind.
    DiskFullError
        If there is no room; nothing is left behind.

    Notes
    -----
    File names come from keys; what is unsafe in a file name becomes ``_``,
    and a name that is taken gets a number.  ``fastdata.pack`` of the manifest
    gives the same samples in the same order.

    Examples
    --------
    >>> export("train.lmdb", "./images")              # doctest: +SKIP
    """
    started = time.monotonic()
    chosen = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    path = Path(os.path.abspath(destination))
    _check_destination(path, chosen, overwrite)
    with full_disk_explained(path, _MAKE_ROOM), own_workplace(path) as workplace:
        files = workplace / "files"
        files.mkdir()
        with tqdm(
            total=len(chosen),
            unit="img",
            desc=f"exporting to {path.name}",
            disable=None if progress is None else not progress,
            dynamic_ncols=True,
        ) as bar:
            writer = _FilesWriter(files, chosen.schema)
            writer.write(chosen, bar)
        publish(files, path, workplace / "replaced", overwrite)
    return ExportReport(
        Path(destination),
        len(chosen),
        writer.num_files,
        writer.file_bytes,
        time.monotonic() - started,
    )


def _check_destination(path: Path, dataset: Dataset, overwrite: bool) -> None:
    for shard in dataset.paths:
        if path in Path(os.path.abspath(shard)).parents:
            raise OptionError(f"{path}: the dataset itself is in there; export to another folder")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise DestinationExistsError(
            f"{path} already exists. Choose another folder, or pass overwrite=True (--overwrite) "
            "to replace an earlier export."
        )
    is_export = schema_path(path / MANIFEST).is_file() and not path.is_symlink()
    if not is_export and not (path.is_dir() and not any(path.iterdir())):
        raise DestinationExistsError(
            f"{path} is no earlier export (it has no {schema_path(Path(MANIFEST))}), so it is not "
            "replaced. Remove it yourself, or choose another folder."
        )


class _FilesWriter:
    """Writes samples below a folder."""

    def __init__(self, root: Path, schema: Schema) -> None:
        self.root = root
        self.schema = schema
        self.num_files = 0
        self.file_bytes = 0
        self._picture = picture_of(schema) if schema.boxes else ""
        self._names = FileNames()
        self._made: set[str] = set()
        self._label = _label_field(schema)
        label = schema[self._label] if self._label else None
        self._classes = label.classes if isinstance(label, ScalarField) else None
        self._folders = folder_names(self._classes or ())
        # One folder a class at the top is what torchvision's ImageFolder takes;
        # where that cannot be, one folder a field.
        self._by_field = len(schema.images) > 1 or self._label is None

    def write(self, dataset: Dataset, bar: tqdm[Any]) -> None:
        """Write all samples and the manifest."""
        manifest = self.root / MANIFEST
        write_schema(manifest, self.schema)
        with open(manifest, "w", newline="", encoding="utf-8") as file:
            # Text is quoted and numbers are not: no text can then be taken for
            # the end of a line or, by a reader that cares, for a number.
            rows = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
            csv.writer(file, lineterminator="\n").writerow(self.schema)
            for index in range(len(dataset)):
                shard, local = _locate(dataset, index)
                try:
                    rows.writerow(self._row(shard, local))
                except csv.Error as error:
                    raise OptionError(
                        f"{shard.path}: sample {local} (key {shard.key(local)!r}) has text that "
                        f"this Python cannot write into a CSV ({error}). Python 3.11 and later "
                        "can write NUL characters too."
                    ) from error
                bar.update()

    def _row(self, shard: ShardReader, index: int) -> list[str | int | float | bool]:
        key = shard.key(index)
        class_name, class_folder = self._class(shard, index)
        row: list[str | int | float | bool] = []
        for name, field in self.schema.items():
            if not isinstance(field, ImageField):
                value = shard.value(name, index)
                if name in self.schema.boxes:
                    value = _boxes_of_file(shard, index, value, self._picture)
                row.append(cell_of(value, field))
                continue
            data = _file_of(shard, index, name, field)
            folders, stem = split_key(key, class_name)
            parts = [name] * self._by_field + [class_folder] * bool(class_folder) + folders
            path = self._names.claim(os.path.join(*parts), stem, image_suffix(data, key))
            self._write(path, data)
            row.append(path)
        return row

    def _class(self, shard: ShardReader, index: int) -> tuple[str | None, str]:
        """Return the class of a sample, if it has one, and the class's folder."""
        if self._label is None:
            return None, ""
        number = shard.value(self._label, index).item()
        if self._classes is None:
            return str(number), str(number)
        if 0 <= number < len(self._classes):
            return self._classes[number], self._folders[number]
        return None, folder_names([*self._classes, str(number)])[-1]

    def _write(self, path: str, data: bytes | memoryview) -> None:
        folder = os.path.dirname(path)
        if folder not in self._made:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
            self._made.add(folder)
        with open(self.root / path, "xb") as file:
            file.write(data)
        self.num_files += 1
        self.file_bytes += len(data)


def _label_field(schema: Schema) -> str | None:
    """Return the field whose values name the folders: of class names, else of class numbers."""
    scalars = {name: field for name, field in schema.items() if isinstance(field, ScalarField)}
    named = [name for name, field in scalars.items() if field.classes is not None]
    numbered = [name for name in _LABELS if name in scalars and "int" in scalars[name].dtype]
    return next(iter(named + numbered), None)


def _locate(dataset: Dataset, index: int) -> tuple[ShardReader, int]:
    return dataset._shards.locate(dataset._position(index))


def _file_of(shard: ShardReader, index: int, name: str, field: ImageField) -> bytes | memoryview:
    """Return an image as a file: the stored bytes, or raw pixels as PNG."""
    data = shard.blob(name, index)
    if shard.codec(name, index) != "raw":
        return data
    height = int(shard.column(f"{name}.height")[index])
    width = int(shard.column(f"{name}.width")[index])
    return encode_png(np.frombuffer(data, np.uint8).reshape(height, width, field.channels))


def _boxes_of_file(
    shard: ShardReader, index: int, boxes: np.ndarray[Any, Any], image: str
) -> np.ndarray[Any, Any]:
    """Return boxes as a source has them: of the file of the image, which may be to be turned."""
    if shard.codec(image, index) != "file":
        return boxes
    orientation = orientation_of(shard.blob(image, index))
    size = int(shard.column(f"{image}.height")[index]), int(shard.column(f"{image}.width")[index])
    if orientation >= 5:
        size = size[::-1]
    return turn_boxes(boxes, orientation, size, back=True)
