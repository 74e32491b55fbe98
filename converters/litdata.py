"""LitData: the chunks that ``litdata.optimize`` writes for its ``StreamingDataset``.

A folder has ``index.json``, with the columns of samples and their serialisation, and chunks
(``reading/chunks.py`` has their layout).  Whole chunks or samples may be compressed with Zstandard.
Frames of compressed samples and tables of rows (Arrow), which newer versions can write, are
refused.

Sources: ``litdata/streaming/`` of ``Lightning-AI/litData``, 0.2.76: writer, item_loader,
serializers; ``utilities/_pytree.py`` for the tree of columns.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ImageField, ScalarField, StringField

from .reading.chunks import ChunkIndex, ChunkReader, ChunkSource, index_path, raw_image
from .reading.compression import check_codec
from .reading.deferred import array_of
from .reading.locations import first_bytes, last_bytes, map_files
from .reading.selection import TableColumn

__all__ = ["LitDataSource"]

_NUMBERS = {"int": "<i8", "float": "<f8", "bool": "?"}
_NUMPY = {0: "i1", 1: "<i2", 2: "<i4", 3: "<i8", 4: "u1", 5: "<u2", 6: "<u4", 7: "<u8", 8: "<f2"}
_NUMPY |= {9: "<f4", 10: "<f8", 13: "?"}
# The same type stands under two names there, e.g. torch.float32 and torch.float.
_TORCH = {0: "<f4", 1: "<f4", 2: "<f8", 3: "<f8", 8: "<f2", 9: "<f2", 11: "u1", 12: "i1"}
_TORCH |= {13: "<i2", 14: "<i2", 15: "<i4", 16: "<i4", 17: "<i8", 18: "<i8", 19: "?", 20: "<u2"}
_ARRAYS = ("numpy", "tensor", "no_header_numpy", "no_header_tensor")
_TABLE = b"LDARW01\0"
"""The end of a chunk whose rows are an Arrow table; its samples are empty."""
_REMEDY = "Pack the dataset in Python: fastdata.pack(litdata.StreamingDataset({folder!r}), OUT)"


class LitDataSource(ChunkSource):
    """A folder of LitData's chunks."""

    name = "litdata"
    summary = "chunks of LitData (litdata.optimize), plain or zstd"
    missing = ". LitData writes one into the folder of the chunks"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        index = index_path(location)
        return index is not None and b'"chunk_bytes"' in first_bytes(index)

    def read_index(self, index: ChunkIndex) -> tuple[Sequence[str], ChunkReader]:
        config = index.content.get("config")
        encodings = tuple(index.list_of(config, "data_format", str))
        assert isinstance(config, dict)
        if config.get("encryption"):
            raise SourceError("the chunks are encrypted. Decrypt them with LitData first.")
        loader = config.get("item_loader") or "PyTreeLoader"
        if loader != "PyTreeLoader":
            raise SourceError(f"written for {loader}; only chunks for PyTreeLoader are read")
        level, codec = config.get("compression_level") or "chunk", config.get("compression")
        remedy = _REMEDY.format(folder=str(index.root))
        if codec is not None:
            if check_codec(str(codec), "a chunk") != "zstd":
                raise SourceError(f"chunks compressed by {codec!r}; LitData has only zstd")
            if level not in ("chunk", "sample"):
                raise SourceError(
                    f"compression_level {level!r} is not 'chunk' or 'sample', which are read. "
                    f"{remedy}"
                )
        chunks = index.list_of(index.content, "chunks", dict)
        if not chunks or not encodings:
            raise SourceError("lists no chunks, or no columns")
        packed = "zstd" if codec is not None and level == "chunk" else ""
        for chunk in chunks:
            index.add(index.path_of(chunk.get("filename")), chunk.get("chunk_size"), packed)
        ends = map_files(partial(last_bytes, count=len(_TABLE)), index.paths)
        if _TABLE in ends:
            raise SourceError(
                f"the rows of {index.paths[ends.index(_TABLE)].name} are a table of Arrow, as "
                f"LitData writes dicts of text, numbers and bytes, which is not read. {remedy}"
            )
        inflate = codec is not None and level == "sample"
        names = _names_of(config.get("data_spec"), len(encodings))
        return names, ChunkReader(encodings, (None,) * len(encodings), decode, inflate)

    def column_of(self, name: str, encoding: str, channels: int) -> TableColumn | None:
        kind = encoding.partition(":")[0]
        if kind in ("jpeg", "pil", "image", "tifffile", "tiff"):
            return TableColumn(name, ImageField(channels=channels))
        if kind in _NUMBERS:
            return TableColumn(name, ScalarField(np.dtype(_NUMBERS[kind]).name))
        if kind in ("str", "text"):
            return TableColumn(name, StringField())
        if kind == "pickle":
            reason = "is pickled, and reading it would run code from the file"
        else:
            reason = f"is serialised as {encoding!r}, which fits no field"
        return None if kind in ("bytes", "file", *_ARRAYS) else TableColumn(name, None, reason)


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises ValueError if the bytes are none of that serialiser.
    """
    kind, _, about = encoding.partition(":")
    if kind in _NUMBERS:
        return array_of(data, _NUMBERS[kind], (1,))[0]
    if kind == "pil":
        return raw_image(data)
    if kind in ("str", "text"):
        return data.decode()
    if kind not in _ARRAYS:
        return data
    types = _NUMPY if kind.endswith("numpy") else _TORCH
    if kind.startswith("no_header"):
        dtype = _type_of(types, int(about) if about.isdecimal() else -1)
        return array_of(data, dtype, (len(data) // np.dtype(dtype).itemsize,))
    if len(data) < 8:
        raise SourceError(f"an array of {len(data)} bytes has no head")
    # Tensors are big-endian; older versions wrote them like arrays.
    big = kind == "tensor" and int.from_bytes(data[4:8], "big") <= 64
    order = ">" if big else "<"
    number, rank = struct.unpack_from(f"{order}2I", data)
    if rank > 64 or len(data) < 8 + 4 * rank:
        raise SourceError(f"an array of {len(data)} bytes claims {rank} dimensions")
    shape = struct.unpack_from(f"{order}{rank}I", data, 8)
    return array_of(data[8 + 4 * rank :], _type_of(types, number), shape)


def _type_of(types: dict[int, str], number: int) -> str:
    if number not in types:
        raise SourceError(f"an array of LitData's dtype number {number} cannot be read")
    return types[number]


def _names_of(spec: Any, count: int) -> list[str]:
    """Return the names of columns from the tree that samples are."""
    if spec is None:
        return [""] * count
    try:
        found = list(_leaves(json.loads(spec)[1], ()))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise SourceError(f"data_spec cannot be read: {error!r}") from error
    if len(found) != count:
        raise SourceError(f"data_spec has {len(found)} columns and data_format {count}")
    return found


def _leaves(node: dict[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    children = node["children_spec"]
    if node["type"] is None:
        # Columns that have only positions, those of a tuple, get the names of their fields.
        yield ".".join(above) if any(not part.isdecimal() for part in above) else ""
        return
    named = json.loads(node["context"]) if "dict" in node["type"].lower() else None
    keys = [str(key) for key in named] if isinstance(named, list) else map(str, range(10**6))
    for key, child in zip(keys, children, strict=False):
        yield from _leaves(child, (*above, key))
