"""Chunks of packed samples: what MDS shards and LitData's chunks have in common.

==============  ==========================================================
4 bytes         n, the number of samples; like all numbers, little-endian
4 * (n + 1)     where each sample starts, and where the last one ends
...             whatever the format has there
samples         each the lengths of its columns (4 bytes, of those whose
                length varies), then the columns
==============  ==========================================================

A file ``index.json`` beside the chunks says what the columns are, how many samples are in each
chunk and how they are compressed.  A chunk that is not compressed is scanned, and the worker
reads samples; a compressed one is inflated in the packing process, from its front.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fastdata.errors import SourceError
from fastdata.schema import Field

from ...base import Deferred
from ..fields import convert
from ..spans import read_at
from ..zstd import inflate_zstd

__all__ = ["Inflated", "Plan", "Stored"]


class Plan(NamedTuple):
    """How the bytes of a sample become its values; it goes to the workers.

    Attributes
    ----------
    encodings : tuple of str
        Of each column.
    sizes : tuple of int or None
        Of each column, in bytes; None where each sample says its own.
    decode : callable
        Takes an encoding and bytes, returns a value.  A function of a module.
    inflate : bool
        Whether each sample is a piece of Zstandard.
    schema : mapping
    picked : tuple of int
        The column of each field.
    """

    encodings: tuple[str, ...]
    sizes: tuple[int | None, ...]
    decode: Callable[[str, bytes], Any]
    inflate: bool = False
    schema: Mapping[str, Field] = MappingProxyType({})
    picked: tuple[int, ...] = ()

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the values of a sample.

        Raises
        ------
        ValueError
            If the bytes are not such a sample's, or do not fit a field.
        """
        columns = self.split(data)
        found = []
        for (name, field), number in zip(self.schema.items(), self.picked, strict=True):
            value = self.decode(self.encodings[number], columns[number])
            found.append(convert(value, field, name))
        return tuple(found)

    def split(self, data: bytes) -> list[bytes]:
        """Return the bytes of each column."""
        if self.inflate:
            data = inflate_zstd(data)
        varying = self.sizes.count(None)
        at = 4 * varying
        if len(data) < at:
            raise SourceError(f"a sample of {len(data)} bytes, and {at} are for its lengths alone")
        lengths = iter(struct.unpack_from(f"<{varying}I", data))
        found = []
        for size in self.sizes:
            length = next(lengths) if size is None else size
            found.append(data[at : at + length])
            at += length
        if at != len(data):
            raise SourceError(
                f"the columns of a sample have {at:,} bytes, the sample {len(data):,}"
            )
        return found


class Stored(Deferred):
    """A sample that the worker reads from its chunk."""

    def __init__(self, path: str, offset: int, length: int, plan: Plan) -> None:
        self.path, self.offset, self.length, self.plan = path, offset, length, plan

    def load(self) -> tuple[Any, ...]:
        """Read the sample and take its values."""
        return self.plan.values(read_at(self.path, self.offset, self.length))


class Inflated(Deferred):
    """A sample of a compressed chunk, which only the packing process could read."""

    def __init__(self, data: bytes, plan: Plan) -> None:
        self.data, self.plan = data, plan

    def load(self) -> tuple[Any, ...]:
        """Take the values."""
        return self.plan.values(self.data)
