"""Boxes are packed, and exported, to where their images show them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import visible
from pack_helpers import ORIENTED, pil_file, pixels, with_orientation
from PIL import Image

import fastdata
from fastdata import export
from fastdata import transforms as T  # noqa: N812
from fastdata.codecs.image_header import claimed_by
from fastdata.converters.finding import find_source
from fastdata.converters.packing.boxes import Placement, place_boxes, turn_boxes
from fastdata.errors import ImageError, OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

BOXES = ArrayField("float64", (None, 4), boxes=True)
HEIGHT, WIDTH = 96, 150
BOX = (31, 22, 117, 67)
"""Left, top, right, bottom: cut by a square crop, and lopsided whichever way it is turned."""

RESIZES: dict[str, dict[str, Any]] = {
    "as it is": {"resize": "none"},
    "short": {"size": 50},
    "short, large enough": {"size": 200},
    "short, enlarged": {"size": 200, "enlarge": True},
    "long": {"size": 90, "resize": "long"},
    "exact": {"size": (70, 60), "resize": "exact"},
    "crop": {"size": (64, 48), "resize": "crop"},
    "crop to a strip": {"size": (40, 120), "resize": "crop"},
}

KINDS: dict[str, dict[str, Any]] = {
    "JPEG": {"kind": "JPEG", "quality": 95},
    "PNG": {"kind": "PNG"},
    "TIFF": {"kind": "TIFF"},
    "WEBP": {"kind": "WEBP", "lossless": True},
}


def picture(box: Any = BOX, height: int = HEIGHT, width: int = WIDTH) -> np.ndarray[Any, Any]:
    left, top, right, bottom = box
    image = np.zeros((height, width, 3), np.uint8)
    image[top:bottom, left:right] = 255
    return image


def pack(samples: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(samples, path, **{"num_workers": 0, "codec": "png", **options})
    assert report.num_rejected == 0, report
    return fastdata.open(path)


def check(sample: Any, atol: float = 1.0) -> None:
    """Compare the first box of a sample with what is to be seen of it."""
    found = visible(pixels(sample.image)[:, :, 0])
    assert found is not None
    np.testing.assert_allclose(sample.boxes[0], found, atol=atol)


@pytest.mark.parametrize(
    ("kind", "orientation"),
    [
        *(("JPEG", orientation) for orientation in ORIENTED),
        *((kind, orientation) for kind in KINDS if kind != "JPEG" for orientation in (1, 6)),
    ],
)
def test_boxes_are_turned_and_resized_with_their_image(
    tmp_path: Path, kind: str, orientation: int
) -> None:
    data = with_orientation(picture(), orientation, **KINDS[kind])
    assert claimed_by(data)[2] == orientation
    samples = [{"boxes": np.array([BOX, (0, 0, WIDTH, HEIGHT)], np.float64), "image": data}]
    for number, options in enumerate(RESIZES.values()):
        path = tmp_path / f"{number}.lmdb"
        sample = pack(samples, path, fields={"boxes": BOXES}, **options)[0]
        check(sample)
        height, width = sample.image.shape[1:]
        assert sample.boxes[1].tolist() == pytest.approx([0, 0, width, height]), options


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_boxes_of_files_that_are_kept(tmp_path: Path, kind: str, orientation: int) -> None:
    samples = [{"image": with_orientation(picture(), orientation, **KINDS[kind]), "boxes": [BOX]}]
    dataset = pack(samples, tmp_path / "x.h5", fields={"boxes": BOXES}, codec="keep")
    check(dataset[0], atol=0 if kind != "JPEG" else 1)
    # What is exported is the file as it was: boxes are of it again.
    report = export(tmp_path / "x.h5", tmp_path / "out")
    assert report.num_samples == 1
    with open(tmp_path / "out" / "manifest.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert json.loads(row["boxes"]) == [list(BOX)]
    again = pack(tmp_path / "out" / "manifest.csv", tmp_path / "again.lmdb", codec="keep")
    assert again.schema == dataset.schema
    assert again[0].boxes.tolist() == dataset[0].boxes.tolist()


def test_a_jpeg_that_is_as_wanted_already_keeps_its_boxes(tmp_path: Path) -> None:
    box = (-3.25, 22, 117, 100)
    samples = [{"image": pil_file(picture(), "JPEG"), "boxes": [box]}]
    fields = {"boxes": BOXES}
    kept = pack(samples, tmp_path / "a.lmdb", fields=fields, size=HEIGHT, codec="jpeg")
    assert kept[0].boxes.tolist() == [list(box)]
    options: dict[str, Any] = {"size": (HEIGHT, WIDTH), "resize": "crop", "fields": fields}
    for codec in ("jpeg", "png"):  # a crop cuts, whether there is anything to be cut or not
        cut = pack(samples, tmp_path / f"{codec}.lmdb", codec=codec, **options)
        assert cut[0].boxes.tolist() == [[0, 22, 117, HEIGHT]]


@pytest.mark.parametrize("resize", RESIZES)
def test_boxes_follow_pixels_from_python(tmp_path: Path, resize: str) -> None:
    image = picture()
    values: list[Any] = [image, image.transpose(2, 0, 1).copy(), Image.fromarray(image)]
    samples = [{"image": value, "boxes": [BOX]} for value in values]
    dataset = pack(samples, tmp_path / "x.lmdb", fields={"boxes": "boxes"}, **RESIZES[resize])
    assert dataset.schema["boxes"] == ArrayField("float32", (None, 4), boxes=True)
    for sample in dataset:
        check(sample)


class Scenes:
    """A map-style dataset of images, boxes and their classes."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        boxes = np.array([BOX] * (index % 3)) + index
        image = picture(boxes[0] if len(boxes) else (0, 0, 0, 0))
        return {
            "mask": image[:, :, 0],
            "boxes": boxes.reshape(-1, 4),
            "classes": np.arange(index % 3),
            "image": image,
            "label": index,
        }


def test_boxes_of_a_dataset_are_packed_and_loaded(tmp_path: Path) -> None:
    fields = {
        "boxes": ArrayField("int32", (None, 4), boxes=True),
        "classes": ArrayField("int64", (None,)),
    }
    options: dict[str, Any] = {"fields": fields, "size": (64, 80), "resize": "crop"}
    dataset = pack(Scenes(), tmp_path / "x.lmdb", num_workers=2, **options)
    seen = 0
    for sample in dataset:
        assert len(sample.boxes) == len(sample.classes)
        if len(sample.boxes):
            assert sample.boxes.dtype == torch.int32
            check(sample)
            seen += 1
    assert seen == 6
    transform = [T.RandomCrop((50, 60)), T.RandomHorizontalFlip()]
    with fastdata.loader(dataset, batch_size=9, transform=transform, num_workers=0) as loader:
        batch = next(iter(loader))
    for image, boxes in zip(batch.image, batch.boxes, strict=True):
        found = visible(pixels(image)[:, :, 0])
        if found is not None:
            np.testing.assert_allclose(boxes[0], found, atol=1)


def test_boxes_outside_of_what_is_cut_out_stay_without_a_side(tmp_path: Path) -> None:
    samples = [{"image": picture(), "boxes": [(2, 10, 12, 40), BOX]}]
    options: dict[str, Any] = {"size": 48, "resize": "crop", "fields": {"boxes": BOXES}}
    boxes = pack(samples, tmp_path / "x.lmdb", **options)[0].boxes
    assert boxes[0].tolist() == [0, 5, 0, 20]
    assert (boxes[1, 2:] > boxes[1, :2]).all()


def test_boxes_belong_to_the_first_image_that_is_no_mask(tmp_path: Path) -> None:
    large, small = picture(), picture()[::2, ::2].copy()
    fields = {"boxes": BOXES, "depth": ImageField(channels=1, mask=True), "thumbnail": "image"}
    samples = [{"depth": large[:, :, 0], "image": large, "thumbnail": small, "boxes": [BOX]}]
    check(pack(samples, tmp_path / "x.lmdb", size=40, fields=fields)[0])


def test_a_column_of_boxes(tmp_path: Path) -> None:
    Image.fromarray(picture()).save(tmp_path / "a.png")
    manifest = tmp_path / "list.csv"
    manifest.write_text(f'path,boxes\na.png,"{json.dumps([BOX])}"\na.png,[]\n')
    dataset = pack(manifest, tmp_path / "x.lmdb", size=48, fields={"boxes": "boxes"})
    check(dataset[0])
    assert dataset[1].boxes.shape == (0, 4)
    # An export of what was resized: files, and boxes in them.
    export(tmp_path / "x.lmdb", tmp_path / "out")
    again = pack(tmp_path / "out" / "manifest.csv", tmp_path / "again.lmdb", resize="none")
    assert again.schema == dataset.schema
    assert again[0].boxes.tolist() == dataset[0].boxes.tolist()


def numbers(form: str, unit: str, box: Any = BOX) -> list[float]:
    """Return a box in another form and unit."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    forms = {
        "xyxy": (left, top, right, bottom),
        "xywh": (left, top, width, height),
        "cxcywh": (left + width / 2, top + height / 2, width, height),
        "yxyx": (top, left, bottom, right),
    }
    scale = (WIDTH, HEIGHT, WIDTH, HEIGHT) if unit == "normalised" else (1, 1, 1, 1)
    if form == "yxyx":
        scale = (scale[1], scale[0]) * 2
    return [value / by for value, by in zip(forms[form], scale, strict=True)]


@pytest.mark.parametrize("unit", ["pixels", "normalised"])
@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh", "yxyx"])
def test_boxes_of_any_form_are_where_the_image_shows_them(
    tmp_path: Path, form: str, unit: str
) -> None:
    rows: list[dict[str, Any]] = []
    for orientation in (1, 3, 6):
        turned = ORIENTED[{1: 1, 3: 3, 6: 8}[orientation]](picture())
        ys, xs = np.nonzero(turned[:, :, 0])
        box = (xs.min(), ys.min(), xs.max() + 1, ys.max() + 1)
        height, width = turned.shape[:2]
        scale = np.array([width, height] * 2) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
        given = np.array(numbers(form, unit, box))
        if unit == "normalised":
            given = given / (scale[[1, 0, 3, 2]] if form == "yxyx" else scale)
        path = tmp_path / f"{orientation}.png"
        path.write_bytes(with_orientation(turned, orientation, "PNG"))
        rows.append({"image": path, "bbox": [given.tolist()]})
    options = {"boxes": (form, unit)}
    dataset = pack(rows, tmp_path / "x.lmdb", size=48, source_options=options)
    assert dataset.schema["bbox"] == ArrayField("float32", (None, 4), boxes=True)
    opened = fastdata.open(rows, source_options=options)
    for sample, original in zip(dataset, opened, strict=True):
        np.testing.assert_allclose(sample.bbox[0], np.array(BOX) / 2, atol=0.01)
        np.testing.assert_allclose(original.bbox[0], BOX, atol=0.01)
    flipped = fastdata.loader(dataset, 3, transform=[T.RandomHorizontalFlip(1)])
    left, top, right, bottom = (value / 2 for value in BOX)
    for boxes in next(iter(flipped)).bbox:
        expected = [WIDTH / 2 - right, top, WIDTH / 2 - left, bottom]
        np.testing.assert_allclose(boxes[0], expected, atol=0.01)


def test_boxes_are_corners_in_pixels_and_move_with_their_images(tmp_path: Path) -> None:
    for boxes in (np.array([BOX], np.int64), [BOX], BOX, torch.tensor([BOX])):
        rows = [{"image": picture(), "boxes": boxes}, {"image": picture(), "boxes": []}]
        dataset = pack(rows, tmp_path / "x.lmdb", size=48, overwrite=True)
        assert dataset.schema["boxes"] == ArrayField("float32", (None, 4), boxes=True)
        np.testing.assert_allclose(dataset[0].boxes, np.array([BOX]) / 2)
        assert dataset[1].boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "boxes", "reason"),
    [
        ("boxes", [31, 22, 20, 45], "its boxes are not left, top, right and bottom in pixels"),
        ("boxes", [0.1, 0.2, 0.5, 0.6], "its boxes are not left, top, right and bottom in pixels"),
        (
            "bbox",
            [10, 20, 40, 50],
            r"may be of several forms; the first is \[10.*boxes=xywh,pixels",
        ),
        ("bboxes", [0.1, 0.2, 0.4, 0.5], "may be of several forms"),
        ("bbox", [-30, 20, 400, -50], "are of no form that fits all samples"),
        ("bbox", [[]], "are of no form"),
        ("boxes", [1, 2, 3, 4, 5], r"of shape \(1, 5\) has not 4 numbers for each box"),
    ],
)
def test_boxes_whose_form_is_not_certain_are_refused(name: str, boxes: Any, reason: str) -> None:
    rows = [{"image": picture(), name: np.array(boxes).reshape(-1, len(boxes))}]
    if boxes == [[]]:
        rows = [{"image": picture(), name: np.zeros((0, 4))}]
    with pytest.raises(SourceError, match=reason):
        find_source(rows)
    array = {name: ArrayField("float64", (None, None))}
    assert not find_source(rows, fields=array).schema.boxes


def test_a_form_is_taken_where_no_other_fits() -> None:
    rows = [{"image": picture(), "bbox": [numbers("xywh", "pixels")]}]
    rows.append({"image": picture(), "bbox": [[5, 6, 7, 3]]})
    source = find_source(rows)
    assert source.box_forms == {"bbox": ("xywh", "pixels")}
    assert source.notes == [
        "field 'bbox': boxes are xywh, pixels, as no other form fits (--option boxes=FORM,UNIT)"
    ]


@pytest.mark.parametrize(
    ("box", "reason"),
    [([40, 50, 30, 60], "is inside out"), ([400, 0, 410, 9], "is outside of the picture")],
)
def test_a_box_that_cannot_be_is_rejected(tmp_path: Path, box: Any, reason: str) -> None:
    rows = [{"image": picture(), "bbox": [each]} for each in (BOX, box)]
    options = {"boxes": ("yxyx", "pixels")}
    turned = [{**row, "bbox": [np.array(row["bbox"][0])[[1, 0, 3, 2]]]} for row in rows]
    report = fastdata.pack(turned, tmp_path / "x.lmdb", num_workers=0, source_options=options)
    assert [reject.key for reject in report.rejects] == ["00000001"]
    assert reason in report.rejects[0].reason


def test_the_option_boxes_needs_a_field_and_both_words() -> None:
    with pytest.raises(OptionError, match="say both: boxes=xywh,pixels"):
        find_source([{"image": picture(), "bbox": [BOX]}], options={"boxes": ("xywh",)})
    with pytest.raises(OptionError, match="boxes=xywh,pixels: none of the fields image, label is"):
        find_source([(picture(), 1)], options={"boxes": ("xywh", "pixels")})


def test_boxes_need_an_image(tmp_path: Path) -> None:
    def samples() -> Iterator[dict[str, Any]]:
        yield {"number": 1, "boxes": np.zeros((1, 4))}

    fields = {"number": ScalarField(), "boxes": BOXES}
    with pytest.raises(OptionError, match="there is no image field"):
        fastdata.pack(samples(), tmp_path / "x.lmdb", fields=fields, num_workers=0)


# -- by itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int16", "float32", "uint8"])
def test_turning_boxes_back(dtype: str) -> None:
    boxes = np.array([[BOX, (0, 3, 150, 96)]], dtype)
    for orientation, turn in ORIENTED.items():
        upright = turn(picture())
        turned = turn_boxes(boxes, orientation, upright.shape[:2])
        assert turned.dtype == boxes.dtype
        assert turned[0, 0].tolist() == visible(upright[:, :, 0])
        back = turn_boxes(turned, orientation, (HEIGHT, WIDTH), back=True)
        np.testing.assert_array_equal(back, boxes)


def test_whole_numbers_are_rounded_and_stay_within_their_dtype() -> None:
    boxes = np.array([[1, 2, 3, 9]], np.uint8)
    assert place_boxes(boxes, Placement((10, 10), 1, (400, 14))).tolist() == [[1, 80, 4, 255]]
    assert place_boxes(boxes, Placement((10, 10), 1, (10, 10))) is boxes
    signed = np.array([[-2, 5, 30, 7]], np.int16)
    placed = place_boxes(signed, Placement((10, 10), 1, (20, 20), (6, 3, 7, 9)))
    assert placed.tolist() == [[0, 4, 9, 7]]
    assert placed.dtype == np.int16


def test_an_orientation_that_cannot_be_read_is_said_so() -> None:
    with pytest.raises(
        ImageError, match="its header cannot be read: not an image of a known format"
    ):
        claimed_by(b"no image")
