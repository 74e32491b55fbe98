"""What fastdata writes is what ``docs/format.md`` says, read by a reader made from it alone."""

from __future__ import annotations

import io
import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import independent_reader as document
import lmdb
import numpy as np
import pytest
import xxhash
from PIL import Image

import fastdata
from fastdata.errors import FastdataError
from fastdata.formats.hdf5 import Hdf5ShardWriter
from fastdata.formats.layout import CODECS
from fastdata.formats.lmdb import LmdbShardWriter
from fastdata.formats.writer import EncodedImage, Record, ShardWriter
from fastdata.schema import (
    SCALAR_DTYPES,
    ArrayField,
    BytesField,
    ImageField,
    ScalarField,
    Schema,
    numpy_dtype,
)

TEXT = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
SUFFIXES: dict[Any, str] = {"lmdb": ".lmdb", "hdf5": ".h5"}
NUM_SAMPLES = 70
FIELDS: dict[str, Any] = {
    "tiny": ImageField(channels=1),
    "label": ScalarField(classes=("cat", 'dog "é" \U0001f415')),
    "mask": ImageField(1, mask=True, classes=("road", "sky")),
    "data": BytesField(),
    "points": ArrayField("int16", (None, 2)),
    "half": ArrayField("float16", (2, 0, 3)),
    "empty": ArrayField("float64", (None,)),
    "boxes": ArrayField("int16", (None, 4), boxes=True),
    "labels": ArrayField("uint8", (None,), classes=("cat", "dog")),
    **{f"is_{name}": ScalarField(name) for name in SCALAR_DTYPES},
}


def picture(seed: int, height: int, width: int) -> Any:
    """Return something smooth with some noise: a JPEG that differs in every block."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noise = generator.integers(-9, 10, smooth.shape)
    return np.clip(smooth + noise, 0, 255).astype(np.uint8)


class Samples:
    """Every kind of field; images of many sizes, so that codec auto takes jpeg and raw."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, i: int) -> dict[str, Any]:
        height, width = (20, 30) if i % 5 == 0 else (70 + i, 200 - i)
        return {
            "image": picture(i, height, width),
            "tiny": picture(i, 28, 28)[:, :, 0],
            "mask": np.full((height, width), i, np.uint8),
            "label": i % 2,
            "caption": "" if i % 3 == 0 else f"число {i}\0",
            "data": bytes(range(i)),
            "points": np.arange(2 * (i % 4), dtype=np.int16).reshape(-1, 2) - i,
            "fixed": np.full((2, 3), i / 7, np.float32),
            "half": np.zeros((2, 0, 3), np.float16),
            "empty": np.zeros(0),
            "boxes": np.arange(4 * (i % 3), dtype=np.int16).reshape(-1, 4),
            "labels": np.zeros(i % 3, np.uint8),
            **{f"is_{name}": np.array(i % 2, name) for name in SCALAR_DTYPES},
        }


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pack the same samples as LMDB, HDF5, and each in three shards."""
    folder = tmp_path_factory.mktemp("packed")
    paths = {}
    for container, suffix in SUFFIXES.items():
        for shards in (1, 3):
            name = f"{container}-{shards}"
            paths[name] = folder / (f"one{suffix}" if shards == 1 else name)
            fastdata.pack(
                Samples(),
                paths[name],
                container=container,
                shards=shards,
                fields=FIELDS,
                resize="none",
                num_workers=0,
                progress=False,
            )
    return paths


def shards_of(path: Path) -> list[document.Shard]:
    """Open a dataset with the independent reader."""
    return document.read_manifest(path)[1] if path.is_dir() else [document.Shard(path)]


def decode(stored: tuple[str, int, int, bytes], channels: int) -> Any:
    """Decode as section 7 says, with PIL."""
    codec, height, width, blob = stored
    if codec == "raw":
        return np.frombuffer(blob, np.uint8).reshape(height, width, channels)
    image = Image.open(io.BytesIO(blob))
    assert image.format == {"jpeg": "JPEG", "png": "PNG"}[codec]
    assert image.mode == ("RGB" if channels == 3 else "L")
    return np.asarray(image).reshape(height, width, channels)


@pytest.mark.parametrize("name", ["lmdb-1", "hdf5-1", "lmdb-3", "hdf5-3"])
def test_every_kind_of_field_is_read_back(packed: dict[str, Path], name: str) -> None:
    samples = [shard[i] for shard in shards_of(packed[name]) for i in range(shard.num_samples)]
    assert len(samples) == NUM_SAMPLES
    codecs = set()
    for i, sample in enumerate(samples):
        original = Samples()[i]
        assert sample.pop("key") == f"{i:08}"
        assert list(sample) == list(original)
        for field, value in original.items():
            got = sample[field]
            if field in ("image", "tiny", "mask"):
                codecs.add((field, got[0]))
                pixels = decode(got, 3 if field == "image" else 1)
                error = np.abs(pixels.astype(int) - value.reshape(pixels.shape))
                assert error.mean() < 6 if got[0] == "jpeg" else not error.any()
            elif isinstance(value, np.ndarray):
                assert got.dtype == value.dtype
                np.testing.assert_array_equal(got, value)
            else:
                assert got == value
    assert codecs == {("image", "jpeg"), ("image", "raw"), ("tiny", "raw"), ("mask", "png")}


def test_digest_is_computed_as_the_document_says(packed: dict[str, Path]) -> None:
    expected = document.digest(shards_of(packed["lmdb-1"]))
    for path in packed.values():
        shards = shards_of(path)
        assert document.digest(shards) == expected == fastdata.open(path).digest
        for shard in shards:
            assert document.digest([shard]) == shard.header["digest"]
            fields = [field["name"] for field in shard.schema if field["kind"] == "image"]
            lengths = (shard.columns[f"{field}.length"].sum() for field in fields)
            assert shard.header["blob_bytes"] == sum(map(int, lengths))


def test_manifest_lists_the_shards(packed: dict[str, Path]) -> None:
    for name in ("lmdb-3", "hdf5-3"):
        manifest, shards = document.read_manifest(packed[name])
        assert manifest["digest"] == document.digest(shards)
        assert manifest["num_samples"] == NUM_SAMPLES
        assert [shard.num_samples for shard in shards] == [23, 23, 24]


def test_kept_files_are_the_sources_own_bytes(tmp_path: Path) -> None:
    files = []
    for kind, options in (("webp", {}), ("png", {}), ("jpeg", {}), ("jpeg", {"exif": True})):
        image, file = Image.fromarray(picture(1, 40, 60)), io.BytesIO()
        exif = image.getexif()
        if options:
            exif[0x0112] = 6
        image.save(file, kind, exif=exif)
        files.append(file.getvalue())
    path = tmp_path / "kept.lmdb"
    fastdata.pack(
        [{"image": file} for file in files], path, codec="keep", num_workers=0, progress=False
    )
    shard = document.Shard(path)
    images = [shard[i]["image"] for i in range(4)]
    assert [image[3] for image in images] == files
    assert [image[0] for image in images] == ["file", "file", "jpeg", "file"]
    assert [image[1:3] for image in images] == [(40, 60)] * 3 + [(60, 40)]


def example_records() -> tuple[Schema, list[Record]]:
    """Return the two samples of section 9."""
    schema = Schema({"image": ImageField(1), "label": ScalarField(classes=("cat", "dog"))})

    def raw(data: bytes, height: int, width: int) -> EncodedImage:
        return EncodedImage(data, 0, height, width, xxhash.xxh3_64_intdigest(data))

    records = [
        Record("a", (raw(b"\x00\xff", 1, 2), 1)),
        Record("bc", (raw(b"\x10\x20", 2, 1), 0)),
    ]
    return schema, records


@pytest.mark.parametrize("writer", [LmdbShardWriter, Hdf5ShardWriter])
def test_example_of_the_digest(tmp_path: Path, writer: type[ShardWriter]) -> None:
    schema, records = example_records()
    shard_writer = writer(tmp_path / "work", schema)
    shard_writer.append(records)
    shard_writer.seal(tmp_path / "example", {})
    shard_writer.close()
    shard = document.Shard(tmp_path / "example")
    rows = re.findall(r"^\| `([\w.]+)` \| `([0-9a-f ]+)` \| `([0-9a-f]{32})` \|$", TEXT, re.M)
    hashes = b""
    for name, written, printed in rows:
        values = shard.columns[name]
        data = (np.diff(values) if name.endswith(".bounds") else values).tobytes()
        assert data == bytes.fromhex(written), name
        hashed = xxhash.xxh3_128(name.encode() + b"\0" + data)
        assert hashed.hexdigest() == printed, name
        hashes += hashed.digest()
    assert [name for name, _, _ in rows] == [n for n in shard.columns if n != "image.offset"]
    schema_text = document.canonical(shard.schema)
    assert f"\n```text\n{schema_text.decode()}\n```\n" in TEXT
    total = xxhash.xxh3_128(schema_text + hashes).hexdigest()
    assert total == shard.header["digest"]
    assert f"Digest: `{total}`" in TEXT


def test_example_of_the_segment_index() -> None:
    _, _, example = TEXT.partition("At byte 20:\n\n")
    index = bytes.fromhex(re.sub(r"\s", "", example.split("\n\n")[0]))
    assert len(index) == 2 + struct.unpack(">H", index[2:4])[0]
    lengths = [n for (n,) in struct.iter_unpack(">H", index[16:])]
    starts = [653]
    for length in lengths:
        starts.append(starts[-1] + length + 2)
    assert starts == [653, 716, 776, 835, 895]
    assert index[4:16] == b"fastdata\0\x01\x00\x01"
    for number in (*lengths, *starts):
        assert str(number) in example


def test_tables_name_every_type_and_codec() -> None:
    assert {name: numpy_dtype(name).str for name in SCALAR_DTYPES} == document.DTYPES
    assert dict(enumerate(CODECS)) == document.CODECS
    for number, codec in document.CODECS.items():
        assert f"\n| {number} | {codec} |" in TEXT
    section = TEXT.split("### 6.1")[1].split("\n## ")[0].replace("\\|", "|")
    for name, dtype in document.DTYPES.items():
        assert f"`{name}`" in section
        assert f"`{dtype}`" in section
    assert f"`{xxhash.xxh3_64_hexdigest(b'')}`" in TEXT


# -- section 8 ---------------------------------------------------------------------------


def replace_scan(jpeg: bytes, scan: int, height: int, width: int, parts: list[bytes]) -> bytes:
    """Put other segments and another size into a JPEG, as section 8 says."""
    head = bytearray(jpeg[:scan])
    at = head.index(b"\xff\xc0")
    struct.pack_into(">HH", head, at + 5, height, width)
    coded = parts[0]
    for number, part in enumerate(parts[1:]):
        coded += bytes([0xFF, 0xD0 + number % 8]) + part
    return bytes(head) + coded + b"\xff\xd9"


def jpegs_of(packed: dict[str, Path]) -> list[tuple[int, int, bytes]]:
    """Return height, width and bytes of the JPEGs that were packed."""
    shard = document.Shard(packed["lmdb-1"])
    images = (shard[i]["image"] for i in range(NUM_SAMPLES))
    return [image[1:] for image in images if image[0] == "jpeg"]


def test_index_points_at_restart_segments(packed: dict[str, Path]) -> None:
    intervals = set()
    for height, width, jpeg in jpegs_of(packed):
        at = jpeg.index(b"\xff\xdd")
        (interval,) = struct.unpack(">H", jpeg[at + 4 : at + 6])
        rows, columns = -(-height // 16), -(-width // 16)
        assert interval == next(n for n in (2, 3, 1) if columns % n == 0)
        intervals.add(interval)
        found = document.segments(jpeg)
        assert found is not None
        scan, bounds = found
        assert len(bounds) == rows * columns // interval
        assert bounds[0][0] == scan
        for number, (start, end) in enumerate(bounds):
            assert not re.search(rb"\xff[^\x00]", jpeg[start:end])
            last = number == len(bounds) - 1
            assert jpeg[end : end + 2] == (b"\xff\xd9" if last else bytes([255, 208 + number % 8]))
    assert intervals == {1, 2, 3}


def test_segments_of_some_rows_and_columns_are_the_same_picture(packed: dict[str, Path]) -> None:
    # The first that is wide enough and has two MCUs a segment.
    _, width, jpeg = next(j for j in jpegs_of(packed) if j[1] > 160 and -(-j[1] // 16) % 2 == 0)
    whole = np.asarray(Image.open(io.BytesIO(jpeg)))
    found = document.segments(jpeg)
    assert found is not None
    scan, bounds = found
    a_row = -(-width // 32)
    # MCU rows 1 to 3 and segments 1 to 3 of each: pixels 16:64 and 32:128.
    chosen = [bounds[row * a_row + column] for row in (1, 2, 3) for column in (1, 2, 3)]
    cut = replace_scan(jpeg, scan, 48, 96, [jpeg[start:end] for start, end in chosen])
    part = np.asarray(Image.open(io.BytesIO(cut)))
    # One MCU on each side is context for chroma upsampling.
    np.testing.assert_array_equal(part[16:-16, 16:-16], whole[32:48, 48:112])
    shifted = [jpeg[start + 1 : end] for start, end in chosen]
    broken = Image.open(io.BytesIO(replace_scan(jpeg, scan, 48, 96, shifted)))
    assert (np.asarray(broken)[16:-16, 16:-16] != whole[32:48, 48:112]).any()


# -- sections 11 and 12: through the containers' own libraries ------------------------------


def test_lmdb_keys_and_values(packed: dict[str, Path]) -> None:
    path = packed["lmdb-1"]
    shard = document.Shard(path)
    with (
        lmdb.open(str(path), subdir=False, readonly=True, lock=False, lib_version=0) as environment,
        environment.begin() as transaction,
    ):
        values = dict(transaction.cursor())
    assert json.loads(values.pop(b"header")) == shard.header
    for name, column in shard.columns.items():
        assert values.pop(f"column/{name}".encode()) == column.tobytes()
    for field in ("image", "tiny", "mask"):
        raw: list[bytes] = []
        for i in range(NUM_SAMPLES):
            codec, _, _, blob = shard.image(field, i)
            if codec == "raw":
                raw.append(blob)
            else:
                assert values.pop(f"{field}/{i:010}".encode()) == blob
        prefix = f"{field}.raw/".encode()
        groups = {int(k[-10:]): v for k, v in values.items() if k.startswith(prefix)}
        assert b"".join(groups[first] for first in sorted(groups)) == b"".join(raw)
        for first, group in groups.items():
            assert group.startswith(shard.image(field, first)[3])
            del values[f"{field}.raw/{first:010}".encode()]
    assert not values


def test_hdf5_datasets(packed: dict[str, Path]) -> None:
    path = packed["hdf5-1"]
    shard = document.Shard(path)
    with h5py.File(path) as file:
        assert file.attrs["format"] == "fastdata"
        assert file.attrs["version"] == 1
        assert json.loads(file["header"][:].tobytes()) == shard.header
        assert set(file["columns"]) == set(shard.columns)
        for name, column in shard.columns.items():
            stored = file["columns"][name]
            assert stored.chunks is None
            np.testing.assert_array_equal(stored[()], column)
        assert file["blobs/tiny"].shape == (NUM_SAMPLES, 28, 28, 1)
        assert file["blobs/tiny"][9].tobytes() == shard.image("tiny", 9)[3]
        assert file["footer"][:].tobytes() == path.read_bytes()[-64:]
        flat = file["blobs/image"][:].tobytes()
        assert flat == b"".join(shard.image("image", i)[3] for i in range(NUM_SAMPLES))


@pytest.mark.parametrize("name", ["lmdb-1", "hdf5-1"])
def test_opening_for_writing_and_closing_does_no_harm(
    packed: dict[str, Path], tmp_path: Path, name: str
) -> None:
    path = tmp_path / packed[name].name
    shutil.copy(packed[name], path)
    if name == "hdf5-1":
        h5py.File(path, "r+").close()
    else:
        lmdb.open(str(path), subdir=False, lock=False, lib_version=0).close()
    assert fastdata.open(path)[3].label == 1


# -- what must be refused, and what must be ignored ------------------------------------------


def with_footer(data: bytes, **changes: int) -> bytes:
    """Return a shard with other numbers in its footer, and the checksum that fits them."""
    names = ("version", "flags", "offset", "length", "checksum", "size")
    numbers = dict(zip(names, struct.unpack("<IIQQQQ", data[-56:-16]), strict=True))
    numbers.update(changes)
    body = b"FASTDATA" + struct.pack("<IIQQQQ8x", *numbers.values())
    return data[:-64] + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def with_header(data: bytes, change: Callable[[Any], Any]) -> bytes:
    """Return a shard with another header, appended: nothing says where a header has to be."""
    (at, length) = struct.unpack("<QQ", data[-48:-32])
    header = json.loads(data[at : at + length])
    change(header)
    text = json.dumps(header).encode()
    size = len(data) + len(text)
    return with_footer(
        data[:-64] + text + data[-64:],
        offset=len(data) - 64,
        length=len(text),
        checksum=xxhash.xxh3_64_intdigest(text),
        size=size,
    )


def extend(header: Any) -> None:
    header["later"] = [1.5, None]
    header["columns"]["label"]["later"] = 1
    header["columns"]["later"] = {"offset": -1}


@pytest.mark.parametrize("name", ["lmdb-1", "hdf5-1"])
def test_unknown_members_are_ignored(packed: dict[str, Path], tmp_path: Path, name: str) -> None:
    path = tmp_path / "shard"
    path.write_bytes(with_header(packed[name].read_bytes(), extend))
    assert document.Shard(path)[3]["label"] == 1
    assert fastdata.open(path)[3].label == 1


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "shorter than a footer": lambda data: data[-63:],
    "no footer": lambda data: data[:-64],
    "a byte of the footer": lambda data: data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
    "version 0": lambda data: with_footer(data, version=0),
    "version 2": lambda data: with_footer(data, version=2),
    "flags": lambda data: with_footer(data, flags=1),
    "cut at the front": lambda data: data[4096:],
    "header beyond the end": lambda data: with_footer(data, length=2**64 - 1),
    "header checksum": lambda data: with_footer(data, checksum=0),
    "column beyond the end": lambda data: with_header(
        data, lambda header: header["columns"]["label"].update(offset=2**62)
    ),
    "dtype of a column": lambda data: with_header(
        data, lambda header: header["columns"]["label"].update(dtype=">i8")
    ),
    "shape of a column": lambda data: with_header(
        data, lambda header: header["columns"]["label"].update(shape=[NUM_SAMPLES - 1])
    ),
    "kind of a field": lambda data: with_header(
        data, lambda header: header["schema"][3].update(kind="video")
    ),
    "member of a field": lambda data: with_header(
        data, lambda header: header["schema"][3].update(later=1)
    ),
}


@pytest.mark.parametrize("damage", list(REFUSED))
def test_what_must_be_refused_is(packed: dict[str, Path], tmp_path: Path, damage: str) -> None:
    path = tmp_path / "shard"
    path.write_bytes(REFUSED[damage](packed["hdf5-1"].read_bytes()))
    with pytest.raises(document.Refused):
        document.Shard(path)
    with pytest.raises(FastdataError, match=re.escape(str(path))):
        fastdata.open(path)


def with_manifest(source: Path, target: Path, change: Callable[[Any], Any]) -> Path:
    """Copy a directory of shards and change its manifest, with the checksum that fits."""
    shutil.copytree(source, target)
    path = target / "manifest.json"
    manifest = json.loads(path.read_bytes())
    del manifest["checksum"]
    change(manifest)
    head = json.dumps(manifest).encode()[:-1] + b', "checksum": "'
    path.write_bytes(head + document.hexadecimal(head).encode() + b'"\n}')
    return target


def read_all(path: Path) -> None:
    """Open a dataset and look at every sample's label."""
    dataset = fastdata.open(path)
    dataset._gather("label", range(len(dataset)))


def extend_manifest(manifest: Any) -> None:
    manifest["later"] = {"checksum": "0"}
    manifest["shards"][1]["later"] = 1


def test_unknown_members_of_a_manifest_are_ignored(packed: dict[str, Path], tmp_path: Path) -> None:
    path = with_manifest(packed["lmdb-3"], tmp_path / "more", extend_manifest)
    assert len(document.read_manifest(path)[1]) == 3
    read_all(path)


MANIFEST_REFUSED: dict[str, Callable[[Any], Any]] = {
    "version 0": lambda manifest: manifest.update(version=0),
    "version 2": lambda manifest: manifest.update(version=2),
    "name in another directory": lambda manifest: manifest["shards"][0].update(file="../a.lmdb"),
    "name of the directory itself": lambda manifest: manifest["shards"][0].update(file="."),
    "missing shard": lambda manifest: manifest["shards"][0].update(file="a.lmdb"),
    "length": lambda manifest: manifest["shards"][1].update(file_bytes=1 << 20),
    "digest": lambda manifest: manifest["shards"][1].update(digest="0" * 32),
    "number of samples": lambda manifest: manifest["shards"][1].update(num_samples=22),
    "order": lambda manifest: manifest["shards"][1].update(file=manifest["shards"][2]["file"]),
    "schema": lambda manifest: manifest["schema"][3].update(dtype="int32"),
}


@pytest.mark.parametrize("damage", list(MANIFEST_REFUSED))
def test_manifest_that_must_be_refused_is(
    packed: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    path = with_manifest(packed["lmdb-3"], tmp_path / "changed", MANIFEST_REFUSED[damage])
    with pytest.raises((document.Refused, FileNotFoundError)):
        document.read_manifest(path)
    with pytest.raises(FastdataError, match=re.escape(str(path))):
        read_all(path)


def test_manifest_that_was_edited_is_refused(packed: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(packed["lmdb-3"], tmp_path / "edited")
    path = tmp_path / "edited" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"quality": 90', b'"quality": 91'))
    with pytest.raises(document.Refused, match="checksum"):
        document.read_manifest(tmp_path / "edited")
    with pytest.raises(FastdataError, match=r"manifest\.json.*checksum"):
        fastdata.open(tmp_path / "edited")
