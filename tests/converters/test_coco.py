"""What is special to COCO: boxes, categories, regions, captions, layouts, and damage."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_coco import indented, instances, write_coco
from cases import Picture, make_pictures
from pack_helpers import pil_file, pixels, with_orientation
from PIL import Image, ImageOps
from samples import photo

import fastdata
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source, format_of
from fastdata.converters.reading import json_files as members_module
from fastdata.converters.reading.annotations.annotated import paint, runs_of_string
from fastdata.converters.reading.json_files import json_members
from fastdata.converters.reading.spans import close_files
from fastdata.errors import FastdataError, OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField, StringField

FIXTURE = Path(__file__).parent / "fixtures/coco"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**chosen, **options})


def load(sample: Any) -> tuple[Any, ...]:
    """Do a worker's part."""
    try:
        values: tuple[Any, ...] = sample.values.load()
        return values
    finally:
        close_files()


def changed(pictures: list[Picture], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    content = instances(pictures)
    change(content)
    return content


# -- what it holds ----------------------------------------------------------------------


def test_boxes_classes_flags_and_areas_are_those_of_the_file(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    content = instances(pictures)
    second = content["images"][1]["id"]
    content["annotations"] = [
        {"image_id": second, "bbox": [1, 2, 30, 4], "category_id": 90, "iscrowd": 1, "area": 77.5},
        {"image_id": 7, "bbox": [0.5, 0, 8, 39.25], "category_id": 3},
        {"image_id": second, "bbox": [40, 30, 8, 10], "category_id": 18, "area": 5},
    ]
    report = pack(write_coco(tmp_path, pictures, content), tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=("ant", "bee", "cat")),
        "crowd": ArrayField("bool", (None,)),
        "areas": ArrayField("float32", (None,)),
        "image_id": ScalarField("int64"),
    }
    assert data.classes == ["ant", "bee", "cat"]
    assert [sample.image_id for sample in data] == [7, 10, 13, 16]
    assert data[0].boxes.tolist() == [[0.5, 0, 8.5, 39.25]]
    assert data[0].areas.tolist() == [8 * 39.25]
    assert data[1].boxes.tolist() == [[1, 2, 31, 6], [40, 30, 48, 40]]
    assert data[1].labels.tolist() == [2, 1]
    assert data[1].crowd.tolist() == [True, False]
    assert data[1].areas.tolist() == [77.5, 5]
    assert data[2].boxes.shape == (0, 4)
    assert data[2].labels.shape == (0,)


def test_boxes_are_scaled_with_their_image(tmp_path: Path, pictures: list[Picture]) -> None:
    pack(
        write_coco(tmp_path, pictures), tmp_path / "x.lmdb", resize="exact", size=(20, 12)
    )  # from 40 x 48
    data = fastdata.open(tmp_path / "x.lmdb")
    np.testing.assert_allclose(data[0].boxes, [[1, 2, 5, 6.25]])
    assert np.asarray(data[0].image).shape[-2:] == (20, 12) or np.asarray(data[0].image).shape[
        :2
    ] == (20, 12)


def test_captions_are_kept_one_a_line(tmp_path: Path, pictures: list[Picture]) -> None:
    content = {
        "images": instances(pictures)["images"],
        "annotations": [
            {"id": 1, "image_id": 10, "caption": "A bée\non a flower. "},
            {"id": 2, "image_id": 7, "caption": "An ant."},
            {"id": 3, "image_id": 10, "caption": "Another"},
        ],
    }
    pack(write_coco(tmp_path, pictures, content), tmp_path / "x.lmdb")
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["captions"] == StringField()
    assert "boxes" not in data.schema
    assert [s.captions for s in data] == ["An ant.", "A bée on a flower.\nAnother", "", ""]


def test_without_annotations_there_are_only_images(tmp_path: Path, pictures: list[Picture]) -> None:
    content = {"images": instances(pictures)["images"]}
    source = find_source(write_coco(tmp_path, pictures, content))
    assert list(source.schema) == ["image", "image_id"]
    assert "no annotations: only the images" in source.notes


def test_what_is_left_out_is_said(tmp_path: Path, pictures: list[Picture]) -> None:
    content = changed(pictures, lambda c: c["annotations"][0].update(keypoints=[1, 2, 2]))
    source = find_source(write_coco(tmp_path, pictures, content))
    assert any("left out: keypoints, segmentation" in note for note in source.notes)
    masked = find_source(tmp_path, options={"masks": "classes"})
    assert not any("segmentation" in note for note in masked.notes)


# -- regions ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "instances"])
def test_masks_are_those_of_pycocotools(tmp_path: Path, kind: str) -> None:
    report = pack(FIXTURE, tmp_path / "x.lmdb", source_options={"masks": kind})
    assert (report.num_samples, report.num_rejected) == (5, 0)
    seen: set[int] = set()
    for sample in fastdata.open(tmp_path / "x.lmdb"):
        expected = np.asarray(Image.open(FIXTURE / f"expected/{sample.image_id}-{kind}.png"))
        np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
        seen |= set(np.unique(expected).tolist())
        if kind == "instances":
            assert expected.max() <= len(sample.boxes)
    assert seen == ({0, 1, 2, 3} if kind == "classes" else {0, 1, 2, 3, 4, 5} & seen)


def test_a_rectangle_of_whole_pixels_is_painted_as_that() -> None:
    flat = np.zeros(8 * 6, np.uint8)
    paint(flat, 6, 8, [[2, 1, 5, 1, 5, 4, 2, 4]], 9)
    expected = np.zeros((6, 8), np.uint8)
    expected[1:4, 2:5] = 9
    np.testing.assert_array_equal(flat.reshape(8, 6).T, expected)


def test_compressed_counts_of_the_specification() -> None:
    # By hand: 5, 33 (two groups), 2, and -1 as the difference of the fourth to the second.
    assert runs_of_string("5" + "Q1" + "2" + "O") == [5, 33, 2, 32]


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (None, "neither polygons nor run lengths"),
        ([], "neither polygons nor run lengths"),
        ("x", "neither polygons nor run lengths"),
        ([[1, 2, 3, 4]], "three or more pairs"),
        ([[1, 2, 3, 4, 5]], "three or more pairs"),
        ([[1, 2, 3, 4, 5, "6"]], "not near the picture"),
        ([[1, 2, 3, 4, 5, float("nan")]], "not near the picture"),
        ([[0, 0, 9e6, 9e6, 0, 9e6]], "not near the picture"),
        ({"size": [6, 8], "counts": [47, 2]}, "have 49 pixels, not 48"),
        ({"size": [6, 8], "counts": [10**12, 2]}, "pixels, not 48"),
        ({"size": [6, 8], "counts": [50, -2]}, "not run lengths"),
        ({"size": [6, 8], "counts": [48.0]}, "not run lengths"),
        ({"size": [8, 6], "counts": [48]}, r"of size \[8, 6\], and not \[6, 8\]"),
        ({"size": [10**9, 10**9], "counts": [10**18]}, "and not"),
        ({"size": [6, 8], "counts": "é"}, "not compressed run lengths"),
        ({"size": [6, 8], "counts": "P" * 50}, "not compressed run lengths"),
        ({"size": [6, 8], "counts": "PP"}, "end too early"),
        ({"size": [6, 8], "counts": 7}, "not run lengths"),
        ({}, "of size None"),
    ],
)
def test_what_is_no_region_is_said(region: Any, message: str) -> None:
    flat = np.zeros(48, np.uint8)
    with pytest.raises(ValueError, match=message):
        paint(flat, 6, 8, region, 1)


def test_a_mask_without_a_region_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    content = changed(pictures, lambda c: c["annotations"][1].pop("segmentation"))
    report = pack(
        write_coco(tmp_path, pictures, content),
        tmp_path / "x.lmdb",
        source_options={"masks": "instances"},
    )
    assert [reject.key for reject in report.rejects] == ["000002.jpg"]
    assert "object 1: its segmentation is neither" in report.rejects[0].reason


@pytest.mark.parametrize("options", [{"masks": "panoptic"}, {"masks": "classes"}])
def test_masks_that_cannot_be_are_refused(
    tmp_path: Path, pictures: list[Picture], options: dict[str, str]
) -> None:
    content = changed(
        pictures,
        lambda c: c.update(categories=[{"id": k, "name": f"c{k}"} for k in range(300)]),
    )
    message = (
        "masks=panoptic: expected classes or instances"
        if options["masks"] == "panoptic"
        else "254 classes.* are 300"
    )
    with pytest.raises(OptionError, match=message):
        find_source(write_coco(tmp_path, pictures, content), options=options)


# -- which way up -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("orientation", "upright"),
    # Of 1 to 4 both are of one size, and the file's rows and columns are meant.
    [*((k, False) for k in range(1, 9)), *((k, True) for k in range(5, 9))],
)
def test_boxes_and_masks_turn_with_their_picture(
    tmp_path: Path, orientation: int, upright: bool
) -> None:
    lying = photo(40, 48, seed=1)
    lying[10:20, 5:25] = [255, 0, 0]
    data = with_orientation(lying, orientation, "PNG")
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    seen = shown if upright else lying
    left, top, right, bottom = extent(seen)
    (tmp_path / "a.png").write_bytes(data)
    box = [left, top, right - left, bottom - top]
    corners = [left, top, right, top, right, bottom, left, bottom]
    content = {
        "images": [
            {"id": 1, "file_name": "a.png", "height": seen.shape[0], "width": seen.shape[1]}
        ],
        "annotations": [{"image_id": 1, "bbox": box, "category_id": 1, "segmentation": [corners]}],
        "categories": [{"id": 1, "name": "red"}],
    }
    (tmp_path / "a.json").write_text(json.dumps(content))
    report = pack(tmp_path / "a.json", tmp_path / "x.lmdb", source_options={"masks": "classes"})
    assert report.num_rejected == 0, report.rejects
    sample = fastdata.open(tmp_path / "x.lmdb")[0]
    expected = (shown == [255, 0, 0]).all(-1)
    np.testing.assert_array_equal(np.asarray(sample.mask).squeeze(), expected)
    assert sample.boxes.tolist() == [extent(shown)]


def extent(picture: np.ndarray[Any, Any]) -> list[int]:
    """Return left, top, right and bottom of what is red."""
    rows, columns = np.nonzero((picture == [255, 0, 0]).all(-1))
    return [int(n) for n in (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)]


def test_annotations_of_another_size_are_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    content = changed(pictures, lambda c: c["images"][2].update(height=400, width=480))
    report = pack(write_coco(tmp_path, pictures, content), tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["000002.jpg"]
    assert "of a picture of 480 x 400 pixels, and it has 48 x 40" in report.rejects[0].reason
    options = {"check_size": "false"}
    assert pack(tmp_path, tmp_path / "y.lmdb", source_options=options).num_rejected == 0


# -- where things are -------------------------------------------------------------------


def test_of_several_annotation_files_one_is_named(tmp_path: Path, pictures: list[Picture]) -> None:
    write_coco(tmp_path, pictures)
    (tmp_path / "val2017").rename(tmp_path / "train2017")
    captions = {"images": instances(pictures)["images"], "annotations": []}
    (tmp_path / "annotations/captions_val2017.json").write_text(json.dumps(captions))
    text = (tmp_path / "annotations/instances_val2017.json").read_text()
    with pytest.raises(SourceError, match=r"first images .* are in none .*--option images=FOLDER"):
        find_source(tmp_path)
    assert find_source(tmp_path, options={"images": "train2017"}).num_samples == 4
    (tmp_path / "annotations/instances_train2014.json").write_text(text)
    with pytest.raises(SourceError, match=r"Name one: SOURCE .*/annotations/instances_train2014"):
        find_source(tmp_path)
    (tmp_path / "annotations/instances_train2014.json").rename(
        tmp_path / "annotations/instances_train2017.json"
    )
    with pytest.raises(SourceError, match=r"its first images .* are in none .*SOURCE FILE"):
        find_source(tmp_path)
    path = tmp_path / "annotations/instances_train2017.json"
    assert find_source(path).num_samples == 4
    with pytest.raises(OptionError, match="images=nowhere: no such folder"):
        find_source(path, options={"images": "nowhere"})


def test_other_json_files_are_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/0.jpg").write_bytes(pil_file(photo(20, 20), "JPEG"))
    (tmp_path / "meta.json").write_text('{"info": {"name": "x"}, "licenses": []}')
    (tmp_path / "list.json").write_text('[{"images": [{"file_name": "x"}]}]')
    assert format_of(tmp_path).name == "folder"
    with pytest.raises(SourceError, match="no COCO annotation file"):
        find_source(tmp_path, format="coco")


def test_fields_are_not_to_be_changed(tmp_path: Path, pictures: list[Picture]) -> None:
    with pytest.raises(OptionError, match="has fields of its own"):
        find_source(write_coco(tmp_path, pictures), fields={"boxes": "array"})


# -- several files of one set -------------------------------------------------------------


def write_splits(folder: Path, pictures: list[Picture], **places: str) -> dict[str, Any]:
    """Write a file and a folder of images for each split; return the contents by file."""
    contents = {}
    for k, (split, place) in enumerate(places.items()):
        some = pictures[k::2]
        contents[split] = instances(some)
        for picture in some:
            (folder / place).mkdir(parents=True, exist_ok=True)
            (folder / place / f"{picture.name}.jpg").write_bytes(picture.data)
    return contents


def save(folder: Path, contents: dict[str, Any]) -> Path:
    (folder / "annotations").mkdir(exist_ok=True)
    for split, content in contents.items():
        (folder / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "places",
    [
        {"train2017": "train2017", "val2017": "val2017"},
        {"train2017": "train", "val2017": "val"},
        {"train": "images/train", "val": "images/val"},
        {"train": "train_images", "val": "val_images"},
        {"train": "data", "val": "data"},
        {"train": "Train_2017", "val": "valid"},
    ],
)
def test_files_of_splits_are_packed_together(
    tmp_path: Path, pictures: list[Picture], places: dict[str, str]
) -> None:
    root = save(tmp_path, write_splits(tmp_path, pictures, **places))
    report = pack(root, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "val"))
    assert [s.split for s in data] == [0, 0, 1, 1]
    order = [*pictures[::2], *pictures[1::2]]
    for sample, picture in zip(data, order, strict=True):
        assert sample.labels.tolist() == [picture.label]
        np.testing.assert_array_equal(pixels(sample.image), picture.pixels)


def test_one_file_has_the_images_of_the_only_folder_that_fits(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_coco(tmp_path, pictures)
    (tmp_path / "annotations/instances_val2017.json").rename(tmp_path / "labels.json")
    assert find_source(tmp_path).num_samples == 4
    shutil.copytree(tmp_path / "val2017", tmp_path / "others")
    with pytest.raises(SourceError, match=r"are in each of .*others, .*val2017.*images=FOLDER"):
        find_source(tmp_path)


def test_a_split_without_images_is_not_given_those_of_another(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    contents = write_splits(tmp_path, pictures, train="pictures", val="val")
    contents["train"] = contents["val"]  # whose images are in val, too
    with pytest.raises(SourceError, match=r"instances_train.json.* are in none .*SOURCE FILE"):
        find_source(save(tmp_path, contents))


def test_files_with_other_ids_of_the_same_categories_have_the_same_classes(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    contents = write_splits(tmp_path, pictures, train="train", val="val")
    turned = {3: 18, 18: 90, 90: 3}
    for entry in contents["val"]["categories"]:
        entry["id"] = turned[entry["id"]]
    for entry in contents["val"]["annotations"]:
        entry["category_id"] = turned[entry["category_id"]]
    save(tmp_path, contents)
    for options in ({}, {"split": "val"}):
        path = tmp_path / f"{len(options)}.lmdb"
        report = pack(tmp_path, path, source_options=options)
        assert any("other ids of the same categories" in note for note in report.notes)
        data = fastdata.open(path)
        assert data.classes == ["ant", "bee", "cat"]
        labels = [s.labels.tolist() for s in data][-2:]
        assert labels == [[p.label] for p in pictures[1::2]]


def test_a_category_that_only_one_file_has_keeps_its_number(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    contents = write_splits(tmp_path, pictures, train="train", val="val")
    used = {entry["category_id"] for entry in contents["val"]["annotations"]}
    contents["val"]["categories"] = [c for c in contents["val"]["categories"] if c["id"] in used]
    save(tmp_path, contents)
    pack(tmp_path, tmp_path / "x.lmdb", source_options={"split": "val"})
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.classes == ["ant", "bee", "cat"]
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures[1::2]]


def test_two_categories_of_one_name_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    names = ("car", "bus", "car")
    categories = [{"id": number, "name": name} for number, name in enumerate(names)]
    content = changed(pictures, lambda c: c.update(categories=categories))
    with pytest.raises(SourceError, match=r"the categories 0, 2 are all called 'car'"):
        pack(write_coco(tmp_path, pictures, content), tmp_path / "x.lmdb")


# -- names and ids ------------------------------------------------------------------------


def test_ids_may_be_text(tmp_path: Path, pictures: list[Picture]) -> None:
    def edit(content: dict[str, Any]) -> None:
        for entry in (*content["images"], *content["categories"]):
            entry["id"] = f"x{entry['id']}"
        for entry in content["annotations"]:
            entry["image_id"], entry["category_id"] = (
                f"x{entry[name]}" for name in ("image_id", "category_id")
            )

    write_coco(tmp_path, pictures, changed(pictures, edit))
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (4, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["image_id"] == StringField()
    assert [s.image_id for s in data] == ["x7", "x10", "x13", "x16"]
    assert data.classes == ["bee", "ant", "cat"]  # x18, x3, x90
    assert [data.classes[s.labels[0]] for s in data] == [
        ("ant", "bee", "cat")[p.label] for p in pictures
    ]


def test_numbers_as_text_are_numbers(tmp_path: Path, pictures: list[Picture]) -> None:
    def edit(content: dict[str, Any]) -> None:
        for entry in content["annotations"]:
            entry["image_id"] = str(entry["image_id"])

    write_coco(tmp_path, pictures, changed(pictures, edit))
    assert pack(tmp_path, tmp_path / "x.lmdb").num_rejected == 0
    data = fastdata.open(tmp_path / "x.lmdb")
    assert [s.image_id for s in data] == [7, 10, 13, 16]
    assert [s.labels.tolist() for s in data] == [[p.label] for p in pictures]


@pytest.mark.parametrize(
    ("named", "stored"),
    [("sub\\0.jpg", "sub/0.jpg"), ("sub\\0.jpg", "sub\\0.jpg"), ("b\u00e9.jpg", "be\u0301.jpg")],
)
def test_images_named_by_another_system_are_found(
    tmp_path: Path, pictures: list[Picture], named: str, stored: str
) -> None:
    content = changed(pictures, lambda c: c["images"][0].update(file_name=named))
    write_coco(tmp_path, pictures, content)
    (tmp_path / "val2017/sub").mkdir()
    (tmp_path / "val2017/000000.jpg").rename(tmp_path / "val2017" / stored)
    assert pack(tmp_path, tmp_path / "x.lmdb").num_rejected == 0
    data = fastdata.open(tmp_path / "x.lmdb")
    np.testing.assert_array_equal(pixels(data[0].image), pictures[0].pixels)
    assert data.keys[0] == stored


# -- what is wrong ----------------------------------------------------------------------


def spoil_annotation(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["annotations"][0].update(values)


def spoil_image(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["images"][3].update(values)


REJECTED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (spoil_annotation(bbox=[1, 2, 3]), r"byte [\d,]+ of .*: its bbox is \[1, 2, 3\], not four"),
    (spoil_annotation(bbox=[1, 2, "3", 4]), "not four numbers"),
    (spoil_annotation(bbox=[1, 2, -3, 4]), "negative width or height"),
    (spoil_annotation(bbox=[1, 2, float("nan"), 4]), "not four numbers"),
    (spoil_annotation(bbox=[1, 2, 10**400, 4]), "not four numbers"),
    (spoil_annotation(bbox=None), "its bbox is None"),
    (spoil_annotation(category_id=4), "its category_id is none of the categories"),
    (spoil_annotation(category_id=None), "category_id is None"),
    (spoil_annotation(iscrowd=2), "iscrowd is 2"),
    (spoil_annotation(iscrowd="no"), "iscrowd is 'no'"),
    (spoil_annotation(area="large"), "area is 'large'"),
    (spoil_image(file_name="../secret.jpg"), "leads outside of its folder"),
    (spoil_image(file_name="a/../../secret.jpg"), "leads outside of its folder"),
    (spoil_image(file_name="/etc/passwd"), "leads outside of its folder"),
    (spoil_image(file_name="a\0b"), "no name of a file"),
    (spoil_image(file_name="\ud800.jpg"), "surrogates not allowed"),
    (spoil_image(file_name=7), "'7' is no name of a file"),
    (spoil_image(file_name="nowhere.jpg"), "No such file"),
    (spoil_image(file_name="."), "leads outside|is no name"),
    (spoil_image(height=-1), "height and width are"),
    (spoil_image(height="tall"), "height and width are"),
]


@pytest.mark.parametrize(("spoil", "reason"), REJECTED)
def test_a_bad_entry_is_a_reject_and_the_rest_is_packed(
    tmp_path: Path, pictures: list[Picture], spoil: Any, reason: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    write_coco(folder, pictures, changed(pictures, spoil))
    report = pack(folder, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (3, 1)
    assert re.search(reason, report.rejects[0].reason)


def test_entries_that_belong_to_nothing_are_said(tmp_path: Path, pictures: list[Picture]) -> None:
    content = instances(pictures)
    content["annotations"] += [{"image_id": 999}, {"image_id": 999}, {"image_id": 7.5}, 5]
    content["annotations"] += [{"image_id": 10**30}]
    content["images"] += [{"id": 7, "file_name": "000001.jpg"}, {"id": 10**30, "file_name": "a"}]
    content["images"] += ["x", {"id": [], "file_name": "000001.jpg"}]
    report = pack(write_coco(tmp_path, pictures, content), tmp_path / "x.lmdb")
    assert report.num_samples == 4
    reasons = {reject.reason.partition(" (")[0]: reject.key for reject in report.rejects}
    assert len(reasons) == report.num_rejected == 8, reasons
    assert reasons["another image has its id, 7"] == "000001.jpg"
    assert "2 annotations are of image_id 999, which is not listed" in reasons
    assert "an image's entry: its id is None, neither an int of 63 bits nor text" in reasons
    assert "an annotation: its image_id is 7.5, neither an int of 63 bits nor text" in reasons
    no_id = "an annotation: its image_id is None, neither an int of 63 bits nor text"
    assert reasons[no_id].startswith("instances_val2017.json@")
    fastdata.pack(tmp_path, tmp_path / "y.lmdb", shuffle=True, num_workers=0, progress=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["categories"].append({"id": 3, "name": "wasp"}), "id 3 is 'ant' and 'wasp'"),
        (lambda c: c["categories"].append({"id": 4}), "a category: its name is None"),
        (lambda c: c["categories"].append("x"), "a category: its id is None"),
        (lambda c: c.update(categories=[]), "has boxes, but no categories"),
        (lambda c: c.update(images=[]), "lists no images"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, pictures: list[Picture], change: Any, message: str
) -> None:
    write_coco(tmp_path, pictures, changed(pictures, change))
    with pytest.raises(SourceError, match=message):
        find_source(tmp_path, format="coco")


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path, pictures: list[Picture]) -> None:
    source = find_source(write_coco(tmp_path, pictures), options={"masks": "classes"})
    before = source.fingerprints()
    with open(tmp_path / "val2017/000002.jpg", "ab") as file:
        file.write(b"more")
    assert (source.fingerprints() != before).tolist() == [False, False, True, False]
    path = tmp_path / "annotations/instances_val2017.json"
    path.write_text(path.read_text().replace("ann", "xnn"))
    assert (source.fingerprints() != before).all()
    rejected = [s for s in source if isinstance(s, Reject)]
    assert rejected == []
    path.write_text("{" + path.read_text())
    with pytest.raises(ValueError, match=r"Expecting|bbox"):
        load(next(iter(source)))


# -- JSON in pieces ---------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 7, 64, 1 << 15])
@pytest.mark.parametrize("ascii", [True, False])
def test_json_is_read_in_pieces_as_json_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, ascii: bool
) -> None:
    monkeypatch.setattr(members_module, "_WINDOW", window)
    content = {
        "empty": [],
        "numbers": [1, -2.5e3, 12345678901234567890, 0],
        "été": {"a\\": ["]", '"', "日本\n"]},
        "entries": [{"k": [[1, 2], {"x": None}]}, [], "text", True, {}],
        "last": 12,
    }
    path = tmp_path / "a.json"
    text = json.dumps(content, ensure_ascii=ascii, indent=window % 3 or None)
    path.write_bytes(b"\xef\xbb\xbf" * (window % 2) + text.encode())
    found: dict[str, Any] = {"empty": []}
    data = path.read_bytes()
    for member in json_members(path):
        assert json.loads(data[member.start : member.end]) == member.value
        if isinstance(content[member.key], list):
            found.setdefault(member.key, []).append(member.value)
        else:
            found[member.key] = member.value
    assert found == content


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "byte 0: expected {, found the end"),
        (b"[1]", r"byte 0: expected {, found '\['"),
        (b'{"a": [1, 2', r"byte \d+: expected , or \], found the end"),
        (b'{"a": [{"b": 1}, {"b"', "byte 2"),
        (b'{"a": "bcd', "Unterminated string"),
        (b'{"a": [nul]}', "byte 7: Expecting value"),
        (b'{"a": [1 2]}', r"expected , or \], found '2'"),
        (b'{"a" 1}', "expected :, found '1'"),
        (b"{1: 1}", "expected a name"),
        (b'{"a": 1', "expected , or }, found the end"),
        (b'{"a": "\xff"}', "no UTF-8"),
        (b'{"a": [' + b"[" * 200_000, "byte 7: RecursionError"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "ValueError: Exceeds the limit"),
    ],
)
def test_json_that_is_damaged_says_where(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text)
    with pytest.raises(SourceError, match=message):
        list(json_members(path))


def test_an_entry_that_never_ends_is_not_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members_module, "_LARGEST", 1 << 16)
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a": ["' + b"x" * (1 << 20) + b'"]}')
    with pytest.raises(SourceError, match="an entry of more than 65,536 bytes"):
        list(json_members(path))


def test_keys_may_stand_in_any_order(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sorted_keys = find_source(indented(tmp_path / "a", pictures))
    usual = find_source(write_coco(tmp_path / "b", pictures))
    loaded = [[load(s) for s in source] for source in (sorted_keys, usual)]
    for one, other in zip(*loaded, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_every_truncation_of_the_json_is_an_error(tmp_path: Path, pictures: list[Picture]) -> None:
    write_coco(tmp_path, pictures)
    path = tmp_path / "annotations/instances_val2017.json"
    data = path.read_bytes()
    for size in range(0, len(data), 41):
        path.write_bytes(data[:size])
        with pytest.raises(FastdataError, match=r"no sound JSON|no COCO annotation file"):
            find_source(tmp_path, format="coco")
