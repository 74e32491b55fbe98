"""RecordIO: labels, lists and indexes, and what becomes of damage."""

from __future__ import annotations

import itertools
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_recordio import MAGIC, packed, record, write_records
from pack_helpers import pil_file

import fastdata
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.errors import SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, Schema


def image(number: int = 0) -> bytes:
    return pil_file(np.full((5, 6, 3), number, np.uint8), "PNG")


def contents(count: int) -> list[bytes]:
    return [packed(image(k), k, k) for k in range(count)]


def pack(location: Any, path: Path, **options: Any) -> Any:
    shuffle = options.pop("shuffle", False)
    return fastdata.pack(
        location, path, codec="keep", num_workers=0, progress=False, source_options=options,
        shuffle=shuffle,
    )  # fmt: skip


def column(path: Path, name: str = "label") -> list[Any]:
    dataset = fastdata.open(path)
    return [np.asarray(getattr(dataset[k], name)).tolist() for k in range(len(dataset))]


# -- labels -------------------------------------------------------------------------


def test_one_label_is_a_class_number_if_it_is_whole(tmp_path: Path) -> None:
    write_records(tmp_path / "a.rec", [packed(image(), 3.0), packed(image(), [4.0])])
    write_records(tmp_path / "b.rec", [packed(image(), 0.5)])
    source = find_source(tmp_path / "a.rec")
    assert source.schema == Schema({"image": ImageField(), "label": ScalarField("int64")})
    assert find_source(tmp_path / "b.rec").schema["label"] == ScalarField("float32")
    pack(tmp_path / "a.rec", tmp_path / "a.lmdb")
    assert column(tmp_path / "a.lmdb") == [3, 4]


def test_several_labels_are_an_array(tmp_path: Path) -> None:
    rows = [[1.0, 0.25, 7.0], [2.0, 0.5, 8.0]]
    path = write_records(tmp_path / "a.rec", [packed(image(), row) for row in rows])
    pack(path, tmp_path / "a.lmdb")
    assert fastdata.open(tmp_path / "a.lmdb").schema["label"] == ArrayField("float32", (3,))
    assert column(tmp_path / "a.lmdb") == rows


def test_as_many_labels_as_objects(tmp_path: Path) -> None:
    rows = [[4.0, 5.0], [4.0, 5.0, 1.0, 0.1, 0.2]]
    path = write_records(tmp_path / "a.rec", [packed(image(), row) for row in rows])
    pack(path, tmp_path / "a.lmdb")
    assert fastdata.open(tmp_path / "a.lmdb").schema["label"] == ArrayField("float32", (None,))
    assert np.allclose(column(tmp_path / "a.lmdb")[1], rows[1])


def test_labels_of_objects_are_refused_unless_they_are_taken_as_numbers(tmp_path: Path) -> None:
    row = [2.0, 5.0, 1.0, 0.5, 0.25, 1.0, 0.75]
    path = write_records(tmp_path / "a.rec", [packed(image(), row)])
    with pytest.raises(SourceError, match=r"labels are of objects.*--field label=array"):
        find_source(path)
    fastdata.pack(
        path, tmp_path / "a.lmdb", fields={"label": "array"}, num_workers=0, progress=False
    )
    assert column(tmp_path / "a.lmdb") == [row]


def test_another_number_of_labels_later_is_a_reject(tmp_path: Path) -> None:
    rows = [packed(image(), 1.0)] * 20 + [packed(image(), [1.0, 2.0])]
    report = pack(write_records(tmp_path / "a.rec", rows), tmp_path / "a.lmdb")
    assert [r.reason for r in report.rejects] == ["the record has 2 labels, not 1"]


def test_a_label_that_is_no_class_number_is_a_reject(tmp_path: Path) -> None:
    rows = [packed(image(), 1.0)] * 20 + [packed(image(), 1.5), packed(image(), float("nan"))]
    report = pack(write_records(tmp_path / "a.rec", rows), tmp_path / "a.lmdb")
    half, no_number = (reject.reason for reject in report.rejects)
    assert "1.5" in half
    assert "NaN" in no_number


def test_classes_are_named(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    path = write_records(tmp_path / "a.rec", contents(2))
    source = find_source(path, options={"classes": str(tmp_path / "names.txt")})
    assert source.schema.classes == ("ant", "bee")


def test_images_without_heads_have_no_labels(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.rec", [image(1), image(2)], index=False)
    pack(path, tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image"]


def test_records_without_images_are_refused(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.rec", [b"record_0", b"record_1" * 9], index=False)
    with pytest.raises(SourceError, match="no record with an image can be read"):
        find_source(path)
    path = write_records(tmp_path / "b.rec", [packed(b"some text", 0)], index=False)
    with pytest.raises(SourceError, match=r"begins with b'some tex'. It is not a JPEG"):
        find_source(path)


def test_face_datasets_leave_their_other_records_out(tmp_path: Path) -> None:
    # As InsightFace writes them: a head record, images, then a record an identity.
    images = [packed(image(k), float(k % 2), k) for k in range(1, 5)]
    rows = [
        packed(b"", [5.0, 7.0], 0),
        *images,
        packed(b"", [1.0, 3.0], 5),
        packed(b"", [3.0, 5.0]),
    ]
    path = write_records(tmp_path / "train.rec", rows)
    report = pack(path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    assert any("images are the records 1 to 4" in note for note in report.notes)
    assert column(tmp_path / "a.lmdb") == [1, 0, 1, 0]
    write_records(path, rows[:4], index=False)
    path.with_suffix(".idx").unlink()
    report = pack(path, tmp_path / "b.lmdb")
    assert [r.reason for r in report.rejects] == [
        "the first record says that there are 5, and 4 are here"
    ]


# -- lists and indexes --------------------------------------------------------------


def test_a_list_is_not_read_and_said(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.rec", contents(2), index=False)
    (tmp_path / "a.lst").write_text("0\t5\ta.jpg\n1\t6\tb.jpg\n")
    report = pack(path, tmp_path / "a.lmdb")
    assert "a.lst is not read: labels are those in the records" in report.notes
    assert column(tmp_path / "a.lmdb") == [0, 1]


def test_what_the_index_names_and_the_file_lacks_is_a_reject(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.rec", contents(4))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(path.with_suffix(".idx").read_text().split()[5]) + 2])
    report = pack(path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (2, 2)
    assert [r.reason.partition(";")[0] for r in report.rejects] == [
        "the file ends 6 bytes before the record's head does",
        "the index names a record here, and the file ends before",
    ]
    path.write_bytes(whole)
    with path.with_suffix(".idx").open("a") as file:
        file.write("9\t12\n")
    assert pack(path, tmp_path / "b.lmdb").num_samples == 4


def test_an_index_that_is_none_is_refused(tmp_path: Path) -> None:
    path = write_records(tmp_path / "a.rec", contents(2))
    path.with_suffix(".idx").write_text("0\t0\n1 52\n")
    with pytest.raises(SourceError, match=r"line 2: '1 52' is not a key and .*Move the file away"):
        find_source(path)


# -- parts --------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2, 3, 8])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_record_with_the_magic_number_in_it(tmp_path: Path, at: int, times: int) -> None:
    # Behind the end of a PNG, where PIL does not look.
    file = image() + bytes(at) + MAGIC * times + b"end"
    path = write_records(tmp_path / "a.rec", [packed(file, 5), packed(image(1), 6)])
    pack(path, tmp_path / "a.lmdb")
    shard = next(iter(fastdata.open(tmp_path / "a.lmdb").shards))
    assert bytes(shard.blob("image", 0)) == file
    assert column(tmp_path / "a.lmdb") == [5, 6]


def test_the_last_part_may_be_missing(tmp_path: Path) -> None:
    data = packed(image() + bytes(-len(packed(image(), 1)) % 4) + MAGIC + b"abcd", 1)
    split = record(data)
    assert split.count(MAGIC) == 2
    good = record(contents(1)[0])
    for number, parts in enumerate([[split[:-12], good], [good, split[:-12]]]):
        write_raw(tmp_path / "a.rec", parts)
        report = pack(tmp_path / "a.rec", tmp_path / f"{number}.lmdb")
        assert (report.num_samples, report.num_rejected) == (1, 1)


# -- damage -------------------------------------------------------------------------


def write_raw(path: Path, records: list[bytes], *, index: bool = True) -> Path:
    """Write records as they are, with an index of where each begins."""
    starts = itertools.accumulate(map(len, records), initial=0)
    if index:
        lines = [f"{k}\t{at}\n" for k, at in zip(range(len(records)), starts, strict=False)]
        path.with_suffix(".idx").write_text("".join(lines))
    path.write_bytes(b"".join(records))
    return path


def damaged(tmp_path: Path, change: Any, *, index: bool = True, **options: Any) -> Any:
    """Pack five records, the one of number 2 changed."""
    records = [record(packed(image(), k)) for k in range(5)]
    offset = len(records[0] + records[1])
    records[2] = bytes(change(bytearray(records[2])))
    write_raw(tmp_path / "a.rec", records, index=index)
    report = pack(tmp_path / "a.rec", tmp_path / "a.lmdb", **options)
    return report, f"a.rec@{offset}", column(tmp_path / "a.lmdb")


def with_length(data: bytearray, length: int, kind: int = 0) -> bytearray:
    data[4:8] = struct.pack("<I", kind << 29 | length)
    return data


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: b"XXXX" + d[4:], "no record begins"),
        (lambda d: with_length(d, 0, 2), "no record begins"),
        (lambda d: with_length(d, (1 << 29) - 1), "the file ends within the record's 536,870,911"),
        (lambda d: with_length(d, len(d) - 8, 1), "no part of the record goes on"),
        (lambda d: with_length(d, len(d) + 40), "another begins within it"),
        (lambda d: with_length(d, 2 * len(d) - 8), "another begins within it"),
        (lambda d: d[:8] + struct.pack("<I", 1 << 30) + d[12:], "claims 1,073,741,824 labels"),
        (lambda d: record(b"short"), "too short for a label and an image"),
        (lambda d: record(packed(b"", 2)), "the record has no image"),
        (lambda d: record(packed(b"no image", 2)), "image"),
    ],
)  # fmt: skip
def test_with_an_index_damage_costs_one_record(
    tmp_path: Path, change: Any, reason: str, shuffle: bool
) -> None:
    tracemalloc.start()
    report, key, labels = damaged(tmp_path, change, shuffle=shuffle)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [r.key for r in report.rejects] == [key]
    assert reason in report.rejects[0].reason
    assert sorted(labels) == [0, 1, 3, 4]
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("change", "kept", "reasons"),
    [
        (lambda d: b"XXXX" + d[4:], [0, 1], ["no record begins"]),
        (lambda d: with_length(d, len(d) + 40), [0, 1], ["another record begins", "no record"]),
        (lambda d: with_length(d, 2 * len(d) - 8), [0, 1, 4], ["another record begins within it"]),
        (lambda d: record(b"short"), [0, 1, 3, 4], ["too short for a label and an image"]),
    ],
)
def test_without_an_index_the_rest_is_lost_behind_a_damaged_head(
    tmp_path: Path, change: Any, kept: list[int], reasons: list[str]
) -> None:
    report, _, labels = damaged(tmp_path, change, index=False)
    assert labels == kept
    for reject, reason in zip(report.rejects, reasons, strict=True):
        assert reason in reject.reason
        assert ("the rest of" in reject.reason) == reason.startswith("no record")


def test_an_end_without_its_padding_is_an_end(tmp_path: Path) -> None:
    content = packed(image() + b"x" * (3 - len(image()) % 4 + 2), 7)
    data = record(content)
    assert data.endswith(b"\0")
    path = tmp_path / "a.rec"
    path.write_bytes(data.rstrip(b"\0"))
    assert pack(path, tmp_path / "a.lmdb").num_rejected == 0


def test_what_is_no_record_file_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.rec").write_bytes(b"some text, long enough")
    with pytest.raises(SourceError, match="not recognised"):
        find_source(tmp_path / "a.rec")
    with pytest.raises(SourceError, match=r"a\.rec@0: no record begins at byte 0"):
        find_source(tmp_path / "a.rec", format="recordio")
    with pytest.raises(SourceError, match=r"no \.rec files there"):
        find_source(tmp_path / "none*.rec", format="recordio")


def test_several_files_are_named(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_records(tmp_path / f"{name}.rec", contents(2), index=False)
    source = find_source(tmp_path)
    assert any("2 files: train.rec, val.rec" in note for note in source.notes)
    assert next(s.key for s in source if not isinstance(s, Reject)) == "train.rec@0"
