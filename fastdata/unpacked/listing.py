"""Files and other values of samples that are not packed: sources, listed once.

`list_files` returns the `Listing` of a location that is not a packed dataset.  The list is that of
the source (`fastdata.converters`): about 50 bytes per image of class folders.  It is pickled once
for each worker process, never with a task.
"""

from __future__ import annotations

import bisect
import copy
import hashlib
import itertools
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fastdata.codecs.limits import MAX_PIXELS
from fastdata.converters.base import IndexedSource, Sample, hash_fields
from fastdata.converters.finding import find_source
from fastdata.converters.opening import needs_packing, pack_command, unpacked_location
from fastdata.converters.reading.fields import convert
from fastdata.converters.reading.locations import stat_of
from fastdata.distributed import rank_and_world_size
from fastdata.errors import FileCorruptError, FormatError, SourceError
from fastdata.formats.layout import canonical_json
from fastdata.schema import ImageField, Schema

if TYPE_CHECKING:
    from fastdata.cache.ram import CachedFiles

__all__ = ["Listing", "bytes_of", "list_files", "suggest_packing"]

log = logging.getLogger("fastdata")

_PEEK = 100
"""Limit of samples to check for one that is not a reject."""


class Listing:
    """Samples with one file per image, on a drive or in memory, and plain other values.

    They are those of `sources`, of one schema, concatenated.  `location` is for messages, and
    `command` packs it.  It is for `UnpackedDataset` what a `fastdata.shards.ShardSet` is for
    `Dataset`.  Thread-safe, and picklable if the sources are.
    """

    def __init__(
        self,
        sources: Sequence[IndexedSource],
        location: Path,
        command: str,
    ) -> None:
        self.sources = tuple(sources)
        self.location = location
        self.command = command
        self.schema: Schema = sources[0].schema
        self._fields = tuple(self.schema.items())
        self._starts = list(itertools.accumulate((s.num_samples for s in sources), initial=0))
        self._computed_digest: list[str] = []  # shared by copies, as it takes long
        self.max_pixels = MAX_PIXELS
        """Images of more are refused."""
        self.cached: CachedFiles | None = None
        """Memory in which files stay that were read: those of the first image field, by their
        samples' positions, then those of the next."""

    def limited_to(self, max_pixels: int | None) -> Listing:
        """Return the same files with another limit of pixels."""
        limited = copy.copy(self)
        limited.max_pixels = max_pixels or MAX_PIXELS
        return limited

    def with_cached(self, cached: CachedFiles | None) -> Listing:
        """Return the same files, which stay in memory once they are read."""
        listing = copy.copy(self)
        listing.cached = cached
        return listing

    def release_cached(self) -> None:
        """Read from the files, not from memory."""
        self.cached = None

    @staticmethod
    def join(listings: Sequence[Listing]) -> Listing:
        """Return several as one, in this order.

        `FormatError` if their schemas differ, as they do where class folders do.
        """
        first = listings[0]
        if len(listings) == 1:
            return first
        for other in listings[1:]:
            if other.schema != first.schema:
                raise FormatError(
                    f"{other.location} has other fields or classes than {first.location}: "
                    f"{other.schema.difference(first.schema)}. Datasets loaded as one must have "
                    "the same: make one manifest for all"
                )
        sources = [source for one in listings for source in one.sources]
        joined = Listing(sources, first.location, first.command)
        return joined.limited_to(min(one.max_pixels for one in listings))

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def paths(self) -> Sequence[Path]:
        """What was opened."""
        return [self.location]

    @property
    def digest(self) -> str:
        """Fingerprint of names, sizes and times of all files, and of the other values.

        Computed at the first call, which looks at every file, but reads none.
        """
        if not self._computed_digest:
            state = hashlib.blake2b(canonical_json(self.schema.to_json()), digest_size=16)
            for source in self.sources:
                hashes = source.fingerprints()
                if len(hashes) != source.num_samples:  # the source has none
                    each = map(self._hash_of, itertools.repeat(source), range(source.num_samples))
                    hashes = np.fromiter(each, np.uint64, source.num_samples)
                state.update(hashes.tobytes())
            self._computed_digest.append(state.hexdigest())
        return self._computed_digest[0]

    def _hash_of(self, source: IndexedSource, index: int) -> int:
        key, values = source.get(index)
        files = values if isinstance(values, tuple) else ()
        return hash_fields(key, values, [stat_of(one) for one in files if isinstance(one, Path)])

    def _at(self, position: int) -> tuple[IndexedSource, int]:
        """Return the source of a sample, and the sample's number in it."""
        number = bisect.bisect_right(self._starts, position) - 1
        return self.sources[number], position - self._starts[number]

    def key(self, position: int) -> str:
        """Return the source's key of a sample."""
        source, index = self._at(position)
        return source.key_at(index)

    def file_sizes(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of all files, in the order of `cached`; 0 of other samples' files."""
        names = list(self.schema.images)
        sizes = np.zeros((len(names), len(self)), np.int64)
        for position in np.unique(positions).tolist():
            try:
                values = dict(zip(self.schema, self.values(position), strict=True))
            except FileCorruptError:
                continue  # raised when it is read
            sizes[:, position] = [bytes_of(values[name]) for name in names]
        return sizes.reshape(-1)

    def describe(self, position: int) -> str:
        """Return the place and the key of a sample, for messages."""
        return f"{self.location}, key {self.key(position)!r}"

    def values(self, position: int) -> tuple[Any, ...]:
        """Return a sample's values, in the schema's order; paths, or bytes of files, for images.

        `FileCorruptError` if a pack would reject it because of its source or of a value without
        images.
        """
        source, index = self._at(position)
        sample = source.get(index)
        if not isinstance(sample, Sample):
            self._refuse(position, sample.reason)
        if not self._has_files(sample.values):
            self._refuse(position, "its images are not files of their own")
        try:
            return tuple(
                value if isinstance(field, ImageField) else convert(value, field, name)
                for value, (name, field) in zip(sample.values, self._fields, strict=True)
            )
        except ValueError as error:
            self._refuse(position, str(error))

    def _refuse(self, position: int, reason: str) -> NoReturn:
        raise FileCorruptError(f"sample {position} ({self.describe(position)}): {reason}")

    def check(self) -> None:
        """Check the first samples.

        `FormatError` if their images are not single files; `SourceError` if none exists.
        """
        source = self.sources[0]
        missing: list[Path] = []
        for sample in map(source.get, range(min(_PEEK, source.num_samples))):
            if not isinstance(sample, Sample):
                continue
            if not self._has_files(sample.values):
                raise FormatError(
                    f"{self.location}: data of the format {source.name!r} is not loaded as it "
                    f"lies. Pack it: {self.command}"
                )
            file = next(one for one in sample.values if isinstance(one, (Path, bytes)))
            if isinstance(file, bytes) or os.path.exists(file):
                return
            missing.append(file)
        if missing:
            raise SourceError(
                f"{self.location}: read as {source.name}, but none of its first {len(missing)} "
                f"images is there: {missing[0]} is missing. Say what else it is by format=, or "
                "bring the images"
            )

    def _has_files(self, values: Any) -> TypeGuard[tuple[Any, ...]]:
        """Tell whether these are a sample's values, with a file for each image."""
        return isinstance(values, tuple) and all(
            isinstance(value, (Path, bytes))
            for value, (_, field) in zip(values, self._fields, strict=True)
            if isinstance(field, ImageField)
        )

    def refuse_unpacked(self) -> NoReturn:
        """Raise the error for a method of packed datasets only."""
        raise needs_packing(self.location, self.command)

    def locate(self, position: int) -> NoReturn:
        """Refuse, without shards."""
        self.refuse_unpacked()


def bytes_of(file: Path | bytes) -> int:
    """Return the size of a file; 0 if it is missing."""
    return len(file) if isinstance(file, bytes) else stat_of(file)[0]


def list_files(
    locations: Sequence[Any], options: Mapping[str, Any], error: Exception | None
) -> Listing:
    """Return the samples at a location that is not a packed dataset; see `unpacked_location`.

    error: None if the only location is rows from Python.  Also raises `SourceError` or
    `OptionError` if the data or the options are unsuitable.
    """
    rows = error is None
    location = Path("rows") if error is None else unpacked_location(locations, options, error)
    # Files are read later, whatever the working directory is then.
    source = find_source(
        locations[0] if rows else os.path.abspath(location),
        format=options.get("format"),
        channels=options.get("channels", 3),
        fields=options.get("fields"),
        options=options.get("source_options"),
    )
    command = 'fastdata.pack(rows, "rows.lmdb")' if rows else pack_command(location, options)
    if not isinstance(source, IndexedSource):
        source.close()
        raise FormatError(
            f"{location}: data of the format {source.name!r} is not loaded as it lies. Pack it: "
            f"{command}"
        )
    listing = Listing([source], location, command)
    listing.check()
    log.info("%s: %s", location, source.description)
    for note in source.notes:
        log.info("%s: %s", location, note)
    return listing


@cache
def suggest_packing(location: Path, command: str) -> None:
    """Log the benefit of packing, once per process, on the first rank only."""
    if rank_and_world_size(None, None)[0] == 0:
        log.warning(
            "%s: every epoch decodes the image files at their full size. A pack is several times "
            "as fast (docs/guide/loading.md): %s",
            location,
            command,
        )
