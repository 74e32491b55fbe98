"""Annotated datasets as Datumaro wrote them, all of the same pictures, boxes and masks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastdata

FIXTURES = Path(__file__).parent / "fixtures" / "annotated"
EXPECTED: dict[str, list[tuple[int, list[float]]]] = json.loads(
    (FIXTURES / "expected.json").read_text()
)
LABELS = ("background", "road", "car")


def packed(place: str, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        FIXTURES / place, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    assert report.num_rejected == 0, report.rejects
    return report, fastdata.open(path)


def picture_of(key: str) -> str:
    return Path(key).stem.removesuffix("_leftImg8bit")


@pytest.mark.parametrize(
    ("place", "format", "count"),
    [
        ("yolo", "yolo", 2),
        ("yolo_ultralytics", "yolo", 2),
        ("coco_instances/annotations/instances_val.json", "coco", 1),
        ("coco_person_keypoints/annotations/person_keypoints_train.json", "coco", 1),
        ("voc_detection", "voc", 2),
    ],
)
def test_boxes_and_classes(tmp_path: Path, place: str, format: str, count: int) -> None:
    if format == "yolo":
        pytest.importorskip("yaml")
    report, data = packed(place, tmp_path / "x.lmdb")
    assert report.read_as.startswith(f"read as {format}: ")
    assert len(data) == count
    for key, sample in zip(data.keys, data, strict=True):
        wanted = EXPECTED[picture_of(key)]
        assert [data.classes[k] for k in sample.labels] == [LABELS[label] for label, _ in wanted]
        np.testing.assert_allclose(sample.boxes, [box for _, box in wanted], atol=1e-4)


@pytest.mark.parametrize("place", ["camvid", "cityscapes", "voc_segmentation"])
def test_masks_of_folders(tmp_path: Path, place: str) -> None:
    _, data = packed(place, tmp_path / "x.lmdb")
    assert data.schema["mask"].classes == LABELS
    for key, sample in zip(data.keys, data, strict=True):
        expected = np.asarray(Image.open(FIXTURES / f"masks/{picture_of(key)}.png"))
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)


def test_colours_of_cityscapes(tmp_path: Path) -> None:
    _, data = packed("cityscapes", tmp_path / "x.lmdb", ending="_gtFine_color")
    for key, sample in zip(data.keys, data, strict=True):
        expected = np.asarray(Image.open(FIXTURES / f"masks/{picture_of(key)}.png"))
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
