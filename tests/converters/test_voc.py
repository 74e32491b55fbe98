"""What is special to Pascal VOC: boxes, lists, classes, masks, and XML that is not trusted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_voc import annotation, segmented, write_mask, write_voc
from cases import Picture, make_pictures
from PIL import Image

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.voc import parse_xml
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**chosen, **options})


def thing(name: str, box: str, more: str = "") -> str:
    left, top, right, bottom = box.split()
    return (
        f"<object><bndbox><ymax>{bottom}</ymax><xmax>{right}</xmax><ymin>{top}</ymin>"
        f"<xmin>{left}</xmin></bndbox>{more}<name> {name}\n</name></object>"
    )


def rewrite(folder: Path, picture: Picture, text: str) -> None:
    (folder / f"Annotations/{picture.name}.xml").write_text(text)


def test_boxes_classes_and_flags_are_those_of_the_files(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_voc(tmp_path, pictures)
    objects = (
        thing("dog", "1 1 48 40", "<difficult>1</difficult><truncated>0</truncated>")
        + thing("ant", "3.5 4 10 20", "<truncated>1</truncated>")
        + thing("dog", "7 7 7 7", "<truncated>Unspecified</truncated>")
    )
    rewrite(tmp_path, pictures[0], annotation(pictures[0], objects))
    rewrite(tmp_path, pictures[1], annotation(pictures[1], ""))
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=("ant", "cat", "dog")),
        "difficult": ArrayField("bool", (None,)),
        "truncated": ArrayField("bool", (None,)),
    }
    # A box of the whole picture is 0, 0, width, height.
    assert data[0].boxes.tolist() == [[0, 0, 48, 40], [2.5, 3, 10, 20], [6, 6, 7, 7]]
    assert data[0].labels.tolist() == [2, 0, 2]
    assert data[0].difficult.tolist() == [True, False, False]
    assert data[0].truncated.tolist() == [False, True, False]
    assert data[1].boxes.shape == (0, 4)
    assert data[2].boxes.tolist() == [[4, 2, 20, 11]]
    assert data[2].labels.tolist() == [1]  # and not the parts of it
    pack(tmp_path, tmp_path / "y.lmdb", source_options={"one_based": False})
    assert fastdata.open(tmp_path / "y.lmdb")[2].boxes.tolist() == [[5, 3, 20, 11]]
    pack(tmp_path, tmp_path / "z.lmdb", resize="exact", size=(20, 12))
    np.testing.assert_allclose(fastdata.open(tmp_path / "z.lmdb")[2].boxes, [[1, 1, 5, 5.5]])


# -- which images -----------------------------------------------------------------------


def test_a_split_is_taken_as_it_is_listed(tmp_path: Path, pictures: list[Picture]) -> None:
    write_voc(tmp_path, pictures)
    source = find_source(tmp_path)
    assert [s.key for s in source] == [f"{p.name}.jpg" for p in pictures]
    assert any("--option split=NAME takes one of train" in note for note in source.notes)
    (tmp_path / "ImageSets/Main/val.txt").write_text("000003\n\n 000001 \n000003\n000009\n")
    report = pack(tmp_path, tmp_path / "x.lmdb", source_options={"split": "val"})
    assert list(fastdata.open(tmp_path / "x.lmdb").keys) == ["000003.jpg", "000001.jpg"]
    assert [reject.key for reject in report.rejects] == ["000003.jpg", "000009 (val.txt, line 5)"]
    assert report.rejects[0].reason == "the list names it before"
    assert "has no image" in report.rejects[1].reason
    with pytest.raises(OptionError, match=r"split=test: not in .*Main, which has train, val"):
        find_source(tmp_path, options={"split": "test"})
    with pytest.raises(OptionError, match=r"split=\.\./Main/val: not in"):
        find_source(tmp_path, options={"split": "../Main/val"})
    (tmp_path / "ImageSets/Main/none.txt").write_text("\n")
    with pytest.raises(SourceError, match=r"none\.txt: lists no images"):
        find_source(tmp_path, options={"split": "none"})


def test_lists_of_classes_are_not_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    write_voc(tmp_path, pictures)
    lists = tmp_path / "ImageSets/Main"
    (lists / "cat_train.txt").write_text("000000 -1\n000001 -1\n000002  1\n000003  0\n")
    for name in ("ant", "bee", "zebra"):
        (lists / f"{name}_train.txt").write_text("000000  1\n")
    (lists / "my_train.txt").write_text("000000\n")
    with pytest.raises(OptionError, match=r"split=cat_train: .*, which has my_train, train"):
        find_source(tmp_path, options={"split": "cat_train"})
    source = find_source(tmp_path, options={"split": "train"})
    # Classes are those that have such lists, and no annotation is read for them.
    assert source.schema.classes == ("ant", "bee", "cat", "zebra")


def test_each_split_has_the_classes_of_all(tmp_path: Path, pictures: list[Picture]) -> None:
    write_voc(tmp_path, pictures)
    for picture, name in zip(pictures, ("dog", "cat", "dog", "dog"), strict=True):
        rewrite(tmp_path, picture, f"<annotation>{thing(name, '2 2 9 9')}</annotation>")
    for split, names, labels in (
        ("train", ("000000", "000001"), [[1], [0]]),
        ("val", ("000002", "000003"), [[1], [1]]),
    ):
        (tmp_path / f"ImageSets/Main/{split}.txt").write_text("\n".join(names))
        pack(tmp_path, tmp_path / f"{split}.lmdb", source_options={"split": split})
        data = fastdata.open(tmp_path / f"{split}.lmdb")
        assert data.classes == ["cat", "dog"]
        assert [s.labels.tolist() for s in data] == labels


def test_accents_in_lists_and_names_may_differ_in_form(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = segmented(tmp_path, pictures) / "VOCdevkit/VOC2012"
    for place in ("JPEGImages/{}.jpg", "Annotations/{}.xml", "SegmentationClass/{}.png"):
        name = "b\u00e9" if "xml" in place else "be\u0301"
        (root / place.format("000000")).rename(root / place.format(name))
    (root / "ImageSets/Segmentation/val.txt").write_text("b\u00e9\n000001\n", encoding="utf-8")
    for options in ({"split": "val"}, {}):
        path = tmp_path / f"{len(options)}.lmdb"
        report = pack(root, path, source_options={"masks": "classes", **options})
        assert report.num_rejected == 0, report.rejects
        data = fastdata.open(path)
        assert len(data) == (2 if options else 4)
        (sample,) = (s for key, s in zip(data.keys, data, strict=True) if "b" in key)
        assert sample.labels.tolist() == [pictures[0].label]


def test_classes_of_a_file_of_names(tmp_path: Path, pictures: list[Picture]) -> None:
    write_voc(tmp_path, pictures)
    (tmp_path / "names.txt").write_text("cat\nbee\n")
    options = {"classes": str(tmp_path / "names.txt")}
    report = pack(tmp_path, tmp_path / "x.lmdb", source_options=options)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.classes == ["cat", "bee"]
    assert [s.labels.tolist() for s in data] == [[1], [0]]
    assert len(report.rejects) == 2
    reason = "000000.xml, object 1: no class is called 'ant'"
    assert report.rejects[0].reason == reason


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "\0", ".."])
def test_a_list_does_not_lead_outside(tmp_path: Path, pictures: list[Picture], name: str) -> None:
    write_voc(tmp_path, pictures)
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    with open(tmp_path / "ImageSets/Main/train.txt", "a") as file:
        file.write(name + "\n")
    report = pack(tmp_path, tmp_path / "x.lmdb", source_options={"split": "train"})
    assert (report.num_samples, report.num_rejected) == (4, 1)
    assert "line 5" in report.rejects[0].key
    assert "has no image of that name" in report.rejects[0].reason


# -- masks ------------------------------------------------------------------------------


def test_masks_keep_class_numbers_and_void(tmp_path: Path, pictures: list[Picture]) -> None:
    segmented(tmp_path, pictures)
    root = tmp_path / "VOCdevkit/VOC2012"
    (root / "SegmentationClass/000001.png").unlink()
    report = pack(
        tmp_path, tmp_path / "x.lmdb", source_options={"masks": "classes", "split": "val"}
    )
    assert [reject.key for reject in report.rejects] == ["000001.jpg"]
    assert "No such file" in report.rejects[0].reason
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["mask"] == ImageField(1, mask=True)
    for sample, name in zip(data, ("000000", "000002", "000003"), strict=True):
        expected = np.asarray(Image.open(root / f"SegmentationClass/{name}.png"))
        assert set(np.unique(expected)) > {0, 255}
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
    # Without a list: all that have a mask.
    report = pack(root, tmp_path / "y.lmdb", source_options={"masks": "classes"})
    assert (report.num_samples, report.num_rejected) == (3, 0)
    with pytest.raises(OptionError, match=r"masks=instances: .*Object does not exist"):
        find_source(root, options={"masks": "instances"})
    (root / "SegmentationObject").mkdir()
    write_mask(root / "SegmentationObject/000002.png", pictures[2])
    assert find_source(root, options={"masks": "instances"}).num_samples == 1
    with pytest.raises(OptionError, match="masks=yes: expected classes or instances"):
        find_source(root, options={"masks": "yes"})


# -- what is wrong ----------------------------------------------------------------------


def test_an_image_without_annotations_is_a_reject_unless_told(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_voc(tmp_path, pictures)
    (tmp_path / "Annotations/000001.xml").unlink()
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["000001.jpg"]
    assert "has no annotation file" in report.rejects[0].reason
    assert "empty=true" in report.rejects[0].reason
    report = pack(tmp_path, tmp_path / "y.lmdb", source_options={"empty": "true"})
    assert report.num_rejected == 0
    assert fastdata.open(tmp_path / "y.lmdb")[1].boxes.shape == (0, 4)


def test_without_any_annotations_there_are_only_images(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_voc(tmp_path, pictures)
    for path in (tmp_path / "Annotations").iterdir():
        path.unlink()
    (tmp_path / "Annotations").rmdir()
    source = find_source(tmp_path)
    assert list(source.schema) == ["image"]
    assert any("only the images" in note for note in source.notes)


BOMB = (
    '<!DOCTYPE a [<!ENTITY x "ha"><!ENTITY y "&x;&x;&x;&x;">]>'
    "<annotation><object><name>&y;</name></object></annotation>"
)
OUTSIDE = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><annotation>&x;</annotation>'
GOOD = thing("ant", "1 1 5 5")

BAD_FILES = [
    (BOMB, "declares a document type"),
    (OUTSIDE, "declares a document type"),
    ('<!DOCTYPE a SYSTEM "http://127.0.0.1/a.dtd"><annotation/>', "declares a document type"),
    ("<annotation>&x;</annotation>", "no sound XML: undefined entity"),
    ("<annotation><object>", "no sound XML: no element found"),
    ("", "no sound XML: no element found"),
    ("<a>" * 60 + "<" * 9, "no sound XML: not well-formed"),
    ('<?xml version="1.0" encoding="klingon"?><annotation/>', "no sound XML: unknown encoding"),
    ("x" * (16 << 20) + "y", "at most 4,194,304 are read at once"),
    (f"<annotation>{GOOD}{thing('ant', '5 1 4 5')}</annotation>", "object 2: .* inside out"),
    (f"<annotation>{thing('ant', 'x 1 4 5')}</annotation>", "xmin of its bndbox is 'x'"),
    (f"<annotation>{thing('ant', 'nan 1 4 5')}</annotation>", "xmin of its bndbox is 'nan'"),
    (f"<annotation>{thing('ant', '1e99 1 4 5')}</annotation>", "not a number"),
    ("<annotation><object><name>ant</name></object></annotation>", "it has no bndbox"),
    (f"<annotation>{thing('', '1 1 4 5')}</annotation>", "no class is called ''"),
    (
        f"<annotation>{thing('ant', '1 1 4 5', '<difficult>7</difficult>')}</annotation>",
        r"difficult and truncated are \('7', ''\)",
    ),
    ("<annotation><size><width>x</width></size></annotation>", "height of its size is ''"),
    (
        "<annotation><size><width>480</width><height>400</height></size></annotation>",
        r"picture of 480 x 400 pixels, and it has 48 x 40 \(--option check_size=false",
    ),
]


@pytest.mark.parametrize(("text", "reason"), BAD_FILES)
def test_a_bad_annotation_file_is_a_reject_and_the_rest_is_packed(
    tmp_path: Path, pictures: list[Picture], text: str, reason: str
) -> None:
    write_voc(tmp_path, pictures)
    rewrite(tmp_path, pictures[2], text)
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["000002.jpg"]
    assert report.num_samples == 3
    assert re.search(reason, report.rejects[0].reason)


def test_sizes_that_say_nothing_are_not_compared(tmp_path: Path, pictures: list[Picture]) -> None:
    write_voc(tmp_path, pictures)
    rewrite(tmp_path, pictures[0], f"<annotation>{GOOD}</annotation>")
    size = "<size><width>0</width><height>0</height></size>"
    rewrite(tmp_path, pictures[1], f"<annotation>{size}{GOOD}</annotation>")
    assert pack(tmp_path, tmp_path / "x.lmdb").num_rejected == 0


def test_encodings_of_xml_are_understood(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="{}"?><a><name>bée</name></a>'
    for encoding in ("utf-8", "utf-16", "iso-8859-1"):
        (tmp_path / "a.xml").write_bytes(text.format(encoding).encode(encoding))
        assert parse_xml(tmp_path / "a.xml").findtext("name") == "bée"


def test_what_changes_meanwhile_is_noticed(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(write_voc(tmp_path, pictures))
    before = source.fingerprints()
    rewrite(tmp_path, pictures[1], f"<annotation>{GOOD}</annotation>")
    with open(tmp_path / "JPEGImages/000003.jpg", "ab") as file:
        file.write(b"more")
    assert (source.fingerprints() != before).tolist() == [False, True, False, True]


# -- where things are -------------------------------------------------------------------


def test_of_several_years_one_is_named(tmp_path: Path, pictures: list[Picture]) -> None:
    for year in ("VOC2007", "VOC2012"):
        (tmp_path / year).mkdir()
        write_voc(tmp_path / year, pictures)
    with pytest.raises(OptionError, match=r"pack one of .*VOC2007, .*VOC2012"):
        find_source(tmp_path)
    assert find_source(tmp_path / "VOC2012").name == "voc"


def test_class_folders_are_not_taken_for_it(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "JPEGImages").mkdir()
    (tmp_path / "JPEGImages/0.jpg").write_bytes(pictures[0].data)
    assert find_source(tmp_path).name == "flat"
    with pytest.raises(SourceError, match="no Pascal VOC"):
        find_source(tmp_path, format="voc")
    (tmp_path / "Annotations").mkdir()
    with pytest.raises(OptionError, match="has fields of its own"):
        find_source(tmp_path, fields={"label": "int"})
    (tmp_path / "JPEGImages/0.jpg").rename(tmp_path / "JPEGImages/0.txt")
    with pytest.raises(SourceError, match="no image in Annotations, JPEGImages"):
        find_source(tmp_path)


def test_a_mask_that_changed_is_noticed(tmp_path: Path) -> None:
    for name in ("JPEGImages", "SegmentationClass"):
        (tmp_path / name).mkdir()
    for name in "ab":
        Image.new("RGB", (8, 8)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
        Image.new("L", (8, 8)).save(tmp_path / "SegmentationClass" / f"{name}.png")
    source = find_source(tmp_path, format="voc", options={"masks": "classes"})
    before = source.fingerprints()
    assert source.num_samples == 2
    (tmp_path / "SegmentationClass" / "b.png").write_bytes(b"changed")
    assert (source.fingerprints() != before).tolist() == [False, True]
