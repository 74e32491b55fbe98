"""Lists find their images in several folders, in split folders and around the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from case_manifest import write_images, write_rows
from cases import Picture, make_pictures
from click.testing import CliRunner

import fastdata
from fastdata.cli import main
from fastdata.errors import SourceError


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12, 16, 16)


def pack(location: Path, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


def blobs(data: Any) -> list[bytes]:
    (shard,) = data.shards
    return [bytes(shard.blob("image", index)) for index in range(len(data))]


def test_a_kaggle_root_is_packed_by_its_list(tmp_path: Path, pictures: list[Picture]) -> None:
    root = tmp_path / "in"
    write_images(root / "train_images", pictures[:8])
    write_images(root / "test_images", pictures[8:])
    rows = [(p.name, "ab"[k % 2]) for k, p in enumerate(pictures[:8])]
    write_rows(root / "train.csv", [("image_id", "label"), *rows])
    write_rows(
        root / "sample_submission.csv",
        [("image_id", "label"), *((p.name, "a") for p in pictures[8:])],
    )
    write_rows(root / "test.csv", [("image_id",), *((p.name,) for p in pictures[8:])])
    report, data = pack(root, tmp_path / "x.lmdb")
    assert blobs(data) == [p.data for p in pictures[:8]]
    assert [data.classes[s.label] for s in data] == ["a", "b"] * 4
    notes = " ".join(report.notes)
    assert "files not used: sample_submission.csv, test.csv" in notes
    assert "4 image files that it does not name left out, in test_images" in notes
    result = CliRunner().invoke(
        main, ["pack", str(root), str(tmp_path / "y.lmdb"), "--workers", "0"]
    )
    assert result.exit_code == 0, result.output
    assert len(fastdata.open(tmp_path / "y.lmdb")) == 8


@pytest.mark.parametrize("name", ["labels.csv", "labels.txt"])
def test_a_list_of_ids_beside_its_images_is_read(
    tmp_path: Path, pictures: list[Picture], name: str
) -> None:
    root = tmp_path / "in"
    write_images(root, pictures)
    rows = [(p.name.removesuffix(".jpg"), "ab"[k % 2]) for k, p in enumerate(pictures)]
    (root / name).write_text("".join(f"{a}{',' if '.csv' in name else ' '}{b}\n" for a, b in rows))
    _, data = pack(root, tmp_path / "x.lmdb")
    assert [data.classes[sample.label] for sample in data] == ["a", "b"] * 6


def test_a_list_of_few_ids_beside_images_is_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_images(tmp_path / "in", pictures)
    ids = [p.name.removesuffix(".jpg") for p in pictures[:3]]
    rows = [(name, "a") for name in (*ids, *(f"x{k}" for k in range(8)))]
    write_rows(tmp_path / "in" / "labels.csv", [("id", "label"), *rows])
    with pytest.raises(SourceError, match=r"labels.csv .* the images may describe them"):
        pack(tmp_path / "in", tmp_path / "x.lmdb")


def test_a_kaggle_root_with_labels_beside_its_list_is_refused(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = tmp_path / "in"
    write_images(root / "images", pictures)
    rows = [(p.name, p.label) for p in pictures]
    write_rows(root / "train.csv", [("image_id", "label"), *rows])
    (root / "boxes.json").write_text(json.dumps({"annotations": [1, 2]}))
    with pytest.raises(SourceError, match=r"not packed as|may say|boxes.json"):
        pack(root, tmp_path / "x.lmdb")


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("at", ["", "list.csv"])
def test_images_in_several_folders(
    tmp_path: Path, pictures: list[Picture], deep: bool, at: str
) -> None:
    root = tmp_path / "in"
    for k, p in enumerate(pictures):
        write_images(root / (f"images_{k % 3:03}/images" if deep else f"part_{k % 3}"), [p])
    rows = [(p.name + ".jpg" * deep, p.label) for p in pictures]
    write_rows(root / "list.csv", [("image_id", "label"), *rows])
    report, data = pack(root / at, tmp_path / "x.lmdb")
    assert not report.rejects
    assert blobs(data) == [p.data for p in pictures]
    assert any("images are " in note for note in report.notes)
    write_images(root / ("images_001/images" if deep else "part_1"), pictures[:1])
    with pytest.raises(SourceError, match=r"'000000.* may be .* or |may describe the images"):
        pack(root / at, tmp_path / "y.lmdb")
    with pytest.raises(SourceError, match=r"'000000.* may be .* or .*Say in which folder"):
        pack(root / "list.csv", tmp_path / "y.lmdb")


def test_names_with_folders_that_are_not_there(tmp_path: Path, pictures: list[Picture]) -> None:
    root = tmp_path / "in"
    for k, p in enumerate(pictures):
        write_images(root / "ab"[k % 2], [p])
    rows = [(f"data/train/{'ab'[k % 2]}/{p.name}.jpg", 1) for k, p in enumerate(pictures)]
    path = write_rows(root / "list.csv", [("path", "label"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert blobs(data) == [p.data for p in pictures]
    assert any("without 2 folders" in note for note in report.notes)
    rows = [(f"{'cd'[k % 2]}/{p.name}.jpg", 1) for k, p in enumerate(pictures)]
    write_images(root, pictures)
    write_rows(root / "list.csv", [("path", "label"), *rows])
    with pytest.raises(SourceError, match="the folders c/, d/ of the list do not exist"):
        pack(path, tmp_path / "y.lmdb")


def test_files_missing_in_the_first_rows(tmp_path: Path, pictures: list[Picture]) -> None:
    root = tmp_path / "in"
    write_images(root / "images", pictures)
    rows = [*((f"gone_{k}", 0) for k in range(500)), *((p.name, 1) for p in pictures)]
    path = write_rows(root / "list.csv", [("image_id", "label"), *rows])
    report, data = pack(path, tmp_path / "x.lmdb")
    assert (len(data), len(report.rejects)) == (12, 500)


def test_a_list_of_other_images_is_not_that_of_a_folder(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = tmp_path / "in"
    for k, p in enumerate(pictures):
        write_images(root / "ab"[k % 2], [p])
    rows = [(f"a/{p.name}.jpg", 1) for p in pictures[::2]]
    for some in ([*rows, *((f"a/gone_{k}.jpg", 0) for k in range(20))], rows[:1]):
        write_rows(root / "labels.csv", [("path", "label"), *some])
        with pytest.raises(SourceError, match=r"labels.csv may describe the images"):
            pack(root, tmp_path / "x.lmdb")
    write_rows(root / "labels.csv", [("path", "label"), *rows])
    report, data = pack(root, tmp_path / "x.lmdb")
    assert len(data) == 6
    assert any("6 image files that it does not name left out, in b" in n for n in report.notes)


# -- split folders -----------------------------------------------------------------------


def test_one_table_in_each_split_folder(tmp_path: Path, pictures: list[Picture]) -> None:
    """As Roboflow has classes: a column each, with blanks in the header."""
    root = tmp_path / "in"
    parts = {"train": pictures[:6], "valid": pictures[6:9], "test": pictures[9:]}
    wanted = []
    for split, part in parts.items():
        write_images(root / split, part)
        flags = [(k % 2, (k + 1) % 2, int(k == 0)) for k in range(len(part))]
        lines = [f"{p.name}.jpg, {a}, {b}, {c}" for p, (a, b, c) in zip(part, flags, strict=True)]
        text = "\n".join(["filename, zebra, ant, none of it", *lines])
        (root / split / "_classes.csv").write_text(text)
        wanted += [[k for k in range(3) if row[k]] for row in flags]
    _, data = pack(root, tmp_path / "x.lmdb")
    assert data.schema["labels"].classes == ("zebra", "ant", "none of it")
    assert data.schema["split"].classes == ("train", "valid", "test")
    assert [s.labels.tolist() for s in data] == wanted
    assert [s.split for s in data] == [0] * 6 + [1] * 3 + [2] * 3
    assert blobs(data) == [p.data for p in pictures]
    _, one = pack(root, tmp_path / "y.lmdb", split="valid")
    assert [s.labels.tolist() for s in one] == wanted[6:9]
    assert one.schema["labels"] == data.schema["labels"]
    (root / "test/_classes.csv").write_text("filename, zebra\n000009.jpg, 1\n")
    with pytest.raises(SourceError, match=r"test/_classes.csv: its columns are filename, zebra; "):
        pack(root, tmp_path / "z.lmdb")


@pytest.mark.parametrize("splits", [("train", "valid"), ("",)])
def test_boxes_of_create_ml(
    tmp_path: Path, pictures: list[Picture], splits: tuple[str, ...]
) -> None:
    root = tmp_path / "in"
    for number, split in enumerate(splits):
        part = pictures[3 * number : 3 * number + 3]
        write_images(root / split, part)
        rows: list[dict[str, Any]] = [
            {"image": f"{p.name}.jpg", "annotations": [
                {"label": "cat" if number else "dog",
                 "coordinates": {"x": 8, "y": 7.5, "width": 4, "height": 5}}] * k}
            for k, p in enumerate(part)
        ]  # fmt: skip
        (root / split / "_annotations.createml.json").write_text(json.dumps(rows))
    _, data = pack(root, tmp_path / "x.lmdb")
    assert [s.boxes.tolist() for s in data][:3] == [[[6, 5, 10, 10]] * k for k in range(3)]
    assert data[1].labels.tolist() == [len(splits) - 1]
    assert data.schema["labels"].classes == (("cat", "dog") if len(splits) > 1 else ("dog",))
    if len(splits) > 1:
        assert [s.split for s in data] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("wrong", [{"label": "x"}, {"label": "x", "coordinates": 3}, "x"])
def test_objects_that_are_not_of_create_ml_are_refused(
    tmp_path: Path, pictures: list[Picture], wrong: Any
) -> None:
    write_images(tmp_path, pictures[:1])
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"image": f"{pictures[0].name}.jpg", "annotations": [wrong]}]))
    with pytest.raises(SourceError, match=r"a.json, row 1: expected objects with a label"):
        pack(path, tmp_path / "x.lmdb")


# -- text lists --------------------------------------------------------------------------


SOP = "image_id class_id super_class_id path\n"
LISTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ids, a header": (
        "".join([SOP, *(f"{k} {k + 5} 1 x/{{}}.JPG\n" for k in range(4))]), "x/{}.JPG",
        {"image_id": [0, 1, 2, 3], "label": [5, 6, 7, 8], "super_class_id": [1] * 4},
    ),
    "ids, no header": (
        "".join(f"{k} x/{{}}.jpg\n" for k in range(4)), "x/{}.jpg", {"number0": [0, 1, 2, 3]},
    ),
    "ids and numbers": (
        "".join(f"{k} x/{{}}.jpg {k} 2\n" for k in range(4)), "x/{}.jpg",
        {"number0": [0, 1, 2, 3], "label": [0, 1, 2, 3], "column2": [2] * 4},
    ),
    "a count and a header": (
        "4\nimage_name item_id evaluation_status\n"
        + "".join(f"img/{{}}.jpg    id_{k}   train\n" for k in range(4)), "img/{}.jpg",
        {"item_id": [f"id_{k}" for k in range(4)], "evaluation_status": ["train"] * 4},
    ),
    "comments": (
        "#Image CLASS-ID SPECIES BREED\n#ID: 1:37 ids\n"
        + "".join(f"{{}} {k} 1 {k + 2}\n" for k in range(4)), "images/{}.jpg",
        {"label": [0, 1, 2, 3], "SPECIES": [1] * 4, "BREED": [2, 3, 4, 5]},
    ),
    "numbers behind an id": (
        "".join(f"{{}} {k} 0.5\n" for k in range(4)), "images/{}.jpg",
        {"label": [0, 1, 2, 3], "column2": [0.5] * 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_text_lists(tmp_path: Path, pictures: list[Picture], name: str) -> None:
    text, place, wanted = LISTS[name]
    for p in pictures[:4]:
        path = tmp_path / "in" / place.format(p.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(p.data)
    (tmp_path / "in/list.txt").write_text(text.format(*(p.name for p in pictures[:4])))
    _, data = pack(tmp_path / "in/list.txt", tmp_path / "x.lmdb")
    assert blobs(data) == [p.data for p in pictures[:4]]
    assert list(data.schema) == ["image", *wanted]
    for field, values in wanted.items():
        classes = getattr(data.schema[field], "classes", None)
        found = [getattr(sample, field) for sample in data]
        assert (found if classes is None else [classes[k] for k in found]) == values


def test_a_list_in_a_folder_beside_that_of_the_images(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    """As Oxford Pets and In-Shop have it."""
    for k, (folder, line) in enumerate({"images": "{} 1 2", "Img/img": "img/{}.jpg 1 2"}.items()):
        root = tmp_path / str(k)
        write_images(root / folder, pictures)
        (root / "lists").mkdir()
        text = "".join(line.format(p.name) + "\n" for p in pictures)
        (root / "lists/list.txt").write_text(text)
        _, data = pack(root / "lists/list.txt", tmp_path / f"{k}.lmdb")
        assert blobs(data) == [p.data for p in pictures]
