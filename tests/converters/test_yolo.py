"""What is special to YOLO: lines of numbers, where they are, and what describes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from case_yolo import bare, darknet, roboflow, write_yolo
from cases import CLASSES, Picture, make_pictures
from pack_helpers import with_orientation
from samples import photo

import fastdata
from fastdata.converters.finding import find_source, format_of
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

pytest.importorskip("yaml")


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)  # 40 x 48


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**chosen, **options})


def one(folder: Path, line: str, yaml: str = "names: [ant, bee]", **options: Any) -> Any:
    """Pack one picture with these lines, and return the sample, or the reason of its reject."""
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    (folder / "data.yaml").write_text(f"train: images\n{yaml}\n")
    for name in "ab":
        (folder / f"images/{name}.jpg").write_bytes(make_pictures(1)[0].data)
    (folder / "labels/a.txt").write_text(line)
    report = pack(folder, folder / "x.lmdb", source_options=options)
    if report.num_rejected:
        return report.rejects[0].reason
    return fastdata.open(folder / "x.lmdb")[0]


def test_boxes_classes_and_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    write_yolo(tmp_path, pictures)
    (tmp_path / "labels/train/000000.txt").write_text(
        "2 0.5 0.5 1 1\n\n0 0.25 0.5 0.5 0.25\r\n1 .125 1e-1 0.25 0.1"
    )
    (tmp_path / "labels/train/000001.txt").write_text("")
    (tmp_path / "labels/val/000002.txt").unlink()
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    assert any("1 of 4 images have no label file" in note for note in report.notes)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=CLASSES),
        "split": ScalarField(classes=("train", "val")),
    }
    np.testing.assert_allclose(
        data[0].boxes, [[0, 0, 48, 40], [0, 15, 24, 25], [0, 2, 12, 6]], atol=1e-5
    )
    assert data[0].labels.tolist() == [2, 0, 1]
    assert [len(sample.boxes) for sample in data] == [3, 0, 0, 1]
    assert [sample.split for sample in data] == [0, 0, 1, 1]
    assert find_source(tmp_path, options={"split": "val"}).num_samples == 2
    assert "split" not in find_source(tmp_path, options={"split": "val"}).schema
    with pytest.raises(OptionError, match="split=test: not there; there are train, val"):
        find_source(tmp_path, options={"split": "test"})


def test_polygons_are_boxes_and_masks(tmp_path: Path) -> None:
    corners = np.array([(0.25, 0.1), (0.75, 0.1), (0.75, 0.9), (0.25, 0.9)])
    line = "1 " + " ".join(map(str, corners.reshape(-1))) + "\n0 0.5 0.5 0.25 0.2"
    sample = one(tmp_path / "a", line)
    np.testing.assert_allclose(sample.boxes, [[12, 4, 36, 36], [18, 16, 30, 24]], atol=1e-5)
    expected = np.zeros((40, 48), np.uint8)
    cv2.rectangle(expected, (12, 4), (35, 35), 2, -1)
    cv2.rectangle(expected, (18, 16), (29, 23), 1, -1)  # the smaller above
    sample = one(tmp_path / "b", line, masks="classes")
    np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
    schema = fastdata.open(tmp_path / "b/x.lmdb").schema
    assert schema["mask"] == ImageField(1, mask=True, classes=("background", "ant", "bee"))
    instances = one(tmp_path / "c", line, masks="instances")
    swapped = np.array([0, 2, 1], np.uint8)[expected]
    np.testing.assert_array_equal(np.asarray(instances.mask).squeeze(), swapped)


def test_oriented_boxes_are_refused_or_painted(tmp_path: Path) -> None:
    line = "0 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5"
    with pytest.raises(SourceError, match=r"each label has 8 numbers.*--option masks=classes"):
        one(tmp_path / "a", line)
    sample = one(tmp_path / "b", line, masks="classes")
    np.testing.assert_allclose(sample.boxes, [[12, 10, 36, 30]])
    mask = np.asarray(sample.mask).squeeze()
    assert (mask[20, 24], mask[11, 13], mask[29, 35]) == (1, 0, 0)  # its middle, not its corners


def test_poses_are_refused(tmp_path: Path) -> None:
    line = "1 0.5 0.5 0.5 0.5 0.25 0.5 2 0 0 0"
    with pytest.raises(SourceError, match=r"keypoints are not kept.*first five numbers"):
        one(tmp_path, line, "names: [ant, bee]\nkpt_shape: [2, 3]")


@pytest.mark.parametrize("yaml", ["names: [car, bus, car]", "names: {0: car, 1: bus, 2: car}"])
def test_two_classes_of_one_name_are_refused(tmp_path: Path, yaml: str) -> None:
    with pytest.raises(SourceError, match=r"data.yaml: classes 0 and 2 are both called 'car'"):
        one(tmp_path, "2 0.5 0.5 0.5 0.5", yaml)


def test_places_with_backslashes_are_found(tmp_path: Path, pictures: list[Picture]) -> None:
    write_yolo(tmp_path, pictures)
    text = (tmp_path / "data.yaml").read_text().replace("images/", "images\\")
    (tmp_path / "data.yaml").write_text(text.replace("../data/mine", "C:\\data\\mine"))
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures]


def test_accents_of_images_and_labels_may_differ_in_form(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_yolo(tmp_path, pictures)
    composed, decomposed = "b\u00e9", "be\u0301"
    for part, name in (("images/train/{}.jpg", decomposed), ("labels/train/{}.txt", composed)):
        (tmp_path / part.format("000000")).rename(tmp_path / part.format(name))
    (tmp_path / "list.txt").write_text(f"images/train/{composed}.jpg\n")
    for train in ("images/train", "list.txt"):
        (tmp_path / "data.yaml").write_text(f"train: {train}\nnames: {list(CLASSES)}\n")
        report = pack(tmp_path, tmp_path / f"{len(train)}.lmdb")
        assert report.num_rejected == 0, report.rejects
        data = fastdata.open(tmp_path / f"{len(train)}.lmdb")
        labels = [s.labels.tolist() for key, s in zip(data.keys, data, strict=True) if "b" in key]
        assert labels == [[pictures[0].label]]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_coordinates_are_of_the_upright_picture(tmp_path: Path, orientation: int) -> None:
    lying = photo(40, 48, seed=1)
    lying[10:20, 5:25] = [255, 0, 0]
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
    file = tmp_path / "images/a.png"
    file.write_bytes(with_orientation(lying, orientation, "PNG"))
    data = np.fromfile(with_jpeg(tmp_path, lying, orientation), np.uint8)
    shown = cv2.imdecode(data, cv2.IMREAD_COLOR)  # as Ultralytics reads it
    rows, columns = np.nonzero((shown[:, :, 2] > 200) & (shown[:, :, 1] < 60))
    left, top, right, bottom = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    height, width = shown.shape[:2]
    numbers = (left + right) / 2 / width, (top + bottom) / 2 / height
    numbers += (right - left) / width, (bottom - top) / height
    (tmp_path / "labels/a.txt").write_text("0 " + " ".join(map(str, numbers)))
    report = pack(tmp_path, tmp_path / "x.lmdb", source_options={"masks": "classes"})
    assert report.num_rejected == 0, report.rejects
    sample = fastdata.open(tmp_path / "x.lmdb")[0]
    np.testing.assert_allclose(sample.boxes, [[left, top, right, bottom]], atol=1e-4)
    stored = np.asarray(sample.image)
    stored = stored if stored.shape[-1] == 3 else np.moveaxis(stored, 0, -1)
    np.testing.assert_array_equal(
        np.asarray(sample.mask).squeeze(), (stored == [255, 0, 0]).all(-1)
    )


def with_jpeg(folder: Path, picture: Any, orientation: int) -> Path:
    """Write a JPEG of the same picture: OpenCV turns PNGs only in later versions."""
    path = folder / "seen.jpg"
    path.write_bytes(with_orientation(picture, orientation, "JPEG", quality=95, subsampling=0))
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.5", "line 1: 3 numbers; expected 4 of a box"),
        ("0 0.5 0.5 0.5 0.5 0.9", "line 1: 5 numbers"),
        ("\n0 0.5 0.5 0.5 x", "line 2: could not convert string to float: 'x'"),
        ("0 12 0.5 0.5 0.5", "line 1: coordinates are fractions.*not 12"),
        ("0 0.5 0.5 nan 0.5", "line 1: coordinates are fractions.*not nan"),
        ("0 0.5 0.5 -0.005 0.5", "line 1: a box of -0.005 x 0.5"),
        ("2 0.5 0.5 0.5 0.5", "line 1: its class is '2', not a number from 0 to 1"),
        ("-1 0.5 0.5 0.5 0.5", "line 1: its class is '-1'"),
        ("0.5 0.5 0.5 0.5 0.5", "line 1: its class is '0.5'"),
        ("cat 0.5 0.5 0.5 0.5", "line 1: could not convert string to float: 'cat'"),
    ],
)
def test_a_damaged_line_is_a_reject(tmp_path: Path, line: str, message: str) -> None:
    reason = one(tmp_path, line)
    assert isinstance(reason, str)
    assert re.search(f"a.txt, {message}", reason), reason


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("names: [ant]\nnc: 2", "nc is '2', and there are 1 names"),
        ("names: {0: ant, 2: bee}", "not numbered from 0 on"),
        ("names: ant", "neither a list of text"),
        ("names: [ant]\nval: nowhere", "val is not in"),
        ("names: [ant]\nval: ../../../etc", "val is not in"),
        ("names: [ant\n  x: {", "no sound YAML"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    tmp_path: Path, yaml: str, message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        one(tmp_path, "0 0.5 0.5 0.5 0.5", yaml)


def test_names_stay_text(tmp_path: Path) -> None:
    one(tmp_path, "0 0.5 0.5 0.5 0.5", "names: [no, 1.0, ~]")
    assert fastdata.open(tmp_path / "x.lmdb").classes == ["no", "1.0", "~"]


def test_a_label_file_that_vanishes_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(write_yolo(tmp_path, pictures))
    (tmp_path / "labels/val/000003.txt").unlink()
    report = pack(source, tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["images/val/000003.jpg"]
    assert "No such file" in report.rejects[0].reason


def test_lists_name_images_and_lead_nowhere_else(tmp_path: Path, pictures: list[Picture]) -> None:
    root = darknet(tmp_path / "root", pictures)
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    elsewhere = "/home/somebody/data/obj_train_data"
    (root / "valid.txt").write_text(
        f"{elsewhere}/000001.jpg\r\n{elsewhere}/missing.jpg\n{elsewhere}/../../secret.jpg\n"
    )
    report = pack(root, tmp_path / "x.lmdb", source_options={"split": "valid"})
    assert report.num_samples == 1
    assert [(r.key.partition(" ")[2], r.reason[:24]) for r in report.rejects] == [
        ("(valid.txt, line 2)", "the image is missing"),
        ("(valid.txt, line 3)", "the file name 'obj_train"),
    ]
    both = find_source(root)
    assert (both.schema["split"], both.num_samples) == (ScalarField(classes=("train", "valid")), 7)


def test_a_list_that_begins_with_a_reject_keeps_its_splits(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = darknet(tmp_path, pictures)
    text = (root / "train.txt").read_text()
    (root / "train.txt").write_text("data/obj_train_data/gone.jpg\n" + text)
    (root / "valid.txt").write_text(text)
    pack(root, tmp_path / "x.lmdb")
    assert [s.split for s in fastdata.open(tmp_path / "x.lmdb")] == [0] * 4 + [1] * 4


def test_without_names_there_are_numbers(tmp_path: Path, pictures: list[Picture]) -> None:
    bare(tmp_path, pictures)
    (tmp_path / "classes.txt").unlink()
    source = find_source(tmp_path)
    assert source.name == "yolo"
    assert source.schema["labels"] == ArrayField("int64", (None,))
    assert any("--option classes=FILE" in note for note in source.notes)


def test_a_test_split_may_be_missing(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(roboflow(tmp_path, pictures))
    assert source.schema["split"] == ScalarField(classes=("train", "val"))
    assert "test, which data.yaml names, is not there" in source.notes


def test_images_without_any_label_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    path = roboflow(tmp_path, pictures)
    for label in tmp_path.rglob("*.txt"):
        label.unlink()
    with pytest.raises(SourceError, match=r"none of 4 images has a label file.*labels/000000.txt"):
        find_source(path)


def test_class_folders_with_a_description_are_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for split in ("train", "val"):
        for name in CLASSES:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "0.jpg").write_bytes(pictures[0].data)
    (tmp_path / "data.yaml").write_text(f"train: train\nval: val\nnames: {list(CLASSES)}\n")
    assert format_of(tmp_path).name == "folder"


def test_classes_called_images_and_labels_are_class_folders(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
        for picture in pictures:
            (tmp_path / name / f"{picture.name}.jpg").write_bytes(picture.data)
            (tmp_path / name / f"{picture.name}.txt").write_text("a caption of 2 words\n")
    assert format_of(tmp_path).name == "folder"
