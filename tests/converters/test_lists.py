"""Lists of images of many kinds, against what csv, json and a plain loop make of them."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_manifest import box_rows, write_images, write_rows
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import FastdataError, OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

BOXES = ArrayField("float32", (None, 4), boxes=True)


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, fields: Any = None, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options, fields=fields,
    )  # fmt: skip
    return report, fastdata.open(path)


def blob(data: Any, index: int) -> bytes:
    (shard,) = data.shards
    return bytes(shard.blob("image", index))


def reads(location: Any, **options: Any) -> Any:
    return find_source(location, options=options)


# -- which files -------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [",", ";", "|", "\t"])
def test_ids_are_found_in_the_folder_beside_that_has_them(
    tmp_path: Path, pictures: list[Picture], separator: str
) -> None:
    write_images(tmp_path / "train_images", pictures)
    (tmp_path / "other").mkdir()
    rows = [(p.name, f"a, {p.label}" if separator != "," else p.label) for p in pictures]
    path = write_rows(tmp_path / "train.csv", [("image_id", "label"), *rows], separator)
    report, data = pack(path, tmp_path / "x.lmdb")
    assert report.num_samples == 6
    assert [blob(data, k) for k in range(6)] == [p.data for p in pictures]
    assert any("train_images/{}.jpg" in note for note in find_source(path).notes)
    assert list(data.keys) == [p.name for p in pictures]


@pytest.mark.parametrize("first", [("image_id", "label"), None])
def test_ids_of_a_list_without_a_header(
    tmp_path: Path, pictures: list[Picture], first: Any
) -> None:
    write_images(tmp_path / "images", pictures)
    rows = [(p.name, "bee") for p in pictures]
    path = write_rows(tmp_path / "train.csv", ([first] if first else []) + rows)
    source = reads(path)
    assert source.num_samples == 6
    assert source.schema["label"] == ScalarField(classes=("bee",))


def test_a_first_row_that_names_an_image_is_no_header(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for p in pictures:
        (tmp_path / f"IMG_{p.name}.jpg").write_bytes(p.data)
    path = write_rows(tmp_path / "a.csv", [(f"IMG_{p.name}", "bee") for p in pictures])
    with pytest.raises(SourceError, match=r"first row names an image, 'IMG_000000'. Write a row"):
        reads(path)


def test_ids_that_may_be_two_files_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    rows = [("image_id", "label"), *((p.name, p.label) for p in pictures)]
    path = write_rows(tmp_path / "train.csv", rows)
    with pytest.raises(SourceError, match=r"no image is called like '000000'.*images=FOLDER"):
        reads(path)
    write_images(tmp_path / "train", pictures)
    write_images(tmp_path / "test", pictures[:1])
    with pytest.raises(SourceError, match=r"'000000' may be test/000000.jpg or train/000000.jpg"):
        reads(path)
    assert reads(path, images="train").num_samples == 6
    (tmp_path / "train/000003.png").write_bytes(pictures[0].data)
    with pytest.raises(
        SourceError, match=r"'000003' may be .*jpg or .*png. .* or write their suffixes into"
    ):
        reads(path, images="train")
    with pytest.raises(OptionError, match="images=nowhere: no such folder"):
        reads(path, images="nowhere")


def test_a_later_id_with_another_suffix_is_found_and_a_missing_one_rejected(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    many = make_pictures(60, 8, 8)
    write_images(tmp_path / "img", many)
    (tmp_path / "img/000050.jpg").rename(tmp_path / "img/000050.JPEG")
    (tmp_path / "img/000055.jpg").unlink()
    (tmp_path / "img/000057.png").write_bytes(many[0].data)
    path = write_rows(tmp_path / "a.csv", [("id", "label"), *((p.name, 1) for p in many)])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["000055"]
    assert blob(data, 50) == many[50].data


def test_a_split_is_taken_by_its_column(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows = [(f"{p.name}.jpg", p.label, p.label % 2) for p in pictures]
    path = write_rows(tmp_path / "a.csv", [("file", "label", "fold"), *rows])
    columns = ("image=file", "label", "split=fold")
    source = reads(path, columns=columns, split="1")
    assert [s.key for s in source] == [r[0] for r in rows if r[2] == 1]
    assert list(source.schema) == ["image", "label"]
    with pytest.raises(OptionError, match=r"split=2: no row of .* there are 0, 1"):
        reads(path, columns=columns, split="2")
    with pytest.raises(OptionError, match="has no column 'split'"):
        reads(path, split="1")
    with pytest.raises(OptionError, match="no column 'size' for the field 'label'"):
        reads(path, columns=("image=file", "label=size"))


# -- text with blanks --------------------------------------------------------------------


INT, FLOAT = ScalarField("int64"), ScalarField("float64")
PLANES = ScalarField(classes=("DC-10", "Global Express"))


@pytest.mark.parametrize(
    ("lines", "schema", "first"),
    [
        (["{}.jpg 12"], {"label": INT}, (12,)),
        (["my {}.jpg 12"], {"label": INT}, (12,)),
        (["{} 7"], {"label": INT}, (7,)),
        (["{} Global Express", "{} DC-10"], {"label": PLANES}, (1,)),
        (["{}.jpg  1 2.5 -3"], {"label": INT, "column2": FLOAT, "column3": INT}, (1, 2.5, -3)),
        (["{}.jpg"], {}, ()),
        (["sub/{}"], {}, ()),
    ],
)  # fmt: skip
def test_lists_with_blanks_between_columns(
    tmp_path: Path, pictures: list[Picture], lines: list[str], schema: Any, first: Any
) -> None:
    for p in pictures:
        path = tmp_path / "in" / (lines[0].split(" ")[0] + ".jpg").format(p.name)
        if lines[0].startswith("my"):
            path = tmp_path / "in" / f"my {p.name}.jpg"
        path = path.with_name(path.name.replace(".jpg.jpg", ".jpg"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(p.data)
    text = "".join(lines[k % len(lines)].format(p.name) + "\n" for k, p in enumerate(pictures))
    (tmp_path / "in/list.txt").write_text(text)
    (tmp_path / "in/000000.txt").write_text("a text beside an image")
    report, data = pack(tmp_path / "in/list.txt", tmp_path / "x.lmdb")
    assert report.num_samples == 6
    assert [blob(data, k) for k in range(6)] == [p.data for p in pictures]
    assert dict(data.schema) == {"image": ImageField(), **schema}
    assert tuple(np.asarray(v).item() for v in data[0][1:]) == first


def test_a_line_unlike_those_before_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{k}.jpg {k}\n" for k in range(300)) + "b c\n")
    with pytest.raises(SourceError, match="the line 'b c' is not like those before it"):
        reads(tmp_path / "a.txt")


def test_the_folder_may_be_the_label(tmp_path: Path, pictures: list[Picture]) -> None:
    names = ("apple_pie", "sushi")
    for k, p in enumerate(pictures):
        path = tmp_path / "images" / names[k % 2] / f"{p.name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(p.data)
    lines = [f"{names[k % 2]}/{p.name}" for k, p in enumerate(pictures)][1:]
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/train.txt").write_text("\n".join(lines))
    _, data = pack(
        tmp_path / "meta/train.txt", tmp_path / "x.lmdb", images="../images", label="folder"
    )
    assert data.schema["label"] == ScalarField(classes=names)
    assert [sample.label for sample in data] == [1, 0, 1, 0, 1]
    assert [blob(data, k) for k in range(5)] == [p.data for p in pictures[1:]]
    # The other split has the same numbers, and a label needs no second one.
    (tmp_path / "meta/test.txt").write_text("sushi/000001\n")
    options = {"images": "../images", "label": "folder"}
    _, test = pack(tmp_path / "meta/test.txt", tmp_path / "y.lmdb", **options)
    assert test.schema["label"] == ScalarField(classes=names)
    assert [sample.label for sample in test] == [1]
    (tmp_path / "meta/a.csv").write_text("path,label\nsushi/000001,x\n")
    with pytest.raises(OptionError, match="has a label, or classes="):
        pack(tmp_path / "meta/a.csv", tmp_path / "z.lmdb", **options)


# -- several labels ----------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["|", ";", " "])
def test_several_labels_in_a_cell(tmp_path: Path, pictures: list[Picture], sign: str) -> None:
    write_images(tmp_path, pictures)
    tags = [["haze", "primary"], ["clear"], [], ["road", "clear", "primary"], ["haze"], ["road"]]
    rows = [(f"{p.name}.jpg", sign.join(t)) for p, t in zip(pictures, tags, strict=True)]
    path = write_rows(tmp_path / "a.csv", [("image_name", "tags"), *rows])
    options = {"columns": ("image=image_name", "labels=tags")}
    _, data = pack(path, tmp_path / "x.lmdb", **options)
    names = data.schema["labels"].classes
    assert names == ("clear", "haze", "primary", "road")
    assert [[names[k] for k in sample.labels] for sample in data] == tags
    (tmp_path / "names.txt").write_text("road\nprimary\nhaze\nclear\n")
    _, data = pack(path, tmp_path / "y.lmdb", **options, classes=str(tmp_path / "names.txt"))
    assert data[3].labels.tolist() == [0, 3, 1]


@pytest.mark.parametrize("several", [False, True])
def test_numbers_beyond_the_named_classes_are_rejected(
    tmp_path: Path, pictures: list[Picture], several: bool
) -> None:
    write_images(tmp_path, pictures)
    rows = [(f"{p.name}.jpg", f"[{k}]" if several else k) for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "a.csv", [("path", "label"), *rows])
    (tmp_path / "names.txt").write_text("a\nb\nc\nd\ne\n")
    options: dict[str, Any] = {"classes": str(tmp_path / "names.txt")}
    report, data = pack(path, tmp_path / "x.lmdb", **options)
    assert np.concatenate([np.atleast_1d(s.label) for s in data]).tolist() == [0, 1, 2, 3, 4]
    assert "'label' is 5, and there are 5 classes: 0 to 4" in report.rejects[0].reason
    boxed = [("path", "x1", "y1", "x2", "y2", "label")] + [
        (row[0], 1, 2, 3, 4, k) for k, row in enumerate(rows)
    ]
    path = write_rows(tmp_path / "b.csv", boxed)
    report, data = pack(path, tmp_path / "y.lmdb", **options)
    assert [s.labels.tolist() for s in data] == [[0], [1], [2], [3], [4]]
    assert "'labels' is 5, and there are 5 classes: 0 to 4" in report.rejects[0].reason


def test_numbers_may_be_labels_of_a_cell(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows = [(f"{p.name}.jpg", f"{k}|{k + 10}") for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "a.csv", [("Id", "Target"), *rows])
    columns = ("image=Id", "labels=Target")
    _, data = pack(path, tmp_path / "x.lmdb", columns=columns)
    assert data.schema["labels"] == ArrayField("int64", (None,))
    assert [s.labels.tolist() for s in data] == [[k, k + 10] for k in range(6)]


# -- JSON --------------------------------------------------------------------------------


def test_json_lines_keep_their_types(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows: list[dict[str, Any]] = [
        {"image": f"{p.name}.jpg", "code": "007", "score": 0.5 * k, "ok": k % 2 == 0,
         "labels": ["a", "b"][: k % 3], "text": f"été {k}", "point": [k, 1.5]}
        for k, p in enumerate(pictures)
    ]  # fmt: skip
    rows[4]["late"] = 3
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n\n" for r in rows), "utf-8-sig")
    _, data = pack(tmp_path / "a.jsonl", tmp_path / "x.lmdb")
    assert len(data) == 1, "rows that lack a number are rejected"
    rows[4].pop("late")
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    _, data = pack(tmp_path / "a.jsonl", tmp_path / "y.lmdb")
    names = data.schema["labels"].classes
    for sample, row in zip(data, rows, strict=True):
        assert (sample.code, sample.score, sample.ok, sample.text) == (
            row["code"], row["score"], row["ok"], row["text"],
        )  # fmt: skip
        assert [names[k] for k in sample.labels] == row["labels"]
        assert json.loads(sample.point) == row["point"]
    _, data = pack(tmp_path / "a.jsonl", tmp_path / "z.lmdb", fields={"point": "array"})
    assert [sample.point.tolist() for sample in data] == [row["point"] for row in rows]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"image": "0.jpg"}\n{"image": ', "line 2: not JSON"),
        ("a.jsonl", '{"image": "0.jpg"}\n[1]\n', "line 2: expected an object"),
        ("a.json", '[{"image": "0.jpg"}, 3]', "byte 21: expected an object"),
        ("a.json", '[{"image": "0.jpg"}', "no sound JSON"),
        ("a.json", "[]", "the manifest is empty"),
    ],
)
def test_json_that_cannot_be_read_says_where(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=message):
        reads(tmp_path / name)


# -- boxes -------------------------------------------------------------------------------


def grouped(path: Path) -> dict[str, list[list[str]]]:
    """Return the rows of a CSV by its first column, in the order in which these come."""
    found = defaultdict(list)
    with open(path, newline="") as file:
        reader = csv.reader(file)
        next(reader)
        for row in reader:
            found[row[0]].append(row)
    return dict(found)


def test_rows_of_boxes_are_put_together_by_image(tmp_path: Path, pictures: list[Picture]) -> None:
    path = box_rows(tmp_path / "train", pictures) / "_annotations.csv"
    with open(path, "a") as file:
        file.write("000002.jpg,48,40,dog,1,2,3,4\n")  # comes again, later
    _, data = pack(tmp_path / "train", tmp_path / "x.lmdb")
    rows = grouped(path)
    names = ("ant", "bee", "cat", "dog")
    assert dict(data.schema) == {
        "image": ImageField(), "boxes": BOXES, "labels": ArrayField("int64", (None,), classes=names)
    }  # fmt: skip
    assert list(data.keys) == list(rows)
    assert len(rows["000002.jpg"]) == 3
    for sample, group in zip(data, rows.values(), strict=True):
        group = [row for row in group if row[3]]
        assert sample.boxes.tolist() == [[float(v) for v in row[4:]] for row in group]
        assert [names[k] for k in sample.labels] == [row[3] for row in group]
    assert len(data[0].boxes) == 0
    one = reads(path, boxes="none")
    assert one.num_samples == 13
    assert "xmin" in one.schema


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("one", [False, True])
def test_forms_of_boxes(
    tmp_path: Path, pictures: list[Picture], form: str, normalised: bool, one: bool
) -> None:
    write_images(tmp_path, pictures)
    random = np.random.default_rng(4)
    left, top = random.integers(0, 20, (2, 6))
    width, height = random.integers(2, 20, (2, 6))
    wanted = np.stack([left, top, left + width, top + height], 1)
    numbers = {
        "xyxy": wanted,
        "xywh": np.stack([left, top, width, height], 1),
        "cxcywh": np.stack([left + width / 2, top + height / 2, width, height], 1),
    }[form] / ([48, 40, 48, 40] if normalised else 1)
    title = {"xyxy": "left,top,right,bottom", "xywh": "x,y,w,h", "cxcywh": "cx,cy,w,h"}[form]
    rows: list[Any] = [
        (f"{p.name}.jpg", str(box.tolist())) if one else (f"{p.name}.jpg", *box.tolist())
        for p, box in zip(pictures, numbers, strict=True)
    ]
    head = ("image_id", "bbox") if one else ("image_id", *title.split(","))
    path = write_rows(tmp_path / "a.csv", [head, *rows])
    _, data = pack(path, tmp_path / "x.lmdb", boxes=(form,))
    found = np.concatenate([sample.boxes for sample in data])
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    if one or form == "xywh":
        way = r"fastdata pack \S+/a.csv a.lmdb --option boxes=xywh,pixels"
        with pytest.raises(SourceError, match=rf"(?s)may be boxes: .*:\n  {way}.*boxes=none"):
            reads(path)
        find_source(path, fields={name: "string" for name in head[1:]})
    assert "boxes" not in reads(path, boxes="none").schema


def test_open_images_boxes_are_normalised(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path / "train", pictures)
    head = ("ImageID", "Source", "LabelName", "Confidence", "XMin", "XMax", "YMin", "YMax")
    rows = [(p.name, "xclick", f"/m/0{p.label}", 1, 0.25, 0.75, 0.1, 0.5) for p in pictures]
    path = write_rows(tmp_path / "train-annotations-bbox.csv", [head, *rows])
    _, data = pack(path, tmp_path / "x.lmdb")
    np.testing.assert_allclose(data[0].boxes, [[12, 4, 36, 20]], rtol=1e-6)
    assert data.schema["labels"].classes == ("/m/00", "/m/01", "/m/02")
    assert any("parts of the image's size" in note for note in find_source(path).notes)


def test_boxes_that_do_not_fit_are_rejected_or_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_images(tmp_path, pictures)
    head = ("path", "label", "xmin", "ymin", "xmax", "ymax", "width", "height")
    boxes: list[Any] = [
        (1, 2, 9, 8, 48, 40), (9, 2, 1, 8, 48, 40), (50, 2, 59, 8, 48, 40), (1, 2, "x", 8, 48, 40),
        (1, 2, 9, 8, 48, 41), (1, "", 9, 8, 48, 40),
    ]  # fmt: skip
    rows = [(f"{p.name}.jpg", "a", *box) for p, box in zip(pictures, boxes, strict=True)]
    path = write_rows(tmp_path / "a.csv", [head, *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert len(data) == 1
    reasons = [reject.reason for reject in report.rejects]
    for reason, wanted in zip(
        reasons,
        [
            "inside out",
            "outside of the picture",
            "its box is 1,2,x",
            "48 x 41",
            "its box is 1,,9,8",
        ],
        strict=True,
    ):
        assert wanted in reason
    assert len(pack(path, tmp_path / "y.lmdb", check_size=False)[1]) == 2
    small = [head[:6], ("000000.jpg", "a", 0, 0, 1, 1)]
    path = write_rows(tmp_path / "b.csv", small)
    with pytest.raises(SourceError, match=r"no number of a box is larger than 1.*boxes=pixels"):
        reads(path)
    assert reads(path, boxes="pixels").num_samples == 1
    with pytest.raises(OptionError, match="boxes=xyxy,metres: expected none, one of"):
        reads(path, boxes="xyxy,metres")
    with pytest.raises(FastdataError, match="fields= cannot change"):
        find_source(path, fields={"label": "string"})


def test_boxes_without_classes_or_with_numbers(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    head = ("path", "x1", "y1", "x2", "y2", "label")
    rows = [(f"{p.name}.jpg", 1, 2, 3, 4, p.label + 5) for p in pictures]
    with_labels = write_rows(tmp_path / "a.csv", [head, *rows])
    _, data = pack(with_labels, tmp_path / "x.lmdb")
    assert [s.labels.tolist() for s in data] == [[p.label + 5] for p in pictures]
    without = write_rows(tmp_path / "b.csv", [row[:5] for row in [head, *rows]])
    assert list(reads(without).schema) == ["image", "boxes"]


def test_a_changed_box_or_class_is_noticed(tmp_path: Path, pictures: list[Picture]) -> None:
    path = box_rows(tmp_path, pictures) / "_annotations.csv"
    before = reads(path).fingerprints()
    text = path.read_text()
    path.write_text(text.replace("000002.jpg,48,40,cat,2,", "000002.jpg,48,40,cat,1,"))
    assert (reads(path).fingerprints() != before).tolist() == [False, False, True, *[False] * 3]
    path.write_text(text.replace("ant", "X").replace("cat", "ant").replace("X", "cat"))
    assert (reads(path).fingerprints() != before).sum() > 2


@pytest.mark.parametrize("title", ["Unnamed: 0", "", "__index_level_0__"])
def test_row_numbers_of_pandas_are_left_out_and_blanks_are_no_part_of_labels(
    tmp_path: Path, pictures: list[Picture], title: str
) -> None:
    write_images(tmp_path, pictures)
    labels = ["cat", " cat", "dog", "dog ", "eel", " eel "]
    rows = [(k, p.name, label) for k, (p, label) in enumerate(zip(pictures, labels, strict=True))]
    path = write_rows(tmp_path / "train.csv", [(title, "path", " label"), *rows], ",")
    report, data = pack(path, tmp_path / "a.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=("cat", "dog", "eel")),
    }
    assert [sample.label for sample in data] == [0, 0, 1, 1, 2, 2]
    assert "a column of row numbers, as pandas writes it, is left out" in report.notes
