"""Whether what is in the cache is what was fetched."""

from __future__ import annotations

from fastdata.errors import FastdataError
from fastdata.formats.layout import checksum
from fastdata.formats.reader import ShardReader
from fastdata.remote.folder import CachedDataset

__all__ = ["damaged_columns", "damaged_samples"]


def damaged_columns(dataset: CachedDataset) -> list[str]:
    """Return the columns that do not match their checksums, as ``FILE: COLUMN``.

    A shard that is missing, or has a damaged header, is listed as ``FILE: header``.
    """
    damaged = []
    for shard in dataset.shards:
        try:
            reader = ShardReader(dataset.folder / shard.file)
        except (FastdataError, OSError):
            damaged.append(f"{shard.file}: header")
            continue
        names = reader.header.columns
        damaged += [f"{shard.file}: {one}" for one in names if not reader.column_is_intact(one)]
    return damaged


def damaged_samples(dataset: CachedDataset) -> list[int]:
    """Return which samples are there whose images do not match their checksums.

    What is removed or comes meanwhile may be among them.  The columns must be intact.
    """
    present = dataset.present()
    damaged, first = [], 0
    for shard in dataset.shards:
        reader = ShardReader(dataset.folder / shard.file, check=False)
        for row in range(shard.num_samples):
            if present[first + row] and not all(
                checksum(reader.raw_blob(name, row)) == reader.column(f"{name}.checksum")[row]
                for name in reader.header.schema.images
            ):
                damaged.append(first + row)
        first += shard.num_samples
    return damaged
