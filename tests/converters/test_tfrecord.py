"""TFRecord: what only this format has, and what becomes of damage."""

from __future__ import annotations

import errno
import gzip
import os
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tfrecord import example, masked, message, record
from pack_helpers import pil_file, pixels

import fastdata
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.errors import MachineError, OptionError, SourceError
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, Schema, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "tfrecord"
COMPRESSORS = {"gzip": gzip.compress, "zlib": zlib.compress}


def image(number: int = 0) -> bytes:
    return pil_file(np.full((5, 6, 3), number, np.uint8), "PNG")


def write(path: Path, *examples: dict[str, object]) -> Path:
    path.write_bytes(b"".join(record(example(features)) for features in examples))
    return path


def labelled(count: int) -> list[dict[str, object]]:
    return [{"image/encoded": image(k), "image/class/label": k} for k in range(count)]


def pack(location: Any, path: Path, **options: Any) -> Any:
    keywords = {"fields": options.pop("fields", None), "format": options.pop("format", None)}
    return fastdata.pack(
        location, path, codec="keep", num_workers=0, progress=False, source_options=options,
        **{name: value for name, value in keywords.items() if value is not None},
    )  # fmt: skip


def labels_of(path: Path) -> list[int]:
    dataset = fastdata.open(path)
    return [int(dataset[k].label) for k in range(len(dataset))]


@pytest.mark.parametrize("kind", ["plain", "gzip", "zlib"])
def test_files_of_tensorflow_read_as_written(kind: str, tmp_path: Path) -> None:
    options = {
        "features": (
            "image=image/encoded", "label=image/class/label", "text=image/class/text",
            "xmin=image/object/bbox/xmin", "score",
        )
    }  # fmt: skip
    pack(FIXTURES / f"{kind}.tfrecord", tmp_path / "a.lmdb", **options)
    dataset = fastdata.open(tmp_path / "a.lmdb")
    assert len(dataset) == 4
    for number in range(4):
        sample: Any = dataset[number]
        wanted = np.random.default_rng(number).integers(0, 256, (6, 7, 3), np.uint8)
        assert np.array_equal(pixels(sample.image), wanted)
        assert int(sample.label) == number - 1
        assert sample.text == f"größe {number}"
        assert sample.xmin.tolist() == [0.25 * k for k in range(number)]
        assert float(sample.score) == number / 8


def test_a_checksum_of_the_specification_is_computed() -> None:
    # RFC 3720, appendix B.4: 32 bytes of zeros have the CRC-32C 8a9136aa.
    crc = 0x8A9136AA
    expected = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    from fastdata.converters.reading.records.framing import masked_crc

    assert masked_crc(bytes(32)) == expected
    assert struct.unpack("<I", masked(bytes(32))) == (expected,)


def test_features_become_fields_of_their_kinds(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"img": image(k), "mask": image(k), "n": k, "many": [1, 2], "some": [0.5] * (k + 1),
         "raw": b"\xff\xfe", "words": "größe".encode()}
        for k in range(3)
    ]  # fmt: skip
    source = find_source(
        write(tmp_path / "a.tfrecord", *rows),
        options={"features": "image=img,mask,n,many,some,raw,words"},
    )
    assert source.schema == Schema(
        {
            "image": ImageField(),
            "mask": ImageField(channels=1, mask=True),
            "n": ScalarField("int64"),
            "many": ArrayField("int64", (2,)),
            "some": ArrayField("float32", (None,)),
            "raw": BytesField(),
            "words": StringField(),
        }
    )
    assert not any("left out" in note for note in source.notes)


def test_without_options_the_usual_names_are_taken_and_the_rest_is_said(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"jpeg": image(), "class": 3, "height": 5, "name": b"x"}]
    source = find_source(write(tmp_path / "a.tfrecord", *rows))
    assert list(source.schema) == ["image", "label"]
    assert any("features left out: height, name" in note for note in source.notes)


def test_without_any_label_there_are_images_alone(tmp_path: Path) -> None:
    source = find_source(write(tmp_path / "a.tfrecord", {"picture": image()}))
    assert list(source.schema) == ["image"]


def test_several_images_a_record(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"left": image(3 * k), "right": image(k)} for k in range(3)]
    location = write(tmp_path / "a.tfrecord", *rows)
    pack(location, tmp_path / "a.lmdb", features=("left", "right"))
    sample: Any = fastdata.open(tmp_path / "a.lmdb")[2]
    assert (int(sample.left[0, 0, 0]), int(sample.right[0, 0, 0])) == (6, 2)


def test_an_unknown_feature_is_named_with_those_there_are(tmp_path: Path) -> None:
    location = write(tmp_path / "a.tfrecord", *labelled(1))
    with pytest.raises(OptionError, match=r"no feature 'x' .*image/class/label, image/encoded"):
        find_source(location, options={"features": ("image=x",)})
    other = write(tmp_path / "b.tfrecord", {"pixels": b"\0" * 40, "class": 0})
    with pytest.raises(OptionError, match="records have class, pixels"):
        find_source(other)


def test_labels_are_moved_and_named(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    rows: list[dict[str, object]] = [{"image/encoded": image(), "image/class/label": k + 1}
                                     for k in range(2)]  # fmt: skip
    location = write(tmp_path / "a.tfrecord", *rows)
    pack(location, tmp_path / "a.lmdb", label_offset=-1, classes=str(tmp_path / "names.txt"))
    assert labels_of(tmp_path / "a.lmdb") == [0, 1]
    assert fastdata.open(tmp_path / "a.lmdb").schema.classes == ("ant", "bee")


@pytest.mark.parametrize("label", [[1, 2], 0.5])
def test_only_class_numbers_can_be_moved(tmp_path: Path, label: object) -> None:
    location = write(tmp_path / "a.tfrecord", {"image": image(), "label": label})
    options = {"features": ("image", "label"), "label_offset": -1}
    with pytest.raises(OptionError, match="no field 'label' of class numbers"):
        find_source(location, options=options)


def test_an_offset_that_leaves_the_range_is_a_reject(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"image": image(), "label": 5}, {"image": image(), "label": 2**63 - 1}
    ]  # fmt: skip
    report = pack(write(tmp_path / "a.tfrecord", *rows), tmp_path / "a.lmdb", label_offset=1)
    assert (report.num_samples, report.num_rejected) == (1, 1)
    assert "does not fit int64" in report.rejects[0].reason


def test_a_missing_feature_rejects_its_record_alone(tmp_path: Path) -> None:
    rows = labelled(3)
    del rows[1]["image/class/label"]
    location = write(tmp_path / "a.tfrecord", *rows)
    report = pack(location, tmp_path / "a.lmdb")
    first = len(record(example(rows[0])))
    assert [(r.key, r.reason) for r in report.rejects] == [
        (f"a.tfrecord@{first}", "the feature 'image/class/label' is missing")
    ]
    assert labels_of(tmp_path / "a.lmdb") == [0, 2]


def test_more_values_than_one_are_a_reject_that_says_what_to_do(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"image": image(), "label": 1} for _ in range(20)]
    rows[18]["label"] = [1, 2]
    location = write(tmp_path / "a.tfrecord", *rows)
    report = pack(location, tmp_path / "a.lmdb")
    assert [r.reason for r in report.rejects] == [
        "the feature 'label' has 2 values, not one; name its field an array"
    ]
    fields = {"label": ArrayField("int64", (None,))}
    assert pack(location, tmp_path / "b.lmdb", fields=fields).num_rejected == 0


def test_empty_lists_are_empty_arrays(tmp_path: Path) -> None:
    empty = message(1, b"\x0a\x01x" + message(2, message(2, b"")))  # x: float_list {}
    rest = message(1, message(1, b"image") + message(2, message(1, message(1, image()))))
    data = record(message(1, empty + rest))
    full = record(example({"x": [0.5, 1.5], "image": image()}))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data * 20 + full)
    report = pack(path, tmp_path / "a.lmdb", features=("image", "x"))
    assert report.num_rejected == 0
    dataset: Any = fastdata.open(tmp_path / "a.lmdb")
    assert dataset.schema["x"] == ArrayField("float32", (None,))
    assert [dataset[k].x.tolist() for k in (0, 20)] == [[], [0.5, 1.5]]


def test_boxes_that_stand_in_one_list_are_boxes(tmp_path: Path) -> None:
    boxes = [[1.0, 2.0, 5.0, 6.0], [0.0, 0.0, 3.0, 3.0]]
    rows: list[dict[str, object]] = [
        {"image": image(k), "bbox": [number for box in boxes[:k] for number in box]}
        for k in range(3)
    ]
    rows.append({"image": image(3), "bbox": [1.0, 2.0, 3.0]})
    report = fastdata.pack(
        write(tmp_path / "a.tfrecord", *rows),
        tmp_path / "a.lmdb",
        source_options={"features": "image,bbox"},
        fields={"bbox": "boxes"},
        resize="none",
        num_workers=0,
        progress=False,
    )
    assert [s.bbox.tolist() for s in fastdata.open(tmp_path / "a.lmdb")] == [
        boxes[:k] for k in range(3)
    ]
    (reject,) = report.rejects
    assert "has shape (3,)" in reject.reason


def test_an_empty_label_is_a_reject(tmp_path: Path) -> None:
    none = message(1, b"\x0a\x05label" + message(2, b""))
    rest = message(1, message(1, b"image") + message(2, message(1, message(1, image()))))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(
        record(example({"image": image(), "label": 1})) * 20 + record(message(1, none + rest))
    )
    report = pack(path, tmp_path / "a.lmdb")
    assert [r.reason for r in report.rejects] == ["the feature 'label' has 0 values, not one"]


def test_of_a_key_that_stands_twice_the_last_counts(tmp_path: Path) -> None:
    # As protobuf's specification says of maps.
    twice = example({"image": image(1), "label": 1}) + example({"label": 7})
    path = tmp_path / "a.tfrecord"
    path.write_bytes(record(twice))
    pack(path, tmp_path / "a.lmdb")
    assert labels_of(tmp_path / "a.lmdb") == [7]


def test_integers_that_are_not_packed_and_negative_ones_are_read(tmp_path: Path) -> None:
    value = message(3, b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + b"\x08\x05")
    entry = message(1, message(1, b"n") + message(2, value))
    rest = message(1, message(1, b"image") + message(2, message(1, message(1, image()))))
    path = tmp_path / "a.tfrecord"
    path.write_bytes(record(message(1, entry + rest)))
    pack(path, tmp_path / "a.lmdb", features=("image", "n"))
    assert fastdata.open(tmp_path / "a.lmdb")[0].n.tolist() == [-1, 5]  # type: ignore[attr-defined]


def test_text_that_is_none_is_a_reject(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"image": image(), "text": b"ok"} for _ in range(20)]
    rows[17]["text"] = b"\xff"
    location = write(tmp_path / "a.tfrecord", *rows)
    report = pack(location, tmp_path / "a.lmdb", features=("image", "text"))
    assert report.num_rejected == 1
    assert "can't decode byte 0xff" in report.rejects[0].reason


def test_other_messages_are_refused_and_unknown_fields_passed_over(tmp_path: Path) -> None:
    other = tmp_path / "other.tfrecord"
    other.write_bytes(record(b"\xff\xff no message"))
    with pytest.raises(SourceError, match=r"no record can be read as an Example: no tf\.train"):
        find_source(other)
    # tf.train.SequenceExample has its context where Example has its features, then field 2.
    more = tmp_path / "more.tfrecord"
    more.write_bytes(record(example({"image": image(), "label": 4}) + message(2, b"lists")))
    pack(more, tmp_path / "a.lmdb")
    assert labels_of(tmp_path / "a.lmdb") == [4]


# -- damage -------------------------------------------------------------------------


def parts(count: int = 5) -> list[bytes]:
    return [record(example(features)) for features in labelled(count)]


def test_damaged_data_is_a_reject_and_the_rest_goes_on(tmp_path: Path) -> None:
    records = parts()
    damaged = bytearray(records[2])
    damaged[-20] ^= 1
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join([*records[:2], damaged, *records[3:]]))
    report = pack(path, tmp_path / "a.lmdb")
    assert [r.key for r in report.rejects] == [f"a.tfrecord@{len(b''.join(records[:2]))}"]
    assert "the checksum of the record's data is wrong" in report.rejects[0].reason
    assert labels_of(tmp_path / "a.lmdb") == [0, 1, 3, 4]


@pytest.mark.parametrize("kind", ["", "gzip", "zlib"])
def test_behind_a_damaged_length_a_file_is_lost_but_not_the_next(tmp_path: Path, kind: str) -> None:
    records = parts()
    damaged = bytearray(records[2])
    damaged[8] ^= 1
    content = b"".join([*records[:2], damaged, *records[3:]])
    (tmp_path / "a.tfrecord").write_bytes(COMPRESSORS[kind](content) if kind else content)
    (tmp_path / "b.tfrecord").write_bytes(records[4])
    report = pack(tmp_path, tmp_path / "a.lmdb", format="tfrecord")
    assert [r.key for r in report.rejects] == [f"a.tfrecord@{len(b''.join(records[:2]))}"]
    assert "the checksum of the record's length is wrong; the rest of" in report.rejects[0].reason
    assert labels_of(tmp_path / "a.lmdb") == [0, 1, 4]


@pytest.mark.parametrize("kind", ["", "gzip", "zlib"])
@pytest.mark.parametrize("length", [1 << 29, (1 << 30) - 4, 1 << 40, (1 << 64) - 1])
def test_a_huge_length_with_the_right_checksum_allocates_nothing(
    tmp_path: Path, kind: str, length: int
) -> None:
    head = struct.pack("<Q", length)
    content = parts(1)[0] + head + masked(head) + b"x" * 50
    (tmp_path / "a.tfrecord").write_bytes(COMPRESSORS[kind](content) if kind else content)
    tracemalloc.start()
    report = pack(tmp_path / "a.tfrecord", tmp_path / "a.lmdb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (report.num_samples, report.num_rejected) == (1, 1)
    assert f"@{len(parts(1)[0])}" in report.rejects[0].key
    assert peak < 16 << 20


@pytest.mark.parametrize("cut", [1, 3, 4, 9, 60])
def test_a_file_that_ends_early_says_so(tmp_path: Path, cut: int) -> None:
    records = parts(3)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(records)[:-cut])
    report = pack(path, tmp_path / "a.lmdb")
    assert [r.key for r in report.rejects] == [f"a.tfrecord@{len(records[0] + records[1])}"]
    assert "the file ends within the record's" in report.rejects[0].reason
    path.write_bytes(records[0] + records[1][:7])
    assert "ends 5 bytes before the record's head does" in pack(
        path, tmp_path / "b.lmdb"
    ).rejects[0].reason  # fmt: skip


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_compressed_file_cut_or_damaged_says_so(tmp_path: Path, kind: str) -> None:
    data = COMPRESSORS[kind](b"".join(record(example({
        "image": pil_file(np.random.default_rng(k).integers(0, 256, (40, 40, 3), np.uint8), "PNG"),
        "label": k})) for k in range(30)))  # fmt: skip
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data[: len(data) // 2])
    report = pack(path, tmp_path / "a.lmdb")
    assert 0 < report.num_samples < 30
    assert report.num_rejected == 1
    # Without its last bytes all records are whole, and yet the file is not.
    path.write_bytes(data[:-3])
    assert pack(path, tmp_path / "d.lmdb").num_rejected == 1
    # They are the checksum of all that was compressed.
    path.write_bytes(data[:-6] + b"\x55\xaa" + data[-4:])
    assert pack(path, tmp_path / "b.lmdb").num_rejected >= 1
    path.write_bytes(data + b"more")
    report = pack(path, tmp_path / "c.lmdb")
    assert (report.num_samples >= 29, report.num_rejected) == (True, 1)


def test_the_start_of_a_file_says_whether_it_is_compressed(tmp_path: Path) -> None:
    # A record of 0x5e78 bytes begins as zlib's files do.
    base = len(example({"image": image(), "label": 1, "pad": b"x" * 20000}))
    data = example({"image": image(), "label": 1, "pad": b"x" * (20000 + 0x5E78 - base)})
    assert struct.pack("<Q", len(data))[:2] == b"\x78\x5e"
    assert zlib.compress(b"x", 1)[:1] == b"\x78"
    (tmp_path / "a.tfrecord").write_bytes(record(data))
    pack(tmp_path / "a.tfrecord", tmp_path / "a.lmdb", features=("image", "label"))
    assert labels_of(tmp_path / "a.lmdb") == [1]


def test_what_is_no_tfrecord_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"not a record at all" * 10)
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path / "a.tfrecord")
    with pytest.raises(SourceError, match="the checksum of the record's length is wrong"):
        find_source(tmp_path / "a.tfrecord", format="tfrecord")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no TFRecord files there"):
        find_source(tmp_path / "empty", format="tfrecord")


# -- patterns -----------------------------------------------------------------------


def shards(folder: Path) -> None:
    for number in range(3):
        write(folder / f"t-{number:05}-of-00003", labelled(3)[number])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("t-*", [0, 1, 2]), ("t-0000{0..1}-of-00003", [0, 1]), ("t-0000[02]-*", [0, 2]),
     ("t-{00002,00000}-of-00003", [2, 0])],
)  # fmt: skip
def test_patterns_name_shards(tmp_path: Path, pattern: str, expected: list[int]) -> None:
    shards(tmp_path)
    pack(str(tmp_path / pattern), tmp_path / "a.lmdb")
    assert labels_of(tmp_path / "a.lmdb") == expected


def test_a_folder_of_shards_without_a_suffix_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    shards(tmp_path / "t")
    (tmp_path / "t" / "labels.txt").write_text("a\nb\nc\n")
    pack(tmp_path / "t", tmp_path / "a.lmdb")
    assert labels_of(tmp_path / "a.lmdb") == [0, 1, 2]


def test_a_missing_shard_that_braces_name_is_an_error(tmp_path: Path) -> None:
    shards(tmp_path)
    with pytest.raises(SourceError, match=r"1 of the files that it names are missing.*t-00003"):
        pack(str(tmp_path / "t-0000{0..3}-of-00003"), tmp_path / "a.lmdb")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
def test_a_shard_that_the_machine_cannot_read_is_no_reject(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards(tmp_path)
    opened = os.open

    def refusing(path: Any, *args: Any, **options: Any) -> int:
        if os.fspath(path).endswith("t-00001-of-00003"):
            raise OSError(number, os.strerror(number), os.fspath(path))
        return opened(path, *args, **options)

    source = find_source(str(tmp_path / "t-*"))
    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(MachineError, match=f"t-00001-of-00003: {os.strerror(number)}"):
        list(source)


def test_an_empty_shard_holds_nothing_and_all_empty_ones_are_refused(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "t-00001-of-00003").write_bytes(b"")
    source = find_source(str(tmp_path / "t-*"))
    assert not any(isinstance(sample, Reject) for sample in source)
    for path in tmp_path.glob("t-*"):
        path.write_bytes(b"")
    with pytest.raises(SourceError, match="the files have no records"):
        find_source(str(tmp_path / "t-*"), format="tfrecord")


def test_several_gzip_members_and_zeros_behind_them_are_one_file(tmp_path: Path) -> None:
    first, second, third = parts(3)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(gzip.compress(first) + gzip.compress(second + third) + bytes(200_000))
    report = pack(path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (3, 0)
