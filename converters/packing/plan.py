"""What a pack is of, and where it is cut into shards.

A `Plan` is a pack that parts of are made in different places: a part is one of its shards, and
`SourceRange` the samples of that.  Of a store, formats whose samples are found only by reading are
cut between files, by their sizes: nobody reads files for what is behind them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import xxhash

from fastdata.errors import FormatError, OptionError, SourceError
from fastdata.formats.writer import EncodedImage, Record
from fastdata.installing import UPGRADE

from ..base import IndexedSource, Reject, Sample, Source
from ..reading.locations import stat_of
from ..scan import ScanSource
from .chunk import RECIPE, encode_chunk
from .job import checked_json, json_with_checksum
from .options import PackOptions

__all__ = [
    "NothingPackedError",
    "Plan",
    "Positions",
    "SourceRange",
    "identity",
    "num_samples",
    "packed_with",
    "shard_bounds",
    "shuffled",
    "source_hash",
]

Positions = np.ndarray[Any, np.dtype[np.int64]]

_SPREAD = 256
"""Samples that are encoded to find out how many are in a shard of so many bytes."""


class NothingPackedError(SourceError):
    """A source has no samples, or none that can be packed."""


def num_samples(source: Source, options: PackOptions, *, counted: bool) -> int | None:
    """Return how many samples are packed; None where that is not known, unless they are counted."""
    total = source.num_samples
    if total is None and counted:
        total = source.count()
    return total if total is None or options.limit is None else min(total, options.limit)


def shard_bounds(options: PackOptions, total: int | None) -> Callable[[int], int | None]:
    """Return a function from a shard's number to where in the source it ends."""
    size, shards = options.shard_size, options.shards
    if size is not None:
        return lambda number: (number + 1) * size
    if shards == 1 or options.shard_bytes is not None:
        return lambda number: None
    if total is None:
        raise OptionError(
            f"shards={shards} needs a source of known length; give shard_size instead"
        )
    if total < shards:
        raise OptionError(f"shards={shards} are more than the source's {total} samples")
    return lambda number: (number + 1) * total // shards


def shuffled(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the order of a shuffled pack."""
    return np.random.Generator(np.random.PCG64(seed)).permutation(count)


def identity(source: Source, options: PackOptions) -> dict[str, Any]:
    """Return what decides the content of a dataset, beside the content of the source."""
    return {
        "source": source.name,
        "source_options": {
            name: str(value) for name, value in sorted(source.format_options.items())
        },
        "schema": source.schema.to_json(),
        "recipe": RECIPE,
        **options.to_json(),
    }


def packed_with(source: Source, options: PackOptions) -> Mapping[str, Any]:
    """Return the options that a dataset has as those it was packed with."""
    if options.encode.codec == "keep" and source.packed_with is not None:
        return source.packed_with
    return options.to_json()


# -- parts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """A pack that is cut: part k has the samples, or files, ``bounds[k]`` to ``bounds[k + 1]``."""

    identity: Mapping[str, Any]
    """As `identity` returns it."""
    source: str
    """A hash of what the samples are made from."""
    bounds: tuple[int, ...]
    unit: Literal["samples", "files"] = "samples"

    VERSION: ClassVar[int] = 1

    @classmethod
    def of(cls, source: Source, options: PackOptions) -> Plan:
        """Return the plan of a pack; all samples are counted, and some encoded.

        `OptionError` if the source cannot be cut so, `NothingPackedError` if it is empty.
        """
        if isinstance(source, ScanSource) and source.mirror is not None:
            cut = tuple(_file_bounds(source, options))
            return cls(identity(source, options), source_hash(source, options), cut, "files")
        total = num_samples(source, options, counted=True)
        if total is None:
            raise OptionError(
                "samples that can be read only once cannot be packed in parts: write them to files"
            )
        if total == 0:
            raise NothingPackedError("nothing to pack: the source has no samples")
        size = options.shard_size
        if options.shard_bytes is not None:
            size = _samples_of(options.shard_bytes, source, options, total)
        options_of_shards = replace(options, shard_size=size, shard_bytes=None)
        end_of, bounds = shard_bounds(options_of_shards, total), [0]
        while bounds[-1] < total:
            end = end_of(len(bounds) - 1)
            bounds.append(total if end is None else min(end, total))
        return cls(identity(source, options), source_hash(source, options), tuple(bounds))

    @classmethod
    def from_json(cls, data: bytes | memoryview, place: str) -> Plan:
        """Return a plan that was written; `FormatError` if it is none."""
        try:
            body = checked_json(bytes(data))
            if body.pop("version") == cls.VERSION:
                unit, bounds = body["unit"], tuple(map(int, body["bounds"]))
                if unit not in ("samples", "files"):
                    raise ValueError(f"unit {unit!r}")
                return cls(body["identity"], body["source"], bounds, unit)
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{place} is no plan of a pack: {error!r}. Remove it, and plan again"
            ) from error
        raise FormatError(f"{place} is of another release. Use that, or upgrade: {UPGRADE}")

    def to_json(self) -> bytes:
        """Return it as it is written."""
        return json_with_checksum({"version": self.VERSION, **asdict(self)})

    @property
    def id(self) -> str:
        """What is another one for another plan."""
        return xxhash.xxh3_64_hexdigest(self.to_json())

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_samples(self) -> int | None:
        """How many samples all parts have; None where they are files."""
        return self.bounds[-1] if self.unit == "samples" else None

    def samples_in(self, part: int) -> int | None:
        """Return how many samples a part has; None where it has files."""
        start, stop = self.bounds[part : part + 2]
        return stop - start if self.unit == "samples" else None


def source_hash(source: Source, options: PackOptions) -> str:
    """Return a hash of what the samples of a pack are made from."""
    hashes = source.fingerprints(None if options.shuffle else options.limit)
    return xxhash.xxh3_64_hexdigest(hashes.tobytes())


def _file_bounds(source: ScanSource, options: PackOptions) -> list[int]:
    """Cut the files of a source, by their sizes, into so many runs, or such of so many bytes."""
    for name in ("limit", "shuffle"):
        if getattr(options, name):
            raise OptionError(
                f"{name} needs to know where the samples of {source.name} are, and all files of a "
                "store would have to be read for that: copy them here, or pack without"
            )
    if options.shard_size is not None:
        raise OptionError(
            f"shard_size={options.shard_size} counts samples, which in {source.name} are found "
            "only by reading the files of a store: give bytes (--shard-size 1GB) or shards"
        )
    ends = np.cumsum([stat_of(path)[0] for path in source.paths])
    files, whole = len(ends), int(ends[-1])
    if options.shards > files:
        raise OptionError(f"shards={options.shards} are more than the source's {files} files")
    bounds = [0]
    while bounds[-1] < files:
        start, done = bounds[-1], len(bounds)
        before = int(ends[start - 1]) if start else 0
        if options.shard_bytes is not None:
            until, most = before + options.shard_bytes, files
        else:
            # The rest is to have a file for each shard that is left.
            until, most = whole * done // options.shards, files - (options.shards - done)
        end = int(np.searchsorted(ends, until, "right"))
        bounds.append(min(max(end, start + 1), most))
    return bounds


def _samples_of(nbytes: int, source: Source, options: PackOptions, total: int) -> int:
    """Return how many samples have about so many bytes, by some that are encoded."""
    if source.worker_setup is not None:
        source.worker_setup()
    if isinstance(source, IndexedSource):
        some = list(source.some(_SPREAD))
    else:
        some = list(itertools.islice(source, _SPREAD))
    sizes = [
        sum(len(value.data) for value in record.values if isinstance(value, EncodedImage))
        for record in encode_chunk(some, source.schema, options.encode, source.box_forms).records
        if isinstance(record, Record)
    ]
    return max(1, round(nbytes * len(sizes) / sum(sizes))) if sum(sizes) else total


class SourceRange(Source):
    """A run of a source's samples, in an order if one is given, or of its files."""

    name = "range"

    def __init__(
        self, source: Source, start: int, stop: int, order: Positions | None, *, files: bool
    ) -> None:
        self._source, self._start, self._stop, self._order = source, start, stop, order
        self.name = source.name  # type: ignore[misc]
        self.reads_by_network, self.mirror = source.reads_by_network, source.mirror
        self.schema, self.box_forms, self.notes = source.schema, source.box_forms, []
        self.num_samples = None if files else stop - start
        self.first = 0 if files else start
        """The position of its first sample; where that is known of none, in this."""

    @classmethod
    def recognises(cls, location: Any) -> bool:
        return False

    @property
    def worker_setup(self) -> Callable[[], None] | None:
        return self._source.worker_setup

    def __iter__(self) -> Iterator[Sample | Reject]:
        if self.num_samples is not None:
            return self.start_at(0)
        assert isinstance(self._source, ScanSource), "only such a one is cut between files"
        return self._source.read_files(self._start, self._stop)

    def start_at(self, start: int) -> Iterator[Sample | Reject]:
        if self.num_samples is None:
            return super().start_at(start)
        first, stop = self._start + start, self._stop
        if self._order is None:
            return itertools.islice(self._source.start_at(first), stop - first)
        assert isinstance(self._source, IndexedSource), "only such a one is shuffled"
        return map(self._source.get, map(int, self._order[first:stop]))
