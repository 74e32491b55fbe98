"""Export to webdataset, tfrecord and parquet: what goes out comes in again."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from cli_helpers import make_folder, run, run_json
from export_helpers import FORMATS as EXPORTED
from export_helpers import PLAIN, every_format, keys_of, made, pack
from samples import EVERY_KIND, encode, make_records, photo, write_shard, write_shards

import fastdata
from fastdata import export
from fastdata.converters.exporting.base import PackedSample
from fastdata.converters.exporting.export import FORMATS
from fastdata.errors import (
    DiskFullError,
    MissingExtraError,
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
@every_format
def test_every_kind_of_field_gives_the_same_digest(tmp_path: Path, format: str, codec: str) -> None:
    before = made(tmp_path / "rich.lmdb", EVERY_KIND, 9, codec=codec)
    report = export(before, tmp_path / "out", format=format, progress=False)
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


@every_format
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


@every_format
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


@every_format
def test_a_dataset_without_images_is_exported(tmp_path: Path, format: str) -> None:
    schema = Schema({"text": StringField(), "x": ScalarField("float64")})
    before = fastdata.open(
        write_shard(
            tmp_path / "n.lmdb", [Record(f"k{n}", (f"t{n}", n / 3)) for n in (0, 1)], schema
        )
    )
    report = export(before, tmp_path / "out", format=format, progress=False)
    assert pack(report.entry, tmp_path / "again.lmdb").digest == before.digest


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
        *((format, KeyboardInterrupt, KeyboardInterrupt) for format in EXPORTED),
        ("webdataset", partial(OSError, 28, "stopped: no space left"), DiskFullError),
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

    monkeypatch.setattr(PackedSample, "image_file", fail)
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
    [("parquet", "pyarrow.parquet"), ("tfrecord", "google_crc32c")],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str
) -> None:
    from fastdata.converters.reading.records import framing

    made(tmp_path / "p.lmdb", count=1)
    monkeypatch.setitem(sys.modules, module, None)
    framing.crc32c.cache_clear()
    with pytest.raises(MissingExtraError, match=rf"pip install 'fastdata-vision\[{format}\]'"):
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
    assert (report["num_samples"], report["num_files"]) == (5, 3)
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

    from fastdata.converters.exporting import parquet

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
