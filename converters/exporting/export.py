"""`export`: from a dataset back to other people's formats.

The inverse of a pack, for viewing or repairing data, or for leaving fastdata.  ``OUT`` appears
atomically: it is made in ``OUT.exporting/files`` and then renamed; an earlier export waits in
``OUT.exporting/replaced`` meanwhile.  ``OUT.exporting/lock`` keeps other exports out, and the
kernel drops it with the process.
"""

from __future__ import annotations

import contextlib
import json
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
from fastdata.regular_files import read_regular
from fastdata.replacing import Destination, Kind, check_apart, foreign_name

from ..opening import open_packed
from ..packed import files_of, refuse_transform
from ..packing.lock import DirectoryLock
from ..packing.options import parse_shard_size
from ..reading.cells import schema_path
from ..reading.exported import SIDE_FILE, write_exported
from .base import Cut, Exporter, packed_samples
from .folder import MANIFEST, FolderExporter, files_in_manifest
from .parquet import ParquetExporter
from .tfrecord import TFRecordExporter
from .webdataset import WebDatasetExporter

__all__ = ["FORMATS", "ExportReport", "export"]

FORMATS: dict[str, type[Exporter]] = {
    kind.name: kind
    for kind in (FolderExporter, WebDatasetExporter, TFRecordExporter, ParquetExporter)
}

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
    """

    path: Path
    format: str
    entry: Path
    num_samples: int
    num_files: int
    file_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            **asdict(self),
            "path": str(self.path),
            "entry": str(self.entry),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        files = "image file" if self.format == "folder" else "file"
        return printable(
            f"{self.path}: {self.num_samples:,} samples, {self.num_files:,} "
            f"{files}{'s' * (self.num_files != 1)}, {self.file_bytes / 1e6:,.1f} MB\n"
        ) + printable(f"pack it again: fastdata pack {self.entry} NEW.lmdb")


def export(
    dataset: Dataset | str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str = "folder",
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
        A new folder.
    format : {"folder", "webdataset", "tfrecord", "parquet"}
        ``folder``: image files in class folders, and a CSV that lists them.
        ``webdataset``: tar files.  ``tfrecord``: files of ``tf.train.Example``.
        ``parquet``: tables as Hugging Face's ``datasets`` reads them.
    shard_size : int or str, optional
        Samples or approximate bytes (``"2GB"``) per file, for formats with several files: by
        default 1 GB, 500 MB for ``parquet``.
    overwrite : bool
        Replace an earlier export, but no other folder, and none with other files.
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
        If the dataset has no samples, or a value that the format cannot hold; the message names it.
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
    if format not in FORMATS:
        raise OptionError(
            f"format={format!r} is not one of {', '.join(FORMATS)}.{did_you_mean(format, FORMATS)}"
        )
    kind = FORMATS[format]
    limit = parse_shard_size(shard_size)
    if limit and not kind.shard_bytes:
        raise OptionError(f"format={format!r} has no shards: omit shard_size")
    limit = limit or {"shard_bytes": kind.shard_bytes}
    chosen = dataset if isinstance(dataset, Dataset) else open_packed(dataset)
    if not len(chosen):
        raise OptionError("the dataset has no samples to export")
    refuse_transform(chosen)
    path = Path(os.path.abspath(destination))
    check_apart(path, files_of(chosen))
    with full_disk_explained(path, _MAKE_ROOM), _own_workplace(path) as workplace:
        place = Destination(path, _EXPORT, replace=overwrite)
        if os.path.lexists(path) and not overwrite:
            raise DestinationExistsError(
                f"{path} already exists. Choose another folder, or pass overwrite=True "
                "(--overwrite) to replace an earlier export."
            )
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
            cut = Cut(limit.get("shard_size"), limit.get("shard_bytes"))
            writer = kind(files, chosen, cut)
            writer.write(samples)
        if writer.stored_as:
            packed_with = next(iter(chosen.shards)).header.options
            write_exported(
                files, format, chosen.schema, writer.stored_as, packed_with, writer.files
            )
        place.put(files, spare=workplace / "replaced")
    return ExportReport(
        Path(destination),
        format,
        Path(destination) / kind.entry,
        len(chosen),
        writer.num_files,
        writer.file_bytes,
        time.monotonic() - started,
    )


def _files_in(folder: Path) -> set[str]:
    """Return the files that an export to a folder has listed; empty if it is not an export."""
    side, manifest = folder / SIDE_FILE, folder / MANIFEST
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        if os.path.lexists(side):
            document = json.loads(read_regular(side))
            return {SIDE_FILE, *document["files"]} if document["fastdata"] == "export" else set()
        document = json.loads(read_regular(schema_path(manifest)))
        return files_in_manifest(manifest, document["exported"])
    return set()


def _no_export(path: Path) -> str:
    if not (own := _files_in(path)):
        return "is not an earlier export, or its list of files was changed"
    foreign = foreign_name(path, own)
    return f"has {foreign}, which does not belong to the export" if foreign else ""


_EXPORT = Kind("an earlier export", _no_export)


@contextlib.contextmanager
def _own_workplace(path: Path) -> Iterator[Path]:
    """Own the folder in which an export is made, and remove it in the end.

    The files that a killed export left there are removed first.
    """
    workplace = path.with_name(path.name + ".exporting")
    lock = DirectoryLock(workplace, ("files", "replaced").__contains__, "exporting")
    try:
        _tidy(workplace, path)
        yield workplace
    finally:
        try:
            _tidy(workplace, path)
        finally:
            # The lock file goes last: it marks the leftover files of a killed export as ours.
            lock.release()


def _tidy(workplace: Path, path: Path) -> None:
    """Put an earlier export back if no other took its place; remove the unfinished files."""
    replaced = workplace / "replaced"
    if replaced.is_dir() and not replaced.is_symlink() and not os.path.lexists(path):
        os.rename(replaced, path)
    for name in ("files", "replaced"):
        remove_own(workplace / name)
