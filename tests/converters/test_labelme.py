"""What is special to labelme: kinds of shapes, images in files, and where images are."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_labelme import content, embedded, write_labelme
from cases import Picture, make_pictures
from pack_helpers import pil_file, with_orientation
from PIL import Image, ImageDraw, ImageOps
from samples import photo

import fastdata
from fastdata.converters.finding import format_of
from fastdata.errors import SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(4)  # 40 x 48


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="png", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


def shape(label: str, kind: str | None, *points: tuple[float, float], **more: Any) -> Any:
    return {"label": label, "shape_type": kind, "points": [list(p) for p in points], **more}


def rewrite(root: Path, picture: Picture, *args: Any, **changed: Any) -> None:
    (root / f"{picture.name}.json").write_text(json.dumps(content(picture, *args, **changed)))


def test_kinds_of_shapes(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_labelme(tmp_path / "root", pictures)
    bitmap = np.zeros((6, 5), np.uint8)
    bitmap[1:4, 2:5] = 1
    mask = base64.b64encode(pil_file(Image.fromarray(bitmap * 255).convert("1"), "PNG")).decode()
    shapes = [
        shape("dog", "rectangle", (30, 25), (10, 5)),
        shape("cat", None, (1.5, 2), (9, 2), (9, 11)),
        shape("ball", "circle", (20, 20), (20, 26)),
        shape("dog", "mask", (40, 30), (44, 35), mask=mask),
        shape("cat", "line", (0, 0), (5, 5)),
        shape("cat", "point", (0, 0)),
        shape("cat", "oriented_rectangle", (30, 5), (40, 10), (35, 20), (25, 15)),
    ]
    rewrite(root, pictures[0], shapes)
    report, data = pack(root, tmp_path / "x.lmdb", masks="classes")
    assert report.num_rejected == 0, report.rejects
    assert dict(data.schema) == {
        "image": ImageField(),
        "mask": ImageField(
            1, mask=True, classes=("background", "ant", "ball", "bee", "cat", "dog")
        ),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=("ant", "ball", "bee", "cat", "dog")),
    }
    sample = data[0]
    np.testing.assert_allclose(
        sample.boxes,
        [[10, 5, 30, 25], [1.5, 2, 9, 11], [14, 14, 26, 26], [42, 31, 45, 34], [25, 5, 40, 20]],
    )
    assert [data.classes[k] for k in sample.labels] == ["dog", "cat", "ball", "dog", "cat"]
    note = next(note for note in report.notes if "left out" in note)
    assert "1 shapes of kind line, 1 shapes of kind point" in note
    drawn = Image.new("L", (48, 40))
    draw = ImageDraw.Draw(drawn)  # as labelme draws, later shapes above
    draw.rectangle((10, 5, 29, 24), fill=5)
    draw.polygon([(1.5, 2), (9, 2), (9, 11)], fill=4)
    draw.ellipse((14, 14, 26, 26), fill=2)
    draw.rectangle((42, 31, 44, 33), fill=5)
    draw.polygon([(30, 5), (40, 10), (35, 20), (25, 15)], fill=4)
    found, expected = np.asarray(sample.mask).squeeze(), np.asarray(drawn)
    assert (found != expected).sum() < 80  # outlines, which PIL paints too
    middle = [(15, 12), (7, 4), (20, 20), (43, 32), (32, 12), (12, 22), (26, 23)]
    assert [found[y, x] for x, y in middle] == [expected[y, x] for x, y in middle]
    assert [expected[y, x] for x, y in middle] == [5, 4, 2, 5, 4, 5, 5]
    assert (found == expected)[30:36, 40:48].all()


def test_images_in_files_and_elsewhere(tmp_path: Path, pictures: list[Picture]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    embedded(root, pictures)
    _, data = pack(root, tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "val"))
    assert [s.split for s in data] == [0, 0, 1, 1]
    for sample, picture in zip(data, pictures, strict=True):
        stored = np.asarray(sample.image)
        stored = stored if stored.shape[-1] == 3 else np.moveaxis(stored, 0, -1)
        np.testing.assert_array_equal(stored, picture.pixels)
    other = tmp_path / "other"
    for part in ("images", "annotations"):
        (other / part).mkdir(parents=True)
    for p in pictures:
        (other / f"images/{p.name}.jpg").write_bytes(p.data)
        rewrite(other / "annotations", p, imagePath=f"..\\images\\{p.name}.jpg")
    report, data = pack(other, tmp_path / "y.lmdb")
    assert (len(data), report.num_rejected) == (4, 0)
    assert data.keys[0] == "images/000000.jpg"


def test_an_image_is_not_looked_for_outside(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_labelme(tmp_path / "root", pictures)
    (tmp_path / "secret.jpg").write_bytes(pictures[0].data)
    rewrite(root, pictures[1], imagePath="../secret.jpg")
    report, data = pack(root, tmp_path / "x.lmdb")
    assert [r.key for r in report.rejects] == ["000001.json"]
    assert "its image '../secret.jpg' is not in" in report.rejects[0].reason
    assert any("1 images without a JSON file left out" in note for note in report.notes)
    assert len(data) == 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_shapes_are_of_the_upright_picture(tmp_path: Path, orientation: int) -> None:
    lying = photo(40, 48, seed=1)
    lying[10:20, 5:25] = [255, 0, 0]
    data = with_orientation(lying, orientation, "PNG")
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    rows, columns = np.nonzero((shown == [255, 0, 0]).all(-1))
    box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    (tmp_path / "a.png").write_bytes(data)
    corners = [(float(box[0]), float(box[1])), (float(box[2]), float(box[3]))]
    picture = Picture("a", data, shown, 0)
    text = json.dumps(content(picture, [shape("red", "rectangle", *corners)], imagePath="a.png"))
    (tmp_path / "a.json").write_text(text)
    report, packed = pack(tmp_path, tmp_path / "x.lmdb")
    assert report.num_rejected == 0, report.rejects
    assert packed[0].boxes.tolist() == [box]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([shape("cat", "polygon", (1, 2), (3, 4))], "shape 1: a polygon has three or more corners"),
        ([shape("cat", "circle", (1, 2))], "shape 1: a circle has 2 points, not 1"),
        ([shape("cat", "rectangle", (1, 2), (float("nan"), 4))], "shape 1: expected coordinates"),
        (
            [{"label": "cat", "shape_type": "polygon", "points": [[1], [2]]}],
            "not a list of x and y",
        ),
        ([{"label": 7, "points": [[1, 2]] * 3}], "shape 1: its label is 7"),
        ([shape("cat", "mask", (0, 0), (2, 2), mask="!")], "its mask is no base64"),
        ([shape("cat", "mask", (0, 0), (2, 2), mask="AAAA")], "its mask is not an image"),
        ("none", "its shapes are not a list"),
    ],
)
def test_a_bad_shape_is_a_reject(
    tmp_path: Path, pictures: list[Picture], shapes: Any, message: str
) -> None:
    root = write_labelme(tmp_path / "root", pictures)
    rewrite(root, pictures[0], shapes)
    report, data = pack(root, tmp_path / "x.lmdb")
    assert message in report.rejects[0].reason
    assert len(data) == 3


def test_another_size_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_labelme(tmp_path / "root", pictures)
    rewrite(root, pictures[0], imageWidth=50)
    report, _ = pack(root, tmp_path / "x.lmdb")
    assert "annotations are of a picture of 50 x 40 pixels" in report.rejects[0].reason
    assert pack(root, tmp_path / "y.lmdb", check_size=False)[0].num_rejected == 0


def test_other_json_files_are_not_taken_for_it(tmp_path: Path, pictures: list[Picture]) -> None:
    for name in ("cat", "labels"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(pictures[0].data)
    (tmp_path / "labels/0.json").write_text('{"shapes": "none"}')
    assert format_of(tmp_path).name == "folder"
    with pytest.raises(SourceError, match="no JSON files of labelme"):
        fastdata.pack(tmp_path / "cat", tmp_path / "x.lmdb", format="labelme", progress=False)
