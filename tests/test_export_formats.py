"""Export to webdataset, tfrecord, parquet and dali: out and in again, and what others read."""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import numpy as np
import pytest
from cli_helpers import make_folder, run, run_json
from samples import EVERY_KIND, encode, make_records, photo, pil_decode, write_shard, write_shards

import fastdata
from fastdata.converters.exporting.datums import _Database
from fastdata.converters.exporting.export import FORMATS, export
from fastdata.converters.exporting.shards import Cut, ShardFiles
from fastdata.converters.finding import find_source
from fastdata.errors import (
    DiskFullError,
    MissingExtraError,
    OptionError,
    ShardCorruptError,
    SourceError,
)
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, Schema, StringField

READ_AS = {"webdataset": "webdataset", "tfrecord": "tfrecord", "parquet": "parquet"}
READ_AS["dali"] = "caffe"
WHOLE = [name for name in READ_AS if name != "dali"]
PLAIN = Schema({"image": ImageField(), "label": ScalarField("int16", classes=("cat", "dög"))})

every_format = pytest.mark.parametrize("format", READ_AS)
whole_formats = pytest.mark.parametrize("format", WHOLE)


def pack(source: Any, destination: Path, **options: Any) -> fastdata.Dataset:
    report = fastdata.pack(source, destination, num_workers=0, progress=False, **options)
    assert report.rejects == []
    return fastdata.open(destination)


def keys_of(dataset: fastdata.Dataset) -> list[str]:
    return list(dataset.keys)


def made(path: Path, schema: Schema = PLAIN, count: int = 6, **options: Any) -> fastdata.Dataset:
    return fastdata.open(write_shard(path, make_records(schema, count, **options), schema))


# -- out and in again -------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    if hasattr(a, "numpy"):
        a, b = a.numpy(), b.numpy()
        return bool(
            a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    return type(a) is type(b) and (bool(a == b) or (a != a and b != b))


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw"])
@whole_formats
def test_every_kind_of_field_gives_the_same_digest(tmp_path: Path, format: str, codec: str) -> None:
    before = made(tmp_path / "rich.lmdb", EVERY_KIND, 9, codec=codec)
    report = export(before, tmp_path / "out", format=format, progress=False)
    assert report.notes == ()
    after = pack(report.entry, tmp_path / "again.lmdb", codec=codec, resize="none")
    assert after.schema == before.schema
    assert keys_of(after) == keys_of(before)
    for a, b in zip(before, after, strict=True):
        for name in EVERY_KIND:
            assert same(getattr(a, name), getattr(b, name)), name
    assert after.digest == before.digest


@every_format
def test_files_that_were_kept_are_kept(tmp_path: Path, format: str) -> None:
    before = made(tmp_path / "kept.lmdb", codec=("file", "jpeg"))
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert after.digest == before.digest
    (shard,) = after.shards
    assert shard.header.options == {"made_by": "tests"}


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw"])
@every_format
def test_a_label_and_an_image_give_the_same_digest(tmp_path: Path, format: str, codec: str) -> None:
    before = made(tmp_path / "plain.lmdb", codec=codec)
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec=codec, resize="none")
    assert after.digest == before.digest
    assert (report.num_samples, report.num_files) == (6, 1)


@every_format
def test_the_order_and_names_of_fields_are_kept(tmp_path: Path, format: str) -> None:
    schema = Schema({"species": ScalarField("uint8", classes=("a", "b")), "photo": ImageField()})
    before = made(tmp_path / "order.lmdb", schema)
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert after.digest == before.digest


@every_format
def test_a_part_of_several_shards_is_exported(tmp_path: Path, format: str) -> None:
    parts = [make_records(PLAIN, 4), make_records(PLAIN, 5)]
    dataset = fastdata.open(write_shards(tmp_path / "shards", parts, PLAIN))[2:7]
    report = export(dataset, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert keys_of(after) == keys_of(dataset)
    assert [sample.label for sample in after] == [sample.label for sample in dataset]


@every_format
def test_shuffled_packing_finds_the_keys(tmp_path: Path, format: str) -> None:
    before = made(tmp_path / "plain.lmdb")
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep", shuffle=True)
    assert sorted(keys_of(after)) == sorted(keys_of(before))
    assert keys_of(after) != keys_of(before)


@whole_formats
def test_boxes_of_turned_files_come_back(tmp_path: Path, format: str) -> None:
    from PIL import Image

    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo(20, 30)).save(file, "JPEG", exif=exif)
    boxes = np.array([[1, 2, 10, 12]], np.float32)
    fields = {"image": ImageField(), "boxes": ArrayField("float32", (None, 4), boxes=True)}
    rows = [{"image": file.getvalue(), "boxes": boxes}]
    before = pack(rows, tmp_path / "turned.lmdb", codec="keep", fields=fields)
    assert not np.array_equal(before[0].boxes.numpy(), boxes)
    report = export(before, tmp_path / "out", format=format, progress=False)
    assert pack(report.entry, tmp_path / "a.lmdb", codec="keep").digest == before.digest


EVIL_KEYS = [
    "../../evil.png",
    "/etc/passwd",
    "",
    ".",
    "a.b/c.d.e.png",
    "__meta__/x.png",
    "___meta__",
    "._mac.png",
    "tab\tnew\nline\0.png",
    "x" * 400 + ".png",
    "long/" * 60 + "name.png",
    "same.png",
    "same.png",
    "same.jpg",
    "same",
    "naïve 🦎.png",
]


@every_format
def test_any_key_comes_back(tmp_path: Path, format: str) -> None:
    image = encode(photo(8, 9), "png")
    records = [Record(key, (image, n % 2)) for n, key in enumerate(EVIL_KEYS)]
    before = fastdata.open(write_shard(tmp_path / "keys.lmdb", records, PLAIN))
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="png", resize="none")
    assert keys_of(after) == EVIL_KEYS
    assert after.digest == before.digest


@whole_formats
def test_any_text_and_names_that_differ_in_capitals_come_back(tmp_path: Path, format: str) -> None:
    schema = Schema(
        {
            "image": ImageField(),
            "Text": StringField(),
            "text": StringField(),
            "TEXT": BytesField(),
            "text_": ArrayField("float64", (None, 0)),
            "json": ScalarField("float64"),
            "cls": StringField(),
        }
    )
    texts = ["", " ", "1", "two\nlines", "a\rb\0c", "é🦎", "\u2028", "null"]
    image = encode(photo(8, 8), "png")
    records = [
        Record(str(n), (image, t, t * 2, t.encode(), np.zeros((n, 0)), n / 7, t))
        for n, t in enumerate(texts)
    ]
    before = fastdata.open(write_shard(tmp_path / "t.lmdb", records, schema))
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="png", resize="none")
    assert after.digest == before.digest


@whole_formats
def test_a_dataset_without_images_is_exported(tmp_path: Path, format: str) -> None:
    schema = Schema({"text": StringField(), "x": ScalarField("float64")})
    before = fastdata.open(
        write_shard(
            tmp_path / "n.lmdb", [Record(f"k{n}", (f"t{n}", n / 3)) for n in (0, 1)], schema
        )
    )
    report = export(before, tmp_path / "out", format=format, progress=False)
    assert pack(report.entry, tmp_path / "again.lmdb").digest == before.digest


# -- Datums hold an image and a label ---------------------------------------------------


def test_what_a_datum_does_not_hold_is_left_out_and_said(tmp_path: Path) -> None:
    before = made(tmp_path / "rich.lmdb", EVERY_KIND)
    report = export(before, tmp_path / "out", format="dali", progress=False)
    (note,) = report.notes
    assert "fields left out: grey, mask, weight, tiny" in note
    assert f"note: {note}" in str(report)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert list(after.schema.items()) == [(n, EVERY_KIND[n]) for n in ("image", "label")]
    assert keys_of(after) == keys_of(before)


def test_labels_that_a_datum_cannot_hold_are_named(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("int64")})
    records = [Record("far/away.png", (encode(photo(8, 8), "png"), 2**31))]
    write_shard(tmp_path / "l.lmdb", records, schema)
    with pytest.raises(OptionError, match=r"far/away\.png.*2147483648"):
        export(tmp_path / "l.lmdb", tmp_path / "out", format="dali", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["l.lmdb"]


def test_datums_need_an_image(tmp_path: Path) -> None:
    schema = Schema({"text": StringField()})
    write_shard(tmp_path / "n.lmdb", [Record("0", ("t",))], schema)
    with pytest.raises(OptionError, match="there is no image field"):
        export(tmp_path / "n.lmdb", tmp_path / "out", format="dali", progress=False)


# -- what others read -------------------------------------------------------------------


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


def test_values_are_datums_under_keys_of_8_digits(tmp_path: Path) -> None:
    dataset = made(tmp_path / "plain.lmdb", codec="png")
    export(dataset, tmp_path / "out", format="dali", progress=False)
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"data.mdb", "fastdata.json"}
    with (
        lmdb.open(str(tmp_path / "out"), readonly=True, lock=False) as environment,
        environment.begin() as transaction,
    ):
        pairs = [(bytes(k), dict(wire(v))) for k, v in transaction.cursor()]
    assert [key for key, _ in pairs] == [b"%08d" % n for n in range(6)]
    assert [datum[4] for _, datum in pairs] == stored(dataset)
    assert [datum[5] for _, datum in pairs] == [0, 1, 0, 1, 0, 1]
    assert {datum[7] for _, datum in pairs} == {1}
    assert [(d[1], d[2], d[3]) for _, d in pairs] == [(3, *s.image.shape[1:]) for s in dataset]


def test_dalis_own_reader_gives_the_images(tmp_path: Path) -> None:
    dali = pytest.importorskip("nvidia.dali", exc_type=ImportError)
    dataset = made(tmp_path / "plain.lmdb", codec="png", size=(16, 20))
    export(dataset, tmp_path / "out", format="dali", progress=False)
    pipeline = dali.Pipeline(batch_size=6, num_threads=1, device_id=None)
    with pipeline:
        files, labels = dali.fn.readers.caffe(path=str(tmp_path / "out"))
        pipeline.set_outputs(dali.fn.decoders.image(files, device="cpu"), labels)
    pipeline.build()
    images, labels = pipeline.run()
    assert labels.as_array().reshape(-1).tolist() == [sample.label for sample in dataset]
    for index, sample in enumerate(dataset):
        assert np.array_equal(images.at(index).transpose(2, 0, 1), sample.image)


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
    assert source.name == READ_AS[format]
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert stored(after) == stored(dataset)
    assert [sample.label for sample in after] == [sample.label for sample in dataset]


# -- shards -----------------------------------------------------------------------------

NAMES = {
    "webdataset": "shard-{0:06}.tar",
    "tfrecord": "shard-{0:05}-of-{1:05}.tfrecord",
    "parquet": "train-{0:05}-of-{1:05}.parquet",
}


def shards_of(out: Path) -> list[str]:
    return sorted(path.name for path in out.iterdir() if path.name != "fastdata.json")


@whole_formats
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


@whole_formats
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
        (2, None, [1, 1, 1, 1, 1], [0, 0, 1, 0, 1]),
        (None, 10, [6, 4, 1, 20, 1, 1], [0, 0, 1, 1, 1, 0]),
        (None, None, [9, 9], [0, 0]),
        (1, None, [0, 0], [0, 1]),
    ],
)
def test_where_shards_begin(
    samples: int | None, most: int | None, sizes: list[int], expected: list[int]
) -> None:
    cut = Cut(samples, most)
    assert [cut.begins_shard(size) for size in sizes] == list(map(bool, expected))


@pytest.mark.parametrize("shard_size", [0, "0", "1.5", "many", -1])
def test_a_shard_size_that_is_none_is_refused(tmp_path: Path, shard_size: Any) -> None:
    made(tmp_path / "p.lmdb", count=1)
    with pytest.raises(OptionError, match=r"shard_size="):
        export(tmp_path / "p.lmdb", tmp_path / "out", format="webdataset", shard_size=shard_size)


@pytest.mark.parametrize("format", ["folder", "dali"])
def test_formats_without_shards_say_so(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=1)
    with pytest.raises(OptionError, match=f"format='{format}' is not cut into shards"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, shard_size=5, progress=False)


@every_format
def test_no_samples_make_one_file(tmp_path: Path, format: str) -> None:
    dataset = made(tmp_path / "p.lmdb", count=2)[:0]
    report = export(dataset, tmp_path / "out", format=format, progress=False)
    assert (report.num_samples, report.num_files) == (0, 1)


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


# -- the side file ----------------------------------------------------------------------


def change(out: Path, **entries: Any) -> None:
    path = out / "fastdata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"fastdata": 1}, 'no "fastdata": "export"'),
        ({"version": 2}, "its version is '2'"),
        ({"version": None}, "its version is 'None'"),
        ({"format": "folder"}, "of the format 'folder'"),
        ({"fields": None}, "bad schema"),
        ({"fields": [{"name": "image", "kind": "tune"}]}, "unknown kind"),
        ({"fields": [{"name": "../x", "kind": "image"}]}, "field name"),
        ({"stored_as": None}, "does not say where image, label are"),
        ({"stored_as": {"image": "x"}}, "does not say where image, label are"),
        ({"stored_as": {"image": "x", "label": 3}}, "'3' for 'label', which is no name"),
        ({"stored_as": {"image": "x", "label": ""}}, "'' for 'label', which is no name"),
        ({"packed_with": []}, '"packed_with" is no object'),
    ],
)
@every_format
def test_a_side_file_that_does_not_fit_is_named(
    tmp_path: Path, format: str, entries: dict[str, Any], reason: str
) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", **entries)
    with pytest.raises(SourceError, match=rf"fastdata\.json: .*{re.escape(reason)}.*remove it"):
        find_source(tmp_path / "out")


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '"\udcff"', "NaN"])
@every_format
def test_a_damaged_side_file_is_named(tmp_path: Path, format: str, text: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    (tmp_path / "out/fastdata.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SourceError, match=r"fastdata\.json: .*remove it"):
        find_source(tmp_path / "out")


@every_format
def test_a_side_file_that_names_what_is_not_there(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=3)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", stored_as={"image": "../../etc/passwd", "label": "nothing"})
    with pytest.raises(SourceError, match=r"fastdata\.json: .*remove it"):
        find_source(tmp_path / "out")


FORGED = {
    "image": {"name": "image", "kind": "image", "channels": 3, "mask": False},
    "array": {"name": "label", "kind": "array", "dtype": "float64", "shape": [None, None]},
    "text": {"name": "label", "kind": "string"},
    "bytes": {"name": "label", "kind": "bytes"},
    "bool": {"name": "label", "kind": "scalar", "dtype": "bool", "classes": None},
    "mask": {"name": "label", "kind": "image", "channels": 1, "mask": True},
}


@pytest.mark.parametrize("kind", [kind for kind in FORGED if kind != "image"])
@every_format
def test_fields_that_the_values_are_not_of_are_refused(
    tmp_path: Path, format: str, kind: str
) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("int64")})
    records = [Record(str(n), (encode(photo(8, 8), "png"), n + 5)) for n in range(6)]
    write_shard(tmp_path / "p.lmdb", records, schema)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    change(tmp_path / "out", fields=[FORGED["image"], FORGED[kind]])
    if format == "webdataset" and kind in ("text", "bytes"):  # which a label in a tar is too
        assert len(pack(tmp_path / "out", tmp_path / "a.lmdb")) == 6
        return
    with pytest.raises(SourceError, match=r"all 6 samples were rejected|fastdata\.json: "):
        pack(tmp_path / "out", tmp_path / "a.lmdb")


@whole_formats
def test_shapes_that_do_not_fit_are_rejects(tmp_path: Path, format: str) -> None:
    schema = Schema({"image": ImageField(), "a": ArrayField("int16", (None, None))})
    image = encode(photo(8, 8), "png")
    records = [Record(str(n), (image, np.ones((2, 3), np.int16))) for n in range(2)]
    write_shard(tmp_path / "a.lmdb", records, schema)
    export(tmp_path / "a.lmdb", tmp_path / "out", format=format, progress=False)
    document = json.loads((tmp_path / "out/fastdata.json").read_text())
    document["fields"][1]["shape"] = [None, 4]
    change(tmp_path / "out", fields=document["fields"])
    with pytest.raises(SourceError, match=r"2 samples were rejected.*shape"):
        pack(tmp_path / "out", tmp_path / "b.lmdb")


@whole_formats
def test_shards_of_two_exports_are_not_mixed(tmp_path: Path, format: str) -> None:
    for name, schema in (("a", PLAIN), ("b", EVERY_KIND)):
        made(tmp_path / f"{name}.lmdb", schema, 2)
        export(tmp_path / f"{name}.lmdb", tmp_path / "out" / name, format=format, progress=False)
    suffix = NAMES[format].rpartition(".")[2]
    with pytest.raises(SourceError, match="not shards of one dataset"):
        find_source(f"{tmp_path}/out/*/*.{suffix}")
    (tmp_path / "out/b/fastdata.json").unlink()
    with pytest.raises(SourceError, match="not shards of one dataset"):
        find_source(f"{tmp_path}/out/*/*.{suffix}")


@every_format
def test_the_users_word_counts_more(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    (tmp_path / "names.txt").write_text("one\ntwo\n")
    after = pack(
        tmp_path / "out",
        tmp_path / "again.lmdb",
        channels=1,
        fields={"label": "int"},
        source_options={"classes": str(tmp_path / "names.txt")},
    )
    assert after.schema["image"] == ImageField(channels=1)
    assert after.schema["label"] == ScalarField("int64", classes=("one", "two"))
    with pytest.raises(OptionError, match="not in the source"):
        find_source(tmp_path / "out", fields={"nothing": "int"})


@every_format
def test_resuming_would_notice_another_side_file(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb", count=2)
    export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    before = find_source(tmp_path / "out").fingerprints()
    change(tmp_path / "out", packed_with={"codec": "another"})
    source = find_source(tmp_path / "out")
    (changed,) = np.flatnonzero(before != source.fingerprints())
    assert "fastdata.json" in source.fingerprint_key(int(changed))


# -- the destination --------------------------------------------------------------------


@every_format
def test_damage_stops_an_export_and_leaves_nothing(tmp_path: Path, format: str) -> None:
    dataset = made(tmp_path / "p.lmdb")
    (reader,) = dataset.shards
    data = bytearray((tmp_path / "p.lmdb").read_bytes())
    data[int(reader.column("image.offset")[3])] ^= 1
    (tmp_path / "p.lmdb").write_bytes(data)
    with pytest.raises(ShardCorruptError, match="checksum"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["p.lmdb"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt, KeyboardInterrupt),
        (partial(OSError, 28, "stopped: no space left"), DiskFullError),
        (partial(lmdb.Error, "stopped: No space left"), DiskFullError),
    ],
)
@every_format
def test_a_failed_export_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    error: Callable[[], BaseException],
    expected: type[BaseException],
) -> None:
    made(tmp_path / "p.lmdb")

    def fail(*arguments: object, **options: object) -> NoReturn:
        raise error()

    if error not in (KeyboardInterrupt,) and isinstance(error(), lmdb.Error):
        if format != "dali":
            pytest.skip("no LMDB is written")
        from fastdata.converters.exporting import datums

        monkeypatch.setattr(datums.lmdb, "open", fail)
    elif format == "parquet":
        from fastdata.converters.exporting import parquet

        monkeypatch.setattr(parquet._Table, "flush", fail)
    elif format == "dali":
        monkeypatch.setattr(_Database, "flush", fail)
    else:
        monkeypatch.setattr(ShardFiles, "write", fail)
    with pytest.raises(expected, match=r"(?i)stopped|no space left|^$"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["p.lmdb"]


@every_format
def test_only_an_export_is_replaced(tmp_path: Path, format: str) -> None:
    made(tmp_path / "p.lmdb")
    for overwrite in (False, True):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, overwrite=overwrite)
    export(tmp_path / "p.lmdb", tmp_path / "out", format="folder", overwrite=True)
    assert not (tmp_path / "out/fastdata.json").exists()


@pytest.mark.parametrize(
    ("format", "module"),
    [("parquet", "pyarrow.parquet"), ("tfrecord", "google_crc32c"), ("dali", "google.protobuf")],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str
) -> None:
    from fastdata.converters.reading.lmdb import datum
    from fastdata.converters.reading.records import framing

    made(tmp_path / "p.lmdb", count=1)
    monkeypatch.setitem(sys.modules, module, None)
    for cached in (framing.crc32c, datum.datum_class):
        cached.cache_clear()
    extra = {"dali": "caffe"}.get(format, format)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fastdata\[{extra}\]'"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["p.lmdb"]


def test_the_formats_are_those_of_the_command_line() -> None:
    from fastdata.cli.choices import EXPORT_FORMATS

    assert tuple(FORMATS) == EXPORT_FORMATS


def test_the_command_line(tmp_path: Path) -> None:
    make_folder(tmp_path / "images")
    fastdata.pack(tmp_path / "images", tmp_path / "p.lmdb", num_workers=0, progress=False)
    words = ["export", tmp_path / "p.lmdb", tmp_path / "out", "--format", "webdataset"]
    report = run_json(*words, "--shard-size", "2", "--select", "1:6")
    assert (report["num_samples"], report["num_files"], report["notes"]) == (5, 3, [])
    assert report["entry"] == str(tmp_path / "out")
    assert run(*words).exit_code == 4
    result = run(*words, "--overwrite")
    assert result.exit_code == 0
    assert "6 samples, 1 file, " in result.output
    result = run(*words[:3], "--format", "folder", "--shard-size", "2", "--overwrite")
    assert result.exit_code == 2
    assert "is not cut into shards" in result.stderr


# -- memory -----------------------------------------------------------------------------


@every_format
def test_memory_does_not_grow_with_the_dataset(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tracemalloc

    from fastdata.converters.exporting import datums, parquet

    monkeypatch.setattr(datums, "_PENDING_BYTES", 1 << 20)
    monkeypatch.setattr(parquet, "_GROUP_BYTES", 1 << 20)
    image = encode(photo(200, 200), "file")
    records = [Record(f"{n}.tif", (image, 0)) for n in range(200)]
    shard = write_shard(tmp_path / "big.lmdb", records, PLAIN)
    total = shard.stat().st_size
    export(shard, tmp_path / "first", format=format, progress=False)  # imports
    tracemalloc.start()
    try:
        export(shard, tmp_path / "out", format=format, progress=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total > 20e6
    assert peak < 5e6
