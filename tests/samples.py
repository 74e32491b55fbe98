"""Images, records and shards that tests share; nothing here is a test.

What is independent of fastdata (PIL, ``struct``, ``xxhash``) is used wherever a
test compares against it; the writers are used to make the shards themselves.
"""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import xxhash
from PIL import Image

from fastdata.codecs.blobs import encode_jpeg, encode_png
from fastdata.formats.hdf5 import Hdf5ShardWriter
from fastdata.formats.layout import CODECS
from fastdata.formats.lmdb import LmdbShardWriter
from fastdata.formats.manifest import Manifest, ShardEntry
from fastdata.formats.reader import ShardReader
from fastdata.formats.writer import EncodedImage, Record, ShardWriter
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

WRITERS: dict[str, type[ShardWriter]] = {"lmdb": LmdbShardWriter, "hdf5": Hdf5ShardWriter}
SUFFIXES = {name: writer.suffix for name, writer in WRITERS.items()}
FOOTER = struct.Struct("<8sIIQQQQ8x")

LABELLED = Schema({"image": ImageField(), "label": ScalarField(classes=("cat", "dog", "newt"))})

EVERY_KIND = Schema(
    {
        "image": ImageField(),
        "grey": ImageField(channels=1),
        "mask": ImageField(channels=1, mask=True),
        "label": ScalarField("int64", classes=("ape", "bee", "épée")),
        "weight": ScalarField("float32"),
        "tiny": ScalarField("float16"),
        "flag": ScalarField("bool"),
        "large": ScalarField("uint32"),
        "caption": StringField(),
        "extra": BytesField(),
        "box": ArrayField("float32", (4,)),
        "matrix": ArrayField("bool", (2, 3)),
        "nothing": ArrayField("float16", (0,)),
        "points": ArrayField("int16", (None, 2)),
        "ragged": ArrayField("float64", (None, None, None)),
    }
)
"""A field of every kind, and of arrays every sort."""


def photo(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return something like a photograph: uint8, H x W x C, octaves of smooth noise."""
    random = np.random.default_rng((seed, height, width, channels))
    picture = np.zeros((height, width, channels), np.float32)
    cells, strength = 2, 1.0
    while cells < 2 * max(height, width):
        grid = random.normal(size=(cells, cells, channels)).astype(np.float32)
        octave = cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
        picture += strength * octave.reshape(picture.shape)
        cells, strength = cells * 2, strength * 0.55
    return np.clip(picture * 45 + 128, 0, 255).astype(np.uint8)


def mask(height: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return class numbers in patches: uint8, H x W x 1."""
    random = np.random.default_rng((seed, height, width))
    patches = random.integers(0, 256, (5, 7), np.uint8)
    rows, columns = np.arange(height) * 5 // height, np.arange(width) * 7 // width
    return patches[rows][:, columns][:, :, None]


def psnr(a: Any, b: Any) -> float:
    """Return the peak signal-to-noise ratio of two uint8 arrays in dB."""
    error = np.mean((np.asarray(a, np.float64) - np.asarray(b, np.float64)) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def pil_decode(data: bytes, channels: int) -> np.ndarray[Any, Any]:
    """Decode with PIL: uint8, H x W x C."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.array(image.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(*pixels.shape[:2], channels)


def pil_encode(pixels: np.ndarray[Any, Any], kind: str, **options: Any) -> bytes:
    """Encode H x W x C pixels with PIL."""
    file = io.BytesIO()
    Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0]).save(file, kind, **options)
    return file.getvalue()


def encode(pixels: np.ndarray[Any, Any], codec: str) -> EncodedImage:
    """Encode pixels with one of the codecs a shard knows; ``file`` makes a TIFF."""
    if codec == "jpeg":
        data = encode_jpeg(pixels)
    elif codec == "png":
        data = encode_png(pixels)
    elif codec == "raw":
        data = pixels.tobytes()
    else:
        data = pil_encode(pixels, "TIFF")
    return EncodedImage(
        data, CODECS.index(codec), *pixels.shape[:2], xxhash.xxh3_64_intdigest(data)
    )


def decoded(image: EncodedImage, channels: int) -> np.ndarray[Any, Any]:
    """Return the pixels that a stored image must give, by PIL."""
    if CODECS[image.codec] == "raw":
        return np.frombuffer(image.data, np.uint8).reshape(image.height, image.width, channels)
    return pil_decode(image.data, channels)


def value_of(field: Field, name: str, index: int, codec: str, size: tuple[int, int]) -> Any:
    """Return a value for a field, another for every index, the first ones extreme."""
    random = np.random.default_rng((index, *name.encode()))
    if isinstance(field, ImageField):
        pixels = mask(*size, index) if field.mask else photo(*size, field.channels, index)
        lossless = field.mask and codec != "raw"
        return encode(pixels, "png" if lossless else codec)
    if isinstance(field, ScalarField):
        if field.classes is not None:
            return index % len(field.classes)
        dtype = np.dtype(field.dtype)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return [limits.min, limits.max][index] if index < 2 else int(random.integers(100))
        return dtype.type([0, np.nan, -np.inf][index] if index < 3 else random.normal())
    if isinstance(field, StringField):
        return ["", "a\0b\n", "naïve 🦎", "x" * 3000][index] if index < 4 else f"text {index}"
    if isinstance(field, BytesField):
        return random.bytes([0, 1, 5000][index] if index < 3 else index)
    lengths = tuple(n if n is not None else int(random.integers(0, 4)) for n in field.shape)
    return (random.normal(size=lengths) * 50).astype(field.dtype)


def make_records(
    schema: Schema = LABELLED,
    count: int = 6,
    codec: str | Sequence[str] = "jpeg",
    size: tuple[int, int] | None = None,
) -> list[Record]:
    """Return records of any schema; sizes of images differ unless `size` is given."""
    codecs = [codec] if isinstance(codec, str) else codec
    records = []
    for index in range(count):
        shape = size or (24 + 7 * (index % 5), 40 - 9 * (index % 4))
        values = [
            value_of(field, name, index, codecs[index % len(codecs)], shape)
            for name, field in schema.items()
        ]
        records.append(Record(f"{index % 3}/kéy {index}.jpg", tuple(values)))
    return records


def write_shard(
    path: Path, records: Sequence[Record], schema: Schema = LABELLED, batch: int = 1000
) -> Path:
    """Write a sealed shard; its container is that of the suffix."""
    container = next(name for name, suffix in SUFFIXES.items() if path.suffix == suffix)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        writer = WRITERS[container](Path(scratch), schema)
        try:
            for start in range(0, len(records), batch):
                writer.append(records[start : start + batch])
                writer.commit()
            writer.seal(path, {"made_by": "tests"})
        finally:
            writer.close()
    return path


def write_shards(
    directory: Path,
    parts: Iterable[Sequence[Record]],
    schema: Schema = LABELLED,
    container: str = "lmdb",
) -> Path:
    """Write a directory of shards with its manifest."""
    from fastdata.formats.layout import content_digest

    directory.mkdir()
    entries, readers = [], []
    for number, records in enumerate(parts):
        path = directory / f"shard-{number:05}{SUFFIXES[container]}"
        reader = ShardReader(write_shard(path, records, schema))
        readers.append(reader)
        entries.append(
            ShardEntry(path.name, len(reader), path.stat().st_size, reader.header.digest)
        )
    digest = content_digest(schema, [reader.column for reader in readers])
    Manifest(schema, digest, tuple(entries)).write(directory)
    return directory


def header_of(path: Path) -> dict[str, Any]:
    """Return a shard's header, found as ``docs/format.md`` says."""
    data = path.read_bytes()
    _, _, _, offset, length, _, _ = FOOTER.unpack(data[-64:-8])
    document: dict[str, Any] = json.loads(data[offset : offset + length])
    return document


def forge(
    path: Path,
    *,
    header: Callable[[dict[str, Any]], Any] | None = None,
    columns: Mapping[str, Callable[[np.ndarray[Any, Any]], Any]] | None = None,
    text: bytes | None = None,
    **footer: Any,
) -> Path:
    """Change a shard and make every checksum anew, as somebody malicious would.

    Parameters
    ----------
    header : callable
        Changes the header's JSON in place, or returns another document.
    columns : mapping
        From column name to a callable that changes the array in place.
    text : bytes
        Takes the place of the header.
    footer : int
        Other values for ``version``, ``flags``, ``offset``, ``length`` or ``file_bytes``.
    """
    body = bytearray(path.read_bytes()[:-64])
    document: Any = header_of(path)
    for name, change in (columns or {}).items():
        entry = document["columns"][name]
        dtype, shape = np.dtype(entry["dtype"]), entry["shape"]
        end = entry["offset"] + dtype.itemsize * int(np.prod(shape))
        stored = memoryview(body)[entry["offset"] : end]
        change(np.frombuffer(stored, dtype).reshape(shape))
        entry["checksum"] = f"{xxhash.xxh3_64_intdigest(stored):016x}"
        stored.release()
    if header is not None:
        document = header(document) or document
    data = json.dumps(document).encode() if text is None else text
    offset = len(body)
    body += data
    values = {
        "magic": b"FASTDATA",
        "version": 1,
        "flags": 0,
        "offset": offset,
        "length": len(data),
        "checksum": xxhash.xxh3_64_intdigest(data),
        "file_bytes": len(body) + 64,
        **footer,
    }
    end = FOOTER.pack(*values.values())
    path.write_bytes(body + end + struct.pack("<Q", xxhash.xxh3_64_intdigest(end)))
    return path


def put_blob(path: Path, index: int, data: bytes, field: str = "image", **columns: int) -> Path:
    """Give a sample of a shard other bytes for an image, and make every checksum anew.

    Parameters
    ----------
    columns : int
        Other values for ``height``, ``width`` or ``codec``.
    """
    stored = path.read_bytes()
    path.write_bytes(stored[:-64] + data + stored[-64:])
    columns |= {
        "offset": len(stored) - 64,
        "length": len(data),
        "checksum": xxhash.xxh3_64_intdigest(data),
    }

    def put(value: int) -> Callable[[np.ndarray[Any, Any]], None]:
        return lambda column: column.__setitem__(index, value)

    return forge(path, columns={f"{field}.{name}": put(value) for name, value in columns.items()})


def forge_manifest(directory: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Change a manifest's JSON in place, or return another, and make its checksum anew."""
    path = directory / "manifest.json"
    body: Any = json.loads(path.read_bytes())
    body = change(body) or body
    if isinstance(body, dict):
        body.pop("checksum", None)
        text = json.dumps(body, indent=1).encode()
        head = text.removesuffix(b"\n}") + b',\n "checksum": "'
        path.write_bytes(head + f"{xxhash.xxh3_64_intdigest(head):016x}".encode() + b'"\n}')
    else:
        path.write_text(json.dumps(body))
    return directory
