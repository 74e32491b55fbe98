"""Export: the stored bytes as files, safe names, and a manifest that packs to the same again."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from cli_helpers import make_folder
from hypothesis import given
from hypothesis import strategies as st
from pack_helpers import run_child, start_child
from PIL import Image
from samples import EVERY_KIND, encode, make_records, photo, write_shard

import fastdata
import fastdata.converters.exporting.export as export_module
from fastdata import export, replacing
from fastdata.converters.exporting.folder import FolderExporter
from fastdata.converters.exporting.names import FileNames, folder_names, image_suffix, split_key
from fastdata.converters.packing.lock import DirectoryLock
from fastdata.errors import (
    DestinationExistsError,
    DestinationLockedError,
    DiskFullError,
    ShardCorruptError,
    SourceError,
)
from fastdata.formats.writer import Record
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema, StringField


def pack(source: Path, destination: Path, **options: Any) -> fastdata.Dataset:
    fastdata.pack(source, destination, num_workers=0, progress=False, **options)
    return fastdata.open(destination)


def rows_of(out: Path) -> list[dict[str, str]]:
    with open(out / "manifest.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def files_of(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()} - {
        "manifest.csv",
        "manifest.schema.json",
    }


def keyed_shard(path: Path, keys: list[str], classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    """Write a shard of PNGs with these keys, labelled in turn."""
    schema = Schema({"image": ImageField(), "label": ScalarField(classes=classes)})
    records = [
        Record(key, (encode(photo(8, 9, seed=n), "png"), n % len(classes)))
        for n, key in enumerate(keys)
    ]
    return write_shard(path, records, schema)


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Two classes of three JPEGs."""
    pack(make_folder(tmp_path / "images"), tmp_path / "packed.lmdb", size=40)
    return tmp_path / "packed.lmdb"


# -- files ----------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["jpeg", "png", "file"])
def test_encoded_images_are_written_byte_for_byte(tmp_path: Path, codec: str) -> None:
    shard = write_shard(tmp_path / "shard.lmdb", make_records(codec=codec))
    report = export(shard, tmp_path / "out", progress=False)
    (reader,) = fastdata.open(shard).shards
    rows = rows_of(tmp_path / "out")
    stored = [bytes(reader.blob("image", index)) for index in range(6)]
    assert [(tmp_path / "out" / row["image"]).read_bytes() for row in rows] == stored
    suffix = {"jpeg": ".jpg", "png": ".png", "file": ".tif"}[codec]
    assert {Path(row["image"]).suffix for row in rows} == {suffix}
    assert (report.num_files, report.file_bytes) == (6, sum(map(len, stored)))


def test_kept_files_come_back_with_their_own_names(tmp_path: Path) -> None:
    source = make_folder(tmp_path / "images", classes=("cat",), count=2)
    with Image.open(source / "cat" / "0.jpg") as image:
        image.save(source / "cat" / "moving.GIF", "GIF")
        image.save(source / "cat" / "loose.png.webp", "WEBP")
        image.save(source / "cat" / "wrong.png", "BMP")
        image.save(source / "cat" / "deep.jpeg", "JPEG", progressive=True)
    names = {"0.jpg", "1.jpg", "moving.GIF", "loose.png.webp", "wrong.bmp", "deep.jpeg"}
    originals = {path.stem: path.read_bytes() for path in (source / "cat").iterdir()}
    (source / "cat" / "list.csv").write_text(
        "path,label\n" + "".join(f"{p.name},cat\n" for p in sorted((source / "cat").iterdir()))
    )
    dataset = pack(source / "cat" / "list.csv", tmp_path / "kept.h5", codec="keep")
    export(dataset, tmp_path / "out", progress=False)
    assert files_of(tmp_path / "out") == {f"cat/{name}" for name in names}
    for path in (tmp_path / "out" / "cat").iterdir():
        assert path.read_bytes() == originals[path.stem]


@pytest.mark.parametrize("channels", [3, 1])
def test_raw_images_become_png(tmp_path: Path, channels: int) -> None:
    schema = Schema({"image": ImageField(channels=channels), "label": ScalarField()})
    records = make_records(schema, codec="raw")
    dataset = fastdata.open(write_shard(tmp_path / "raw.lmdb", records, schema))
    export(dataset, tmp_path / "out", progress=False)
    for index, row in enumerate(rows_of(tmp_path / "out")):
        with Image.open(tmp_path / "out" / row["image"]) as image:
            assert image.format == "PNG"
            pixels = np.asarray(image).reshape(*image.size[::-1], channels)
        assert np.array_equal(pixels, dataset._images("image", [index]).read(0))


def test_the_folders_are_those_that_were_packed(tmp_path: Path, packed: Path) -> None:
    export(packed, tmp_path / "out", progress=False)
    expected = {f"{name}/{index}.png" for name in ("cat", "dog") for index in range(3)}
    assert files_of(tmp_path / "out") == expected
    dataset = pack(tmp_path / "out", tmp_path / "again.lmdb", codec="png", resize="none")
    assert dataset.classes == ["cat", "dog"]
    assert list(dataset.keys) == sorted(expected)


def test_part_of_a_dataset(tmp_path: Path, packed: Path) -> None:
    dataset = fastdata.open(packed)[[4, 0]]
    report = export(dataset, tmp_path / "out", progress=False)
    assert report.num_samples == 2
    assert [row["image"] for row in rows_of(tmp_path / "out")] == ["dog/1.png", "cat/0.png"]
    again = pack(report.entry, tmp_path / "again.lmdb")
    assert again.classes == ["cat", "dog"]
    assert [sample.label for sample in again] == [1, 0]


def test_several_image_fields_have_a_folder_each(tmp_path: Path) -> None:
    schema = Schema(
        {
            "photo": ImageField(),
            "mask": ImageField(channels=1, mask=True),
            "label": ScalarField(classes=("a", "b")),
        }
    )
    records = make_records(schema, count=2)
    dataset = fastdata.open(write_shard(tmp_path / "two.lmdb", records, schema))
    export(dataset, tmp_path / "out", progress=False)
    expected = {"photo/a/0/kéy 0.jpg", "mask/a/0/kéy 0.png"}
    assert files_of(tmp_path / "out") == expected | {"photo/b/1/kéy 1.jpg", "mask/b/1/kéy 1.png"}
    again = pack(tmp_path / "out/manifest.csv", tmp_path / "again.h5", codec="keep")
    assert again.schema == schema


def test_without_classes_there_is_a_folder_of_the_field(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "score": ScalarField("float32")})
    write_shard(tmp_path / "c.lmdb", make_records(schema, count=2), schema)
    export(tmp_path / "c.lmdb", tmp_path / "out", progress=False)
    assert files_of(tmp_path / "out") == {"image/0/kéy 0.jpg", "image/1/kéy 1.jpg"}


def test_class_numbers_without_names_make_folders(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("uint8")})
    image = encode(photo(8, 8), "png")
    write_shard(tmp_path / "n.lmdb", [Record(f"{n}", (image, n)) for n in (7, 10)], schema)
    export(tmp_path / "n.lmdb", tmp_path / "out", progress=False)
    assert files_of(tmp_path / "out") == {"7/7.png", "10/10.png"}


# -- the manifest -----------------------------------------------------------------------


def _same(a: Any, b: Any) -> bool:
    if hasattr(a, "numpy"):
        a, b = a.numpy(), b.numpy()
        return bool(
            a.dtype == b.dtype
            and a.shape == b.shape
            and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        )
    return bool(a == b) or (a != a and b != b)


@pytest.mark.parametrize("codec", ["jpeg", "png", "raw", "file"])
def test_every_kind_of_field_comes_back(tmp_path: Path, codec: str) -> None:
    records = make_records(EVERY_KIND, codec=codec)
    if sys.version_info < (3, 11):  # its csv module cannot read NUL
        at = list(EVERY_KIND).index("caption")
        for record in records:
            values = list(record.values)
            values[at] = values[at].replace("\0", "")
            records[records.index(record)] = Record(record.key, tuple(values))
    dataset = fastdata.open(write_shard(tmp_path / "rich.lmdb", records, EVERY_KIND))
    report = export(dataset, tmp_path / "out", progress=False)
    again = pack(report.entry, tmp_path / "again.lmdb", codec="keep")
    assert again.schema == dataset.schema
    assert len(again) == len(dataset)
    for before, after in zip(dataset, again, strict=True):
        for name in EVERY_KIND:
            assert _same(getattr(before, name), getattr(after, name)), name


def test_any_text_comes_back(tmp_path: Path) -> None:
    texts = ["", " ", "1", "a,b", 'say "a"', "two\nlines", "a\rb", "\t", "é"]
    schema = Schema({"image": ImageField(), "caption": StringField()})
    image = encode(photo(8, 8), "png")
    write_shard(tmp_path / "t.lmdb", [Record("0", (image, text)) for text in texts], schema)
    report = export(tmp_path / "t.lmdb", tmp_path / "out", progress=False)
    assert [sample.caption for sample in pack(report.entry, tmp_path / "again.lmdb")] == texts


def test_cells_larger_than_the_csv_module_allows_come_back(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "signal": ArrayField("float64", (None,))})
    values = np.random.default_rng(0).normal(size=20_000)
    record = Record("0", (encode(photo(8, 8), "png"), values))
    report = export(write_shard(tmp_path / "s.lmdb", [record], schema), tmp_path / "out")
    (sample,) = pack(report.entry, tmp_path / "again.lmdb")
    assert np.array_equal(sample.signal.numpy(), values)


def test_labels_outside_the_classes_are_exported(tmp_path: Path) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("int16", classes=("b", "a"))})
    image = encode(photo(8, 8), "png")
    records = [Record(str(n), (image, n)) for n in (-1, 0, 1, 300)]
    write_shard(tmp_path / "l.lmdb", records, schema)
    report = export(tmp_path / "l.lmdb", tmp_path / "out", progress=False)
    assert files_of(tmp_path / "out") == {"-1/-1.png", "b/0.png", "a/1.png", "300/300.png"}
    again = pack(report.entry, tmp_path / "again.lmdb")
    assert again.classes == ["b", "a"]
    assert [sample.label for sample in again] == [-1, 0, 1]  # 300 is a reject


@pytest.mark.parametrize(
    "classes",
    [("", "cat", " "), ("cat", "cat", "dog"), ("2", "1", "0"), ("0", "0", "00", "-1", "300")],
)
def test_classes_that_their_names_do_not_tell_come_back(
    tmp_path: Path, classes: tuple[str, ...]
) -> None:
    schema = Schema({"image": ImageField(), "label": ScalarField("int16", classes=classes)})
    image = encode(photo(8, 8), "png")
    numbers = [*range(len(classes)), -1]
    records = [Record(str(n), (image, n)) for n in numbers]
    write_shard(tmp_path / "l.lmdb", records, schema)
    report = export(tmp_path / "l.lmdb", tmp_path / "out", progress=False)
    again = pack(report.entry, tmp_path / "again.lmdb")
    assert again.classes == list(classes)
    assert [sample.label for sample in again] == numbers


def test_without_the_schema_the_columns_are_guessed(tmp_path: Path, packed: Path) -> None:
    report = export(packed, tmp_path / "out", progress=False)
    (tmp_path / "out" / "manifest.schema.json").unlink()
    again = pack(report.entry, tmp_path / "again.lmdb")
    assert again.schema == fastdata.open(packed).schema


def test_a_column_more_is_guessed_and_one_less_is_no_matter(tmp_path: Path, packed: Path) -> None:
    report = export(packed, tmp_path / "out", progress=False)
    rows = rows_of(tmp_path / "out")
    with open(report.entry, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "weight"])
        writer.writerows([row["image"], n / 2] for n, row in enumerate(rows))
    again = pack(report.entry, tmp_path / "again.lmdb")
    assert list(again.schema) == ["image", "weight"]
    assert [sample.weight for sample in again] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


def test_grey_can_be_asked_of_a_manifest_with_a_schema(tmp_path: Path, packed: Path) -> None:
    report = export(packed, tmp_path / "out", progress=False)
    again = pack(report.entry, tmp_path / "grey.lmdb", channels=1)
    assert again.schema["image"] == ImageField(channels=1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"fields": []}', '{"fields": [{"name": 1}]}'])
def test_a_schema_that_is_none_is_an_error(tmp_path: Path, packed: Path, text: str) -> None:
    report = export(packed, tmp_path / "out", progress=False)
    (tmp_path / "out" / "manifest.schema.json").write_text(text)
    with pytest.raises(SourceError, match=r"manifest\.schema\.json: this is no schema"):
        pack(report.entry, tmp_path / "again.lmdb")


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("label", "bird", "not one of its classes"),
        ("extra", "?", "not base64"),
        ("box", "[1]", "has shape"),
        ("box", "one", "Expecting value"),
    ],
)
def test_cells_that_do_not_fit_are_rejects(
    tmp_path: Path, column: str, cell: str, reason: str
) -> None:
    records = make_records(EVERY_KIND, codec="png", count=1)
    write_shard(tmp_path / "rich.lmdb", records, EVERY_KIND)
    report = export(tmp_path / "rich.lmdb", tmp_path / "out", progress=False)
    (row,) = rows_of(tmp_path / "out")
    with open(report.entry, "a", newline="") as file:
        csv.writer(file).writerow({**row, column: cell}.values())
    packed = fastdata.pack(report.entry, tmp_path / "x.lmdb", num_workers=0, progress=False)
    assert packed.num_samples == 1
    (reject,) = packed.rejects
    assert reason in reject.reason


# -- names ----------------------------------------------------------------------------

EVIL_KEYS = [
    "../../evil.png",
    "/etc/passwd",
    "",
    ".",
    "..",
    "a/../../b.png",
    "tab\tnew\nline\0.png",
    "back\\slash.png",
    "x" * 400 + ".png",
    "d/" * 900 + "deep.png",
    "manifest.csv",
    "manifest.csv/x.png",
    "0.png",
    "0.png/inside.png",
    "same.png",
    "same.jpg",
    "same",
    "same-2.png",
    "-rf",
    " ",
]


def test_keys_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    shard = keyed_shard(tmp_path / "evil.lmdb", EVIL_KEYS, classes=("..",))
    home = tmp_path / "home"
    home.mkdir()
    export(shard, home / "out", progress=False)
    assert [path.name for path in home.iterdir()] == ["out"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.lmdb", "home"]
    rows = rows_of(home / "out")
    paths = {row["image"] for row in rows}
    assert paths == files_of(home / "out")
    assert len(paths) == len(EVIL_KEYS)
    assert {"_/same.png", "_/same-2.png", "_/same-3.png", "_/same-2-2.png"} <= paths
    again = pack(home / "out/manifest.csv", tmp_path / "again.lmdb")
    assert len(again) == len(EVIL_KEYS)
    assert again.classes == [".."]


def test_classes_that_make_one_folder_name_stay_apart(tmp_path: Path) -> None:
    classes = ("a/b", "a_b", "..", "", "manifest.csv", "x.JPG", "a\\b")
    shard = keyed_shard(tmp_path / "c.lmdb", ["k"] * len(classes), classes)
    export(shard, tmp_path / "out", progress=False)
    folders = {path.split("/")[0] for path in files_of(tmp_path / "out")}
    assert folders == {"a_b", "a_b-2", "_", "_-2", "manifest.csv_", "x.JPG_", "a_b-3"}


def test_folders_and_names_come_from_keys(tmp_path: Path) -> None:
    keys = ["cat/1.jpg", "cat/cat/2.jpg", "/data/train/cat/old/3.jpg", "dog/4.jpg", "cat"]
    export(keyed_shard(tmp_path / "cats.lmdb", keys, ("cat",)), tmp_path / "cats", progress=False)
    names = ["cat/1.png", "cat/cat/2.png", "cat/old/3.png", "cat/dog/4.png", "cat/cat.png"]
    assert [row["image"] for row in rows_of(tmp_path / "cats")] == names
    schema = Schema({"image": ImageField()})
    records = [Record(key, (encode(photo(8, 9), "png"),)) for key in ("frame.0001", "00000012")]
    write_shard(tmp_path / "frames.lmdb", records, schema)
    export(tmp_path / "frames.lmdb", tmp_path / "frames", progress=False)
    names = ["image/frame.0001.png", "image/00000012.png"]
    assert [row["image"] for row in rows_of(tmp_path / "frames")] == names


@given(st.lists(st.tuples(st.text(alphabet="a./\\-2\0é\ud800", max_size=12), st.booleans())))
def test_names_are_safe_and_distinct_whatever_the_keys(keys: list[tuple[str, bool]]) -> None:
    names = FileNames()
    paths = []
    for key, png in keys:
        folders, stem = split_key(key)
        data = b"\x89PNG\r\n" if png else b"\xff\xd8\xff"
        paths.append(names.claim(os.path.join("", *folders), stem, image_suffix(data, key)))
    assert len(set(paths)) == len(paths)
    folders_used = {str(parent) for path in paths for parent in Path(path).parents}
    assert not folders_used & set(paths)
    for path in paths:
        assert not os.path.isabs(path)
        assert not {"", ".", ".."} & set(path.split("/"))
        assert path.isprintable()
        assert max(len(part.encode()) for part in path.split("/")) <= 255


@given(st.lists(st.text(max_size=3)))
def test_folder_names_are_distinct(classes: list[str]) -> None:
    names = folder_names(classes)
    assert len(set(names)) == len(classes)
    assert not any("/" in name or name in ("", ".", "..") for name in names)


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("GIF", ".gif"),
        ("PPM", ".ppm"),
        ("ICO", ".bin"),
    ],
)
def test_suffixes_are_those_of_the_content(kind: str, suffix: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, kind)
    assert image_suffix(file.getvalue(), "a.txt") == suffix
    assert image_suffix(memoryview(file.getvalue()), "a") == suffix
    assert image_suffix(file.getvalue(), f"a{suffix.upper()}") == (
        suffix if suffix == ".bin" else suffix.upper()
    )


# -- the destination --------------------------------------------------------------------


def test_only_an_export_is_replaced(tmp_path: Path, packed: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(DestinationExistsError, match="not an earlier export"):
        export(packed, out, overwrite=True, progress=False)
    (out / "thesis.tex").unlink()
    out.rmdir()
    export(packed, out, progress=False)
    export(fastdata.open(packed)[:1], out, overwrite=True, progress=False)
    assert files_of(out) == {"cat/0.png"}
    link = tmp_path / "link"
    link.symlink_to(out)
    with pytest.raises(DestinationExistsError, match="a link, not an earlier export"):
        export(packed, link, overwrite=True, progress=False)


def test_the_dataset_is_not_replaced_by_its_export(tmp_path: Path, packed: Path) -> None:
    export(packed, tmp_path / "out", progress=False)
    inside = Path(shutil.copy(packed, tmp_path / "out" / "inside.lmdb"))
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "link.lmdb").symlink_to(inside)
    for dataset in (tmp_path / "link" / "inside.lmdb", tmp_path / "link.lmdb"):
        with pytest.raises(DestinationExistsError, match=r"out contains the source .*\.lmdb"):
            export(dataset, tmp_path / "out", overwrite=True, progress=False)
    assert inside.exists()


def test_damage_stops_an_export_and_leaves_nothing(tmp_path: Path, packed: Path) -> None:
    (reader,) = fastdata.open(packed).shards
    data = bytearray(packed.read_bytes())
    data[int(reader.column("image.offset")[3])] ^= 1
    packed.write_bytes(data)
    with pytest.raises(ShardCorruptError, match="checksum"):
        export(packed, tmp_path / "out", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "packed.lmdb"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyboardInterrupt, KeyboardInterrupt),
        (partial(OSError, 28, "stopped: no space left"), DiskFullError),
        (partial(PermissionError, 13, "stopped: not allowed"), PermissionError),
    ],
)
def test_a_failed_export_leaves_the_earlier_one(
    tmp_path: Path,
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], BaseException],
    expected: type[BaseException],
) -> None:
    out = tmp_path / "out"
    export(packed, out, progress=False)
    before = files_of(out)

    def fail(*arguments: object) -> NoReturn:
        raise error()

    monkeypatch.setattr(FolderExporter, "_write", fail)
    with pytest.raises(expected, match=r"stopped|^$"):
        export(packed, out, overwrite=True, progress=False)
    assert files_of(out) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["images", "out", "packed.lmdb"]


def test_a_failed_rename_leaves_the_earlier_one(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export(fastdata.open(packed)[:2], out, progress=False)
    rename = os.rename

    def fail_once(before: Path, after: Path) -> None:
        if before.name == "files":
            monkeypatch.setattr(os, "rename", rename)
            raise PermissionError(13, "Permission denied")
        rename(before, after)

    monkeypatch.setattr(replacing, "_renamed", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(PermissionError, match="Permission denied"):
        export(packed, out, overwrite=True, progress=False)
    assert files_of(out) == {"cat/0.png", "cat/1.png"}


def _leave_behind(packed: Path, out: Path) -> Path:
    """Make what an export has made when it is killed between its two renames."""
    workplace = out.with_name("out.exporting")
    (workplace / "files" / "cat").mkdir(parents=True)
    (workplace / "lock").touch()
    export(packed, workplace / "replaced", progress=False)
    return workplace


def test_what_a_killed_export_left_is_cleared_away(tmp_path: Path, packed: Path) -> None:
    export(fastdata.open(packed)[:1], tmp_path / "out", progress=False)
    workplace = _leave_behind(packed, tmp_path / "out")
    export(packed, tmp_path / "out", overwrite=True, progress=False)
    assert len(files_of(tmp_path / "out")) == 6
    assert not workplace.exists()


def test_an_export_killed_between_its_renames_loses_nothing(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace = _leave_behind(packed, tmp_path / "out")

    def fail(*arguments: object) -> NoReturn:
        raise PermissionError(13, "not allowed")

    monkeypatch.setattr(FolderExporter, "_write", fail)
    with pytest.raises(PermissionError, match="not allowed"):
        export(packed, tmp_path / "out", overwrite=True, progress=False)
    assert len(files_of(tmp_path / "out")) == 6
    assert not workplace.exists()


def test_an_export_killed_while_it_clears_up_is_cleared_away(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(fastdata.open(packed)[:1], tmp_path / "out", progress=False)

    def killed(path: str | Path, **_: object) -> NoReturn:
        (Path(path) / "lock").unlink(missing_ok=True)  # folders are listed in any order
        raise KeyboardInterrupt("stopped")

    with monkeypatch.context() as patched:
        patched.setattr("fastdata.own_files.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt, match="stopped"):
            export(fastdata.open(packed)[:2], tmp_path / "out", overwrite=True, progress=False)
    assert (tmp_path / "out.exporting" / "files").exists()
    export(packed, tmp_path / "out", overwrite=True, progress=False)
    assert len(files_of(tmp_path / "out")) == 6
    assert not (tmp_path / "out.exporting").exists()


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path, packed: Path) -> None:
    (tmp_path / "out.exporting").mkdir()
    (tmp_path / "out.exporting" / "files").touch()
    with pytest.raises(DestinationExistsError, match="which fastdata did not make"):
        export(packed, tmp_path / "out", progress=False)
    assert (tmp_path / "out.exporting" / "files").exists()


def test_two_exports_to_one_folder(tmp_path: Path, packed: Path) -> None:
    def refused(owner: str) -> None:
        with pytest.raises(DestinationLockedError, match=f"{owner} is exporting there"):
            export(packed, tmp_path / "out", progress=False)

    workplace = tmp_path / "out.exporting"
    lock = DirectoryLock(workplace, "exporting")
    refused("another thread of this process")
    lock.release()

    def hold() -> None:
        _ = DirectoryLock(workplace, "exporting")
        time.sleep(60)

    process = start_child(hold)
    deadline = time.monotonic() + 20
    lock_file = workplace / "lock"
    while not lock_file.exists() or lock_file.read_text() != f"pid {process.pid}\n":
        assert time.monotonic() < deadline
        time.sleep(0.005)
    refused(rf"another process \(pid {process.pid}\)")
    process.kill()
    process.join()
    process.close()
    assert export(packed, tmp_path / "out", progress=False).num_samples == 6


def test_the_report_is_json(tmp_path: Path, packed: Path) -> None:
    report = export(packed, tmp_path / "new" / "out", progress=False)
    document = json.loads(json.dumps(report.to_json()))
    assert document["entry"] == str(tmp_path / "new" / "out" / "manifest.csv")
    assert "pack it again: fastdata pack" in str(report)


# -- what a kill leaves, and names that are mistakes ----------------------------------------------


def test_what_an_export_left_that_was_killed_at_its_end_is_removed(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "a.lmdb", make_records(count=3))

    def die() -> None:
        tidy = export_module._tidy
        export_module._tidy = lambda *args: os._exit(9) if args[1].exists() else tidy(*args)
        export(path, tmp_path / "out")

    assert run_child(die) == 9
    assert (tmp_path / "out.exporting").exists()
    with pytest.raises(DestinationExistsError, match="already exists"):
        export(path, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["a.lmdb", "out"]


def test_samples_without_a_class_do_not_take_longer_with_more_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = tuple(f"class {number}" for number in range(300))
    schema = Schema({"image": ImageField(), "label": ScalarField(classes=classes)})
    image = encode(photo(8, 9), "png")
    records = [Record(str(n), (image, -1 - n % 2)) for n in range(100)]
    shard = write_shard(tmp_path / "a.lmdb", records, schema)
    claims = 0
    claim = FileNames.claim

    def counted(self: FileNames, *words: str) -> str:
        nonlocal claims
        claims += 1
        return claim(self, *words)

    monkeypatch.setattr(FileNames, "claim", counted)
    export(shard, tmp_path / "out", progress=False)
    assert claims == len(classes) + 2 + len(records)
    assert {Path(name).parent.name for name in files_of(tmp_path / "out")} == {"-1", "-2"}
