"""Export to webdataset, tfrecord, parquet and dali: what goes out comes in again."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import lmdb
import numpy as np
import pytest
from cli_helpers import make_folder, run, run_json
from export_helpers import PLAIN, READ_AS, every_format, keys_of, made, pack, whole_formats
from samples import EVERY_KIND, encode, make_records, photo, write_shard, write_shards

import fastdata
from fastdata import export
from fastdata.converters.exporting.base import ShardFiles
from fastdata.converters.exporting.datums import _Database
from fastdata.converters.exporting.export import FORMATS
from fastdata.errors import (
    DiskFullError,
    MissingExtraError,
    OptionError,
    ShardCorruptError,
)
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, Schema, StringField


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


@every_format
def test_classes_that_are_called_by_numbers_come_back(tmp_path: Path, format: str) -> None:
    label = ScalarField("int16", classes=("1", "10", "0", "-1"))
    before = made(tmp_path / "digits.lmdb", Schema({"image": ImageField(), "label": label}))
    report = export(before, tmp_path / "out", format=format, progress=False)
    after = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert [sample.label for sample in after] == [sample.label for sample in before]
    assert after.digest == before.digest


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw"])
def test_a_label_and_an_image_give_the_same_digest(tmp_path: Path, codec: str) -> None:
    before = made(tmp_path / "plain.lmdb", codec=codec)
    report = export(before, tmp_path / "out", format="dali", progress=False)
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
    with pytest.raises(OptionError, match="needs an image field"):
        export(tmp_path / "n.lmdb", tmp_path / "out", format="dali", progress=False)


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
    ("format", "error", "expected"),
    [
        *((format, KeyboardInterrupt, KeyboardInterrupt) for format in READ_AS),
        ("webdataset", partial(OSError, 28, "stopped: no space left"), DiskFullError),
        ("dali", partial(lmdb.Error, "stopped: No space left"), DiskFullError),
    ],
)
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

    if isinstance(error(), lmdb.Error):
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
    from fastdata.converters.reading.records import datum, framing

    made(tmp_path / "p.lmdb", count=1)
    monkeypatch.setitem(sys.modules, module, None)
    for cached in (framing.crc32c, datum.datum_class):
        cached.cache_clear()
    extra = {"dali": "caffe"}.get(format, format)
    with pytest.raises(MissingExtraError, match=rf"pip install 'fastdata-vision\[{extra}\]'"):
        export(tmp_path / "p.lmdb", tmp_path / "out", format=format, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["p.lmdb"]


def test_the_formats_are_those_of_the_command_line() -> None:
    from fastdata.cli.options import EXPORT_FORMATS

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
    assert "--format folder has no shards: omit --shard-size" in result.stderr


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
