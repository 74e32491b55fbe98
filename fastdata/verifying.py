"""Verify a whole dataset: every shard, and the shards against their manifest.

Damage is listed, not raised, so that one bad shard does not hide the next.  Errors are raised only
if there is nothing to verify: no such file, a file that never was a shard, or a newer version.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from fastdata.codecs.blobs import check_header
from fastdata.errors import (
    PACKED,
    FastdataError,
    FormatError,
    ImageError,
    NotRegularFileError,
    ResourceLimitError,
    ShardCorruptError,
)
from fastdata.formats.layout import FOOTER_BYTES, MAGIC, VERSION, content_digest, is_container
from fastdata.formats.manifest import MANIFEST, Manifest, ShardEntry
from fastdata.formats.reader import Damage, ShardReader, find_damage
from fastdata.printable import printable
from fastdata.regular_files import open_regular, read_regular
from fastdata.shards import expand
from fastdata.storage import is_url

if TYPE_CHECKING:
    from fastdata.remote import Supply

__all__ = ["Damage", "VerifyReport", "verify"]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of `verify`; the three numbers are of the shards that could be read."""

    path: str
    num_shards: int
    num_samples: int
    file_bytes: int
    damage: tuple[Damage, ...]

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.damage

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "path": self.path,
            "intact": self.intact,
            "num_shards": self.num_shards,
            "num_samples": self.num_samples,
            "file_bytes": self.file_bytes,
            "damage": [
                {"path": str(d.path), "place": d.place, "reason": d.reason} for d in self.damage
            ],
        }


def verify(path: str | os.PathLike[str], *, progress: bool | None = None) -> VerifyReport:
    """Read a whole dataset and list all damage.

    `path` is a shard, a directory of shards, a glob pattern, or the URL of a shard or directory.
    `progress` is a bar on standard error; by default, if that is a terminal.  Raises the errors of
    `fastdata.open` if there is no dataset or one of a newer version, and `ResourceLimitError` if
    the system allows no more open files or memory maps, which is not damage.
    """
    supply = None
    if is_url(path) and not str(path).lower().startswith("file:"):
        from fastdata.remote import open_remote

        supply = open_remote(str(path))
    parts = expand(path) if supply is None else [supply.location]
    with tqdm(
        unit="img",
        desc=f"verifying {printable(Path(path).name)}",
        disable=None if progress is None else not progress,
        dynamic_ncols=True,
    ) as bar:
        run = _Verification(bar, supply)
        for part in parts:
            if part.is_dir():
                run.directory(part)
            else:
                run.shard(part)
    return VerifyReport(
        os.fspath(path), run.num_shards, run.num_samples, run.file_bytes, tuple(run.damage)
    )


class _Verification:
    """Counts and damage of one run."""

    def __init__(self, bar: tqdm[Any], supply: Supply | None) -> None:
        self.bar = bar
        self._supply = supply
        self.num_shards = 0
        self.num_samples = 0
        self.file_bytes = 0
        self.damage: list[Damage] = []

    def _add(self, path: Path, reason: object, place: str = "") -> None:
        self.damage.append(Damage(path, place, str(reason).removeprefix(f"{path}: ")))

    def shard(self, path: Path) -> None:
        """Verify a shard that is a dataset by itself."""
        try:
            self._read(path)
        except ShardCorruptError as error:
            self._add(path, error)
        except FormatError as error:
            if not _was_cut(path):
                raise
            self._add(path, error)

    def directory(self, path: Path) -> None:
        """Verify a directory of shards against its manifest."""
        try:
            manifest = Manifest.read(path)
        except FormatError as error:
            if _is_newer(path / MANIFEST):
                raise
            self._add(path / MANIFEST, error)
            for shard in sorted(path.iterdir()):
                if shard.suffix in PACKED:
                    self._listed(shard, None)
            return
        before = len(self.damage)
        self.bar.total = sum(entry.num_samples for entry in manifest.shards)
        listed = [self._listed(path / entry.file, entry) for entry in manifest.shards]
        readers = [reader for reader in listed if reader is not None]
        for reader in readers:
            if reader.header.schema != manifest.schema:
                reason = f"{reader.path.name} has different fields: {reader.header.schema!r}"
                self._add(path / MANIFEST, reason, "schema")
        if len(self.damage) == before and manifest.digest != content_digest(
            manifest.schema, [reader.raw_column for reader in readers]
        ):
            self._add(path / MANIFEST, "it does not match the shards", "digest")

    def _listed(self, path: Path, entry: ShardEntry | None) -> ShardReader | None:
        """Verify one shard of a directory; None if it cannot be read at all."""
        try:
            size = path.stat().st_size
        except OSError as error:
            self._add(path, f"the shard is missing ({error.strerror})")
            return None
        if entry is not None and size != entry.file_bytes:
            self._add(path, f"{entry.file_bytes} bytes were written but the file has {size}")
        try:
            reader = self._read(path)
        except ResourceLimitError:
            raise  # a limit of this process, not damage of the file
        except FastdataError as error:
            self._add(path, error)
            return None
        if entry is not None and entry.digest != reader.header.digest:
            self._add(
                path,
                "not the shard that the manifest lists (its digest is "
                f"{reader.header.digest}, not {entry.digest})",
            )
        if entry is not None and entry.num_samples != len(reader):
            self._add(path, f"{len(reader)} samples, but the manifest lists {entry.num_samples}")
        return reader

    def _read(self, path: Path) -> ShardReader:
        supply = None if self._supply is None else self._supply.shard(path, self.num_samples)
        reader = ShardReader(path, supply=supply)
        if self.bar.total is None:
            self.bar.total = len(reader)
        self.num_shards += 1
        self.num_samples += len(reader)
        self.file_bytes += path.stat().st_size
        before = len(self.damage)
        try:
            for damage in find_damage(reader, self.bar.update):
                self._add(path, damage.reason, damage.place)
            if all(damaged.place == "header" for damaged in self.damage[before:]):
                self.damage += _other_sizes(reader)
        except FastdataError as error:
            self._add(path, error)
        return reader


def _other_sizes(reader: ShardReader) -> Iterator[Damage]:
    """Yield images whose header has another size than the columns."""
    for name, field in reader.header.schema.images.items():
        heights, widths = (reader.column(f"{name}.{side}").tolist() for side in ("height", "width"))
        for index, (height, width) in enumerate(zip(heights, widths, strict=True)):
            data = reader.raw_blob(name, index)
            try:
                check_header(data, reader.codec(name, index), (height, width, field.channels))
            except ImageError as error:
                yield Damage(reader.path, f"{name!r} of sample {index}", str(error))


def _was_cut(path: Path) -> bool:
    """Return whether a file begins as a container and lacks a shard's end."""
    try:
        descriptor = open_regular(path)
    except NotRegularFileError:
        return False
    with open(descriptor, "rb") as file:
        start = file.read(32)
        file.seek(max(0, path.stat().st_size - FOOTER_BYTES))
        end = file.read()
    return is_container(start) and not end.startswith(MAGIC)


def _is_newer(path: Path) -> bool:
    """Return whether a manifest is sound but of a newer version."""
    try:
        return int(json.loads(read_regular(path))["version"]) > VERSION
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        return False
