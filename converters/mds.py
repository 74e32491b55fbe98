"""MDS: the shards of MosaicML Streaming, from its specification.

A folder has ``index.json``, which lists shards with their columns and how these are encoded, and
the shards (``reading/chunks.py`` has their layout), plain or compressed as a whole.
Sources:
``docs/source/preparing_datasets/dataset_format.md`` and ``streaming/base/format/mds/`` (reader,
writer, encodings) of ``mosaicml/streaming``, 0.13.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.errors import SourceError
from fastdata.schema import ImageField, ScalarField, StringField

from .reading.chunks import ChunkIndex, ChunkReader, ChunkSource, index_path, raw_image
from .reading.compression import check_codec
from .reading.deferred import array_of, json_text
from .reading.locations import first_bytes, folder_at
from .reading.selection import TableColumn

__all__ = ["MDSSource"]

_SCALARS = {
    "int": "<i8",
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_VALUES = {8: "<u1", 9: "<i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
_VALUES |= {64: "<u8", 65: "<i8", 66: "<f8"}


class MDSSource(ChunkSource):
    """A folder of MDS shards."""

    name = "mds"
    summary = "shards of MosaicML Streaming (MDS), plain, gz, bz2 or zstd"
    missing = (
        ". MDS writes one into the folder of the shards: copy it. If folders in it have one each, "
        "merge them: streaming.base.util.merge_index(FOLDER)"
    )

    @classmethod
    def recognises(cls, location: Any) -> bool:
        index = index_path(location)
        return _is_index(index) if index is not None else _lacks_index(location)

    def read_index(self, index: ChunkIndex) -> tuple[Sequence[str], ChunkReader]:
        shards = index.list_of(index.content, "shards", dict)
        if not shards:
            raise SourceError("lists no shards")
        names, encodings, sizes = known = _columns_of(index, shards[0])
        for shard in shards:
            if _columns_of(index, shard) != known:
                raise SourceError("shards have different columns")
            _add(index, shard)
        return names, ChunkReader(encodings, sizes, decode)

    def column_of(self, name: str, encoding: str, channels: int) -> TableColumn | None:
        kind = encoding.partition(":")[0]
        if kind in ("jpeg", "png", "pil"):
            return TableColumn(name, ImageField(channels=channels))
        if kind in _SCALARS:
            dtype = np.dtype(_SCALARS[kind]).name
            return TableColumn(name, ScalarField("int64" if dtype == "uint64" else dtype))
        if kind in ("str_int", "str_float"):
            return TableColumn(name, ScalarField("int64" if kind == "str_int" else "float64"))
        if kind in ("str", "json", "str_decimal"):
            return TableColumn(name, StringField())
        if kind == "pkl":
            reason = "is pickled (pkl), and reading it would run code from the file"
        else:
            reason = f"is encoded as {encoding!r}, which fits no field"
        return None if kind in ("bytes", "ndarray") else TableColumn(name, None, reason)


def _is_index(path: Path) -> bool:
    return b'"column_encodings"' in first_bytes(path, 1 << 16)


def _lacks_index(location: Any) -> bool:
    """Tell whether there are shards without their index, or parts whose indexes were not merged."""
    folder = folder_at(location)
    if folder is None:
        return False
    shards = (path for path in folder.glob("*.mds*") if path.is_file())
    return any(shards) or any(map(_is_index, folder.glob("*/index.json")))


def _columns_of(
    index: ChunkIndex, shard: dict[str, Any]
) -> tuple[list[str], tuple[str, ...], tuple[int | None, ...]]:
    """Return the names of a shard's columns, their encodings, and their lengths if fixed."""
    if shard.get("format") != "mds" or shard.get("version") != 2:
        raise SourceError(
            f"a shard of format {shard.get('format')!r}, version "
            f"{shard.get('version')!r}; mds, version 2, is read"
        )
    names = list(index.list_of(shard, "column_names", str))
    encodings = tuple(index.list_of(shard, "column_encodings", str))
    listed = index.list_of(shard, "column_sizes", (int, type(None)))
    sizes = tuple(size or None for size in listed)
    if not names or not len(names) == len(encodings) == len(sizes):
        raise SourceError(f"{len(names)} columns with {len(encodings)} encodings")
    if not all(size is None or 0 < size < 2**31 for size in sizes):
        raise SourceError(f"column_sizes {sizes} are not lengths in bytes")
    return names, encodings, sizes


def _add(index: ChunkIndex, shard: dict[str, Any]) -> None:
    """Add the file of a shard to the index; the plain one if there is one."""
    raw, zipped = shard.get("raw_data"), shard.get("zip_data")
    path = index.path_of(raw.get("basename")) if isinstance(raw, dict) else None
    file, codec = raw, ""
    if isinstance(zipped, dict):
        packed = index.path_of(zipped.get("basename"))
        if path is None or not path.exists():
            codec = check_codec(str(shard.get("compression")), "a shard")
            file, path = zipped, packed
    if path is None or not isinstance(file, dict):
        raise SourceError("a shard without a file (raw_data, zip_data)")
    hashes = file.get("hashes")
    index.add(path, shard.get("samples"), codec, hashes if isinstance(hashes, dict) else None)


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that a column holds.

    Raises ValueError if the bytes are none of that encoding.
    """
    kind, _, about = encoding.partition(":")
    if kind in ("jpeg", "png", "bytes"):
        return data
    if kind == "pil":
        return raw_image(data)
    if kind in _SCALARS:
        return array_of(data, _SCALARS[kind], (1,))[0]
    if kind == "json":
        return json_text(data)
    if kind == "ndarray":
        return _decode_array(about, data)
    text = data.decode()
    if kind == "str_int":
        return int(text)
    return float(text) if kind == "str_float" else text


def _decode_array(about: str, data: bytes) -> np.ndarray[Any, Any]:
    """Return an array; its dtype and shape are in ``DTYPE:SHAPE``, or at its front."""
    name, _, lengths = about.partition(":")
    if name and name not in _SCALARS:
        raise SourceError(f"an array of {name!r} cannot be read")
    dtype, at = _SCALARS.get(name, ""), 0
    if not dtype:
        if not data or data[0] not in _VALUES:
            raise SourceError(f"an array of the unknown dtype {data[:1]!r}")
        dtype, at = _VALUES[data[0]], 1
    if lengths:
        shape = tuple(map(int, lengths.split(",")))
    else:
        head = data[at] if len(data) > at else 0
        width, start = 1 << head % 4, at + 1
        at = start + (head >> 2) * width
        if at > len(data) or at == start:
            raise SourceError("an array without a shape")
        shape = tuple(np.frombuffer(data[start:at], f"<u{width}").tolist())
    return array_of(data[at:], dtype, shape)
