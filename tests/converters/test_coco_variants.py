"""What is special to variants of COCO, against ``json`` and arrays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_coco_variants import inaturalist, keypoints, lvis, roboflow
from cases import CLASSES, Picture, make_pictures

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


def test_keypoints_are_left_out_and_said(tmp_path: Path, pictures: list[Picture]) -> None:
    report, data = pack(keypoints(tmp_path / "root", pictures), tmp_path / "x.lmdb")
    assert list(data.schema) == ["image", "boxes", "labels", "crowd", "areas", "image_id"]
    np.testing.assert_allclose(data[0].boxes, [[4, 5, 24, 15]])
    assert "of annotations left out: keypoints, num_keypoints" in report.notes


def test_panoptic_segments_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    root = keypoints(tmp_path / "root", pictures)
    path = root / "annotations/person_keypoints_val2017.json"
    change(path, lambda c: c["annotations"][0].update(segments_info=[{"id": 1}]))
    with pytest.raises(SourceError, match=r"panoptic2detection_coco_format\.py"):
        pack(root, tmp_path / "x.lmdb")


def test_images_of_lvis_are_named_by_their_addresses(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = lvis(tmp_path / "root", pictures)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    assert data.keys[0] == "train2017/000000.jpg"
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures]


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
    for options in ({}, {"split": "valid"}):  # alone it would number bats as the others cats
        with pytest.raises(SourceError, match=r"90 is 'bat' here and 'cat' there\. .*SOURCE"):
            find_source(root, options=options)
    assert find_source(root / "valid/_annotations.coco.json").num_samples == 3


def test_images_of_a_test_set_are_found(tmp_path: Path, pictures: list[Picture]) -> None:
    root = keypoints(tmp_path / "root", pictures)
    old = root / "annotations/person_keypoints_val2017.json"
    change(old, lambda c: [c.pop(name) for name in ("annotations", "categories")])
    old.rename(root / "annotations/image_info_val2017.json")
    _, data = pack(root, tmp_path / "x.lmdb")
    assert list(data.schema) == ["image", "image_id"]
    assert len(data) == 6
