"""A reader of fastdata's format, written from ``docs/format.md`` and nothing else.

It imports no fastdata: what it cannot read, the document fails to say.  Section
numbers refer to the document.
"""

from __future__ import annotations

import json
import mmap
import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

CODECS = {0: "raw", 1: "jpeg", 2: "png", 3: "file"}
DTYPES = {  # section 6.1
    "bool": "|b1",
    "int8": "|i1",
    "uint8": "|u1",
    "int16": "<i2",
    "uint16": "<u2",
    "int32": "<i4",
    "uint32": "<u4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}
MEMBERS = {  # section 5, besides name and kind
    "image": {"channels", "mask"},
    "scalar": {"dtype", "classes"},
    "string": set(),
    "bytes": set(),
    "array": {"dtype", "shape"},
}


def hexadecimal(data: Any) -> str:
    """Section 2: the checksum as text."""
    return f"{xxhash.xxh3_64_intdigest(data):016x}"


class Refused(Exception):  # noqa: N818 - the document's own word
    """The document says that a reader must refuse this."""


def require(condition: bool, why: str) -> None:
    """Refuse unless `condition` holds."""
    if not condition:
        raise Refused(why)


def columns_of(schema: list[dict[str, Any]], n: int) -> dict[str, tuple[str, list[int] | None]]:
    """Section 6: dtype and shape of each column; None for the length of flat data."""
    columns: dict[str, tuple[str, list[int] | None]] = {}

    def flat(name: str, dtype: str) -> None:
        columns[f"{name}.data"] = (dtype, None)
        columns[f"{name}.bounds"] = ("<u8", [n + 1])

    flat("key", "|u1")
    for field in schema:
        name, kind = field["name"], field["kind"]
        optional = {"array": {"boxes", "classes"}, "image": {"classes"}}
        members = set(field) - optional.get(kind, set())
        require(members == {"name", "kind"} | MEMBERS.get(kind, set()), f"field {name}")
        if kind in optional and "classes" in field:
            require(kind == "array" or field["mask"], f"classes {name}")
            names = field["classes"]
            require(bool(names) and all(isinstance(n, str) for n in names), f"classes {name}")
        if "boxes" in field:
            boxes = field["boxes"] is True and field["shape"][-1] == 4 and field["dtype"] != "bool"
            require(boxes and any(f["kind"] == "image" for f in schema), f"boxes {name}")
        if kind == "image":
            for part in ("offset", "length", "checksum"):
                columns[f"{name}.{part}"] = ("<u8", [n])
            for part in ("height", "width"):
                columns[f"{name}.{part}"] = ("<u4", [n])
            columns[f"{name}.codec"] = ("|u1", [n])
        elif kind == "scalar":
            columns[name] = (DTYPES[field["dtype"]], [n])
        elif kind in ("string", "bytes"):
            flat(name, "|u1")
        elif kind == "array" and None not in field["shape"]:
            columns[name] = (DTYPES[field["dtype"]], [n, *field["shape"]])
        else:
            require(kind == "array", f"unknown kind {kind}")
            flat(name, DTYPES[field["dtype"]])
            columns[f"{name}.shape"] = ("<u4", [n, len(field["shape"])])
    return columns


class Shard:
    """One file: sections 3 to 7."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self.data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self.end = len(self.data) - 64
        require(self.end >= 0, "too short")
        footer = self.data[self.end :]
        require(bytes(footer[:8]) == b"FASTDATA", "no footer")
        own = struct.unpack("<Q", footer[56:])[0]
        require(own == xxhash.xxh3_64_intdigest(footer[:56]), "footer")
        version, flags, at, length, expected, size = struct.unpack("<IIQQQQ", footer[8:48])
        require(version == 1, f"version {version}")
        require(flags == 0, f"flags {flags}")
        require(size == len(self.data) and at + length <= self.end, "file size")
        text = self.data[at : at + length]
        require(xxhash.xxh3_64_intdigest(text) == expected, "header checksum")
        self.header: dict[str, Any] = json.loads(bytes(text))
        self.schema: list[dict[str, Any]] = self.header["schema"]
        self.num_samples: int = self.header["num_samples"]
        self.columns: dict[str, np.ndarray[Any, Any]] = {}
        for name, (dtype, shape) in columns_of(self.schema, self.num_samples).items():
            entry = self.header["columns"][name]
            require(entry["dtype"] == dtype, f"dtype of {name}")
            require(shape is None or entry["shape"] == shape, f"shape of {name}")
            nbytes = prod(entry["shape"]) * np.dtype(dtype).itemsize
            require(0 <= nbytes <= self.end - entry["offset"] <= self.end, f"place of {name}")
            part = self.data[entry["offset"] : entry["offset"] + nbytes]
            require(hexadecimal(part) == entry["checksum"], f"checksum of {name}")
            self.columns[name] = np.frombuffer(part, dtype).reshape(entry["shape"])

    def cut(self, name: str, i: int) -> bytes:
        """Section 6: an entry of flat data, by its bounds in bytes."""
        data = self.columns[f"{name}.data"].tobytes()
        start, end = map(int, self.columns[f"{name}.bounds"][i : i + 2])
        require(start <= end <= len(data), f"bounds of {name}")
        return data[start:end]

    def image(self, name: str, i: int) -> tuple[str, int, int, bytes]:
        """Section 7: codec, height, width and bytes."""
        parts = ("offset", "length", "checksum", "height", "width", "codec")
        start, length, expected, height, width, codec = (
            int(self.columns[f"{name}.{part}"][i]) for part in parts
        )
        require(start + length <= self.end, f"place of {name} {i}")
        blob = bytes(self.data[start : start + length])
        require(xxhash.xxh3_64_intdigest(blob) == expected, f"checksum of {name} {i}")
        return CODECS[codec], height, width, blob

    def __getitem__(self, i: int) -> dict[str, Any]:
        sample: dict[str, Any] = {"key": self.cut("key", i).decode()}
        for field in self.schema:
            name, kind = field["name"], field["kind"]
            if kind == "image":
                sample[name] = self.image(name, i)
            elif name in self.columns:
                sample[name] = self.columns[name][i]
            elif kind == "array":
                shape = self.columns[f"{name}.shape"][i].tolist()
                dtype = DTYPES[field["dtype"]]
                sample[name] = np.frombuffer(self.cut(name, i), dtype).reshape(shape)
            else:
                value = self.cut(name, i)
                sample[name] = value.decode() if kind == "string" else value
        return sample


def canonical(value: Any) -> bytes:
    """Section 9: RFC 8785, for JSON without fractions."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(shards: list[Shard]) -> str:
    """Section 9."""
    schema = shards[0].schema
    total = xxhash.xxh3_128(canonical(schema))
    for name in columns_of(schema, 0):
        if any(name == f"{field['name']}.offset" for field in schema):
            continue
        column = xxhash.xxh3_128(name.encode() + b"\0")
        for shard in shards:
            values = shard.columns[name]
            column.update((np.diff(values) if name.endswith(".bounds") else values).tobytes())
        total.update(column.digest())
    return total.hexdigest()


def read_manifest(directory: Path) -> tuple[dict[str, Any], list[Shard]]:
    """Section 10."""
    text = (directory / "manifest.json").read_bytes()
    require(text[-19:] == hexadecimal(text[:-19]).encode() + b'"\n}', "manifest checksum")
    manifest = json.loads(text)
    require(manifest["version"] == 1, "version")
    require(manifest["checksum"] == text[-19:-3].decode(), "last member")
    shards = []
    for entry in manifest["shards"]:
        name = entry["file"]
        require(name not in ("", ".", "..") and not {"/", "\0"} & set(name), f"name {name!r}")
        shard = Shard(directory / name)
        require(len(shard.data) == entry["file_bytes"], "file_bytes")
        require(shard.num_samples == entry["num_samples"], "num_samples")
        require(shard.header["digest"] == entry["digest"], "digest")
        require(shard.schema == manifest["schema"], "schema")
        shards.append(shard)
    return manifest, shards


def segments(jpeg: bytes) -> tuple[int, list[tuple[int, int]]] | None:
    """Section 8: the end of the SOS segment, and the bounds of each coded segment."""
    at, lengths, part, parts = 2, b"", 0, 1
    while jpeg[at : at + 2] != b"\xff\xda":
        (size,) = struct.unpack(">H", jpeg[at + 2 : at + 4])
        if jpeg[at : at + 2] == b"\xff\xe9" and jpeg[at + 4 : at + 13] == b"fastdata\0":
            version, number, parts = jpeg[at + 13 : at + 16]
            if version != 1 or number != part or size % 2:
                return None
            lengths, part = lengths + jpeg[at + 16 : at + 2 + size], part + 1
        at += 2 + size
    scan = at + 2 + struct.unpack(">H", jpeg[at + 2 : at + 4])[0]
    starts = [scan]
    for (length,) in struct.iter_unpack(">H", lengths):
        starts.append(starts[-1] + length + 2)
    if part != parts or starts[-1] != len(jpeg):
        return None
    return scan, [(start, end - 2) for start, end in pairwise(starts)]
