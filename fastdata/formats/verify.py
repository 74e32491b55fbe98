"""Find every damaged byte that matters in a shard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastdata.errors import FastdataError
from fastdata.formats.digest import content_digest
from fastdata.formats.layout import CODECS, checksum
from fastdata.formats.reader import ShardReader

__all__ = ["Damage", "find_damage", "first_damage"]


class Damage(NamedTuple):
    """One thing that is wrong: where (a column, or a field of a sample) and why."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def find_damage(shard: ShardReader) -> Iterator[Damage]:
    """Compare every checksum of a shard, and the content digest.

    Yields
    ------
    Damage
        Damaged columns first; images are then looked at as far as the
        columns that locate them are sound.
    """
    header = shard.header
    broken = set()
    for name in header.columns:
        if not shard.column_is_intact(name):
            broken.add(name)
            yield Damage(f"column {name!r}", "the checksum does not match")
    for field in header.schema.images:
        parts = {f"{field}.{part}" for part in ("offset", "length", "checksum", "codec")}
        if parts & broken:
            yield Damage(f"field {field!r}", "its images cannot be checked: a column is damaged")
            continue
        checksums = shard.column(f"{field}.checksum")
        codecs = shard.column(f"{field}.codec")
        for index in range(len(shard)):
            place = f"{field!r} of sample {index}"
            try:
                if "key.data" not in broken and "key.bounds" not in broken:
                    place += f" (key {shard.key(index)!r})"
                if checksum(shard.raw_blob(field, index)) != checksums[index]:
                    yield Damage(place, "the checksum does not match")
                elif codecs[index] >= len(CODECS):
                    yield Damage(place, f"unknown codec number {codecs[index]}")
            except FastdataError as error:
                yield Damage(place, str(error))
    if not broken and content_digest(header.schema, [shard.raw_column]) != header.digest:
        yield Damage("header", "the content digest is not that of the columns")


def first_damage(shard: ShardReader) -> Damage | None:
    """Return the first damage, or None where there is none."""
    return next(find_damage(shard), None)
