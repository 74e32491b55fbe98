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
from fastdata.codecs.image_header import orientation_of
from fastdata.converters.packing.boxes import Placement, place_boxes, turn_boxes
from fastdata.errors import ImageError, OptionError
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
    assert orientation_of(data) == orientation
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


def test_an_array_that_nobody_called_boxes_stays_as_it_is(tmp_path: Path) -> None:
    samples = [{"image": picture(), "boxes": np.array([BOX], np.float32)}]
    dataset = pack(samples, tmp_path / "x.lmdb", size=40)
    assert dataset.schema["boxes"] == ArrayField("float32", (1, 4))
    assert dataset[0].boxes.tolist() == [list(BOX)]


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
        ImageError, match="its orientation cannot be read: not an image of a known format"
    ):
        orientation_of(b"no image")
