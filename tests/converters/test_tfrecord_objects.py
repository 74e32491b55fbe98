"""Boxes and classes of objects in TFRecord files, and files that are told by their content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_tfrecord import example, record
from pack_helpers import pil_file

import fastdata
from fastdata.converters.finding import find_source
from fastdata.schema import ArrayField, ImageField, ScalarField

FIXTURES = Path(__file__).parent / "fixtures" / "tfrecord"
BOX = "image/object/bbox/"


def one(
    boxes: list[tuple[float, float, float, float]], orientation: int = 1, **more: Any
) -> dict[str, object]:
    """Return the features of a picture, 8 high and 16 wide."""
    pixels = np.zeros((8, 16, 3), np.uint8)
    given = {"EXIF": orientation} if orientation > 1 else {}
    data = pil_file(pixels, "PNG") if not given else oriented(pixels, orientation)
    sides = zip(("xmin", "ymin", "xmax", "ymax"), zip(*boxes, strict=True), strict=False)
    empty = {BOX + side: [0.0][:0] for side in ("xmin", "ymin", "xmax", "ymax")}
    found = {BOX + side: list(values) for side, values in sides}
    return {"image/encoded": data, **empty, **found, **more}


def oriented(pixels: np.ndarray[Any, Any], orientation: int) -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x112] = orientation
    return pil_file(pixels, "JPEG", exif=exif)


def write(path: Path, *examples: dict[str, object]) -> Path:
    path.write_bytes(b"".join(record(example(features)) for features in examples))
    return path


def pack(location: Any, path: Path, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=0, progress=False,
        source_options=options,
    )  # fmt: skip
    return fastdata.open(path), report


def test_objects_of_tensorflow_read_as_written(tmp_path: Path) -> None:
    data, report = pack(FIXTURES / "objects.record", tmp_path / "a.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=("ant", "ox")),
    }
    for number in range(4):
        sample = data[number]
        wanted = [[k / 8 * 7, 1.5, min((k + 4) / 8, 1) * 7, 6] for k in range(number)]
        assert np.allclose(np.asarray(sample.boxes).reshape(-1, 4), np.reshape(wanted, (-1, 4)))
        assert np.asarray(sample.labels).tolist() == [1, 0, 1][:number]
    assert any("image/filename" in note for note in report.notes)


def test_a_file_of_classes_names_them_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("yak\nox\nant\n")
    option = str(tmp_path / "names.txt")
    data, report = pack(FIXTURES / "objects.record", tmp_path / "a.lmdb", classes=option)
    assert data.schema["labels"] == ArrayField("int64", (None,), classes=("yak", "ox", "ant"))
    assert np.asarray(data[3].labels).tolist() == [1, 2, 1]
    numbers = {"image/object/class/label": [2, 3]}
    boxes = [(0.0, 0.0, 1.0, 1.0)] * 2
    good = {"image/object/class/label": [2, 0]}
    path = write(tmp_path / "b.record", one(boxes, **numbers), one(boxes, **good))
    data, report = pack(path, tmp_path / "b.lmdb", classes=option)
    assert np.asarray(data[0].labels).tolist() == [2, 0]
    assert "is 3, and there are 3 classes" in report.rejects[0].reason


def test_numbers_alone_stay_as_they_are(tmp_path: Path) -> None:
    label = {"image/object/class/label": [7, 2]}
    path = write(tmp_path / "a.tfrecord", one([(0.0, 0.0, 1.0, 1.0)] * 2, **label))
    data, report = pack(path, tmp_path / "a.lmdb")
    assert data.schema["labels"] == ArrayField("int64", (None,))
    assert np.asarray(data[0].labels).tolist() == [7, 2]
    assert any("the numbers of the files" in note for note in report.notes)


def test_boxes_are_of_the_upright_picture_where_its_size_says_so(tmp_path: Path) -> None:
    size = {"image/height": 16, "image/width": 8, "image/object/class/label": [1]}
    upright = one([(0.0, 0.0, 0.5, 0.25)], orientation=6, **size)
    as_stored = {**upright, "image/height": 8, "image/width": 16}
    path = write(tmp_path / "a.tfrecord", upright, as_stored)
    fastdata.pack(path, tmp_path / "a.lmdb", num_workers=0, progress=False, resize="none")
    data = fastdata.open(tmp_path / "a.lmdb")
    # What is packed is upright: 16 high and 8 wide, turned by a quarter to the right.
    assert np.asarray(data[0].boxes).tolist() == [[0, 0, 4, 4]]
    assert np.asarray(data[1].boxes).tolist() == [[6, 0, 8, 8]]


BAD = {
    "[1, 2, 2, 2, 2] values, not as many each": {BOX + "xmin": [0.0]},
    "parts of the picture's size": {BOX + "xmax": [160.0, 1.0]},
    "a box ends before it begins": {BOX + "xmin": [1.0, 0.0], BOX + "xmax": [0.5, 1.0]},
    "[2, 2, 2, 2, 1] values": {"image/object/class/label": [1]},
    "of a picture of 15 x 8": {"image/height": 8, "image/width": 15},
    "should be": {BOX + "ymin": [float("nan"), 0.0]},
}


@pytest.mark.parametrize("reason", BAD)
def test_what_cannot_be_is_a_reject(reason: str, tmp_path: Path) -> None:
    good = one([(0.0, 0.0, 1.0, 1.0)] * 2, **{"image/object/class/label": [1, 2]})
    path = write(tmp_path / "a.tfrecord", good, {**good, **BAD[reason]})
    data, report = pack(path, tmp_path / "a.lmdb")
    assert len(data) == 1
    assert reason in report.rejects[0].reason


def test_names_of_classes_count_and_not_their_numbers(tmp_path: Path) -> None:
    def classes(*pairs: tuple[bytes, int]) -> dict[str, object]:
        texts, numbers = zip(*pairs, strict=True)
        features = {"image/object/class/text": list(texts), "image/object/class/label": [*numbers]}
        return one([(0.0, 0.0, 1.0, 1.0)] * len(pairs), **features)

    rows = classes((b"bee", 1), (b"ant", 1)), classes((b"ant", 2))
    numbers = one([(0.0, 0.0, 1.0, 1.0)], **{"image/object/class/label": [1]})
    data, report = pack(write(tmp_path / "a.tfrecord", *rows, numbers), tmp_path / "a.lmdb")
    assert data.schema["labels"] == ArrayField("int64", (None,), classes=("ant", "bee"))
    assert [np.asarray(sample.labels).tolist() for sample in data] == [[1, 0], [0]]
    assert "[1, 1, 1, 1, 0] values" in report.rejects[0].reason


def test_kaggles_flowers_have_labels(tmp_path: Path) -> None:
    data, _ = pack(FIXTURES / "flowers.tfrec", tmp_path / "a.lmdb")
    assert data.schema["label"] == ScalarField()
    assert [sample.label for sample in data] == [0, 30, 60]


@pytest.mark.parametrize(
    "names",
    [("a.tfrec", "b.tfrec"), ("pet.record-00000-of-00002", "pet.record-00001-of-00002"),
     ("00.jpeg_records", "01.jpeg_records"), ("part-0", "part-1"), ("x.bin", "y.bin")],
)  # fmt: skip
def test_folders_are_told_by_content(names: tuple[str, ...], tmp_path: Path) -> None:
    for number, name in enumerate(names):
        write(tmp_path / name, {"image": pil_file(np.zeros((4, 4, 3), np.uint8), "PNG"),
                                "label": number})  # fmt: skip
    (tmp_path / "README").write_text("two shards")
    source = find_source(tmp_path)
    assert source.name == "tfrecord"
    assert source.count() == 2
