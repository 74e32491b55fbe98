"""What a pack is of, and where it is cut into shards.

A `Plan` is for packs whose shards are made in different places: a part is one shard.  If the
samples of a store are found only by reading its files, the cuts are between files, by their sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import xxhash

from fastdata.errors import FormatError, OptionError, SourceError
from fastdata.formats.writer import EncodedImage, Record

from ..base import IndexedSource, Reject, Source
from ..reading.locations import stat_of
from ..scan import ScanSource
from .chunk import RECIPE, encode_chunk
from .job import checked_json, json_with_checksum
from .options import PackOptions

__all__ = [
    "Plan",
    "Positions",
    "nothing_packed",
    "num_samples",
    "order_of",
    "packed_with",
    "request_of",
    "shard_bounds",
]

Positions = np.ndarray[Any, np.dtype[np.int64]]

_RUNS = 8
_SPREAD = 256
"""Samples that are encoded to find out how many are in a shard of so many bytes."""


def nothing_packed(count: int, rejects: Sequence[Reject], place: object) -> SourceError:
    """Return the error of a source without samples, or whose `count` samples are all rejects.

    rejects: the first of them at least.
    place: the list of all.
    """
    if not rejects:
        return SourceError("nothing to pack: the source has no samples")
    key, reason = rejects[0]
    return SourceError(
        f"nothing to pack: all {count} samples were rejected, the first, {key}, since: {reason}. "
        f"All are listed in {place}."
    )


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


def order_of(source: Source, options: PackOptions) -> Positions | None:
    """Return the order of a shuffled pack, as numbers of samples; else None."""
    if not options.shuffle:
        return None
    return np.random.Generator(np.random.PCG64(options.seed)).permutation(source.num_samples or 0)


def request_of(source: Source, options: PackOptions) -> dict[str, Any]:
    """Return what decides the content of a dataset: options, and a hash of the source.

    The hash has the number of samples or files before it.
    """
    hashes = source.fingerprints(None if options.shuffle else options.limit)
    content = f"{len(hashes):,} {xxhash.xxh3_64_hexdigest(hashes.tobytes())}"
    return {"identity": _identity(source, options), "source": content}


def _identity(source: Source, options: PackOptions) -> dict[str, Any]:
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
    source: str
    """Both as `request_of` returns them."""
    bounds: tuple[int, ...]
    unit: Literal["samples", "files"] = "samples"

    @classmethod
    def of(cls, source: Source, options: PackOptions) -> Plan:
        """Return the plan of a pack; all samples are counted, and some encoded.

        `OptionError` if the source cannot be cut so, `SourceError` if it is empty.
        """
        if isinstance(source, ScanSource) and source.mirror is not None:
            cut = tuple(_file_bounds(source, options))
            return cls(**request_of(source, options), bounds=cut, unit="files")
        total = num_samples(source, options, counted=True)
        if total is None:
            raise OptionError(
                "samples that can be read only once cannot be packed in parts: write them to files"
            )
        if total == 0:
            raise nothing_packed(0, (), "")
        size = options.shard_size
        if options.shard_bytes is not None:
            size = _samples_of(options.shard_bytes, source, options, total)
        options_of_shards = replace(options, shard_size=size, shard_bytes=None)
        end_of, bounds = shard_bounds(options_of_shards, total), [0]
        while bounds[-1] < total:
            end = end_of(len(bounds) - 1)
            bounds.append(total if end is None else min(end, total))
        return cls(**request_of(source, options), bounds=tuple(bounds))

    @classmethod
    def from_json(cls, data: bytes | memoryview, place: str) -> Plan:
        """Return a plan that was written; `FormatError` if it is none."""
        try:
            body = checked_json(bytes(data))
            return cls(**{**body, "bounds": tuple(map(int, body["bounds"]))})
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(
                f"{place} is no plan of a pack: {error!r}. Remove it, and plan again"
            ) from error

    def to_json(self) -> bytes:
        """Return it as it is written."""
        return json_with_checksum(asdict(self))

    @property
    def id(self) -> str:
        """What is another one for another plan."""
        return xxhash.xxh3_64_hexdigest(self.to_json())

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def samples_in(self, part: int) -> int | None:
        """Return how many samples a part has; None where it has files."""
        start, stop = self.bounds[part : part + 2]
        return stop - start if self.unit == "samples" else None


def _file_bounds(source: ScanSource, options: PackOptions) -> list[int]:
    """Cut the files of a source, by their sizes, into so many runs, or such of so many bytes."""
    if options.limit:
        raise OptionError(
            f"limit needs to know where the samples of {source.name} are, and all files of a store "
            "would have to be read for that: copy them here, or pack without"
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
    # Runs of samples, as tables are read in blocks.
    runs = min(_RUNS, total) if isinstance(source, IndexedSource) else 1
    starts = (total * run // runs for run in range(runs))
    each = -(-_SPREAD // runs)
    some = [s for start in starts for s in itertools.islice(source.start_at(start), each)]
    sizes = [
        sum(len(value.data) for value in record.values if isinstance(value, EncodedImage))
        for record in encode_chunk(some, source.schema, options.encode, source.box_forms)
        if isinstance(record, Record)
    ]
    return max(1, round(nbytes * len(sizes) / sum(sizes))) if sum(sizes) else total
