"""What is special to variants of COCO, against ``json`` and arrays."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_coco_variants import inaturalist, keypoints, lvis, panoptic, roboflow, segments_of
from cases import CLASSES, Picture, make_pictures
from pack_helpers import with_orientation
from PIL import Image, ImageOps
from samples import photo

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)  # 40 x 48


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    report = fastdata.pack(location, path, **{**chosen, **options})
    return report, fastdata.open(path)


def change(path: Path, edit: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def test_keypoints_are_fractions_of_the_picture(tmp_path: Path, pictures: list[Picture]) -> None:
    root = keypoints(tmp_path / "root", pictures)
    report, data = pack(root, tmp_path / "x.lmdb", resize="exact", size=(20, 12))
    assert report.num_rejected == 0, report.rejects
    assert data.schema["keypoints"] == ArrayField("float32", (None, 2, 3))
    np.testing.assert_allclose(data[0].keypoints, [[[12 / 48, 10 / 40, 2], [0, 0, 0]]])
    np.testing.assert_allclose(data[0].boxes, [[1, 2.5, 6, 7.5]])
    assert any("keypoints (nose, tail) are fractions" in note for note in report.notes)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("upright", [False, True])
def test_keypoints_turn_with_their_picture(tmp_path: Path, orientation: int, upright: bool) -> None:
    if upright and orientation < 5:
        return  # of 1 to 4 both are of one size, and the file's rows and columns are meant
    lying = photo(40, 48, seed=1)
    lying[30, 7] = [255, 0, 0]
    root = keypoints(tmp_path / "root", make_pictures(1))
    data = with_orientation(lying, orientation, "PNG")
    (root / "val2017/000000.jpg").write_bytes(data)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    (y, x), *_ = np.argwhere(((shown if upright else lying) == [255, 0, 0]).all(-1))
    size = (shown if upright else lying).shape[:2]

    def edit(content: Any) -> None:
        content["images"][0].update(height=size[0], width=size[1])
        content["annotations"][0]["keypoints"] = [float(x) + 0.5, float(y) + 0.5, 1, 0, 0, 0]

    change(root / "annotations/person_keypoints_val2017.json", edit)
    report, packed = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    (row, column), *_ = np.argwhere((shown == [255, 0, 0]).all(-1))
    expected = [(column + 0.5) / shown.shape[1], (row + 0.5) / shown.shape[0], 1]
    np.testing.assert_allclose(packed[0].keypoints[0], [expected, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("points", [[1, 2], [1, 2, 2] * 3, "none", [1, "x", 2]])
def test_bad_keypoints_are_a_reject(tmp_path: Path, pictures: list[Picture], points: Any) -> None:
    root = keypoints(tmp_path / "root", pictures)
    path = root / "annotations/person_keypoints_val2017.json"
    change(path, lambda c: c["annotations"][0].update(keypoints=points))
    report, _ = pack(root, tmp_path / "x.lmdb")
    (reject,) = report.rejects
    assert "its keypoints are no x, y, v of 2 points" in reject.reason


@pytest.mark.parametrize("masks", ["classes", "instances"])
def test_panoptic_segments(tmp_path: Path, pictures: list[Picture], masks: str) -> None:
    root = panoptic(tmp_path / "root", pictures)
    options = {} if masks == "classes" else {"masks": masks}
    report, data = pack(root, tmp_path / "x.lmdb", source_options=options)
    assert report.num_rejected == 0, report.rejects
    names = ("background", *CLASSES) if masks == "classes" else None
    assert data.schema["mask"] == ImageField(1, mask=True, classes=names)
    for sample, picture in zip(data, pictures, strict=True):
        ids = segments_of(picture)
        expected = np.zeros(ids.shape, np.uint8)
        expected[ids == 70_000] = 3 if masks == "classes" else 1  # a cat
        expected[ids == 300 + picture.label] = picture.label + 1 if masks == "classes" else 2
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
        assert sample.boxes.tolist() == [[0, 0, 48, 20], [5, 10, 20, 20]]
        assert sample.labels.tolist() == [2, picture.label]
        assert sample.areas.tolist() == [48 * 20 - 150, 150]


def test_bad_segments_are_rejects(tmp_path: Path, pictures: list[Picture]) -> None:
    root = panoptic(tmp_path / "root", pictures)
    masks = root / "annotations/panoptic_val2017"
    Image.new("RGB", (48, 40), (9, 9, 9)).save(masks / "000000.png")
    Image.new("RGB", (40, 40)).save(masks / "000001.png")
    (masks / "000002.png").unlink()

    def edit(content: Any) -> None:
        content["annotations"][3]["segments_info"][0]["category_id"] = 7
        content["annotations"][4]["file_name"] = "../../../secret.png"

    change(root / "annotations/panoptic_val2017.json", edit)
    report, data = pack(root, tmp_path / "x.lmdb")
    expected = [
        "its mask has the id 592137, which is of no segment",
        "its mask 000001.png has 40 x 40 pixels",
        "its mask 000002.png cannot be read",
        "the category_id 7 of a segment is none of the categories",
        "leads outside of its folder",
    ]
    assert len(data) == 1
    for reject, message in zip(report.rejects, expected, strict=True):
        assert message in reject.reason
    for mask in masks.iterdir():
        mask.unlink()
    masks.rmdir()
    with pytest.raises(SourceError, match="a panoptic file, whose masks are in none of"):
        find_source(root)


def test_lvis_says_what_is_not_there(tmp_path: Path, pictures: list[Picture]) -> None:
    root = lvis(tmp_path / "root", pictures)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    assert data.keys[0] == "train2017/000000.jpg"
    for name in ("negatives", "not_exhaustive"):
        assert data.schema[name] == ArrayField("int64", (None,), classes=CLASSES)
    assert [s.negatives.tolist() for s in data] == [[], [2], [2, 0]] * 2
    assert [s.not_exhaustive.tolist() for s in data] == [[1]] * 6
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures]
    change(root / "lvis_v1_train.json", lambda c: c["images"][0].update(neg_category_ids=[5]))
    report, _ = pack(root, tmp_path / "y.lmdb")
    assert "its neg_category_ids are none of the categories: [5]" in report.rejects[0].reason


def test_a_class_an_image_is_a_label(tmp_path: Path, pictures: list[Picture]) -> None:
    root = inaturalist(tmp_path / "root", pictures)
    _, data = pack(root, tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=CLASSES),
        "image_id": ScalarField(),
    }
    assert [s.label for s in data] == [p.label for p in pictures]
    assert list(data.targets) == [p.label for p in pictures]
    change(
        root / "train2019.json",
        lambda c: c["annotations"].append({"id": 99, "image_id": 1, "category_id": 90}),
    )
    _, data = pack(root, tmp_path / "y.lmdb")
    assert data.schema["labels"] == ArrayField("int64", (None,), classes=CLASSES)
    assert [s.labels.tolist() for s in data][:2] == [[0, 2], [1]]
    with pytest.raises(OptionError, match=r"masks=classes: .* have no regions"):
        find_source(root, options={"masks": "classes"})


def test_a_file_in_each_split(tmp_path: Path, pictures: list[Picture]) -> None:
    root = roboflow(tmp_path / "root", pictures)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    assert data.schema["split"] == ScalarField(classes=("train", "valid"))
    assert [s.split for s in data] == [0, 0, 0, 1, 1, 1]
    assert list(data.keys) == [
        f"{s}/00000{k}.jpg" for k, s in enumerate(["train"] * 3 + ["valid"] * 3)
    ]
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures]
    assert data.classes == list(CLASSES)
    one = find_source(root, options={"split": "valid"})
    assert (one.num_samples, "split" in one.schema) == (3, False)
    with pytest.raises(OptionError, match="split=test: not there; there are train, valid"):
        find_source(root, options={"split": "test"})
    change(root / "valid/_annotations.coco.json", lambda c: c["categories"][0].update(name="bat"))
    with pytest.raises(
        SourceError, match=r"its categories are not those of .* --option split=valid"
    ):
        find_source(root)
    assert find_source(root, options={"split": "valid"}).num_samples == 3


def test_images_of_a_test_set_are_found(tmp_path: Path, pictures: list[Picture]) -> None:
    root = keypoints(tmp_path / "root", pictures)
    old = root / "annotations/person_keypoints_val2017.json"
    change(old, lambda c: [c.pop(name) for name in ("annotations", "categories")])
    old.rename(root / "annotations/image_info_val2017.json")
    _, data = pack(root, tmp_path / "x.lmdb")
    assert list(data.schema) == ["image", "image_id"]
    assert len(data) == 6
