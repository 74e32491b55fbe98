"""The content digest: what a dataset holds, whatever files hold it.

It is the same for LMDB and HDF5 and for any number of shards, and depends on
the order of samples, their keys and values, and the encoded bytes of images
(through the checksum of each).  It is a fingerprint against accidents, not
against an adversary: XXH3 is no cryptographic hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xxhash

from fastdata.formats.layout import column_specs
from fastdata.schema import Schema

__all__ = ["content_digest"]

_BLOCK_BYTES = 1 << 24


def content_digest(schema: Schema, shards: Sequence[Callable[[str], np.ndarray[Any, Any]]]) -> str:
    """Hash the columns of `shards`, taken as one sequence of samples.

    Parameters
    ----------
    schema : Schema
    shards : sequence of callable
        Each returns a shard's column, given the column's name.

    Returns
    -------
    str
        32 hex digits: XXH3-128 over the schema's canonical JSON and, column by column,
        name and bytes.  File offsets are left out, and bounds of flat
        columns enter as lengths, so that the cut into shards does not show.
    """
    total = xxhash.xxh3_128(canonical_json(schema.to_json()))
    for name, spec in column_specs(schema).items():
        if spec.computed:
            continue
        column = xxhash.xxh3_128(name.encode() + b"\0")
        for shard in shards:
            values = shard(name)
            step = max(1, _BLOCK_BYTES // max(1, values[:1].nbytes))
            if spec.bounds:
                for start in range(0, len(values) - 1, step):
                    column.update(np.diff(values[start : start + step + 1]).tobytes())
            else:
                for start in range(0, len(values), step):
                    column.update(np.ascontiguousarray(values[start : start + step]).data)
        total.update(column.digest())
    return total.hexdigest()


def canonical_json(document: object) -> bytes:
    """Return the one JSON text of a document without floats (RFC 8785)."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()
