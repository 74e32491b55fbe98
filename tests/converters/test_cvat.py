"""What is special to CVAT's XML: kinds of objects, attributes, tags, and large files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from case_cvat import document, image, subsets, write_cvat
from cases import CLASSES, Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source, format_of
from fastdata.errors import SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)  # 40 x 48


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


OBJECTS = """
    <tag label="indoor" source="manual"></tag>
    <box label="bee" occluded="1" xtl="10.0" ytl="10.0" xbr="30.0" ybr="20.0" rotation="90.0"
         z_order="1"/>
    <polygon label="ant" source="manual" points="1.50,2.00;9.00,2.00;9.00,11.00" z_order="0">
      <attribute name="age">3</attribute><attribute name="who">M&amp;m é</attribute>
    </polygon>
    <polyline label="ant" points="1,2;3,4"/>
    <ellipse label="cat" cx="20.00" cy="20.00" rx="8.00" ry="4.00" rotation="90.00" z_order="2"/>
    <mask label="ant" rle="2, 3, 1, 4" left="40" top="30" width="5" height="2"/>
"""


def test_kinds_of_objects(tmp_path: Path, pictures: list[Picture]) -> None:
    images = [image(pictures[0], 0, OBJECTS), image(pictures[1], 1, "")]
    root = write_cvat(tmp_path / "root", pictures, images)
    report, data = pack(root, tmp_path / "x.lmdb", masks="classes")
    assert (report.num_samples, report.num_rejected) == (2, 0), report.rejects
    assert dict(data.schema) == {
        "image": ImageField(),
        "mask": ImageField(1, mask=True, classes=("background", *CLASSES)),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=CLASSES),
        "occluded": ArrayField("bool", (None,)),
        "attributes": StringField(),
        "tags": ArrayField("int64", (None,), classes=("indoor",)),
    }
    sample = data[0]
    np.testing.assert_allclose(
        sample.boxes,
        [[15, 5, 25, 25], [1.5, 2, 9, 11], [16, 12, 24, 28], [41, 30, 45, 32]],
        atol=1e-5,
    )
    assert sample.labels.tolist() == [1, 0, 2, 0]
    assert sample.occluded.tolist() == [True, False, False, False]
    assert json.loads(sample.attributes) == [{}, {"age": "3", "who": "M&m é"}, {}, {}]
    assert sample.tags.tolist() == [0]
    assert any("1 polyline" in note for note in report.notes)
    mask = np.asarray(sample.mask).squeeze()
    drawn = np.zeros((40, 48), np.uint8)
    cv2.rectangle(drawn, (15, 5), (24, 24), 2, -1)
    np.testing.assert_array_equal(mask[5:12, 12:30], drawn[5:12, 12:30])
    ellipse = cv2.ellipse(np.zeros((40, 48), np.uint8), (20, 20), (4, 8), 0, 0, 360, 1, -1)
    assert ((mask == 3) != ellipse).sum() < 25  # cv2 paints the outline too
    np.testing.assert_array_equal(mask[30:32, 40:45], [[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    assert mask[4, 8] == 1
    assert [len(s) for s in (data[1].boxes, data[1].tags)] == [0, 0]
    assert data[1].attributes == "[]"


@pytest.mark.parametrize("degrees", [30, 120, 300])
def test_objects_turn_clockwise(tmp_path: Path, pictures: list[Picture], degrees: int) -> None:
    objects = f"""
    <box label="bee" xtl="14" ytl="16" xbr="34" ybr="24" rotation="{degrees}"/>
    <ellipse label="cat" cx="24" cy="20" rx="10" ry="4" rotation="{degrees}"/>"""
    root = write_cvat(tmp_path / "root", pictures, [image(pictures[0], 0, objects)])
    _, data = pack(root, tmp_path / "x.lmdb", masks="instances")
    corners = cv2.boxPoints(((24, 20), (20, 8), degrees))
    box = [*corners.min(0), *corners.max(0)]
    outline = np.array(cv2.ellipse2Poly((2400, 2000), (1000, 400), degrees, 0, 360, 1)) / 100
    around = [*outline.min(0), *outline.max(0)]
    np.testing.assert_allclose(data[0].boxes, [box, around], atol=0.05)
    inside = cv2.fillPoly(np.zeros((40, 48), np.uint8), [np.rint(corners).astype(np.int32)], 1)
    found = np.asarray(data[0].mask).squeeze() > 0
    assert (found != (inside > 0)).sum() < 60  # outlines; turned the other way, 192 differ


def test_subsets_are_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    tmp_path.joinpath("root").mkdir()
    path = subsets(tmp_path / "root", pictures)
    report, data = pack(path, tmp_path / "x.lmdb")
    assert report.num_rejected == 0
    assert data.schema["split"] == ScalarField(classes=("Train", "Validation"))
    assert [s.split for s in data] == [0, 0, 1, 1]
    one = find_source(path, options={"split": "Validation"})
    assert (one.num_samples, "split" in one.schema) == (2, False)


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ('<box label="dog" xtl="1" ytl="1" xbr="2" ybr="2"/>', None),
        ('<box label="ant" xtl="1" ytl="1" xbr="2"/>', "object 1, a box: expected coordinates"),
        ('<box label="ant" xtl="3" ytl="1" xbr="2" ybr="2"/>', "from 3, 1 to 2, 2 is inside out"),
        ('<polygon label="ant" points="1,2;3"/>', "a polygon: its points are not as x,y"),
        ('<polygon label="ant" points="1,2;3,4"/>', "three or more corners"),
        ('<mask label="ant" rle="1,2" left="0" top="0" width="5" height="2"/>', "have 3 pixels"),
        ('<mask label="ant" rle="x" left="0" top="0" width="5" height="2"/>', "is none"),
        ('<ellipse label="ant" cx="1" cy="1" rx="-1" ry="1"/>', "are negative"),
    ],
)
def test_a_bad_object_is_a_reject(
    tmp_path: Path, pictures: list[Picture], objects: str, message: str | None
) -> None:
    images = [image(pictures[0], 0, objects), image(pictures[1], 1)]
    root = write_cvat(tmp_path / "root", pictures, images)
    report, data = pack(root, tmp_path / "x.lmdb")
    if message is None:  # a label that the task does not list is added to its labels
        assert data.classes == [*CLASSES, "dog"]
        return
    assert len(data) == 1
    assert message in report.rejects[0].reason


def test_images_that_are_missing_or_outside(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    images = [image(p, k) for k, p in enumerate(pictures)]
    images[0] = images[0].replace("000000.jpg", "../../secret.jpg")
    images[1] = images[1].replace("000001.jpg", "gone.jpg")
    root = write_cvat(tmp_path / "root", pictures, images)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert [r.key for r in report.rejects] == ["../../secret.jpg", "gone.jpg"]
    assert "leads outside" in report.rejects[0].reason
    assert len(data) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (document(["<track/>"]), "annotations of a video"),
        (document([]), "has no images"),
        (document(["<image>"]), "no sound XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]>' + document([]).partition("\n")[2], "document type"),
        ("<annotations><meta></meta>" + "<a>" * 60, "more than 50 elements"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "annotations.xml").write_text(text)
    with pytest.raises(SourceError, match=message):
        find_source(tmp_path, format="cvat")


def test_other_xml_is_not_taken_for_it(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/0.jpg").write_bytes(pictures[0].data)
    (tmp_path / "annotations.xml").write_text("<annotations><thing/></annotations>")
    assert format_of(tmp_path).name == "folder"
