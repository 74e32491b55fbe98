"""The shards of a packed dataset: found, opened when they are first read, and addressed as one.

It knows files, columns and rows, and nothing of torch, whose import takes longer than all that
``fastdata info`` does.  What a user sees of it is `fastdata.dataset.Dataset`.
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fastdata.errors import DatasetNotFoundError, FormatError, OptionError, ShardCorruptError
from fastdata.formats.digest import content_digest
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import HeldBytes, ShardReader
from fastdata.schema import Schema

__all__ = ["Location", "ShardSet", "expand", "join_shards", "open_shards"]

Location: TypeAlias = "str | os.PathLike[str]"

_LOOK_SECONDS = 1.0
"""At least so long apart, it is looked whether somebody has written to open shards; and so long
that it takes 1 % of the time, where looking is slow."""


class ShardSet:
    """Shards in order, each opened when it is first read.

    Opening is idempotent, so threads need no lock: at worst two map a shard
    at once and one map is dropped.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        entries: Sequence[ShardEntry],
        check: bool,
        schema: Schema,
        digest: str = "",
        held: Sequence[HeldBytes] | None = None,
        max_pixels: int | None = None,
        readers: Sequence[ShardReader | None] | None = None,
    ) -> None:
        self.paths = paths
        self.entries = entries
        self.check = check
        self.schema = schema
        self.held = held
        self.max_pixels = max_pixels
        self._digest = digest
        self._readers = list(readers or [None] * len(paths))
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._overwritten: ShardCorruptError | None = None
        counts = [entry.num_samples for entry in entries]
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.starts[-1])

    @property
    def digest(self) -> str:
        """Fingerprint of the content; of several datasets as one, computed when first asked for."""
        if not self._digest:
            self._digest = content_digest(self.schema, [s.column for s in self.readers()])
        return self._digest

    def reader(self, number: int) -> ShardReader:
        """Return one shard's reader."""
        reader = self._readers[number]
        if reader is None:
            held = None if self.held is None else self.held[number]
            reader = ShardReader(
                self.paths[number], check=self.check, held=held, max_pixels=self.max_pixels
            )
            entry = self.entries[number]
            found = reader.header.digest, len(reader)
            if (entry.digest, entry.num_samples) != found:
                raise ShardCorruptError(
                    f"{reader.path}: this is not the shard that the manifest lists or that was "
                    f"pickled: it has {found[1]} samples and the digest {found[0]}, not "
                    f"{entry.num_samples} and {entry.digest}. "
                    "Restore the shard, or pack the dataset again."
                )
            if reader.header.schema != self.schema:
                raise FormatError(
                    f"{reader.path} has other fields than the dataset that it is opened as a part "
                    f"of: {reader.header.schema!r}, not {self.schema!r}. "
                    "Restore the shard, or pack the dataset again."
                )
            self._readers[number] = reader
        return reader

    def readers(self) -> Iterator[ShardReader]:
        """Open every shard in turn."""
        return (self.reader(number) for number in range(len(self.paths)))

    def held_in(self, held: Sequence[HeldBytes] | None) -> ShardSet:
        """Return the same shards, read from copies of their files; None: from the files."""
        return ShardSet(
            self.paths, self.entries, self.check, self.schema, self._digest, held, self.max_pixels
        )

    def limited_to(self, max_pixels: int) -> ShardSet:
        """Return the same shards, of which no larger images are decoded."""
        return ShardSet(
            self.paths, self.entries, self.check, self.schema, self._digest, self.held, max_pixels
        )

    def let_go(self) -> None:
        """Read from the files, not from copies of them."""
        self.held = None
        for reader in self._readers:
            if reader is not None:
                reader.let_go()

    def look_again(self) -> None:
        """Raise `ShardCorruptError` if an open shard was overwritten; looks now and then."""
        if self._overwritten is not None:
            raise ShardCorruptError(str(self._overwritten))
        began = time.monotonic()
        if began < self._look_at:
            return
        self._look_at = began + _LOOK_SECONDS  # other threads need not look meanwhile
        try:
            for reader in self._readers:
                if reader is not None:
                    reader.look_again()
        except ShardCorruptError as error:
            self._overwritten = error
            raise
        ended = time.monotonic()
        self._look_at = ended + max(_LOOK_SECONDS, 100 * (ended - began))

    def locate(self, index: int) -> tuple[ShardReader, int]:
        """Return the shard of a sample and the sample's index in it."""
        self.look_again()
        if len(self.paths) == 1:
            return self.reader(0), index
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.reader(number), index - int(self.starts[number])

    def split(
        self, indices: np.ndarray[Any, np.dtype[np.int64]]
    ) -> list[
        tuple[ShardReader, np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.int64]]]
    ]:
        """Return for each shard of these samples: reader, their places, their rows in it."""
        self.look_again()
        if len(self.paths) == 1:
            return [(self.reader(0), np.arange(len(indices)), indices)]
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        located = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            located.append((self.reader(number), places, indices[places] - self.starts[number]))
        return located

    def rows(self, name: str, indices: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a column's entries at these samples, as a copy."""
        result: np.ndarray[Any, Any] | None = None
        for reader, places, rows in self.split(indices):
            values: np.ndarray[Any, Any] = reader.column(name)[rows]
            if len(places) == len(indices):
                return values
            if result is None:
                result = np.empty((len(indices), *values.shape[1:]), values.dtype)
            result[places] = values
        return self.reader(0).column(name)[:0] if result is None else result

    def __reduce__(self) -> tuple[Any, ...]:
        paths = [str(path) for path in self.paths]
        others = self.check, self.schema, self._digest, self.held, self.max_pixels
        return _reopen, (paths, list(self.entries), *others)


def _reopen(paths: list[str], *others: Any) -> ShardSet:
    shards = ShardSet([Path(path) for path in paths], *others)
    if len(paths) == 1:
        shards.reader(0)
    return shards


def open_shards(
    path: Location | Iterable[Location], check: bool, max_pixels: int | None = None
) -> ShardSet:
    """Open what `fastdata.open` takes; see there."""
    locations = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    if not locations:
        raise OptionError("fastdata.open needs at least one path; the list is empty")
    parts = [part for location in locations for part in expand(location)]
    paths: list[Path] = []
    entries: list[ShardEntry] = []
    readers: list[ShardReader | None] = []
    found: list[tuple[Path, Schema, str]] = []
    for part in map(Path.absolute, parts):  # shards are opened later, wherever we are then
        if part.is_dir():
            manifest = Manifest.read(part)
            paths += [_present(part, entry) for entry in manifest.shards]
            entries += manifest.shards
            readers += [None] * len(manifest.shards)
            found.append((part, manifest.schema, manifest.digest))
        else:
            reader = ShardReader(part, check=check, max_pixels=max_pixels)
            digest = reader.header.digest
            # Whoever opens this file again, e.g. after a pickle, must find the same.
            entries.append(ShardEntry(part.name, len(reader), reader.file_bytes, digest))
            paths.append(part)
            readers.append(reader)
            found.append((part, reader.header.schema, digest))
    schema = _same_schema([(place, schema) for place, schema, _ in found])
    digest = found[0][2] if len(found) == 1 else ""
    return ShardSet(paths, entries, check, schema, digest, max_pixels=max_pixels, readers=readers)


def join_shards(sets: Sequence[ShardSet]) -> ShardSet:
    """Return several sets as one, in this order.

    Raises
    ------
    FormatError
        If their schemas differ.
    """
    if len(sets) == 1:
        return sets[0]
    schema = _same_schema([(shards.paths[0], shards.schema) for shards in sets])
    held = [copy for shards in sets for copy in shards.held or ()]
    limits = [shards.max_pixels for shards in sets if shards.max_pixels is not None]
    paths = [path for shards in sets for path in shards.paths]
    return ShardSet(
        paths,
        [entry for shards in sets for entry in shards.entries],
        any(shards.check for shards in sets),
        schema,
        held=held if len(held) == len(paths) else None,
        max_pixels=min(limits, default=None),
    )


def _same_schema(found: Sequence[tuple[Path, Schema]]) -> Schema:
    """Return the schema of datasets that are to be one.

    Raises
    ------
    FormatError
        If they differ.
    """
    first, expected = found[0]
    for place, schema in found:
        if schema != expected:
            raise FormatError(
                f"{place} has other fields than {first}: {schema!r}, not {expected!r}. "
                "Datasets opened as one must have the same schema."
            )
    return expected


def expand(location: Location) -> list[Path]:
    path = Path(location)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))
        if matches:
            return [Path(match) for match in matches]
        raise DatasetNotFoundError(f"{path}: nothing matches this pattern")
    if path.with_name(path.name + ".partial").exists():
        raise DatasetNotFoundError(
            f"{path}: not there yet: its pack was not finished. "
            "Run the same `fastdata pack` command again; it goes on where it stopped."
        )
    raise DatasetNotFoundError(
        f"{path}: no such file or directory. Make it with: fastdata pack IMAGES {path}"
    )


def _present(directory: Path, entry: ShardEntry) -> Path:
    path = directory / entry.file
    try:
        size = path.stat().st_size
    except OSError:
        raise DatasetNotFoundError(
            f"{path}: this shard of the dataset is missing. "
            "Restore it from a copy, or pack the dataset again."
        ) from None
    if size != entry.file_bytes:
        raise ShardCorruptError(
            f"{path}: {entry.file_bytes} bytes were written but the file has {size}. "
            "Restore it from a copy, or pack the dataset again."
        )
    return path
