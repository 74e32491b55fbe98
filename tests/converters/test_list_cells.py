"""What cells of lists mean: encodings, blanks, several labels, quadrilaterals, names of files."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_manifest import write_images, write_rows
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6, 16, 16)


def pack(location: Path, path: Path, fields: Any = None, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options, fields=fields,
    )  # fmt: skip
    return report, fastdata.open(path)


def labels_of(data: Any, field: str = "label") -> list[Any]:
    classes = data.schema[field].classes
    values = [getattr(sample, field) for sample in data]
    return [
        [classes[k] for k in value] if np.ndim(value) else classes[int(value)] for value in values
    ]


# -- text --------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("suffix", [".csv", ".txt"])
def test_encodings_of_lists(
    tmp_path: Path, pictures: list[Picture], encoding: str, suffix: str
) -> None:
    write_images(tmp_path, pictures)
    sign = "," if suffix == ".csv" else " "
    lines = [f"{p.name}.jpg{sign}{('Größe', 'été')[k % 2]}" for k, p in enumerate(pictures)]
    start = "\ufeff" if encoding == "utf-16-le" else ""
    path = tmp_path / f"list{suffix}"
    path.write_bytes((start + "\n".join(lines)).encode(encoding))
    _, data = pack(path, tmp_path / "x.lmdb")
    assert labels_of(data) == ["Größe", "été"] * 3


def test_json_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes('{"image": "été.jpg"}'.encode("cp1252"))
    with pytest.raises(SourceError, match=r"line 1: 'utf-8' codec can't .*\. Save it as UTF-8"):
        pack(tmp_path / "a.jsonl", tmp_path / "x.lmdb")


def test_blanks_around_cells_are_no_part_of_them(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    ends = [", cat", ",cat", ",cat ", " ,dog", ", dog", ',"dog"']
    rows = [f"{p.name}.jpg{end}" for p, end in zip(pictures, ends, strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["path, label ", *rows]))
    _, data = pack(tmp_path / "a.csv", tmp_path / "x.lmdb")
    assert data.schema["label"] == ScalarField(classes=("cat", "dog"))
    assert labels_of(data)[:3] == ["cat"] * 3


def test_texts_of_word_recognition(tmp_path: Path, pictures: list[Picture]) -> None:
    """As ICDAR has them: a blank before each quote, and backslashes before quotes within."""
    write_images(tmp_path, pictures)
    texts = ["PROPER", "a, b", 'say "hi"', " in ", "back", "x"]
    quoted = [text.replace('"', '\\"') for text in texts]
    rows = [f'{p.name}.jpg, "{text}"' for p, text in zip(pictures, quoted, strict=True)]
    (tmp_path / "gt.txt").write_text("\n".join(rows), "utf-8-sig")
    _, data = pack(tmp_path / "gt.txt", tmp_path / "x.lmdb", fields={"label": "string"})
    assert [sample.label for sample in data] == texts


# -- several labels ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "join", ["|".join, ", ".join, "; ".join, str, json.dumps], ids=["bar", "comma", ";", "py", "js"]
)
def test_joined_labels_are_several(tmp_path: Path, pictures: list[Picture], join: Any) -> None:
    write_images(tmp_path, pictures)
    tags = [["a", "b"], ["b"], ["a"], ["c", "a"], ["c"], ["b", "c"]]
    rows = [(f"{p.name}.jpg", join(t)) for p, t in zip(pictures, tags, strict=True)]
    path = write_rows(tmp_path / "a.csv", [("Image Index", "Finding Labels"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert data.schema["label"] == ArrayField("int64", (None,), classes=("a", "b", "c"))
    assert labels_of(data, "label") == tags
    assert any("labels" in note for note in report.notes)
    _, data = pack(path, tmp_path / "y.lmdb", {"label": "label"})
    assert len(data.schema["label"].classes) == 6


def test_one_name_with_commas_is_one_label(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    names = ["tench, Tinca tinca", "goldfish, Carassius auratus", "hen"]
    rows = [(f"{p.name}.jpg", names[k % 3]) for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "a.csv", [("path", "label"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert labels_of(data) == names * 2
    assert any("one label each; write | between" in note for note in report.notes)


def test_labels_with_blanks_between_them_are_said(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    for names, said in (
        (["a b", "b", "a", "c a", "c", "b c"], True),
        (["sea ice", "snow"] * 3, False),
    ):
        rows = [(f"{p.name}.jpg", name) for p, name in zip(pictures, names, strict=True)]
        path = write_rows(tmp_path / "a.csv", [("path", "label"), *rows])
        report, data = pack(path, tmp_path / f"{said}.lmdb")
        assert labels_of(data) == names
        assert any("one label each; write | between" in note for note in report.notes) is said


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_text_that_is_no_unicode_is_refused(
    tmp_path: Path, pictures: list[Picture], suffix: str
) -> None:
    write_images(tmp_path, pictures)
    rows = [{"path": f"{p.name}.jpg", "label": "a\ud800"} for p in pictures]
    path = tmp_path / f"a{suffix}"
    path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError, match=r"'\\ud800' is half of a surrogate pair, not text"):
        pack(path, tmp_path / "x.lmdb")


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_labels_that_are_objects_are_refused(
    tmp_path: Path, pictures: list[Picture], suffix: str
) -> None:
    write_images(tmp_path, pictures)
    objects = [{"id": "0", "kind": "car", "box": {"x1": 1, "y1": 2, "x2": 3, "y2": 4}}]
    rows = [{"name": f"{p.name}.jpg", "labels": objects} for p in pictures]
    path = tmp_path / f"a{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        write_rows(path, [("path", "label"), *((r["name"], str(objects)) for r in rows)])
    with pytest.raises(SourceError, match=r"lists of objects, not labels.*columns=image"):
        pack(path, tmp_path / "x.lmdb")


def test_one_hot_columns_are_a_label(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path / "images", pictures)
    rows = [(p.name, *np.eye(3)[k % 3]) for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "truth.csv", [("image", "MEL", "NV", "BCC"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert labels_of(data) == ["MEL", "NV", "BCC"] * 2
    assert any("MEL, NV, BCC are the classes" in note for note in report.notes)
    _, data = pack(path, tmp_path / "y.lmdb", columns=("image", "MEL", "NV"))
    assert [sample.MEL for sample in data] == [1, 0, 0] * 2
    write_rows(
        path, [("image", "MEL", "NV"), *((p.name, 1, int(k == 5)) for k, p in enumerate(pictures))]
    )
    _, data = pack(path, tmp_path / "z.lmdb")
    assert list(data.schema) == ["image", "MEL", "NV"]


def test_the_second_of_two_columns_has_classes(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows = [(f"{p.name}.jpg", ("pug", "beagle")[k % 2]) for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "a.csv", [("Image", "Id"), *rows])
    _, data = pack(path, tmp_path / "x.lmdb")
    assert labels_of(data) == ["pug", "beagle"] * 3
    captions = [(f"{p.name}.jpg", f"picture {p.name}") for p in pictures]
    path = write_rows(tmp_path / "b.csv", [("id", "caption"), *captions])
    assert pack(path, tmp_path / "y.lmdb")[1].schema["caption"] == StringField()


def test_folders_as_labels_are_paths(tmp_path: Path, pictures: list[Picture]) -> None:
    """As SUN397 has them: outdoor in several places."""
    names = ["a/airport", "b/balcony/exterior", "b/building/exterior", "b/balcony/interior"]
    rows = []
    for k, p in enumerate(pictures):
        write_images(tmp_path / "pictures" / names[k % 4], [p])
        rows.append((f"pictures/{names[k % 4]}/{p.name}.jpg",))
    path = write_rows(tmp_path / "a.csv", [("path",), *rows])
    _, data = pack(path, tmp_path / "x.lmdb", label="folder")
    assert data.schema["label"].classes == tuple(sorted(names))
    assert labels_of(data) == [names[k % 4] for k in range(6)]


def test_splits_have_the_classes_of_all_rows(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows = [
        (f"{p.name}.jpg", "abc"[k % 3], "train" if k % 3 else "val") for k, p in enumerate(pictures)
    ]
    path = write_rows(tmp_path / "a.csv", [("path", "label", "split"), *rows])
    _, train = pack(path, tmp_path / "x.lmdb", split="train")
    _, val = pack(path, tmp_path / "y.lmdb", split="val")
    assert train.schema == val.schema
    assert labels_of(train) == ["b", "c"] * 2
    boxes = [
        ("path", "label", "split", "x1", "y1", "x2", "y2"),
        *((*row, 1, 2, 5, 6) for row in rows),
    ]
    path = write_rows(tmp_path / "b.csv", boxes)
    _, train = pack(path, tmp_path / "xb.lmdb", split="train")
    assert train.schema["labels"].classes == ("a", "b", "c")
    _, every = pack(path, tmp_path / "yb.lmdb")
    assert [every.schema["split"].classes[s.split] for s in every] == [row[2] for row in rows]


# -- other columns -----------------------------------------------------------------------


@pytest.mark.parametrize("title", ["", "Unnamed: 0"])
def test_the_index_of_pandas_is_left_out(
    tmp_path: Path, pictures: list[Picture], title: str
) -> None:
    write_images(tmp_path, pictures)
    rows = [(k, f"{p.name}.jpg", "ab"[k % 2]) for k, p in enumerate(pictures)]
    path = write_rows(tmp_path / "a.csv", [(title, "path", "label"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert list(data.schema) == ["image", "label"]
    assert any("as pandas writes it, is left out" in note for note in report.notes)


def test_several_rows_of_an_image_are_said(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    rows = [(f"{pictures[k % 3].name}.jpg", f"caption {k}") for k in range(6)]
    path = write_rows(tmp_path / "a.csv", [("image", "caption"), *rows])
    report, _ = pack(path, tmp_path / "x.lmdb")
    assert any(note.startswith("6 rows name 3 images") for note in report.notes)


@pytest.mark.parametrize("start", [0, 1])
def test_the_box_of_a_quadrilateral_is_its_hull(
    tmp_path: Path, pictures: list[Picture], start: int
) -> None:
    write_images(tmp_path, pictures)
    head = ("path", *(f"{a}{k + start}" for k in range(4) for a in "xy"), "label")
    rows = [(f"{p.name}.jpg", 5, 1, 9, 6, 4, 11, 2, 4, "text") for p in pictures]
    path = write_rows(tmp_path / "a.csv", [head, *rows])
    for options in ({}, {"boxes": ("xyxy", "pixels")}):
        report, data = pack(path, tmp_path / f"{len(options)}.lmdb", **options)
        assert data[0].boxes.tolist() == [[2, 1, 9, 11]]
    assert any("hulls of quadrilaterals" in note for note in report.notes)


# -- names of files ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["csv", "jsonl", "metadata.csv", "metadata.jsonl"])
def test_names_as_another_system_has_them(
    tmp_path: Path, pictures: list[Picture], kind: str
) -> None:
    root = tmp_path / "in"
    (root / "images").mkdir(parents=True)
    names = ["images\\0.jpg", unicodedata.normalize("NFC", "images\\Zoë.jpg"), "images/2.jpg"]
    stored = ["0.jpg", unicodedata.normalize("NFD", "Zoë.jpg"), "2.jpg"]
    for name, p in zip(stored, pictures, strict=False):
        (root / "images" / name).write_bytes(p.data)
    column = "file_name" if kind.startswith("metadata") else "image"
    path = root / (kind if "." in kind else f"list.{kind}")
    if kind.endswith("csv"):
        write_rows(path, [(column, "label"), *((name, 1) for name in names)])
    else:
        rows = [{column: name, "label": 1} for name in names]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report, data = pack(root if kind.startswith("metadata") else path, tmp_path / "x.lmdb")
    assert not report.rejects
    (shard,) = data.shards
    assert [bytes(shard.blob("image", k)) for k in range(3)] == [p.data for p in pictures[:3]]


def test_a_mark_or_a_backslash_is_no_part_of_a_name(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_images(tmp_path, pictures)
    rows = [f"{p.name}.jpg,{k}\n" for k, p in enumerate(pictures)]
    # Two files one behind the other, each with a byte-order mark.
    text = "\ufeffpath,label\n" + "".join(rows[:3]) + "\ufeff" + "".join(rows[3:])
    (tmp_path / "a.csv").write_text(text)
    report, data = pack(tmp_path / "a.csv", tmp_path / "x.lmdb")
    assert (len(data), report.rejects) == (6, [])
    (tmp_path / "names.txt").write_text("cat\ndog\nant\nbee\ncow\nhen", "utf-8-sig")
    _, data = pack(tmp_path / "a.csv", tmp_path / "y.lmdb", classes=str(tmp_path / "names.txt"))
    assert data.classes[0] == "cat"


def test_fields_of_the_first_row_are_images(tmp_path: Path, pictures: list[Picture]) -> None:
    write_images(tmp_path, pictures)
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{p.name}.jpg, a, b\n" for p in pictures))
    assert dict(pack(path, tmp_path / "x.lmdb")[1].schema) == {
        "image": ImageField(), "label": ScalarField(classes=("a",)), "column2": StringField(),
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["csv", "txt"])
def test_lists_of_two_splits_have_the_same_classes(tmp_path: Path, suffix: str) -> None:
    images = make_pictures(7)
    write_images(tmp_path, images)
    texts = {"train": ["1", "2", "3", "other"], "val": ["3", "1", "2"]}
    start = 0
    for split, labels in texts.items():
        names = [picture.name for picture in images[start:]]
        rows = "".join(f"{n}.jpg,{t}\n" for n, t in zip(names, labels, strict=False))
        (tmp_path / f"{split}.{suffix}").write_text(f"path,label\n{rows}")
        start += len(labels)
    for split, labels in texts.items():
        source = find_source(tmp_path / f"{split}.{suffix}")
        assert source.schema["label"] == ScalarField(classes=("1", "2", "3", "other"))
        names = [source.schema.classes[sample.values[1]] for sample in source]
        assert names == labels
