"""What lies where in a shard: columns, header, footer, and the digest of its content.

A shard is an ordinary LMDB or HDF5 file whose values are plain bytes at file
offsets that never change.  The last 64 bytes, the *footer*, which both
containers ignore, have the offset of the *header* (JSON); the header has that of
each *column* (one array over all samples); the columns have that of each
image.  So reading needs no container library and is the same for all.

``docs/format.md`` is the specification; this module is its one implementation.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from fastdata import __version__
from fastdata.bounds import check_int, strict_json
from fastdata.errors import FormatError, ShardCorruptError
from fastdata.installing import UPGRADE
from fastdata.schema import (
    ArrayField,
    BytesField,
    ImageField,
    ScalarField,
    Schema,
    StringField,
    numpy_dtype,
)

__all__ = [
    "CODECS",
    "FOOTER_BYTES",
    "VERSION",
    "ColumnSpec",
    "Header",
    "StoredColumn",
    "canonical_json",
    "check_digest",
    "check_options",
    "checksum",
    "column_specs",
    "content_digest",
    "is_container",
    "pack_footer",
    "unpack_footer",
]

VERSION: Final = 1
"""Version of the format that this release writes, and the newest it reads."""

MAGIC: Final = b"FASTDATA"
FOOTER = struct.Struct("<8sIIQQQQ8x")
FOOTER_BYTES: Final = FOOTER.size + 8
"""magic, version, flags, header offset/length/checksum, file size, 8 spare, own checksum."""

_LONGEST_HEADER: Final = 1 << 28
_NO_DIGIT: Final = re.compile("[^0-9a-f]")
_KINDS: Final = [repr(["fastdata", VERSION, container]) for container in ("lmdb", "hdf5")]

_HDF5_START: Final = b"\x89HDF\r\n\x1a\n"
_LMDB_MAGIC: Final = (0xBEEFC0DE).to_bytes(4, "little")
"""At byte 16 of an LMDB file: behind the first page's header."""

CODECS: Final = ("raw", "jpeg", "png", "file")
"""Names of the numbers in the column ``<field>.codec``.

``file`` is some other image file as its source had it (codec ``keep``).
"""


def is_container(start: bytes) -> bool:
    """Return whether a file that begins with these bytes (20 or more) is of LMDB or HDF5."""
    return start.startswith(_HDF5_START) or start[16:20] == _LMDB_MAGIC


checksum: Callable[[Any], int] = xxhash.xxh3_64_intdigest
"""XXH3's 64-bit hash of a bytes-like object: the format's checksum."""


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """One little-endian array over the samples of a shard: ``<field>`` or ``<field>.<part>``.

    `row_shape` is the shape of one sample's entry.  It is None for a *flat* column, whose entries
    are of any length and lie end to end; where they begin and end is then in the column of the same
    name that ends in ``.bounds``, with one entry more than there are samples.  A `computed` column
    is filled at sealing rather than appended to.
    """

    name: str
    dtype: np.dtype[Any]
    row_shape: tuple[int, ...] | None = ()
    bounds: bool = False
    computed: bool = False

    def shape(self, num_samples: int, nbytes: int) -> tuple[int, ...]:
        """Return the array's shape, given the samples and, if flat, the bytes."""
        if self.row_shape is None:
            return (nbytes // self.dtype.itemsize,)
        return (num_samples + self.bounds, *self.row_shape)


def _flat(name: str, dtype: str = "uint8") -> list[ColumnSpec]:
    return [
        ColumnSpec(f"{name}.data", numpy_dtype(dtype), None),
        ColumnSpec(f"{name}.bounds", numpy_dtype("uint64"), bounds=True),
    ]


def column_specs(schema: Schema) -> dict[str, ColumnSpec]:
    """Return the columns that a shard of this schema has, in file order."""
    specs = _flat("key")
    for name, field in schema.items():
        if isinstance(field, ImageField):
            specs += [
                ColumnSpec(f"{name}.offset", numpy_dtype("uint64"), computed=True),
                ColumnSpec(f"{name}.length", numpy_dtype("uint64")),
                ColumnSpec(f"{name}.checksum", numpy_dtype("uint64")),
                ColumnSpec(f"{name}.height", numpy_dtype("uint32")),
                ColumnSpec(f"{name}.width", numpy_dtype("uint32")),
                ColumnSpec(f"{name}.codec", numpy_dtype("uint8")),
            ]
        elif isinstance(field, ScalarField):
            specs.append(ColumnSpec(name, numpy_dtype(field.dtype)))
        elif isinstance(field, (StringField, BytesField)):
            specs += _flat(name)
        elif field.fixed:
            shape = tuple(n for n in field.shape if n is not None)
            specs.append(ColumnSpec(name, numpy_dtype(field.dtype), shape))
        else:
            assert isinstance(field, ArrayField)
            specs += _flat(name, field.dtype)
            specs.append(ColumnSpec(f"{name}.shape", numpy_dtype("uint32"), (len(field.shape),)))
    return {spec.name: spec for spec in specs}


_DIGEST_BLOCK_BYTES = 1 << 24


def content_digest(schema: Schema, shards: Sequence[Callable[[str], np.ndarray[Any, Any]]]) -> str:
    """Return the fingerprint of what a dataset holds, whatever files hold it, 32 hex digits.

    It is the same for LMDB and HDF5 and for any number of shards, and depends on the order of
    samples, their keys and values, and the encoded bytes of images (through the checksum of each).
    It finds accidents, not adversaries: XXH3 is no cryptographic hash.

    It is XXH3-128 over the schema's canonical JSON and, column by column, name and bytes.  File
    offsets are left out, and bounds of flat columns enter as lengths, so that the cut into shards
    does not show.  Each of `shards` returns a shard's column, given the column's name.
    """
    total = xxhash.xxh3_128(canonical_json(schema.to_json()))
    for name, spec in column_specs(schema).items():
        if spec.computed:
            continue
        column = xxhash.xxh3_128(name.encode() + b"\0")
        for shard in shards:
            values = shard(name)
            step = max(1, _DIGEST_BLOCK_BYTES // max(1, values[:1].nbytes))
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


def check_digest(name: str, value: Any, digits: int = 32) -> str:
    """Return the digest or checksum that a file gives; `ValueError` unless it has these digits."""
    if not isinstance(value, str) or len(value) != digits or _NO_DIGIT.search(value):
        raise ValueError(f"{name} is {value!r:.100}, not {digits} hexadecimal digits")
    return value


def check_options(options: Any) -> dict[str, Any]:
    """Return how a dataset was packed; `ValueError` unless it is one object of plain values.

    A value is a text, a number, true, false, null, or a list of these.
    """
    if not isinstance(options, dict):
        raise ValueError(f"options is {options!r:.100}, not an object")
    for name, value in options.items():
        for one in value if isinstance(value, list) else (value,):
            if isinstance(one, (dict, list)):
                raise ValueError(f"the option {name!r} is {value!r:.100}, which is nested")
    return options


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """Where a column's bytes are, and what they hash to (16 hex digits)."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    checksum: str

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        size = np.dtype(self.dtype).itemsize
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class Header:
    """Everything about a shard but its arrays and blobs; `columns` are by name.

    `blob_bytes` are those of all images together, `digest` is the `content_digest`, and `options`
    say how it was packed: for people and for ``fastdata info``, not for readers.
    """

    container: str
    num_samples: int
    schema: Schema
    digest: str
    blob_bytes: int
    options: Mapping[str, Any]
    columns: Mapping[str, StoredColumn]

    def to_bytes(self, length: int | None = None) -> bytes:
        """Return the JSON, padded with spaces to `length` bytes."""
        document = {
            "format": "fastdata",
            "version": VERSION,
            "writer": f"fastdata {__version__}",
            "container": self.container,
            "num_samples": self.num_samples,
            "schema": self.schema.to_json(),
            "digest": self.digest,
            "blob_bytes": self.blob_bytes,
            "options": dict(self.options),
            "columns": {name: asdict(column) for name, column in self.columns.items()},
        }
        data = json.dumps(
            document, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
        if length is None:
            return data
        if len(data) > length:
            raise AssertionError(f"header of {len(data)} bytes does not fit {length}")
        return data.ljust(length)

    @classmethod
    def from_bytes(cls, data: bytes, path: Path | str) -> Header:
        """Parse and check a header; `FormatError` if it is none that this release reads."""
        try:
            document = strict_json(data)
            fixed = [document[name] for name in ("format", "version", "container")]
            if repr(fixed) not in _KINDS or not isinstance(document["writer"], str):
                raise ValueError(f"{fixed!r:.100} of {document['writer']!r:.100}")
            schema = Schema.from_json(document["schema"])
            num_samples, blob_bytes = (
                check_int(name, document[name], error=ValueError)
                for name in ("num_samples", "blob_bytes")
            )
            columns = {}
            for name, spec in column_specs(schema).items():
                entry = document["columns"][name]
                # First of all the dtype: NumPy is not to see one from the file.
                if entry["dtype"] != spec.dtype.str:
                    raise ValueError(f"column {name!r} has the dtype {entry['dtype']!r:.100}")
                if not isinstance(entry["shape"], list):
                    raise ValueError(f"column {name!r} has the shape {entry['shape']!r:.100}")
                column = StoredColumn(
                    dtype=spec.dtype.str,
                    shape=tuple(check_int("length", n, error=ValueError) for n in entry["shape"]),
                    offset=check_int("offset", entry["offset"], error=ValueError),
                    checksum=check_digest(f"the checksum of {name!r}", entry["checksum"], 16),
                )
                expected = spec.shape(num_samples, column.nbytes if spec.row_shape is None else 0)
                if column.shape != expected:
                    raise ValueError(f"column {name!r} has the shape {column.shape}")
                columns[name] = column
            return cls(
                container=document["container"],
                num_samples=num_samples,
                schema=schema,
                digest=check_digest("digest", document["digest"]),
                blob_bytes=blob_bytes,
                options=check_options(document["options"]),
                columns=columns,
            )
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise FormatError(
                f"{path}: the header is not that of a version-{VERSION} shard ({error!r:.300}). "
                "The file is damaged; restore it from a copy or pack it again."
            ) from error


def pack_footer(header_offset: int, header: bytes, file_size: int) -> bytes:
    """Return the last `FOOTER_BYTES` bytes of a shard of `file_size` bytes in all."""
    body = FOOTER.pack(MAGIC, VERSION, 0, header_offset, len(header), checksum(header), file_size)
    return body + struct.pack("<Q", checksum(body))


def unpack_footer(footer: bytes, file_size: int, path: Path | str) -> tuple[int, int, int]:
    """Check a footer; return the header's offset, length and checksum.

    `FormatError` if the file is no shard, or of a newer version; `ShardCorruptError` if the footer
    is damaged or the file was cut or extended.
    """
    if len(footer) < FOOTER_BYTES or footer[: len(MAGIC)] != MAGIC:
        raise FormatError(
            f"{path}: not a fastdata shard, or one that was cut short: it does not end in a "
            "fastdata footer. Pack it with `fastdata pack`, or copy the file again if it was "
            "copied (LMDB's and HDF5's own copy tools drop the footer; copy it as a file)."
        )
    body, (stored,) = footer[: FOOTER.size], struct.unpack("<Q", footer[FOOTER.size :])
    if checksum(body) != stored:
        raise ShardCorruptError(
            f"{path}: the footer's checksum does not match. "
            "The file is damaged; restore it from a copy or pack it again."
        )
    _, version, flags, offset, length, header_checksum, size = FOOTER.unpack(body)
    if version > VERSION:
        raise FormatError(
            f"{path}: format version {version} is newer than {VERSION}, the newest that this "
            f"release reads. Upgrade it: {UPGRADE}"
        )
    if version < 1:
        raise FormatError(f"{path}: there is no format version {version}; the first is 1")
    if flags:
        raise FormatError(
            f"{path}: it uses features (flags {flags:#x}) that this release does not know. "
            f"Upgrade it: {UPGRADE}"
        )
    if size != file_size or offset + length > file_size - FOOTER_BYTES:
        raise ShardCorruptError(
            f"{path}: {size} bytes were written but the file has {file_size}. "
            "It was cut or extended; restore it from a copy or pack it again."
        )
    if length > _LONGEST_HEADER:
        raise FormatError(f"{path}: a header of {length:,} bytes is that of no shard")
    return offset, length, header_checksum
