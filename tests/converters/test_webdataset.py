"""What is special to WebDataset: members as fields, keys, and tar files of all kinds."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_webdataset import write_tar
from cases import make_pictures
from packed import fixture_pixels, pack, samples
from PIL import Image

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.forward_reader import ForwardReader
from fastdata.converters.reading.npy import parse_npy
from fastdata.converters.reading.small_memory import KeySet
from fastdata.converters.reading.spans import FileSpan, close_files
from fastdata.converters.reading.tar.archive import members
from fastdata.errors import FastdataError, OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "webdataset"
PICTURES = make_pictures(6)


def npy(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


@pytest.mark.parametrize("name", ["train-{000000..000001}.tar", "train-*.tar", "all.tar.gz"])
def test_what_webdataset_wrote_is_read(tmp_path: Path, name: str) -> None:
    report = pack(str(FIXTURES / name), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    assert any("left out: pyd " in note for note in report.notes)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "mask": ImageField(channels=1, mask=True),
        "label": ScalarField("int64"),
        "emb": ArrayField("float32", (4,)),
        "json": StringField(),
        "text": StringField(),
    }
    for index, sample in enumerate(samples(tmp_path / "a.lmdb")):
        image = np.asarray(Image.open(io.BytesIO(sample["image"])))
        assert np.array_equal(image, fixture_pixels(index))
        mask = np.asarray(Image.open(io.BytesIO(sample["mask"])))
        assert np.array_equal(mask, fixture_pixels(index)[:, :, 0] // 100)
        assert sample["label"] == index % 3
        assert sample["text"] == f"picture {index} - ä"
        assert json.loads(sample["json"])["where"] == {"x": index / 4}
        assert np.array_equal(sample["emb"], np.arange(4) + index)
        assert dataset.keys[index].endswith(f"/part{index % 2}/{index:05}")


def test_entries_of_json_become_fields(tmp_path: Path) -> None:
    chosen = "image=png,label=json:id,x=json:where.x,tags=json:tags"
    with pytest.raises(SourceError, match="'tags'"):
        pack(FIXTURES / "all.tar.gz", tmp_path / "a.lmdb", members=chosen)
    pack(
        FIXTURES / "all.tar.gz", tmp_path / "a.lmdb", members="image=png,id=json:id,x=json:where.x"
    )
    assert [(s["id"], s["x"]) for s in samples(tmp_path / "a.lmdb")] == [
        (index, index / 4) for index in range(4)
    ]


def test_members_that_are_not_there_or_not_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"no member 'jpg'.*cls, emb.npy, json, png, pyd"):
        pack(FIXTURES, tmp_path / "a.lmdb", members="image=jpg")
    with pytest.raises(OptionError, match="'pyd' is a pickle"):
        pack(FIXTURES, tmp_path / "a.lmdb", members="image=png,x=pyd")
    with pytest.raises(OptionError, match="neither FIELD=SUFFIX nor SUFFIX"):
        pack(FIXTURES, tmp_path / "a.lmdb", members="image=")
    with pytest.raises(SourceError, match=r"no image in the first samples; there are cls"):
        pack(write_tar(tmp_path / "b.tar", [("0.cls", b"1")]), tmp_path / "a.lmdb")


def test_jpg_in_some_samples_and_png_in_others_is_one_field(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.fromarray(fixture_pixels(1)).save(png, "PNG")
    given = [("0.jpg", PICTURES[0].data), ("1.PNG", png.getvalue()), ("2.jpg", PICTURES[2].data)]
    pack(write_tar(tmp_path / "a.tar", given), tmp_path / "a.lmdb")
    assert [s["image"] for s in samples(tmp_path / "a.lmdb")] == [data for _, data in given]


def test_of_jpg_and_png_in_one_sample_the_first_is_the_image(tmp_path: Path) -> None:
    given = [(f"{k}.{kind}", p.data) for k, p in enumerate(PICTURES) for kind in ("png", "jpg")]
    write_tar(tmp_path / "a.tar", given)
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert any("left out: png" in note for note in report.notes)
    pack(tmp_path / "a.tar", tmp_path / "b.lmdb", members="left=jpg,right=png")
    assert [s["right"] for s in samples(tmp_path / "b.lmdb")] == [p.data for p in PICTURES]


def test_what_few_samples_have_is_left_out_and_what_few_lack_is_missed(tmp_path: Path) -> None:
    given = []
    for k, p in enumerate(PICTURES):
        given += [(f"{k}.jpg", p.data), *([(f"{k}.cls", b"1")] if k else [])]
        given += [(f"{k}.txt", b"rare")] * (k == 3)
    report = pack(write_tar(tmp_path / "a.tar", given), tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image", "label"]
    assert any("left out: txt" in note for note in report.notes)
    assert [reject.key for reject in report.rejects] == ["a.tar/0"]


def test_several_images_and_numbers_get_the_names_they_have(tmp_path: Path) -> None:
    given = []
    for k, p in enumerate(PICTURES):
        given += [(f"{k}.left.jpg", p.data), (f"{k}.right.jpg", p.data), (f"{k}.index", b" 7\n")]
        given += [(f"{k}.pose.npy", npy(np.ones((k, 2), np.float64, order="F")))]
    pack(write_tar(tmp_path / "a.tar", given), tmp_path / "a.lmdb")
    schema = fastdata.open(tmp_path / "a.lmdb").schema
    assert list(schema) == ["left", "right", "index_", "pose"]
    assert schema["pose"] == ArrayField("float64", (None, 2))
    assert [(s["index_"], s["pose"].shape) for s in samples(tmp_path / "a.lmdb")] == [
        (7, (k, 2)) for k in range(6)
    ]


def test_arrays_that_are_masks_or_boxes_are_fields_of_such(tmp_path: Path) -> None:
    given = []
    for k, p in enumerate(PICTURES):
        mask = np.full(p.pixels.shape[:2], k, np.int64)
        boxes = np.array([[1.0, 2.0, 20.0 + k, 30.0]])
        given += [(f"{k}.jpg", p.data), (f"{k}.seg.npy", npy(mask)), (f"{k}.boxes.npy", npy(boxes))]
        given += [(f"{k}.emb.npy", npy(np.zeros((10, 7), np.uint8)))]
    report = pack(write_tar(tmp_path / "a.tar", given), tmp_path / "a.lmdb")
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "emb": ArrayField("uint8", (10, 7)),
        "seg": ImageField(channels=1, mask=True),
    }
    assert any("'emb' of shape (10, 7) is stored as an array" in note for note in report.notes)
    assert np.asarray(dataset[3].boxes).tolist() == [[1, 2, 23, 30]]
    mask = np.asarray(Image.open(io.BytesIO(samples(tmp_path / "a.lmdb")[3]["seg"])))
    assert np.array_equal(mask, np.full(PICTURES[3].pixels.shape[:2], 3))


def test_boxes_of_an_unknown_form_are_refused_until_it_is_named(tmp_path: Path) -> None:
    given = []
    for k, p in enumerate(PICTURES):
        given += [
            (f"{k}.jpg", p.data),
            (f"{k}.bbox.npy", npy(np.array([[10.0, 12.0, 20.0, 22.0]]))),
        ]
    write_tar(tmp_path / "a.tar", given)
    with pytest.raises(SourceError, match=r"'bbox': its boxes may be of several forms.*boxes="):
        find_source(tmp_path / "a.tar")
    pack(tmp_path / "a.tar", tmp_path / "a.lmdb", boxes="xywh,pixels")
    assert np.asarray(fastdata.open(tmp_path / "a.lmdb")[0].bbox).tolist() == [[10, 12, 30, 34]]


def test_classes_are_named_by_a_file_and_cls_may_hold_names(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    labels = [b"2", b"bee", b"ant\n", b"dog"]
    given = [
        member
        for k, label in enumerate(labels)
        for member in ((f"{k}.jpg", PICTURES[k].data), (f"{k}.cls", label))
    ]
    write_tar(tmp_path / "a.tar", given)
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb", classes=str(tmp_path / "names.txt"))
    assert fastdata.open(tmp_path / "a.lmdb").classes == ["ant", "bee", "cat"]
    assert [int(s["label"]) for s in samples(tmp_path / "a.lmdb")] == [2, 1, 0]
    assert [(r.key, r.reason) for r in report.rejects] == [
        (
            "a.tar/3",
            "'label' is 'dog', not a number or a class's name (--option classes=FILE "
            "gives the names)",
        )
    ]
    report = pack(tmp_path / "a.tar", tmp_path / "c.lmdb")
    assert "'label' is 'bee', not a number" in report.rejects[0].reason
    (tmp_path / "names.txt").write_text("2\nbee\nant\n")  # a number is a number all the same
    pack(tmp_path / "a.tar", tmp_path / "d.lmdb", classes=str(tmp_path / "names.txt"))
    assert [int(s["label"]) for s in samples(tmp_path / "d.lmdb")] == [2, 1, 2]
    report = pack(tmp_path / "a.tar", tmp_path / "b.lmdb", fields={"label": "string"})
    assert [s["label"] for s in samples(tmp_path / "b.lmdb")] == ["2", "bee", "ant\n", "dog"]


def test_a_key_ends_at_the_first_dot_of_the_file_name(tmp_path: Path) -> None:
    names = [
        "./a.b/0001.jpg",
        "a.b/0002.JPG",
        "x/._0003.jpg",
        "__meta__/5.jpg",
        "plain",
        "0004.jpg",
    ]
    given = [(name, PICTURES[0].data) for name in names]
    write_tar(tmp_path / "a.tar", given)
    pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    keys = fastdata.open(tmp_path / "a.lmdb").keys
    assert list(keys) == ["a.tar/a.b/0001", "a.tar/a.b/0002", "a.tar/0004"]


def test_backslashes_are_slashes_in_names_without_slashes(tmp_path: Path) -> None:
    data = PICTURES[0].data
    write_tar(tmp_path / "a.tar", [("v1.0\\0.jpg", data), ("v1.0\\1.jpg", data)])
    pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").keys) == ["a.tar/v1.0/0", "a.tar/v1.0/1"]


def test_a_sample_without_one_of_its_members_is_a_reject(tmp_path: Path) -> None:
    picture = PICTURES[0].data
    given = [("0.jpg", picture), ("0.cls", b"1"), ("1.jpg", picture), ("README.md", b"hello")]
    given += [("2.cls", b"0"), ("3.jpg", picture), ("3.jpg", picture), ("3.cls", b"0")]
    given += [("0.jpg", picture), ("0.cls", b"1"), ("4.jpg", b"no image"), ("4.cls", b"0")]
    write_tar(tmp_path / "a.tar", given)
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert report.num_samples == 1
    reasons = {reject.key: reject.reason for reject in report.rejects}
    assert reasons["a.tar/1"].startswith("the sample has no member cls (the sample is at byte ")
    assert reasons["a.tar/README"].startswith("the sample has no member jpg")
    assert reasons["a.tar/2"].startswith("the sample has no member jpg")
    assert reasons["a.tar/3"].startswith("two members jpg")
    assert reasons["a.tar/0"].startswith("its key has come before in this file")
    assert "a.tar/4" in reasons
    shuffled = fastdata.pack(
        tmp_path / "a.tar", tmp_path / "b.lmdb", shuffle=True, progress=False, num_workers=0
    )
    assert {r.key: r.reason for r in shuffled.rejects} == reasons


def test_the_same_keys_in_two_shards_are_different_samples(tmp_path: Path) -> None:
    for shard in "ab":
        write_tar(tmp_path / f"{shard}.tar", [("0.jpg", PICTURES[0].data)])
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_rejected == 0
    assert list(fastdata.open(tmp_path / "a.lmdb").keys) == ["a.tar/0", "b.tar/0"]


def test_paths_that_lead_elsewhere_are_only_names(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    names = ["../../escaped.jpg", "/absolute/escaped.jpg", "..jpg"]
    write_tar(tmp_path / "in" / "a.tar", [(name, PICTURES[0].data) for name in names])
    report = pack(tmp_path / "in", tmp_path / "a.lmdb")
    assert report.num_samples == 2
    assert list(fastdata.open(tmp_path / "a.lmdb").keys) == [
        "a.tar/../../escaped",
        "a.tar//absolute/escaped",
    ]
    assert not list(tmp_path.rglob("escaped*"))


def test_links_devices_and_sparse_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.jpg").write_bytes(PICTURES[0].data)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3")):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.type, info.linkname = kind, str(tmp_path / "secret.jpg")
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("other.fifo"))
        folder = tarfile.TarInfo("folder.jpg")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        info = tarfile.TarInfo("9.jpg")
        info.size = len(PICTURES[1].data)
        archive.addfile(info, io.BytesIO(PICTURES[1].data))
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert [s["image"] for s in samples(tmp_path / "a.lmdb")] == [PICTURES[1].data]
    assert [reject.reason.partition(",")[0] for reject in report.rejects] == [
        "jpg is a link",
        "jpg is a link",
        "jpg is a pipe",
        "jpg is a device",
        "the sample has no member jpg (the sample is at byte 2",
    ]


def header(name: bytes, size: bytes, kind: bytes = b"0", tail: bytes = b"") -> bytes:
    """Return a header block, from POSIX's table of its fields."""
    block = bytearray(512)
    block[:100] = name.ljust(100, b"\0")
    block[100:124] = b"0000644\0" * 3
    block[124:136] = size.ljust(12, b"\0")
    block[136:148] = b"00000000000\0"
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[482 : 482 + len(tail)] = tail
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def whole(name: bytes, data: bytes) -> bytes:
    return header(name, b"%011o" % len(data)) + data + bytes(-len(data) % 512)


END = bytes(1024)
GOOD = whole(b"0.jpg", PICTURES[0].data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (b"\x01" + header(b"1.jpg", b"0")[1:], "the checksum of a header is wrong"),
        (header(b"1.jpg", b"77777777777") + END, "ends within a member of 8,589,934,591 bytes"),
        (header(b"1.jpg", b"\x80" + b"\0" * 3 + b"\x7f" * 8), "a member of .* bytes|a member of"),
        (header(b"1.jpg", b"-1"), "a header's size is no number"),
        (header(b"1.jpg", b"\xff" * 12), "a header's size is no number"),
        (header(b"L", b"37777777777", b"L"), "a long name or pax records of 4,294,967,295 bytes"),
        (header(b"L", b"1000", b"L"), "ends within a long name or pax records"),
        (header(b"x", b"5", b"x") + b"5 a=b".ljust(512, b"\0"), "pax records that are none"),
        (header(b"x", b"5", b"x") + b"99 a=".ljust(512, b"\0"), "pax records that are none"),
        (header(b"L", b"5", b"L") + b"1.jpg".ljust(512, b"\0") + END, "a header is missing"),
        (b"", "ends without the end mark"),
        (GOOD[:200], "ends without the end mark"),
        (GOOD[:700], "ends within a member"),
        (header(b"x", b"11", b"x") + b"9 size=1\n".ljust(512, b"\0"), "more than 8 GB"),
        (header(b"1.jpg", b"1000", b"S", b"\1"), "a sparse file of many pieces"),
        (END + b"garbage", "ends without the end mark"),
        (END + b"garbage" * 100, "the checksum of a header is wrong"),
    ],
)
def test_damage_is_a_reject_with_its_place(tmp_path: Path, damage: bytes, reason: str) -> None:
    (tmp_path / "a.tar").write_bytes(GOOD + damage)
    (tmp_path / "b.tar").write_bytes(whole(b"1.jpg", PICTURES[1].data) + END)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    found = [s["image"] for s in samples(tmp_path / "a.lmdb")]
    assert found[-1] == PICTURES[1].data, "the next file is read"
    (reject,) = report.rejects
    assert reject.key.startswith("a.tar")
    assert re.search(reason, reject.reason)
    assert "at byte " in reject.reason


def test_a_sparse_file_of_gnu_is_a_reject(tmp_path: Path) -> None:
    sparse = header(b"2.jpg", b"1000", b"S") + bytes(512)
    (tmp_path / "a.tar").write_bytes(sparse + GOOD + END)
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").keys) == ["a.tar/0"]
    assert ["sparse file" in reject.reason for reject in report.rejects] == [True]


def test_archives_one_behind_the_other_are_all_read(tmp_path: Path) -> None:
    second = whole(b"1.jpg", PICTURES[1].data)
    (tmp_path / "a.tar").write_bytes(GOOD + END + bytes(7 * 512) + second + END)
    report = pack(tmp_path / "a.tar", tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (2, 0)


@pytest.mark.parametrize(
    "format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=str
)
def test_members_are_those_that_tarfile_finds(tmp_path: Path, format: int) -> None:
    random = np.random.default_rng(4)
    given = []
    for k in range(60):
        folder = "d" * int(random.integers(1, 120)) + "/" if k % 2 else ""
        name = f"{folder}{'n' * int(random.integers(1, 90))}{k}.jpg"
        name = "ä" + name if format == tarfile.PAX_FORMAT else name
        given.append((name, bytes(int(random.integers(0, 1500)))))
    path = write_tar(tmp_path / "a.tar", given, format=format)
    with tarfile.open(path) as archive:
        expected = [(info.name, info.offset_data, info.size) for info in archive]
    with ForwardReader(path, compressed=False) as front:
        found = [(m.name.decode(), m.offset, m.size) for m in members(front) if m.kind == "file"]
    assert found == expected


def test_a_damaged_gzip_is_a_reject(tmp_path: Path) -> None:
    given = [(f"{k}.jpg", p.data) for k, p in enumerate(make_pictures(40))]
    path = write_tar(tmp_path / "a.tar.gz", given, "w:gz")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    report = pack(path, tmp_path / "a.lmdb")
    assert 0 < report.num_samples < 20
    assert "cannot be decompressed" in report.rejects[0].reason


def test_other_compression_is_refused_by_name(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar.bz2", [("0.jpg", PICTURES[0].data)], "w:bz2")
    with pytest.raises(SourceError, match="compressed by bzip2, which is not read"):
        pack(tmp_path / "a.tar.bz2", tmp_path / "a.lmdb")
    (tmp_path / "b.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(SourceError, match="compressed by zstd"):
        pack(tmp_path / "b.tar.zst", tmp_path / "a.lmdb")


def test_other_folders_and_files_are_not_taken_for_it(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "root" / name).mkdir(parents=True)
        (tmp_path / "root" / name / "0.jpg").write_bytes(PICTURES[0].data)
    write_tar(tmp_path / "root" / "images.tar", [("0.jpg", PICTURES[0].data)])
    assert find_source(tmp_path / "root").name == "folder"
    (tmp_path / "a.tar").write_bytes(b"text that is no archive" * 100)
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path / "a.tar")


def test_arrays_that_are_damaged_or_pickled_are_rejects(tmp_path: Path) -> None:
    good = npy(np.arange(3, dtype=np.int16))
    arrays = [good, npy(np.array([{}, 1], object), allow_pickle=True), good[:-1], b"nonsense"]
    arrays.append(good.replace(b"(3,)", b"(3000000000000,)").replace(b" " * 12 + b"\n", b"\n"))
    given = [
        member
        for k, array in enumerate(arrays)
        for member in ((f"{k}.jpg", PICTURES[0].data), (f"{k}.npy", array))
    ]
    report = pack(write_tar(tmp_path / "a.tar", given), tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (1, 4)
    assert "only numbers are read" in report.rejects[0].reason
    assert "with 5 bytes of content" in report.rejects[1].reason


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "?", "<u4"])
def test_npy_is_read_as_numpy_reads_it(dtype: str) -> None:
    for array in (np.arange(24).reshape(2, 3, 4), np.arange(6).reshape(3, 2).T, np.array(5)):
        data = npy(array.astype(dtype))
        assert np.array_equal(parse_npy(data), np.load(io.BytesIO(data)))
    with pytest.raises(ValueError, match=r"version|magic"):
        parse_npy(b"\x93NUMPY\x09\x00" + struct.pack("<H", 10) + b"{}")


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_compressed_data_is_whole_up_to_its_damage(tmp_path: Path, compress: Any) -> None:
    letters = np.random.default_rng(3).integers(0, 40, 200_000, np.uint8).tobytes()
    packed = bytearray(compress(letters))
    at = len(packed) * 3 // 4
    packed[at:] = np.random.default_rng(4).bytes(len(packed) - at)
    (tmp_path / "a").write_bytes(packed)
    whole = zlib.decompressobj(47).decompress(packed[:at])
    with ForwardReader(tmp_path / "a", compressed=True) as front:
        data, reason = front.read_some(0, 2 * len(letters))
    assert data.startswith(whole)
    assert "cannot be decompressed" in reason


def test_workers_read_the_images_and_nobody_holds_them(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("0.jpg", PICTURES[0].data)])
    (sample,) = find_source(path)
    place = sample.values.load()[0]
    assert isinstance(place, FileSpan)
    assert place.read() == PICTURES[0].data
    assert place.path == os.fspath(path)
    close_files()


def test_nothing_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(header(b"0.jpg", b"7777777"))
    with pytest.raises(FastdataError, match=r"no sample can be read: .* ends within a member"):
        pack(tmp_path / "a.tar", tmp_path / "a.lmdb")


def test_keys_that_have_come_are_known(tmp_path: Path) -> None:
    seen = KeySet()
    keys = [f"{k * 7919}".encode() for k in range(5000)]
    assert all(seen.add(key) for key in keys)
    assert not any(seen.add(key) for key in keys)
    assert seen.add(b"another")
