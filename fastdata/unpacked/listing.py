"""Which files samples are made of, and their other values: sources that were listed once.

The list is the source's own (`fastdata.converters`): about 50 bytes an image of class folders.
It is pickled once for each worker process, never with a task.
"""

from __future__ import annotations

import bisect
import copy
import hashlib
import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeGuard

import numpy as np

from fastdata.codecs.image import MAX_PIXELS
from fastdata.converters.base import IndexedSource, Sample, hash_fields
from fastdata.converters.reading.fields import convert
from fastdata.converters.reading.locations import stat_of
from fastdata.errors import FileCorruptError, FormatError, OptionError, SourceError
from fastdata.formats.digest import canonical_json
from fastdata.schema import ImageField, Schema

__all__ = ["Listing", "join_listings", "pack_command"]

_PEEK = 100
"""Samples that are looked at for one that is no reject."""


class Listing:
    """Samples whose images are files of their own, and whose other values are plain.

    Parameters
    ----------
    sources : sequence of IndexedSource
        Of one schema; their samples one behind the other.
    location : Path
        What was opened, as it was given; for messages.
    options : mapping
        How, as of `pack_command`.

    Notes
    -----
    Safe for any number of threads, and to be pickled where the sources are.
    """

    def __init__(
        self,
        sources: Sequence[IndexedSource],
        location: Path,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.sources = tuple(sources)
        self.location = location
        self.command = pack_command(location, options or {})
        """What packs it."""
        self.schema: Schema = sources[0].schema
        self._fields = tuple(self.schema.items())
        self._starts = list(itertools.accumulate((s.num_samples for s in sources), initial=0))
        self._digest = ""
        self.max_pixels = MAX_PIXELS
        """Images of more are refused."""

    def limited_to(self, max_pixels: int | None) -> Listing:
        """Return the same files, of which no larger images are decoded."""
        limited = copy.copy(self)
        limited.max_pixels = max_pixels or MAX_PIXELS
        return limited

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def paths(self) -> Sequence[Path]:
        """What was opened."""
        return [self.location]

    @property
    def digest(self) -> str:
        """Fingerprint of names, sizes and times of all files, and of what goes with them.

        Computed when it is first asked for, which looks at every file, but reads none.
        """
        if not self._digest:
            state = hashlib.blake2b(canonical_json(self.schema.to_json()), digest_size=16)
            for source in self.sources:
                hashes = source.fingerprints()
                if len(hashes) != source.num_samples:  # it does not tell
                    found = map(self._hash_of, itertools.repeat(source), range(source.num_samples))
                    hashes = np.fromiter(found, np.uint64, source.num_samples)
                state.update(hashes.tobytes())
            self._digest = state.hexdigest()
        return self._digest

    def _hash_of(self, source: IndexedSource, index: int) -> int:
        key, values = source.get(index)
        files = values if isinstance(values, tuple) else ()
        return hash_fields(key, values, [stat_of(one) for one in files if isinstance(one, Path)])

    def _at(self, position: int) -> tuple[IndexedSource, int]:
        """Return the source of a sample, and the sample's number in it."""
        number = bisect.bisect_right(self._starts, position) - 1
        return self.sources[number], position - self._starts[number]

    def key(self, position: int) -> str:
        """Return what the source calls a sample."""
        source, index = self._at(position)
        return source.key_at(index)

    def describe(self, position: int) -> str:
        """Return where a sample is and what it is called, for messages."""
        return f"{self.location}, key {self.key(position)!r}"

    def values(self, position: int) -> tuple[Any, ...]:
        """Return a sample's values, in the schema's order; of images the paths.

        Raises
        ------
        FileCorruptError
            If a pack would reject it, for what its source says or for a value that is no image.
        """
        source, index = self._at(position)
        found = source.get(index)
        if not isinstance(found, Sample):
            self.refuse(position, found.reason)
        if not self._of_files(found.values):
            self.refuse(position, "its images are not files of their own")
        try:
            return tuple(
                value if isinstance(field, ImageField) else convert(value, field, name)
                for value, (name, field) in zip(found.values, self._fields, strict=True)
            )
        except ValueError as error:
            self.refuse(position, str(error))

    def refuse(self, position: int, reason: str) -> NoReturn:
        """Raise what is wrong with a sample."""
        raise FileCorruptError(f"sample {position} ({self.describe(position)}): {reason}")

    def check(self) -> None:
        """Look at the first samples.

        Raises
        ------
        FormatError
            If their images are no files of their own.
        SourceError
            If none of their files is there.
        """
        source = self.sources[0]
        missing: list[Path] = []
        for found in map(source.get, range(min(_PEEK, source.num_samples))):
            if not isinstance(found, Sample):
                continue
            if not self._of_files(found.values):
                raise FormatError(
                    f"{self.location}: data of the format {source.name!r} is not loaded as it "
                    f"lies. Pack it: {self.command}"
                )
            missing.append(next(one for one in found.values if isinstance(one, Path)))
            if os.path.exists(missing[-1]):
                return
        if missing:
            raise SourceError(
                f"{self.location}: read as {source.name}, but none of its first {len(missing)} "
                f"images is there: {missing[0]} is missing. Say what else it is by format=, or "
                "bring the images"
            )

    def _of_files(self, values: Any) -> TypeGuard[tuple[Any, ...]]:
        """Tell whether these are a sample's values, with a path for each image."""
        return isinstance(values, tuple) and all(
            isinstance(value, Path)
            for value, (_, field) in zip(values, self._fields, strict=True)
            if isinstance(field, ImageField)
        )

    def refuse_unpacked(self) -> NoReturn:
        """Raise that what is asked for is of packed datasets only."""
        raise OptionError(
            f"this needs a packed dataset, and {self.location} is loaded as it lies. Pack it: "
            f"{self.command}"
        )

    def locate(self, position: int) -> NoReturn:
        """Refuse what is asked of shards."""
        self.refuse_unpacked()


def join_listings(listings: Sequence[Listing]) -> Listing:
    """Return several as one, in this order.

    Raises
    ------
    FormatError
        If their schemas differ, as they do where class folders do.
    """
    first = listings[0]
    for other in listings[1:]:
        if other.schema != first.schema:
            raise FormatError(
                f"{other.location} has other fields or classes than {first.location}: "
                f"{other.schema!r}, not {first.schema!r}. Datasets loaded as one must have the "
                "same; a manifest of all of them has"
            )
    sources = [source for one in listings for source in one.sources]
    return Listing(sources, first.location) if len(listings) > 1 else first


def pack_command(location: Path, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return the command that packs what is at a location.

    Parameters
    ----------
    location : Path
    options : mapping
        ``format``, ``channels``, ``fields`` and ``source_options``, where they were given.
    """
    words = ["fastdata", "pack", str(location), _name_of(location) + ".lmdb"]
    for name in ("format", "channels"):
        if name in options:
            words += [f"--{name}", str(options[name])]
    for flag, name in (("--field", "fields"), ("--option", "source_options")):
        for key, value in options.get(name, {}).items():
            if isinstance(value, (str, int, float)):  # what a command line can say
                words += [flag, f"{key}={value}"]
    return shlex.join(words)


def _name_of(location: Path) -> str:
    return location.absolute().name.split(".")[0] or "images"
