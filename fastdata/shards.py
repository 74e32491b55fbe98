"""The shards of a packed dataset: found, opened when they are first read, and addressed as one.

Nothing here imports torch, which would take longer than all that ``fastdata info`` does.  Its
public face is `fastdata.dataset.Dataset`.
"""

from __future__ import annotations

import fnmatch
import glob
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import (
    PACKED,
    DatasetNotFoundError,
    FormatError,
    OptionError,
    ShardCorruptError,
    not_there,
)
from fastdata.formats.layout import content_digest
from fastdata.formats.manifest import MANIFEST, Manifest, ShardEntry
from fastdata.formats.reader import CachedFile, ShardReader
from fastdata.schema import Schema
from fastdata.storage import is_url, open_store

if TYPE_CHECKING:
    from fastdata.remote.supply import ShardSupply, Supply

__all__ = ["Location", "ShardRows", "ShardSet", "Supplied", "collect", "expand", "open_shards"]

Location: TypeAlias = "str | os.PathLike[str]"
Indices: TypeAlias = NDArray[np.int64]

_LOOK_SECONDS = 1.0
"""Open shards are checked for having been overwritten at most so often, and so rarely that it
takes 1 % of the time where asking the file system is slow."""


class Supplied(NamedTuple):
    """Samples that come out of a store as they are needed: `first` to `last` - 1 of a set.

    Sample `first` is the first one of the `supply`.
    """

    supply: Supply
    first: int
    last: int


class ShardRows(NamedTuple):
    """Those of some samples that are in one shard, int64 [m] each.

    `places` say which of the samples they are, `rows` where they are in the shard.
    """

    reader: ShardReader
    places: Indices
    rows: Indices


def collect(
    located: Sequence[ShardRows], read: Callable[[ShardReader, Indices], NDArray[Any]]
) -> NDArray[Any]:
    """Return what `read` takes from each shard's rows, in the order of the samples, as a copy."""
    if len(located) == 1:
        reader, _, rows = located[0]
        return read(reader, rows)
    parts = [read(reader, rows) for reader, _, rows in located]
    values = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for (_, places, _), part in zip(located, parts, strict=True):
        values[places] = part
    return values


class ShardSet:
    """Shards in order, each opened when it is first read.

    Opening is idempotent, so threads need no lock: at worst two map a shard
    at once and one map is dropped.  `cached` are copies of the files in memory; `supplied` are the
    samples whose images come from a store.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        entries: Sequence[ShardEntry],
        check: bool,
        schema: Schema,
        digest: str = "",
        cached: Sequence[CachedFile] | None = None,
        max_pixels: int | None = None,
        readers: Sequence[ShardReader | None] | None = None,
        supplied: Sequence[Supplied] = (),
    ) -> None:
        self.paths = paths
        self.entries = entries
        self.check = check
        self.schema = schema
        self.cached = cached
        self.max_pixels = max_pixels
        self.supplied = tuple(supplied)
        self._digest = digest
        self._readers = list(readers or [None] * len(paths))
        self._next_look = time.monotonic() + _LOOK_SECONDS
        self._overwritten: ShardCorruptError | None = None
        counts = [entry.num_samples for entry in entries]
        self.starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self.starts[-1])

    @property
    def digest(self) -> str:
        """Fingerprint of the content; of several datasets as one, computed at the first call."""
        if not self._digest:
            self._digest = content_digest(self.schema, [s.column for s in self.readers()])
        return self._digest

    def reader(self, number: int) -> ShardReader:
        """Return one shard's reader."""
        reader = self._readers[number]
        if reader is None:
            reader = ShardReader(
                self.paths[number],
                check=self.check,
                cached=None if self.cached is None else self.cached[number],
                max_pixels=self.max_pixels,
                supply=self._supply_of(number),
            )
            entry, header = self.entries[number], reader.header
            if (entry.digest, entry.num_samples) != (header.digest, len(reader)):
                raise ShardCorruptError(
                    f"{reader.path}: this is not the shard that the manifest lists or that was "
                    f"pickled: it has {len(reader)} samples and the digest {header.digest}, not "
                    f"{entry.num_samples} and {entry.digest}. "
                    "Restore the shard, or pack the dataset again."
                )
            if header.schema != self.schema:
                raise FormatError(
                    f"{reader.path} has other fields than the dataset that it is opened as a part "
                    f"of: {header.schema!r}, not {self.schema!r}. "
                    "Restore the shard, or pack the dataset again."
                )
            self._readers[number] = reader
        return reader

    def _supply_of(self, number: int) -> ShardSupply | None:
        start = int(self.starts[number])
        for supply, first, last in self.supplied:
            if first <= start < last:
                return supply.shard(self.paths[number], start - first)
        return None

    def readers(self) -> Iterator[ShardReader]:
        """Open every shard in turn."""
        return (self.reader(number) for number in range(len(self.paths)))

    def _reopened(self, cached: Sequence[CachedFile] | None, max_pixels: int | None) -> ShardSet:
        return ShardSet(
            self.paths,
            self.entries,
            self.check,
            self.schema,
            self._digest,
            cached,
            max_pixels,
            supplied=self.supplied,
        )

    def with_cached(self, cached: Sequence[CachedFile] | None) -> ShardSet:
        """Return the same shards, read from copies of their files; None: from the files."""
        return self._reopened(cached, self.max_pixels)

    def limited_to(self, max_pixels: int) -> ShardSet:
        """Return the same shards; they decode no larger images."""
        return self._reopened(self.cached, max_pixels)

    def release_cached(self) -> None:
        """Read from the files, not from copies in memory."""
        self.cached = None
        for reader in self._readers:
            if reader is not None:
                reader.release_cached()

    def check_unchanged(self) -> None:
        """Raise `ShardCorruptError` if an open shard was overwritten; looks now and then."""
        if self._overwritten is not None:
            raise ShardCorruptError(str(self._overwritten))
        began = time.monotonic()
        if began < self._next_look:
            return
        self._next_look = began + _LOOK_SECONDS  # other threads need not look meanwhile
        try:
            for reader in self._readers:
                if reader is not None:
                    reader.check_unchanged()
        except ShardCorruptError as error:
            self._overwritten = error
            raise
        ended = time.monotonic()
        self._next_look = ended + max(_LOOK_SECONDS, 100 * (ended - began))

    def locate(self, index: int) -> tuple[ShardReader, int]:
        """Return the shard of a sample and the sample's row in it."""
        self.check_unchanged()
        if len(self.paths) == 1:
            return self.reader(0), index
        number = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.reader(number), index - int(self.starts[number])

    def split(self, indices: Indices) -> list[ShardRows]:
        """Return where samples are, by shard; at least one entry, perhaps of no samples."""
        self.check_unchanged()
        if len(self.paths) == 1 or len(indices) == 0:
            return [ShardRows(self.reader(0), np.arange(len(indices)), indices)]
        numbers = np.searchsorted(self.starts, indices, side="right") - 1
        located = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            rows = indices[places] - self.starts[number]
            located.append(ShardRows(self.reader(number), places, rows))
        return located

    def key(self, index: int) -> str:
        """Return the key that a sample had in its source."""
        reader, row = self.locate(index)
        return reader.key(row)

    def describe(self, index: int) -> str:
        """Return the place and the key of a sample, for messages."""
        reader, row = self.locate(index)
        return f"{reader.place}, key {reader.key(row)!r}"

    @staticmethod
    def join(sets: Sequence[ShardSet]) -> ShardSet:
        """Return several sets as one, in this order; `FormatError` if their schemas differ."""
        if len(sets) == 1:
            return sets[0]
        schema = _same_schema([(shards.paths[0], shards.schema) for shards in sets])
        cached = [copy for shards in sets for copy in shards.cached or ()]
        starts = itertools.accumulate(map(len, sets[:-1]), initial=0)
        supplied = [
            Supplied(one.supply, start + one.first, start + one.last)
            for shards, start in zip(sets, starts, strict=True)
            for one in shards.supplied
        ]
        limits = [shards.max_pixels for shards in sets if shards.max_pixels is not None]
        paths = [path for shards in sets for path in shards.paths]
        return ShardSet(
            paths,
            [entry for shards in sets for entry in shards.entries],
            any(shards.check for shards in sets),
            schema,
            cached=cached if len(cached) == len(paths) else None,
            max_pixels=min(limits, default=None),
            supplied=supplied,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        paths = [str(path) for path in self.paths]
        others = self.check, self.schema, self._digest, self.cached, self.max_pixels
        return _reopen, (paths, list(self.entries), *others, None, self.supplied)


def _reopen(paths: list[str], *others: Any) -> ShardSet:
    shards = ShardSet([Path(path) for path in paths], *others)
    if len(paths) == 1:
        shards.reader(0)
    return shards


def open_shards(
    location: Location | Iterable[Location],
    check: bool,
    max_pixels: int | None = None,
    **of_stores: Any,
) -> ShardSet:
    """Open what `fastdata.open` takes; see there.

    `of_stores` are for URLs: what `open_remote` takes.
    """
    locations = [location] if isinstance(location, (str, os.PathLike)) else list(location)
    if not locations:
        raise OptionError("fastdata.open needs at least one path; the list is empty")
    paths: list[Path] = []
    entries: list[ShardEntry] = []
    readers: list[ShardReader | None] = []
    schemas: list[tuple[Path, Schema]] = []
    digests: list[str] = []
    supplied: list[Supplied] = []
    for part, supply in [found for location in locations for found in _found(location, of_stores)]:
        path = part.absolute()  # shards are opened later, whatever the working directory is then
        if supply is not None:
            first = sum(entry.num_samples for entry in entries)
            supplied.append(Supplied(supply, first, first + supply.num_samples))
        if path.is_dir():
            manifest = Manifest.read(path)
            paths += [_present(path, entry) for entry in manifest.shards]
            entries += manifest.shards
            readers += [None] * len(manifest.shards)
            schemas.append((path, manifest.schema))
            digests.append(manifest.digest)
        else:
            one = None if supply is None else supply.shard(path, 0)
            reader = ShardReader(path, check=check, max_pixels=max_pixels, supply=one)
            digest = reader.header.digest
            # Whoever opens this file again, e.g. after a pickle, must find the same.
            entries.append(ShardEntry(path.name, len(reader), reader.file_bytes, digest))
            paths.append(path)
            readers.append(reader)
            schemas.append((path, reader.header.schema))
            digests.append(digest)
    schema = _same_schema(schemas)
    digest = digests[0] if len(digests) == 1 else ""
    _check_different(paths, entries, OptionError if len(digests) > 1 else FormatError)
    return ShardSet(
        paths,
        entries,
        check,
        schema,
        digest,
        max_pixels=max_pixels,
        readers=readers,
        supplied=supplied,
    )


def _check_different(
    paths: Sequence[Path], entries: Sequence[ShardEntry], error: type[Exception]
) -> None:
    """Raise `error` if a shard is there twice, perhaps as a link or in another spelling."""
    first: dict[tuple[int, int, str], Path] = {}
    for path, entry in zip(paths, entries, strict=True) if len(paths) > 1 else ():
        status = os.stat(path)
        other = first.setdefault((status.st_dev, status.st_ino, entry.digest), path)
        if other is not path:
            raise error(
                f"{path} is there twice{'' if other == path else f', also as {other}'}: its "
                "samples would count twice. Name each shard once; to repeat samples on purpose, "
                "use torch's ConcatDataset, or the option weights of fastdata.loader"
            )


def _found(
    location: Location, of_stores: Mapping[str, Any]
) -> Iterator[tuple[Path, Supply | None]]:
    """Yield the files and directories of a location, and where their images come from."""
    if is_url(location) and not str(location).lower().startswith("file:"):
        from fastdata.remote import open_remote

        supply = open_remote(str(location), **of_stores)
        yield supply.location, supply
        return
    given = open_store(location).path("") if is_url(location) else location
    if any(value is not None for value in of_stores.values()):
        names = ", ".join(name for name, value in of_stores.items() if value is not None)
        raise OptionError(f"{names}: these are for URLs of stores, and {given} is a path")
    yield from ((path, None) for path in expand(given))


def _same_schema(schemas: Sequence[tuple[Path, Schema]]) -> Schema:
    """Return the one schema of datasets that are to be one."""
    first, expected = schemas[0]
    for path, schema in schemas:
        if schema != expected:
            raise FormatError(
                f"{path} and {first} have different fields: {schema.difference(expected)}. "
                "Datasets opened as one must have the same fields and classes. Pack their images "
                "together."
            )
    return expected


def expand(location: Location) -> list[Path]:
    """Return the files and directories that a path or glob pattern stands for, at least one."""
    path = Path(location)
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        matches = sorted(glob.glob(str(path), recursive=True))
        if matches:
            _check_manifests(path.name, [Path(match) for match in matches])
            return [Path(match) for match in matches]
        raise DatasetNotFoundError(f"{path}: nothing matches this pattern")
    if path.with_name(path.name + ".partial").exists():
        raise DatasetNotFoundError(
            f"{path} does not exist yet: its pack is unfinished. Run the same `fastdata pack` "
            "command again: it continues."
        )
    message = not_there(path)
    if path.suffix in PACKED and "Did you mean" not in message:
        message += f" Make it with: fastdata pack IMAGES {path}"
    raise DatasetNotFoundError(message)


def _check_manifests(pattern: str, files: Sequence[Path]) -> None:
    """Refuse shards of a pattern if a manifest in their folder lists others for that pattern."""
    for folder in dict.fromkeys(file.parent for file in files if file.suffix in PACKED):
        if (folder / MANIFEST).is_file():
            there = {file.name for file in files if file.parent == folder}
            listed = {entry.file for entry in Manifest.read(folder).shards}
            wrong = {n for n in listed if fnmatch.fnmatch(n, pattern)} ^ there
            if wrong:
                raise FormatError(
                    f"{folder}: its manifest and the files of the pattern {pattern} differ in "
                    f"{', '.join(sorted(wrong)[:4])}{' ...' * (len(wrong) > 4)}. Open the dataset "
                    f"by its folder: {folder}"
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
