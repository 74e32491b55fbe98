"""`export`: from a dataset back to other people's formats.

The inverse of a pack, for viewing or repairing data, or for leaving fastdata.  ``OUT`` appears
atomically: it is made in ``OUT.exporting/files`` and then renamed; an earlier export waits in
``OUT.exporting/replaced`` meanwhile.  ``OUT.exporting/lock`` keeps other exports out, and the
kernel drops it with the process.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fastdata.dataset import Dataset
from fastdata.errors import DestinationExistsError, OptionError, did_you_mean, full_disk_explained
from fastdata.own_files import remove_own
from fastdata.printable import printable
from fastdata.schema import Schema

from ..opening import open_packed
from ..packed import refuse_transform
from ..packing.lock import DirectoryLock
from ..packing.options import parse_shard_size
from ..reading.exported import SIDE_FILE, write_exported
from .base import Exporter, packed_samples
from .folder import FolderExporter
from .parquet import ParquetExporter
from .tfrecord import TFRecordExporter
from .webdataset import WebDatasetExporter

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS: dict[str, type[Exporter]] = {
    kind.name: kind
    for kind in (FolderExporter, WebDatasetExporter, TFRecordExporter, ParquetExporter)
}

_FILES = (".tar", ".tgz", ".gz", ".tfrecord", ".parquet", ".zip", ".csv", ".mdb", ".lmdb", ".h5")
"""Suffixes of files, which no export is."""

_SIGNS = ("manifest.schema.json", SIDE_FILE)
"""Files that mark an export: no other folder is replaced."""

_MAKE_ROOM = "Make room and run the same command again."


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The outcome of `export`.

    Attributes
    ----------
    path : Path
        The folder.
    format : str
    entry : Path
        What `fastdata.pack` takes: a file in the folder, or the folder itself.
    num_samples, num_files : int
        Samples written, and files with images: image files, or shards.
    file_bytes : int
        Of these files.
    seconds : float
    notes : tuple of str
        What the user should know, e.g. fields that the format does not hold.
    """

    path: Path
    format: str
    entry: Path
    num_samples: int
    num_files: int
    file_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            **asdict(self),
            "path": str(self.path),
            "entry": str(self.entry),
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        files = "image file" if self.format == "folder" else "file"
        return "\n".join(
            printable(line)
            for line in (
                f"{self.path}: {self.num_samples:,} samples, {self.num_files:,} "
                f"{files}{'s' * (self.num_files != 1)}, {self.file_bytes / 1e6:,.1f} MB",
                *(f"note: {note}" for note in self.notes),
                f"pack it again: fastdata pack {self.entry} NEW.lmdb",
            )
        )


def export(
    dataset: Dataset | str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str | None = None,
    shard_size: int | str | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
) -> ExportReport:
    """Write a dataset, or a part of one, to files.

    Parameters
    ----------
    dataset : Dataset or path-like
        E.g. ``fastdata.open("train.lmdb")[:100]``.
    destination : path-like
        A new folder.  A name with a suffix, like ``out.tar``, is refused unless `format` is given.
    format : {"folder", "webdataset", "tfrecord", "parquet"}, optional
        By default ``folder``.  ``folder``: image files in class folders, and a CSV that lists them.
        ``webdataset``: tar files.  ``tfrecord``: files of ``tf.train.Example``.
        ``parquet``: tables as Hugging Face's ``datasets`` reads them.
    shard_size : int or str, optional
        Samples or approximate bytes (``"2GB"``) per file, for formats with several files: by
        default 1 GB, 500 MB for ``parquet``.
    overwrite : bool
        Replace an earlier export, but no other folder.
    progress : bool, optional
        A progress bar on standard error; by default if that is a terminal.

    Returns
    -------
    ExportReport

    Raises
    ------
    DestinationExistsError, DestinationLockedError
        If the destination exists, or another process writes it.
    ShardCorruptError
        If a stored image does not match its checksum; nothing is left behind.
    DiskFullError
        If the disk is full; nothing is left behind.
    OptionError
        If the format cannot hold the dataset, or one of its values; the message names it.
        If the dataset has a transform, which would not be applied.
    MissingExtraError
        If the format needs a package that is not installed.

    Notes
    -----
    ``docs/converters/exporting.md`` describes each format.  File names come from keys; unsafe
    characters become ``_``, and a duplicate name gets a number.
    ``fastdata.pack`` of the result gives the same samples in the same order.

    Examples
    --------
    >>> export("train.lmdb", "./images")              # doctest: +SKIP
    """
    started = time.monotonic()
    if format is None:
        _refuse_suffix(Path(destination))
        format = "folder"
    if format not in FORMATS:
        raise OptionError(
            f"format={format!r} is not one of {', '.join(FORMATS)}.{did_you_mean(format, FORMATS)}"
        )
    kind = FORMATS[format]
    limit = parse_shard_size(shard_size)
    if min(limit.values(), default=1) < 1:
        raise OptionError(f"shard_size={shard_size!r} is less than 1")
    chosen = dataset if isinstance(dataset, Dataset) else open_packed(dataset)
    refuse_transform(chosen)
    path = Path(os.path.abspath(destination))
    _clear_leftovers(path)
    _check_destination(path, chosen, overwrite)
    with full_disk_explained(path, _MAKE_ROOM), _own_workplace(path) as workplace:
        files = workplace / "files"
        files.mkdir()
        with tqdm(
            packed_samples(chosen),
            total=len(chosen),
            unit="img",
            desc=f"exporting to {printable(path.name)}",
            disable=None if progress is None else not progress,
            dynamic_ncols=True,
        ) as samples:
            writer = kind(files, chosen, limit)
            writer.write(samples)
        if writer.stored_as:
            _describe(files, writer)
        publish(files, path, workplace / "replaced", overwrite)
    return ExportReport(
        Path(destination),
        format,
        Path(destination) / kind.entry,
        len(chosen),
        writer.num_files,
        writer.file_bytes,
        time.monotonic() - started,
        tuple(writer.notes),
    )


def _describe(files: Path, writer: Exporter) -> None:
    """Write ``fastdata.json``, which describes the exported fields."""
    schema = Schema({k: v for k, v in writer.schema.items() if k in writer.stored_as}, stored=True)
    first = next(iter(writer.dataset.shards), None)
    packed_with = None if first is None else first.header.options
    write_exported(files, writer.reads_as, schema, writer.stored_as, packed_with)


def _refuse_suffix(destination: Path) -> None:
    """Refuse the name of a file for a folder of images."""
    if destination.suffix.lower() in _FILES:
        raise OptionError(
            f"{destination} would become a folder of image files. Pass format= (--format) "
            f"{', '.join(FORMATS)} if a folder is what you want. `fastdata subset` copies to "
            "another dataset."
        )


def _check_destination(path: Path, dataset: Dataset, overwrite: bool) -> None:
    for shard in dataset.paths:
        if Path(os.path.realpath(path)) in Path(os.path.realpath(shard)).parents:
            raise OptionError(f"{path} contains the dataset: export to another folder")
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise DestinationExistsError(
            f"{path} already exists. Choose another folder, or pass overwrite=True (--overwrite) "
            "to replace an earlier export."
        )
    is_export = any((path / sign).is_file() for sign in _SIGNS) and not path.is_symlink()
    if not is_export and not (path.is_dir() and not any(path.iterdir())):
        raise DestinationExistsError(
            f"{path} is not an earlier export (it has no {' or '.join(_SIGNS)}), so it is not "
            "replaced. Remove it yourself, or choose another folder."
        )


# -- atomic creation of a folder ----------------------------------------------------------


@contextlib.contextmanager
def _own_workplace(path: Path) -> Iterator[Path]:
    """Own the folder in which an export is made, and remove it in the end.

    What a killed export left there is removed first.
    """
    workplace = path.with_name(path.name + ".exporting")
    lock = DirectoryLock(workplace, ("files", "replaced").__contains__, "exporting")
    try:
        replaced = workplace / "replaced"
        if replaced.is_dir() and not replaced.is_symlink() and not os.path.lexists(path):
            os.rename(replaced, path)  # killed between the two renames
        for entry in os.scandir(workplace):
            if entry.name in ("files", "replaced"):
                remove_own(entry.path)
        yield workplace
    finally:
        try:
            for name in ("files", "replaced"):
                with contextlib.suppress(OSError):
                    remove_own(workplace / name)
        finally:
            # The lock file goes last: it marks the leftover files of a killed export as ours.
            lock.release()


def _clear_leftovers(path: Path) -> None:
    """Remove the files of an export that was killed after its last rename."""
    if path.exists() and path.with_name(path.name + ".exporting").joinpath("lock").exists():
        with _own_workplace(path):
            pass


def publish(files: Path, path: Path, replaced: Path, overwrite: bool) -> None:
    """Give the finished folder its name; an earlier one stays if that fails."""
    if overwrite and path.exists():
        os.rename(path, replaced)
    try:
        os.rename(files, path)
    except BaseException:
        if replaced.exists():
            os.rename(replaced, path)
        raise
