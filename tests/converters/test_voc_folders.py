"""What is special to XML files of Pascal VOC beside images: where they are, what numbers mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from case_voc import annotation
from case_voc_folders import beside, roboflow, two_folders
from cases import CLASSES, Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source, format_of
from fastdata.errors import OptionError
from fastdata.schema import ArrayField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


def boxes_of(path: Path, origin: int) -> np.ndarray[Any, Any]:
    """Read the boxes of a file by themselves."""
    found = [
        [float(box.findtext(side)) for side in ("xmin", "ymin", "xmax", "ymax")]
        for box in ElementTree.parse(path).iterfind("object/bndbox")
    ]
    return np.array(found).reshape(-1, 4) - [origin, origin, 0, 0]


@pytest.mark.parametrize("first", [0, 1])
def test_numbers_count_from_one_unless_a_box_begins_at_zero(
    tmp_path: Path, pictures: list[Picture], first: int
) -> None:
    root = beside(tmp_path / "root", pictures)
    last = root / f"{pictures[-1].name}.xml"
    last.write_text(last.read_text().replace("<xmin>5<", f"<xmin>{first}<"))
    report, data = pack(root, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    for sample, picture in zip(data, pictures, strict=True):
        expected = boxes_of(root / f"{picture.name}.xml", first)
        np.testing.assert_array_equal(sample.boxes, expected)
        assert sample.labels.tolist() == [picture.label]
    assert data.schema["labels"] == ArrayField("int64", (None,), classes=CLASSES)
    wanted = f"pixels of boxes are counted from {first}"
    assert any(wanted in note for note in report.notes), report.notes
    _, other = pack(root, tmp_path / "y.lmdb", one_based=not first)
    np.testing.assert_array_equal(other[0].boxes, boxes_of(root / "000000.xml", 1 - first))


def test_splits_of_folders(tmp_path: Path, pictures: list[Picture]) -> None:
    _, data = pack(roboflow(tmp_path / "root", pictures), tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "valid"))
    assert [sample.split for sample in data] == [0, 0, 1, 1]
    assert data.classes == list(CLASSES)
    one = find_source(tmp_path / "root", options={"split": "valid"})
    assert (one.num_samples, "split" in one.schema) == (2, False)
    with pytest.raises(OptionError, match="there are train, valid"):
        find_source(tmp_path / "root", options={"split": "test"})


def test_each_split_has_the_classes_and_the_origin_of_all(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = roboflow(tmp_path / "root", pictures)
    for k, (name, first) in enumerate([("dog", 5), ("cat", 0), ("dog", 5), ("dog", 5)]):
        path = root / ("train" if k < 2 else "valid") / f"{pictures[k].name}.xml"
        text = path.read_text().replace("<xmin>5<", f"<xmin>{first}<")
        path.write_text(text.replace(f"<name>{CLASSES[pictures[k].label]}<", f"<name>{name}<"))
    for split, labels in (("train", [[1], [0]]), ("valid", [[1], [1]])):
        _, data = pack(root, tmp_path / f"{split}.lmdb", split=split)
        assert data.classes == ["cat", "dog"]
        assert [s.labels.tolist() for s in data] == labels
        boxes = [boxes_of(root / split / f"{Path(key).stem}.xml", 0).tolist() for key in data.keys]
        assert [s.boxes.tolist() for s in data] == boxes
        # The folder of the split alone has the same numbers.
        _, alone = pack(root / split, tmp_path / f"{split}-alone.lmdb")
        assert alone.classes == ["cat", "dog"]
        assert [s.labels.tolist() for s in alone] == labels


def test_accents_of_images_and_files_may_differ_in_form(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = two_folders(tmp_path / "root", pictures)
    (root / "images/000000.jpg").rename(root / "images/be\u0301.jpg")
    xml = (root / "annotations/000000.xml").read_text()
    (root / "annotations/000000.xml").unlink()
    (root / "annotations/b\u00e9.xml").write_text(xml.replace(">ant<", ">abe\u0301<"))
    other = (root / "annotations/000001.xml").read_text()
    (root / "annotations/000001.xml").write_text(other.replace(">bee<", ">ab\u00e9<"))
    report, data = pack(root, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    assert data.classes == ["ab\u00e9", "ant", "cat"]  # one class in two forms


def test_what_has_no_partner_is_said(tmp_path: Path, pictures: list[Picture]) -> None:
    root = two_folders(tmp_path / "root", pictures)
    (root / "images/000000.jpg").unlink()
    (root / "annotations/000001.xml").unlink()
    report, data = pack(root, tmp_path / "x.lmdb")
    assert [r.key for r in report.rejects] == ["images/000001.jpg"]
    assert "(--option empty=true" in report.rejects[0].reason
    assert any("1 XML files in annotations are of no image" in note for note in report.notes)
    assert len(data) == 2
    report, data = pack(root, tmp_path / "y.lmdb", empty=True)
    assert [len(sample.boxes) for sample in data] == [0, 1, 1]


def test_other_xml_files_are_not_taken_for_it(tmp_path: Path, pictures: list[Picture]) -> None:
    for name in ("images", "annotations"):
        (tmp_path / name).mkdir()
        for p in pictures:
            (tmp_path / name / f"{p.name}.jpg").write_bytes(p.data)
    (tmp_path / "annotations/sheet.xml").write_text("<svg><annotation/></svg>")
    assert format_of(tmp_path).name == "folder"
    (tmp_path / "annotations/sheet.xml").write_text(annotation(pictures[0]))
    assert find_source(tmp_path).name == "voc"
