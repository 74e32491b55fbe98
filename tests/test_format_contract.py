"""What every container does with every codec and every kind of field."""

from __future__ import annotations

import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pytest
import torch
import xxhash
from samples import (
    EVERY_KIND,
    FOOTER,
    LABELLED,
    SUFFIXES,
    WRITERS,
    decoded,
    encode,
    header_of,
    make_records,
    photo,
    pil_decode,
    write_shard,
    write_shards,
)

import fastdata
from fastdata.errors import ImageError, OptionError
from fastdata.formats.layout import CODECS
from fastdata.formats.reader import find_damage
from fastdata.formats.writer import Record, ShardDamagedError
from fastdata.schema import (
    ArrayField,
    BytesField,
    Field,
    ImageField,
    ScalarField,
    Schema,
    StringField,
)

MIXED = ("jpeg", "png", "raw", "file")


def check_value(field: Field, found: Any, expected: Any) -> None:
    """Compare a field of ``dataset[i]`` with what was written, dtype and all."""
    if isinstance(field, ImageField):
        assert found.dtype == torch.uint8
        pixels = decoded(expected, field.channels)
        np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), pixels)
    elif isinstance(field, ArrayField):
        assert isinstance(found, torch.Tensor)
        assert str(found.dtype) == f"torch.{field.dtype}"
        np.testing.assert_array_equal(found.numpy(), expected, strict=True)
    elif isinstance(field, ScalarField):
        kind = np.dtype(field.dtype).kind
        assert type(found) is {"b": bool, "f": float}.get(kind, int)
        np.testing.assert_equal(found, np.dtype(field.dtype).type(expected).item())
    else:
        assert type(found) is type(expected)
        assert found == expected


def check_dataset(dataset: fastdata.Dataset, schema: Schema, records: list[Record]) -> None:
    """Compare everything in a dataset with what was written."""
    assert dataset.schema == schema
    assert list(dataset.keys) == [record.key for record in records]
    samples = list(dataset)
    assert len(samples) == len(records)
    for sample, record in zip(samples, records, strict=True):
        assert sample._fields == tuple(schema)
        for field, found, expected in zip(schema.values(), sample, record.values, strict=True):
            check_value(field, found, expected)
    for reader in dataset.shards:
        assert list(find_damage(reader)) == []


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw", "file", MIXED], ids=str)
def test_everything_written_is_read_back(
    tmp_path: Path, container: str, codec: str | tuple[str, ...]
) -> None:
    """A writer that is stopped after a commit goes on from there, and nowhere else."""
    records = make_records(EVERY_KIND, 11, codec)
    scratch, path = tmp_path / "scratch", tmp_path / f"shard{SUFFIXES[container]}"
    writer = WRITERS[container](scratch, EVERY_KIND)
    writer.append(records[:3])
    writer.append([])
    writer.append(records[3:4])
    state = writer.commit()
    state = json.loads(json.dumps(state))
    # These were never committed: the next writer must not know them.
    writer.append(make_records(EVERY_KIND, 7, ("raw", "jpeg"), (60, 50)))
    writer.commit()
    writer.append(records[9:])
    writer.close()
    writer.close()
    writer = WRITERS[container](scratch, EVERY_KIND, state)
    writer.append(records[4:])
    writer.seal(path, {"quality": 90})
    writer.close()
    check_dataset(fastdata.open(path), EVERY_KIND, records)
    header = header_of(path)
    images = [v for r in records for v in r.values if isinstance(v, tuple)]
    assert header["blob_bytes"] == sum(len(image.data) for image in images)
    assert header["num_samples"] == 11
    assert header["container"] == container
    assert header["options"] == {"quality": 90}


@pytest.mark.parametrize("stopped_after", [0, 1, 5])
def test_sealing_can_be_repeated_after_a_crash(
    tmp_path: Path, container: str, stopped_after: int
) -> None:
    records = make_records(EVERY_KIND, 5, MIXED)
    scratch, path = tmp_path / "scratch", tmp_path / f"shard{SUFFIXES[container]}"
    writer = WRITERS[container](scratch, EVERY_KIND)
    writer.append(records[:stopped_after])
    state = writer.commit()
    writer.append(make_records(EVERY_KIND, 4, "raw"))
    # All of sealing but the removal of the scratch directory.
    writer.seal(tmp_path / f"other{SUFFIXES[container]}", {})
    writer.close()
    shutil.copy(tmp_path / f"other{SUFFIXES[container]}", writer.path)
    writer = WRITERS[container](scratch, EVERY_KIND, state)
    writer.append(records[stopped_after:])
    writer.seal(path, {})
    writer.close()
    check_dataset(fastdata.open(path), EVERY_KIND, records)


def test_nothing_has_the_name_of_a_dataset_before_sealing(tmp_path: Path, container: str) -> None:
    scratch, path = tmp_path / "scratch", tmp_path / f"shard{SUFFIXES[container]}"
    writer = WRITERS[container](scratch, LABELLED)
    writer.append(make_records())
    writer.commit()
    writer.close()
    assert not path.exists()
    with pytest.raises(fastdata.FastdataError, match="manifest"):
        fastdata.open(scratch)
    for file in scratch.iterdir():
        with pytest.raises(fastdata.FastdataError, match=r"not a fastdata shard"):
            fastdata.open(file)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_shards_of_hardly_any_samples(
    tmp_path: Path, container: str, count: int, codec: str
) -> None:
    records = make_records(EVERY_KIND, count, codec)
    path = write_shard(tmp_path / f"shard{SUFFIXES[container]}", records, EVERY_KIND)
    check_dataset(fastdata.open(path), EVERY_KIND, records)


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw"])
def test_images_of_extreme_shapes(tmp_path: Path, container: str, codec: str) -> None:
    schema = Schema({"image": ImageField(), "grey": ImageField(1)})
    sizes = [(1, 1), (1, 300), (300, 1), (2, 3)]
    records = [record for size in sizes for record in make_records(schema, 2, codec, size)]
    path = write_shard(tmp_path / f"shard{SUFFIXES[container]}", records, schema)
    check_dataset(fastdata.open(path), schema, records)


@pytest.mark.parametrize(
    "schema",
    [
        Schema({"label": ScalarField()}),
        Schema({"text": StringField()}),
        Schema({"data": BytesField()}),
        Schema({"box": ArrayField("float32", (0, 3))}),
        Schema({"a": ArrayField("uint8", (None,))}),
        # Names that files of the writers, or LMDB keys, could confuse.
        Schema({"num_samples": ScalarField(), "blob_bytes": ScalarField("float32")}),
        Schema({"data": ImageField(), "bounds": BytesField(), "raw": ImageField(1)}),
        Schema({"offset": ImageField(), "length": ScalarField(), "shard": StringField()}),
        Schema({"image": ImageField(), "Image": ScalarField(), "x" * 100: ImageField(1, True)}),
    ],
    ids=lambda schema: "-".join(name[:12] for name in schema),
)
def test_schemas_of_any_names_and_kinds(tmp_path: Path, container: str, schema: Schema) -> None:
    records = make_records(schema, 5, ("raw", "jpeg"))
    scratch = tmp_path / "scratch"
    writer = WRITERS[container](scratch, schema)
    writer.append(records[:2])
    state = writer.commit()
    writer.close()
    writer = WRITERS[container](scratch, schema, state)
    writer.append(records[2:])
    path = tmp_path / f"shard{SUFFIXES[container]}"
    writer.seal(path, {})
    writer.close()
    check_dataset(fastdata.open(path), schema, records)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schema({}), "at least one field"),
        (lambda: Schema({"a b": StringField()}), "'a b' is not a letter followed by"),
        (lambda: Schema({"x\n": StringField()}), "is not a letter followed by"),
        (lambda: Schema({"épée": StringField()}), "'épée' is not a letter followed by"),
        (lambda: Schema({"_x": StringField()}), "'_x' is not a letter followed by"),
        (lambda: Schema({"x" * 101: StringField()}), "up to 99 letters"),
        (lambda: Schema({"class": StringField()}), "'class' is reserved"),
        (lambda: Schema({"blobs": ImageField()}), "'blobs' is reserved"),
        (lambda: Schema({"key": StringField()}), "'key' is reserved"),
        (lambda: Schema({"index": StringField()}), "'index' is reserved"),
        (lambda: Schema({"column": ImageField()}), "'column' is reserved"),
        (lambda: Schema({"header": ImageField()}), "'header' is reserved"),
        (lambda: Schema({"x": "image"}), "'x' is a str, not a field"),  # type: ignore[dict-item]
        (lambda: ImageField(channels=4), "3 .RGB. or 1 .grey. channels, not 4"),
        (lambda: ImageField(channels=1.0), "channels, not 1.0"),  # type: ignore[arg-type]
        (lambda: ImageField(channels=True), "channels, not True"),
        (lambda: ImageField(mask=True), "a mask field has 1 channel"),
        (lambda: ImageField(classes=("a",)), "class names only if it is a mask"),
        (lambda: ImageField(mask="yes"), "mask is true or false, not 'yes'"),  # type: ignore[arg-type]
        (lambda: ScalarField("complex64"), "dtype 'complex64' is not one of"),
        (lambda: ScalarField(classes=("a", 1)), "text without NUL, not 1"),  # type: ignore[arg-type]
        (lambda: ScalarField(classes=("a", "\udcff")), "text without NUL, not '.udcff'"),
        (lambda: ArrayField("float32", ()), "1 to 8 dimensions, not 0"),
        (lambda: ArrayField("float32", (1,) * 9), "1 to 8 dimensions, not 9"),
        (lambda: ArrayField("float32", (-1,)), "non-negative int or None, not -1"),
        (lambda: ArrayField("float32", (2.5,)), "not 2.5"),  # type: ignore[arg-type]
        (lambda: ArrayField("float32", (0, 2**30, 2**30)), "more than 2.*31 entries"),
    ],
)
def test_fields_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


def test_a_schema_survives_json() -> None:
    assert Schema.from_json(EVERY_KIND.to_json()) == EVERY_KIND
    assert hash(Schema.from_json(EVERY_KIND.to_json())) == hash(EVERY_KIND)


def test_content_does_not_depend_on_the_container(tmp_path: Path) -> None:
    records = make_records(EVERY_KIND, 7, MIXED)
    digests = {
        fastdata.open(write_shard(tmp_path / f"a{suffix}", records, EVERY_KIND, batch)).digest
        for suffix in SUFFIXES.values()
        for batch in (2, 100)
    }
    cut = write_shards(tmp_path / "cut", [records[:1], records[1:5], records[5:]], EVERY_KIND)
    digests.add(fastdata.open(cut).digest)
    digests.add(fastdata.open(sorted(cut.glob("*.lmdb"))).digest)
    assert len(digests) == 1


def _swapped(records: list[Record]) -> list[Record]:
    return [records[1], records[0], *records[2:]]


def _changed(records: list[Record], name: str, value: Any) -> list[Record]:
    at = list(EVERY_KIND).index(name)
    values = list(records[2].values)
    values[at] = value
    return [*records[:2], Record(records[2].key, tuple(values)), *records[3:]]


@pytest.mark.parametrize(
    "change",
    [
        _swapped,
        lambda r: r[:-1],
        lambda r: [Record("other", r[0].values), *r[1:]],
        lambda r: _changed(r, "label", 0),
        lambda r: _changed(r, "caption", "naïve 🦎!"),
        lambda r: _changed(r, "ragged", np.zeros((3, 1, 1))),
        lambda r: _changed(r, "image", encode(photo(38, 22, 3, 99), "raw")),
        # The same bytes, otherwise divided.
        lambda r: [
            Record(r[0].key + r[1].key[:1], r[0].values),
            Record(r[1].key[1:], r[1].values),
            *r[2:],
        ],
    ],
)
def test_the_digest_changes_with_the_content(tmp_path: Path, change: Any) -> None:
    records = make_records(EVERY_KIND, 4, "raw")
    one = fastdata.open(write_shard(tmp_path / "one.h5", records, EVERY_KIND))
    two = fastdata.open(write_shard(tmp_path / "two.h5", change(records), EVERY_KIND))
    assert one.digest != two.digest


def _lmdb_items(path: Path) -> dict[bytes, bytes]:
    environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    with environment, environment.begin() as transaction:
        return dict(transaction.cursor())


def test_lmdb_alone_reads_a_shard(tmp_path: Path) -> None:
    """Without fastdata: every image is a file under its key, every column an array."""
    records = make_records(EVERY_KIND, 13, ("jpeg", "png", "file"))
    path = write_shard(tmp_path / "shard.lmdb", records, EVERY_KIND)
    items = _lmdb_items(path)
    twelfth = records[12].values[0]
    assert items[b"image/0000000012"] == twelfth.data
    np.testing.assert_array_equal(
        pil_decode(items[b"image/0000000012"], 3), decoded(twelfth, 3), strict=True
    )
    for field in EVERY_KIND.images:
        for index, record in enumerate(records):
            image = record.values[list(EVERY_KIND).index(field)]
            assert items.pop(f"{field}/{index:010}".encode()) == image.data
    columns = header_of(path)["columns"]
    assert items.keys() == {b"header", *(f"column/{name}".encode() for name in columns)}
    labels = np.frombuffer(items[b"column/label"], "<i8")
    np.testing.assert_array_equal(labels, [index % 3 for index in range(13)])
    offsets = np.frombuffer(items[b"column/key.bounds"], "<u8").tolist()
    text = items[b"column/key.data"]
    keys = [text[a:b].decode() for a, b in pairwise(offsets)]
    assert keys == [record.key for record in records]
    header = path.read_bytes().find(items[b"header"].rstrip())
    assert header > 0, "the header in the file is the one that LMDB shows"


def test_raw_images_in_lmdb_waste_less_than_two_percent(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(1), "label": ScalarField()})
    pixels = np.random.default_rng(0).integers(0, 256, (28, 28, 1), np.uint8)
    records = [Record(f"{n:05}", (encode(pixels, "raw"), n)) for n in range(12000)]
    path = write_shard(tmp_path / "shard.lmdb", records, schema)
    items = _lmdb_items(path)
    grouped = {key: value for key, value in items.items() if key.startswith(b"image.raw/")}
    assert sum(map(len, grouped.values())) == 12000 * 784
    # Besides its pixels a sample has 8 + 8 + 8 + 8 + 4 + 4 + 1 + 8 + 5 bytes in columns.
    assert path.stat().st_size < 12000 * (784 * 1.02 + 54) + 20 * 4096
    dataset = fastdata.open(path)
    assert bytes(dataset._images("image", [11999]).read(0)) == pixels.tobytes()


def test_raw_groups_that_other_codecs_interrupt(tmp_path: Path) -> None:
    """A group ends where an image is not raw, where it is large enough and at a commit."""
    large = [Record(f"large {n}", (encode(photo(400, 700, 3, n), "raw"), n)) for n in range(4)]
    records = [*make_records(count=9, codec=("raw", "raw", "jpeg")), *large]
    path = write_shard(tmp_path / "shard.lmdb", records, batch=5)
    check_dataset(fastdata.open(path), LABELLED, records)


def test_h5py_alone_reads_a_shard(tmp_path: Path) -> None:
    records = make_records(EVERY_KIND, 5, ("jpeg", "png", "raw", "file"))
    path = write_shard(tmp_path / "shard.h5", records, EVERY_KIND)
    with h5py.File(path, "r") as file:
        assert dict(file.attrs) == {"format": "fastdata", "version": 1}
        columns = file["columns"]
        assert list(columns["label"][:]) == [0, 1, 2, 0, 1]
        assert columns["flag"].dtype == bool
        for field in EVERY_KIND.images:
            stream, end = file["blobs"][field][:].tobytes(), 0
            for index, length in enumerate(columns[f"{field}.length"][:].tolist()):
                image = records[index].values[list(EVERY_KIND).index(field)]
                assert stream[end : end + length] == image.data
                assert columns[f"{field}.codec"][index] == image.codec
                end += length
            assert end == len(stream)
        assert set(columns) == set(header_of(path)["columns"])
        assert file["header"][:].tobytes().rstrip() in path.read_bytes()


@pytest.mark.parametrize("channels", [1, 3])
def test_raw_images_of_one_shape_are_one_array_in_hdf5(tmp_path: Path, channels: int) -> None:
    schema = Schema({"image": ImageField(channels), "label": ScalarField()})
    records = make_records(schema, 6, "raw", (10, 20))
    path = write_shard(tmp_path / "shard.h5", records, schema)
    with h5py.File(path, "r") as file:
        images = file["blobs/image"]
        assert images.shape == (6, 10, 20, channels)
        for index, record in enumerate(records):
            np.testing.assert_array_equal(images[index], decoded(record.values[0], channels))


def test_the_footer_and_checksums_are_as_documented(shard: Path) -> None:
    """An independent reading, with ``struct`` and ``xxhash``, of all that locates bytes."""
    data = shard.read_bytes()
    magic, version, flags, offset, length, header_sum, size = FOOTER.unpack(data[-64:-8])
    assert (magic, version, flags, size) == (b"FASTDATA", 1, 0, len(data))
    assert struct.unpack("<Q", data[-8:]) == (xxhash.xxh3_64_intdigest(data[-64:-8]),)
    assert header_sum == xxhash.xxh3_64_intdigest(data[offset : offset + length])
    columns = header_of(shard)["columns"]
    arrays = {}
    for name, column in columns.items():
        dtype = np.dtype(column["dtype"])
        end = column["offset"] + dtype.itemsize * int(np.prod(column["shape"]))
        assert (
            column["checksum"] == f"{xxhash.xxh3_64_intdigest(data[column['offset'] : end]):016x}"
        )
        flat = np.frombuffer(data[column["offset"] : end], dtype)
        arrays[name] = flat.reshape(column["shape"])
    records = make_records()
    for index, record in enumerate(records):
        start = int(arrays["image.offset"][index])
        blob = data[start : start + int(arrays["image.length"][index])]
        assert blob == record.values[0].data
        assert arrays["image.checksum"][index] == xxhash.xxh3_64_intdigest(blob)
        assert CODECS[arrays["image.codec"][index]] == "jpeg"


def test_writers_refuse_a_state_that_the_disk_does_not_have(tmp_path: Path, container: str) -> None:
    writer = WRITERS[container](tmp_path / "scratch", LABELLED)
    writer.append(make_records())
    state = writer.commit()
    writer.close()
    with open(tmp_path / "scratch" / "column.label", "r+b") as file:
        file.truncate(7)
    with pytest.raises(ShardDamagedError, match=r"column\.label is shorter than the 48 bytes"):
        WRITERS[container](tmp_path / "scratch", LABELLED, state)


def test_an_image_beyond_jpegs_limit_is_refused() -> None:
    with pytest.raises(ImageError, match="1 x 65501 pixels are more than a JPEG can have"):
        encode(np.zeros((65501, 1, 3), np.uint8), "jpeg")
