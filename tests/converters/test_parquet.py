"""What is special to Parquet: columns as fields, what datasets says of them, and row groups."""

from __future__ import annotations

import io
import os
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from case_parquet import hugging_face
from cases import CLASSES, make_pictures
from packed import fixture_pixels, pack, samples
from PIL import Image

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.parquet import row_counts
from fastdata.converters.reading.splits import split_of
from fastdata.errors import MissingExtraError, OptionError, SourceError
from fastdata.schema import ArrayField, BytesField, ImageField, ScalarField, StringField

FIXTURES = Path(__file__).parent / "fixtures" / "parquet"
PICTURES = make_pictures(6)
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write(path: Path, columns: dict[str, Any], metadata: Any = None, **options: Any) -> Path:
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), path, **options)
    return path


def images(count: int = 6) -> Any:
    return pa.array([p.data for p in PICTURES[:count]])


def check_fixture(path: Path, order: list[int]) -> None:
    """Compare what was packed with what ``make_parquet.py`` has written."""
    dataset = fastdata.open(path)
    assert dict(dataset.schema) == {
        "image": ImageField(),
        "label": ScalarField("int64", classes=CLASSES),
        "caption": StringField(),
        "score": ScalarField("float32"),
        "good": ScalarField("bool"),
        "bbox": ArrayField("float32", (None, 4), boxes=True),
        "grid": ArrayField("int32", (2, 3)),
        "split": ScalarField("int64", classes=("train", "test")),
    }
    found = samples(path)
    assert len(found) == len(order)
    for index, sample in zip(order, found, strict=True):
        assert np.array_equal(
            np.asarray(Image.open(io.BytesIO(sample["image"]))), fixture_pixels(index)
        )
        assert sample["label"] == index % 3
        assert sample["caption"] == f"picture {index} - ä"
        assert sample["score"] == index / 4
        assert bool(sample["good"]) == (index % 2 == 0)
        assert np.array_equal(
            sample["bbox"], np.array([[0, 1, 2, index + 3]] * (index % 3)).reshape(-1, 4)
        )
        assert np.array_equal(sample["grid"], [[index, 1, 2], [3, 4, 5]])
        assert sample["split"] == int(index > 5)


CORNERS = {"boxes": "xyxy,pixels"}


def test_boxes_of_no_certain_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"field 'bbox': its boxes may be of several forms"):
        pack(FIXTURES / "hub", tmp_path / "a.lmdb")


def test_what_datasets_wrote_is_read(tmp_path: Path) -> None:
    report = pack(FIXTURES / "hub", tmp_path / "a.lmdb", **CORNERS)
    assert report.num_rejected == 0
    assert any("left out: views (a list of images" in note for note in report.notes)
    check_fixture(tmp_path / "a.lmdb", [6, 7, 0, 1, 2, 3, 4, 5])
    assert fastdata.open(tmp_path / "a.lmdb").keys[3] == "data/train-00000-of-00002.parquet@1"


def test_a_split_is_chosen_by_its_name(tmp_path: Path) -> None:
    assert pack(FIXTURES / "hub", tmp_path / "a.lmdb", **CORNERS, split="train").num_samples == 6
    assert "split" not in fastdata.open(tmp_path / "a.lmdb").schema
    with pytest.raises(OptionError, match=r"split=dev: none of the 3 files.*there are test, train"):
        pack(FIXTURES / "hub", tmp_path / "b.lmdb", split="dev")


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00001.parquet", "train"),
        ("data/extra-00000-of-00001-0123456789abcdef.parquet", "extra"),
        ("default/validation/0000.parquet", "validation"),
        ("val/0000.parquet", "validation"),
        ("cifar10-test.arrow", "test"),
        ("data-00000-of-00001.arrow", ""),
        ("trains.parquet", ""),
        ("train/test.parquet", "test"),
    ],
)
def test_splits_are_told_by_names(path: str, split: str) -> None:
    assert split_of(Path(path)) == split


def test_columns_of_many_types_become_fields(tmp_path: Path) -> None:
    columns = {
        "path": pa.array([f"{k}.jpg" for k in range(6)], pa.large_string()),
        "class": pa.array([CLASSES[k % 3] for k in range(6)]).dictionary_encode(),
        "img": images(),
        "u8": pa.array(range(6), pa.uint8()),
        "u64": pa.array([0, 1, 2, 3, 4, 2**63], pa.uint64()),
        "half": pa.array(np.arange(6, dtype=np.float16)),
        "blob": pa.array([b"\0\1"] * 6),
        "list": pa.array([[1, 2][: k % 3] for k in range(6)], pa.list_(pa.int16())),
        "fixed": pa.array([[k, 1.5] for k in range(6)], pa.list_(pa.float64(), 2)),
        "when": pa.array([0] * 6, pa.timestamp("s")),
        "count": pa.array([str(k).encode() for k in range(6)]),
        "texts": pa.array([["a"]] * 6),
    }
    report = pack(write(tmp_path / "a.parquet", columns), tmp_path / "a.lmdb")
    assert dict(fastdata.open(tmp_path / "a.lmdb").schema) == {
        "image": ImageField(),
        "label": ScalarField("int64", classes=CLASSES),
        "path": StringField(),
        "u8": ScalarField("uint8"),
        "u64": ScalarField("int64"),
        "half": ScalarField("float16"),
        "blob": BytesField(),
        "list": ArrayField("int16", (None,)),
        "fixed": ArrayField("float64", (2,)),
        "count_": BytesField(),
    }
    found = samples(tmp_path / "a.lmdb")
    assert [int(s["label"]) for s in found] == [0, 1, 2, 0, 1]
    assert [s["list"].tolist() for s in found] == [[1, 2][: k % 3] for k in range(5)]
    assert [s["fixed"].tolist() for s in found] == [[k, 1.5] for k in range(5)]
    assert [bytes(s["count_"]) for s in found] == [b"0", b"1", b"2", b"3", b"4"]
    assert [s["path"] for s in found] == [f"{k}.jpg" for k in range(5)]
    (reject,) = report.rejects
    assert reject.key == "a.parquet@5"
    assert "does not fit int64" in reject.reason
    (note,) = [note for note in report.notes if "left out" in note]
    assert "when (timestamp[ms], which no field holds), texts (a list of string, which" in note


def test_columns_are_chosen_by_name(tmp_path: Path) -> None:
    columns = {"a": images(), "b": images(), "n": pa.array(range(6)), "s": pa.array(list("xyzxyz"))}
    path = write(tmp_path / "a.parquet", columns)
    pack(path, tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["a", "b", "n", "s"]
    pack(path, tmp_path / "a.lmdb", columns="image=b,n", fields={"n": "float"})
    assert list(fastdata.open(tmp_path / "a.lmdb").schema.items()) == [
        ("image", ImageField()),
        ("n", ScalarField("float64")),
    ]
    pack(path, tmp_path / "a.lmdb", columns="image=b,s", fields={"s": "label"})
    assert fastdata.open(tmp_path / "a.lmdb").schema["s"] == ScalarField(classes=("x", "y", "z"))
    with pytest.raises(OptionError, match=r"no column 'z' for the field 'image'; there are a, b"):
        pack(path, tmp_path / "a.lmdb", columns="image=z")


def test_lists_of_images_and_tables_without_images_are_refused(tmp_path: Path) -> None:
    hub = FIXTURES / "hub"
    with pytest.raises(OptionError, match="'views' is a list of images, which is not read"):
        pack(hub, tmp_path / "a.lmdb", columns="image=img,views")
    path = write(tmp_path / "a.parquet", {"x": pa.array([1]), "blob": pa.array([b"abc"])})
    with pytest.raises(SourceError, match=r"no column of images; there are x: int64, blob: binary"):
        pack(path, tmp_path / "a.lmdb")


def test_nulls_are_rejects_but_for_text(tmp_path: Path) -> None:
    rows = [{"bytes": p.data, "path": None} for p in PICTURES]
    columns = {
        "image": pa.array([rows[0], None, {"bytes": None, "path": None}, *rows[3:]], IMAGE),
        "label": pa.array([0, 1, 2, None, 1, 2]),
        "text": pa.array(["a", "b", "c", "d", None, "f"]),
    }
    report = pack(write(tmp_path / "a.parquet", columns), tmp_path / "a.lmdb")
    assert [(s["label"], s["text"]) for s in samples(tmp_path / "a.lmdb")] == [
        (0, "a"),
        (1, ""),
        (2, "f"),
    ]
    assert {r.key: r.reason for r in report.rejects} == {
        "a.parquet@1": "the image 'image' is null in this row",
        "a.parquet@2": "the image 'image' is null in this row",
        "a.parquet@3": "the column 'label' is null in this row",
    }


def test_files_named_by_rows_are_read_below_the_folder_only(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "pictures").mkdir(parents=True)
    for folder in (tmp_path, root / "pictures"):
        (folder / "0.jpg").write_bytes(PICTURES[0].data)
    (root / "link.jpg").symlink_to(tmp_path / "0.jpg")
    paths = [
        "pictures/0.jpg",
        "../0.jpg",
        str(tmp_path / "0.jpg"),
        str(root / "pictures" / "0.jpg"),
        "link.jpg",
        "gone.jpg",
        "pictures",
        "zip://0.jpg::https://example.com/a.zip",
        "a\0b",
    ]
    rows = [{"bytes": None, "path": path} for path in paths]
    write(root / "train.parquet", {"image": pa.array(rows, IMAGE)})
    report = pack(root / "train.parquet", tmp_path / "a.lmdb")
    keys = fastdata.open(tmp_path / "a.lmdb").keys
    assert list(keys) == ["train.parquet@0", "train.parquet@4"]  # a link is the user's own
    assert [s["image"] for s in samples(tmp_path / "a.lmdb")] == [PICTURES[0].data] * 2
    reasons = [reject.reason for reject in report.rejects]
    assert all("leads outside of its folder" in reason for reason in reasons[:3])
    assert all("No such file" in reason for reason in (reasons[3], reasons[5]))
    assert "no name of a file" in reasons[6]


def test_a_column_of_file_names_is_packed_as_a_list(tmp_path: Path) -> None:
    for number, picture in enumerate(PICTURES):
        (tmp_path / f"{number}.jpg").write_bytes(picture.data)
    names = pa.array([f"{number}.jpg" for number in range(6)])
    path = write(tmp_path / "t.parquet", {"image": names, "label": pa.array(list("abcabc"))})
    with pytest.raises(SourceError, match=r"pyarrow.csv.write_csv\(.*'list.csv'\)"):
        find_source(path)
    pyarrow.csv.write_csv(pq.read_table(path), tmp_path / "list.csv")
    assert pack(tmp_path / "list.csv", tmp_path / "a.lmdb").num_samples == 6
    assert fastdata.open(tmp_path / "a.lmdb").classes == ["a", "b", "c"]


def test_names_of_classes_come_from_metadata_or_a_file(tmp_path: Path) -> None:
    columns = {"image": images(), "kind": pa.array([0, 1, 2] * 2)}
    told = hugging_face(kind={"_type": "ClassLabel", "names": list(CLASSES)})
    pack(write(tmp_path / "a.parquet", columns, told), tmp_path / "a.lmdb")
    assert fastdata.open(tmp_path / "a.lmdb").schema["label"] == ScalarField(classes=CLASSES)
    (tmp_path / "names.txt").write_text("x\ny\nz\n")
    path = write(tmp_path / "b.parquet", {"image": images(), "label": columns["kind"]})
    pack(path, tmp_path / "b.lmdb", classes=str(tmp_path / "names.txt"))
    assert fastdata.open(tmp_path / "b.lmdb").schema["label"] == ScalarField(
        classes=("x", "y", "z")
    )


def test_metadata_that_is_nonsense_changes_nothing(tmp_path: Path) -> None:
    columns = {"image": images(), "label": pa.array([0, 1, 2] * 2)}
    for number, metadata in enumerate(
        [
            {b"huggingface": b"{"},
            {b"huggingface": b"[" * 100_000},
            {b"huggingface": b'{"info": {"features": []}}'},
            hugging_face(label={"_type": "ClassLabel", "names": "abc"}, image=[1]),
        ]
    ):
        path = write(tmp_path / f"{number}.parquet", columns, metadata)
        pack(path, tmp_path / "a.lmdb")
        assert fastdata.open(tmp_path / "a.lmdb").schema["label"] == ScalarField()


def test_text_labels_are_numbered_over_all_files(tmp_path: Path) -> None:
    for number, names in enumerate((["b", "a"], ["c", "b"])):
        labels = (
            pa.array(names).dictionary_encode()
            if number
            else pa.array(names).cast(pa.dictionary(pa.int8(), pa.string()))
        )
        write(tmp_path / f"{number}.parquet", {"image": images(2), "label": labels})
    pack(tmp_path, tmp_path / "a.lmdb")
    assert fastdata.open(tmp_path / "a.lmdb").classes == ["a", "b", "c"]
    assert [int(s["label"]) for s in samples(tmp_path / "a.lmdb")] == [1, 0, 2, 1]


def test_files_that_differ_in_their_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "0.parquet", {"image": images(), "label": pa.array([0] * 6)})
    write(tmp_path / "1.parquet", {"image": images(), "label": pa.array(["x"] * 6)})
    with pytest.raises(OptionError, match=r"1.parquet: the column 'label' is string; in .*int64"):
        pack(tmp_path, tmp_path / "a.lmdb")
    report = pack(tmp_path, tmp_path / "a.lmdb", columns="image")
    assert report.num_samples == 12


def test_a_damaged_row_group_is_as_many_rejects_and_the_rest_is_read(tmp_path: Path) -> None:
    columns = {"image": images(), "label": pa.array(range(6))}
    path = write(
        tmp_path / "a.parquet",
        columns,
        row_group_size=2,
        write_page_checksum=True,
        write_statistics=False,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(path.read_bytes())
    place = data.index(PICTURES[3].data) + 700
    data[place] ^= 1
    path.write_bytes(data)
    report = pack(path, tmp_path / "a.lmdb")
    assert [int(s["label"]) for s in samples(tmp_path / "a.lmdb")] == [0, 1, 4, 5]
    assert [reject.key for reject in report.rejects] == ["a.parquet@2", "a.parquet@3"]
    assert "CRC" in report.rejects[0].reason or "checksum" in report.rejects[0].reason
    shuffled = fastdata.pack(path, tmp_path / "b.lmdb", shuffle=True, progress=False, num_workers=0)
    assert {reject.key for reject in shuffled.rejects} == {"a.parquet@2", "a.parquet@3"}


def test_a_file_cut_short_is_one_reject_and_others_are_read(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", {"image": images()})
    for name in ("0.parquet", "2.parquet"):
        os.truncate(tmp_path / name, 3000)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_samples == 6
    assert [reject.key for reject in report.rejects] == ["0.parquet@0", "2.parquet@0"]
    assert "Parquet magic bytes not found in footer" in report.rejects[0].reason
    with pytest.raises(SourceError, match="Parquet magic bytes not found in footer"):
        pack(tmp_path / "0.parquet", tmp_path / "b.lmdb")


class Claims:
    """The metadata of a file, but for what it claims of rows."""

    def __init__(self, real: Any, file_rows: int, group_rows: int) -> None:
        self._real, self.num_rows, self._group_rows = real, file_rows, group_rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def row_group(self, number: int) -> Any:
        return Claims(self._real.row_group(number), self._group_rows, 0)


@pytest.mark.parametrize(
    ("file_rows", "group_rows", "expected"),
    [
        (6, 6, [6]),
        (9, 6, [6, "the file claims 9 rows, and its row groups 6"]),
    ],
)
def test_rows_that_are_only_claimed_are_not_believed(
    tmp_path: Path, file_rows: int, group_rows: int, expected: list[Any]
) -> None:
    rows = [{"bytes": p.data, "path": "x"} for p in PICTURES]
    path = write(tmp_path / "a.parquet", {"image": pa.array(rows, IMAGE)})
    claims = Claims(pq.read_metadata(path), file_rows, group_rows)
    assert list(row_counts(claims)) == expected


def test_a_large_row_group_is_read_batch_by_batch(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    head = PICTURES[0].data[:20]
    values = [head + random.bytes(200_000) for _ in range(200)]
    path = write(tmp_path / "a.parquet", {"image": pa.array(values)}, write_batch_size=4)
    source = find_source(path)
    before = pa.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for index, sample in enumerate(source):
        peak = max(peak, pa.total_allocated_bytes() - before)
        assert sample.values[0] == values[index]
    traced = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20, "of the 40 MB of the row group"
    assert traced < 10 << 20


def test_shuffling_large_row_groups_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", {"image": images()})
    monkeypatch.setattr("fastdata.converters.parquet._MOST_SHUFFLED", 1000)
    with pytest.raises(OptionError, match="shuffle needs to read a row group for each sample"):
        fastdata.pack(path, tmp_path / "a.lmdb", shuffle=True, progress=False)


def test_a_folder_with_images_is_not_taken_for_a_table(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(PICTURES[0].data)
    write(tmp_path / "index.parquet", {"file_name": pa.array(["cat/0.jpg"])})
    with pytest.raises(SourceError, match=r"index.parquet may describe the images"):
        find_source(tmp_path)
    assert find_source(tmp_path, format="folder").num_samples == 2


def test_a_column_that_stands_twice_is_left_out(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([images(), images(), pa.array(range(6))], ["i", "x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    report = pack(tmp_path / "a.parquet", tmp_path / "a.lmdb")
    assert list(fastdata.open(tmp_path / "a.lmdb").schema) == ["image"]
    assert any("x (a column that stands twice)" in note for note in report.notes)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_without_pyarrow_the_message_has_the_install_line(
    monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    location = FIXTURES / ("hub" if format == "parquet" else "disk")
    with pytest.raises(MissingExtraError, match=r"pip install 'fastdata-vision\[parquet\]'"):
        find_source(location)


def test_images_none_of_which_has_a_path_are_read(tmp_path: Path) -> None:
    rows = [{"bytes": data, "path": None} for data in images(3).to_pylist()]
    pq.write_table(pa.table({"image": rows, "label": [0, 1, 2]}), tmp_path / "a.parquet")
    source = find_source(tmp_path / "a.parquet")
    assert isinstance(source.schema["image"], ImageField)
    assert pack(tmp_path / "a.parquet", tmp_path / "a.lmdb").num_samples == 3
