"""MDS: the shards of MosaicML Streaming, from its specification.

A folder has ``index.json``, which lists shards with their columns and how these are encoded, and
the shards (``reading/chunks/chunk_source.py`` has their layout), plain or compressed as a whole.
Sources:
``docs/source/preparing_datasets/dataset_format.md`` and ``streaming/base/format/mds/`` (reader,
writer, encodings) of ``mosaicml/streaming``, 0.13.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import xxhash

from fastdata.errors import SourceError
from fastdata.regular_files import open_regular
from fastdata.schema import Field, ImageField, ScalarField, Schema, StringField

from .base import FieldSpec
from .reading.box_forms import BoxesOption
from .reading.chunks.chunk_source import (
    ChunkIndex,
    ChunkReader,
    index_path,
    raw_image,
    resolve_columns,
)
from .reading.chunks.column_choice import RefusedColumnError
from .reading.class_names import named_classes
from .reading.compression import check_codec
from .reading.deferred import array_of, json_text
from .reading.locations import first_bytes, folder_at, stat_of
from .reading.options import ClassFile, ColumnsOption, Option
from .scan import ScanSource

__all__ = ["MDSSource"]

_HASHES = hashlib.algorithms_guaranteed - {"shake_128", "shake_256"}
_STEP = 1 << 20


_SCALARS = {
    "int": "<i8",
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_VALUES = {8: "<u1", 9: "<i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
_VALUES |= {64: "<u8", 65: "<i8", 66: "<f8"}


class MDSSource(ScanSource):
    """A folder of MDS shards."""

    name = "mds"
    summary = "shards of MosaicML Streaming (MDS), plain, gz, bz2 or zstd"

    @classmethod
    def recognises(cls, location: Any) -> bool:
        index = index_path(location)
        return _is_index(index) if index is not None else _lacks_index(location)

    def __init__(
        self,
        location: Any,
        *,
        channels: int = 3,
        fields: FieldSpec | None = None,
        columns: ColumnsOption = (),
        classes: ClassFile = None,
        boxes: BoxesOption = (),
        check: Annotated[bool, Option("compare the hashes that the index has of shards")] = True,
    ) -> None:
        path = index_path(location)
        if path is None:
            raise SourceError(
                f"{location}: no index.json there, which MDS has beside its shards. If folders in "
                "it have one each, merge them: streaming.base.util.merge_index(FOLDER); else copy "
                "the one that was written with the shards"
            )
        index, hashes = ChunkIndex(path), list[dict[str, str]]()
        if index.content.get("version") != 2:
            version = index.content.get("version")
            raise SourceError(f"{path}: version {version!r} of MDS; 2 is known")
        shards = index.list_of(index.content, "shards", dict)
        if not shards:
            raise SourceError(f"{path}: lists no shards")
        names, encodings, sizes = known = _columns_of(index, shards[0])
        for shard in shards:
            if _columns_of(index, shard) != known:
                raise SourceError(f"{path}: shards have different columns")
            hashes.append(_add(index, shard))
        verify = partial(_verify, index, hashes if check else [], {})
        scan = index.scan(partial(index.rows, verify))
        reader = ChunkReader(encodings, sizes, decode)
        own = partial(_field_for, channels)
        resolved, reader, forms, notes = resolve_columns(
            index, scan, reader, names, own, columns, fields, channels, boxes
        )
        schema = Schema(named_classes(resolved, "label", classes))
        reader = reader._replace(schema=schema)
        super().__init__(scan, schema, reader, notes=notes, beside=[path], box_forms=forms)


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
            f"{index.path}: a shard of format {shard.get('format')!r}, version "
            f"{shard.get('version')!r}; mds, version 2, is read"
        )
    names = list(index.list_of(shard, "column_names", str))
    encodings = tuple(index.list_of(shard, "column_encodings", str))
    listed = index.list_of(shard, "column_sizes", (int, type(None)))
    sizes = tuple(size or None for size in listed)
    if not names or not len(names) == len(encodings) == len(sizes):
        raise SourceError(f"{index.path}: {len(names)} columns with {len(encodings)} encodings")
    if not all(size is None or 0 < size < 2**31 for size in sizes):
        raise SourceError(f"{index.path}: column_sizes {sizes} are no lengths in bytes")
    return names, encodings, sizes


def _add(index: ChunkIndex, shard: dict[str, Any]) -> dict[str, str]:
    """Add a shard to the index; return its hashes as that says them."""
    raw, zipped = shard.get("raw_data"), shard.get("zip_data")
    path = index.path_of(raw.get("basename")) if isinstance(raw, dict) else None
    file, codec = raw, ""
    if isinstance(zipped, dict):
        packed = index.path_of(zipped.get("basename"))
        if path is None or not path.exists():
            codec = check_codec(str(shard.get("compression")), str(index.path))
            file, path = zipped, packed
    if path is None:
        raise SourceError(f"{index.path}: a shard without a file (raw_data, zip_data)")
    index.add(path, shard.get("samples"), "samples", codec)
    hashes = file.get("hashes") if isinstance(file, dict) else None
    known = hashes.items() if isinstance(hashes, dict) else ()
    return {str(name): str(value) for name, value in known}


def _verify(
    index: ChunkIndex,
    hashes: Sequence[Mapping[str, str]],
    verified: dict[int, tuple[int, int]],
    number: int,
) -> None:
    """Compare the hashes of a shard.

    verified: size and time of shards whose hashes are right: samples may be gone through twice.
    """
    path, wanted = index.paths[number], hashes[number] if hashes else {}
    status = stat_of(path)
    if not wanted or verified.get(number) == status:
        return
    for name, value in _hash_file(path, list(wanted)).items():
        if value != wanted[name]:
            raise SourceError(
                f"{path}: its {name} is {value}, not {wanted[name]} as {index.path.name} says: it "
                f"is damaged; its {index.counts[number]:,} samples are left out (--option "
                "check=false takes what can be read)"
            )
    verified[number] = status


def _field_for(channels: int, encoding: str) -> Field | None:
    """Return the field for a column by its encoding, or None if its values determine it."""
    kind = encoding.partition(":")[0]
    if kind in ("jpeg", "png", "pil"):
        return ImageField(channels=channels)
    if kind in _SCALARS:
        dtype = np.dtype(_SCALARS[kind]).name
        return ScalarField("int64" if dtype == "uint64" else dtype)
    if kind in ("str_int", "str_float"):
        return ScalarField("int64" if kind == "str_int" else "float64")
    if kind in ("str", "json", "str_decimal"):
        return StringField()
    if kind == "pkl":
        raise RefusedColumnError("is pickled (pkl), and reading it would run code from the file")
    if kind not in ("bytes", "ndarray"):
        raise RefusedColumnError(
            f"is encoded as {encoding!r}, of which one sample cannot be made a field"
        )
    return None


def _hash_file(path: Path, names: Sequence[str]) -> dict[str, str]:
    """Return several hashes of a file, which is read once."""
    hashers = {name: _hasher(path, name) for name in names}
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        while piece := file.read(_STEP):
            for hasher in hashers.values():
                hasher.update(piece)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def _hasher(path: Path, name: str) -> Any:
    if name.startswith("xxh") and name in xxhash.algorithms_available:
        return getattr(xxhash, name)()
    if name in _HASHES:
        return hashlib.new(name, usedforsecurity=False)
    raise SourceError(f"{path}: the hash {name!r} is not known (--option check=false)")


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


def _array_type(about: str) -> tuple[str, tuple[int, ...] | None]:
    """Return dtype and shape of ``ndarray:DTYPE:SHAPE``; empty or None where samples say them."""
    name, _, shape = about.partition(":")
    if name and name not in _SCALARS:
        raise SourceError(f"an array of {name!r} cannot be read")
    try:
        lengths = tuple(int(length) for length in shape.split(",")) if shape else None
    except ValueError as error:
        raise SourceError(f"{shape[:40]!r} is no shape of an array") from error
    if lengths is not None and not all(0 < length < 2**31 for length in lengths):
        raise SourceError(f"{shape[:40]!r} is no shape of an array")
    return _SCALARS.get(name, ""), lengths


def _decode_array(about: str, data: bytes) -> np.ndarray[Any, Any]:
    dtype, shape = _array_type(about)
    at = 0
    if not dtype:
        if not data or data[0] not in _VALUES:
            raise SourceError(f"an array of the unknown dtype {data[:1]!r}")
        dtype, at = _VALUES[data[0]], 1
    if shape is None:
        head = data[at] if len(data) > at else 0
        width = 1 << head % 4
        lengths = data[at + 1 : at + 1 + (head >> 2) * width]
        if len(lengths) < (head >> 2) * width or not lengths:
            raise SourceError("an array without a shape")
        shape = tuple(np.frombuffer(lengths, f"<u{width}").tolist())
        at += 1 + len(lengths)
    return array_of(data[at:], dtype, shape)
