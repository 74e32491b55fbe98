"""What others read of an export, and how it is cut into shards."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_helpers import NAMES, PLAIN, every_format, keys_of, made, pack
from samples import EVERY_KIND, encode, photo, pil_decode, write_shard

import fastdata
from fastdata import export
from fastdata.converters.exporting.base import Cut
from fastdata.converters.finding import find_source
from fastdata.errors import (
    OptionError,
)
from fastdata.formats.writer import Record
from fastdata.schema import ImageField, ScalarField, Schema


def stored(dataset: fastdata.Dataset, name: str = "image") -> list[bytes]:
    return [bytes(shard.blob(name, n)) for shard in dataset.shards for n in range(len(shard))]


def test_tar_members_are_those_of_webdataset(tmp_path: Path) -> None:
    dataset = made(tmp_path / "rich.lmdb", EVERY_KIND, 3)
    export(dataset, tmp_path / "out", format="webdataset", progress=False)
    with tarfile.open(tmp_path / "out/shard-000000.tar") as tar:
        members = tar.getmembers()
        content = {m.name: tar.extractfile(m).read() for m in members}  # type: ignore[union-attr]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}
    first = [m.name.removeprefix("0/kéy 0.") for m in members if m.name.startswith("0/kéy 0.")]
    assert first == [
        *("jpg", "grey.jpg", "mask.png", "cls", "txt", "extra.bin", "box.npy", "matrix.npy"),
        *("nothing.npy", "points.npy", "ragged.npy", "json"),
    ]
    assert [content[f"{n}/kéy {n}.jpg"] for n in range(3)] == stored(dataset)
    assert content["1/kéy 1.cls"] == b"1"
    assert content["2/kéy 2.txt"].decode() == "naïve 🦎"
    told = json.loads(content["0/kéy 0.json"])
    assert told == {"weight": 0.0, "tiny": 0.0, "flag": False, "large": 0}
    array = np.load(io.BytesIO(content["1/kéy 1.matrix.npy"]), allow_pickle=False)
    assert np.array_equal(array, dataset[1].matrix)


def test_keys_are_in_json_only_where_the_members_name_does_not_tell_them(tmp_path: Path) -> None:
    image = encode(photo(8, 9), "png")
    records = [Record(key, (image, 0)) for key in ("a/0.png", "a/1.jpg")]
    write_shard(tmp_path / "k.lmdb", records, PLAIN)
    export(tmp_path / "k.lmdb", tmp_path / "out", format="webdataset", progress=False)
    with tarfile.open(tmp_path / "out/shard-000000.tar") as tar:
        assert tar.getnames() == ["a/0.png", "a/0.cls", "a/1.png", "a/1.cls", "a/1.json"]
        assert json.load(tar.extractfile("a/1.json")) == {"key": "a/1.jpg"}  # type: ignore[arg-type]


def test_tar_files_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    dataset = made(tmp_path / "rich.lmdb", EVERY_KIND)
    for name in ("one", "two"):
        export(dataset, tmp_path / name, format="webdataset", progress=False)
    one, two = ((tmp_path / n / "shard-000000.tar").read_bytes() for n in ("one", "two"))
    assert one == two
    assert one.endswith(bytes(1024))


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def wire(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield field numbers and values of a protobuf message, by the wire format."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value: Any
            value, at = varint(data, at)
        elif tag & 7 == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise AssertionError(f"wire type {tag & 7}")
        yield tag >> 3, value


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit (RFC 3720, appendix B.4), masked as TensorFlow does."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def examples(path: Path) -> Iterator[dict[str, list[Any]]]:
    """Yield the features of a TFRecord file; lists of numbers must be packed."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        length, head = struct.unpack_from("<QI", data, at)
        assert head == crc32c(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == crc32c(record)
        at += length + 16
        found: dict[str, list[Any]] = {}
        ((_, features),) = wire(record)
        for _, entry in wire(features):
            parts = dict(wire(entry))
            ((kind, values),) = wire(parts[2])
            held = [value for _, value in wire(values)]
            if kind == 2:
                held = [x for piece in held for (x,) in struct.iter_unpack("<f", piece)]
            elif kind == 3:
                piece, held, place = b"".join(held), [], 0
                while place < len(piece):
                    number, place = varint(piece, place)
                    held.append(number - (number >> 63 << 64))
            found[parts[1].decode()] = held
        yield found


def test_records_are_examples(tmp_path: Path) -> None:
    dataset = made(tmp_path / "rich.lmdb", EVERY_KIND, 4, size=(12, 10))
    export(dataset, tmp_path / "out", format="tfrecord", progress=False)
    found = list(examples(tmp_path / "out/shard-00000-of-00001.tfrecord"))
    assert [example["image/encoded"] for example in found] == [[b] for b in stored(dataset)]
    assert [example["mask/encoded"] for example in found] == [[b] for b in stored(dataset, "mask")]
    assert [example["image/class/label"] for example in found] == [[0], [1], [2], [0]]
    assert [example["key"][0].decode() for example in found] == keys_of(dataset)
    assert found[2]["caption"] == ["naïve 🦎".encode()]
    assert [example["large"][0] for example in found[:2]] == [0, 2**32 - 1]
    assert found[2]["weight"] == [-np.inf]
    assert found[0]["box"] == dataset[0].box.tolist()
    assert found[0]["points"] == dataset[0].points.reshape(-1).tolist()
    assert found[0]["nothing"] == []
    for example, sample in zip(found, dataset, strict=True):
        assert example["ragged/shape"] == list(sample.ragged.shape)
        assert (
            np.frombuffer(example["ragged"][0], "<f8").tolist() == sample.ragged.flatten().tolist()
        )


def test_tables_are_hugging_faces(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    dataset = made(tmp_path / "rich_val.lmdb", EVERY_KIND, 4)
    export(dataset, tmp_path / "out", format="parquet", progress=False)
    table = parquet.read_table(tmp_path / "out/validation-00000-of-00001.parquet")
    told = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert list(told) == table.column_names
    assert told["image"] == {"_type": "Image"}
    assert told["label"] == {"names": ["ape", "bee", "épée"], "_type": "ClassLabel"}
    assert told["points"]["feature"]["feature"] == {"dtype": "int16", "_type": "Value"}
    assert str(table.schema.field("image").type) == "struct<bytes: binary, path: string>"
    rows = table.to_pylist()
    assert [row["image"]["bytes"] for row in rows] == stored(dataset)
    assert [row["image"]["path"] for row in rows] == [f"kéy {n}.jpg" for n in range(4)]
    assert [row["key"] for row in rows] == keys_of(dataset)
    for row, sample in zip(rows, dataset, strict=True):
        assert row["label"] == sample.label
        assert row["points"] == sample.points.tolist()
        assert row["ragged"] == sample.ragged.tolist()
        assert row["ragged.shape"] == list(sample.ragged.shape)
        assert row["extra"] == sample.extra


def test_classes_that_classlabel_cannot_have_are_plain_numbers(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = Schema({"image": ImageField(), "label": ScalarField("uint8", classes=("a", "a"))})
    before = made(tmp_path / "twice.lmdb", schema)
    export(before, tmp_path / "out", format="parquet", progress=False)
    table = parquet.read_table(tmp_path / "out/train-00000-of-00001.parquet")
    told = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert told["label"] == {"dtype": "uint8", "_type": "Value"}
    assert pack(tmp_path / "out", tmp_path / "a.lmdb", codec="keep").digest == before.digest


@every_format
def test_raw_pixels_are_written_as_png(tmp_path: Path, format: str) -> None:
    dataset = made(tmp_path / "raw.lmdb", codec="raw", size=(7, 9))
    report = export(dataset, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    for data, sample in zip(stored(after), dataset, strict=True):
        assert data.startswith(b"\x89PNG")
        assert np.array_equal(pil_decode(data, 3).transpose(2, 0, 1), sample.image)


@every_format
def test_without_the_side_file_image_and_label_are_read(tmp_path: Path, format: str) -> None:
    dataset = made(tmp_path / "plain.lmdb")
    report = export(dataset, tmp_path / "out", format=format, progress=False)
    (tmp_path / "out/fastdata.json").unlink()
    source = find_source(report.entry)
    assert source.name == format
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert stored(after) == stored(dataset)
    assert [sample.label for sample in after] == [sample.label for sample in dataset]


# -- shards -----------------------------------------------------------------------------


def shards_of(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name != "fastdata.json")


@every_format
def test_shards_of_so_many_samples(tmp_path: Path, format: str) -> None:
    before = made(tmp_path / "plain.lmdb", count=7)
    report = export(before, tmp_path / "out", format=format, shard_size=3, progress=False)
    assert report.num_files == 3
    assert shards_of(tmp_path / "out") == [NAMES[format].format(n, 3) for n in range(3)]
    sizes = []
    for name in shards_of(tmp_path / "out"):
        part = pack(tmp_path / "out" / name, tmp_path / f"{name}.lmdb", codec="keep")
        sizes.append(len(part))
    assert sizes == [3, 3, 1]
    assert pack(report.entry, tmp_path / "again.lmdb", codec="keep").digest == before.digest


@every_format
def test_shards_of_so_many_bytes(tmp_path: Path, format: str) -> None:
    dataset = made(tmp_path / "raw.lmdb", count=8, codec="file", size=(40, 50))
    largest = max(map(len, stored(dataset)))
    options = {"format": format, "shard_size": f"{3 * largest // 1000}KB", "progress": False}
    report = export(dataset, tmp_path / "out", **options)
    assert 3 <= report.num_files <= 5
    sizes = [(tmp_path / "out" / name).stat().st_size for name in shards_of(tmp_path / "out")]
    assert max(sizes) < 3 * largest + 20_000
    assert report.file_bytes == sum(sizes)


@pytest.mark.parametrize(
    ("samples", "most", "sizes", "expected"),
    [
        (2, None, [1, 1, 1, 1, 1], [0, 0, 1, 1, 2]),
        (None, 10, [6, 4, 1, 20, 1, 1], [0, 0, 1, 2, 3, 3]),
        (None, None, [9, 9], [0, 0]),
        (1, None, [0, 0], [0, 1]),
    ],
)
def test_the_shard_of_each_sample(
    samples: int | None, most: int | None, sizes: list[int], expected: list[int]
) -> None:
    cut = Cut(samples, most)
    assert [cut(("", size)) for size in sizes] == expected


@pytest.mark.parametrize("shard_size", [0, "0", "1.5", "many", -1])
def test_a_shard_size_that_is_none_is_refused(tmp_path: Path, shard_size: Any) -> None:
    made(tmp_path / "p.lmdb", count=1)
    with pytest.raises(OptionError, match=r"shard_size="):
        export(tmp_path / "p.lmdb", tmp_path / "out", format="webdataset", shard_size=shard_size)


def test_a_format_without_shards_says_so(tmp_path: Path) -> None:
    made(tmp_path / "p.lmdb", count=1)
    with pytest.raises(OptionError, match="format='folder' has no shards"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format="folder", shard_size=5, progress=False)


def test_a_dataset_without_samples_is_refused(tmp_path: Path) -> None:
    dataset = made(tmp_path / "p.lmdb", count=2)[:0]
    with pytest.raises(OptionError, match="no samples to export"):
        export(dataset, tmp_path / "out", format="folder", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["p.lmdb"]


def test_row_groups_are_cut_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    from fastdata.converters.exporting import parquet as module

    monkeypatch.setattr(module, "_GROUP_BYTES", 20_000)
    before = made(tmp_path / "p.lmdb", count=9, codec="file", size=(40, 50))
    export(before, tmp_path / "out", format="parquet", progress=False)
    data = parquet.ParquetFile(tmp_path / "out/train-00000-of-00001.parquet").metadata
    rows = [data.row_group(n).num_rows for n in range(data.num_row_groups)]
    assert rows == [3, 3, 3]
    assert pack(tmp_path / "out", tmp_path / "again.lmdb", codec="keep").digest == before.digest
