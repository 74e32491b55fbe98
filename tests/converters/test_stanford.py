"""Stanford Cars and Dogs: labels, boxes and splits of their lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_mat import cells, mat5, matrix, structs, text
from case_stanford import (
    annotation,
    box_of,
    number,
    write_annotations,
    write_cars,
    write_devkit,
    write_dogs,
)
from cases import CLASSES, Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField

FIXTURES = Path(__file__).parent / "fixtures" / "mat"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, **options: Any) -> Any:
    fastdata.pack(
        location, path, codec="keep", num_workers=0, progress=False, source_options=options
    )
    return fastdata.open(path)


@pytest.mark.parametrize("write", [write_cars, write_devkit])
def test_cars_have_labels_boxes_and_splits(
    write: Any, tmp_path: Path, pictures: list[Picture]
) -> None:
    (tmp_path / "cars").mkdir()
    data = pack(write(tmp_path / "cars", pictures), tmp_path / "a.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=CLASSES),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "split": ScalarField(classes=("train", "test")),
    }
    assert [sample.label for sample in data] == [p.label for p in pictures]
    for sample, picture in zip(data, pictures, strict=True):
        left, top, right, bottom = box_of(picture)
        assert np.asarray(sample.boxes).tolist() == [[left - 1, top - 1, right, bottom]]
    expected = [0, 0, 1, 0, 0, 1] if write is write_cars else [0, 0, 0, 1, 1, 1]
    assert [sample.split for sample in data] == expected


def test_dogs_have_the_classes_of_their_folders(tmp_path: Path, pictures: list[Picture]) -> None:
    data = pack(write_dogs(tmp_path, pictures), tmp_path.with_suffix(".lmdb"), split="test")
    assert dict(data.schema) == {"image": ImageField(), "label": ScalarField(classes=CLASSES)}
    assert [sample.label for sample in data] == [p.label for p in pictures[3:]]
    assert data.keys[0] == "Images/n02085620-ant/000003.jpg"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("lists", [True, False])
def test_dogs_have_the_boxes_of_their_annotations(
    tmp_path: Path, pictures: list[Picture], first: int, lists: bool
) -> None:
    (tmp_path / "dogs").mkdir()
    root = write_annotations(tmp_path / "dogs", pictures, first)
    for split in () if lists else ("train", "test"):
        (root / f"{split}_list.mat").unlink()
    data = pack(root, tmp_path / "a.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=CLASSES),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=CLASSES),
        **({"split": ScalarField(classes=("train", "test"))} if lists else {}),
    }
    found = {Path(key).stem: sample for key, sample in zip(data.keys, data, strict=True)}
    assert len(found) == len(data) == 6
    for k, picture in enumerate(pictures):
        sample = found[f"{k:06}"]
        assert sample.label == picture.label
        assert sample.labels.tolist() == [picture.label] * (picture.label + 1)
        assert sample.boxes.tolist() == [[each, 0, 20, 15] for each in range(picture.label + 1)]
        if lists:
            assert sample.split == int(k >= 3)
    notes = find_source(root).notes
    assert any(note.startswith(f"boxes count pixels from {first}") for note in notes)


def test_dogs_without_lists_have_no_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    write_annotations(tmp_path, pictures)
    for split in ("train", "test"):
        (tmp_path / f"{split}_list.mat").unlink()
    with pytest.raises(OptionError, match=r"split=test: there is no train_list\.mat"):
        find_source(tmp_path, options={"split": "test"})


def test_annotations_of_dogs_that_do_not_fit_are_rejects(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = write_annotations(tmp_path / "in", pictures)
    first, second, third = sorted((root / "Annotation").rglob("00000[012]"))
    first.unlink()
    second.write_text(second.read_text().replace("<name>bee", "<name>wolf", 1))
    third.write_text(third.read_text().replace("<width>48", "<width>49"))
    report = fastdata.pack(root, tmp_path / "x.lmdb", codec="keep", num_workers=0, progress=False)
    reasons = [reject.reason for reject in report.rejects]
    wanted = ("empty=true", "'wolf', which is none of the classes", "check_size=false")
    assert len(reasons) == 3
    assert all(part in reason for part, reason in zip(wanted, reasons, strict=True))


def test_files_that_scipy_wrote(tmp_path: Path, pictures: list[Picture]) -> None:
    """The lists are as SciPy writes structs and cells; the images need not be there."""
    for name in ("cars_annos.mat", "train_list.mat", "test_list.mat"):
        folder = tmp_path / name.partition("_")[0]
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes((FIXTURES / name).read_bytes())
    source = find_source(tmp_path / "cars")
    assert source.schema["label"] == ScalarField(classes=("Acura RL", "Audi S4", "BMW M3"))
    found = [(sample.key, *map(np.ravel, sample.values[1:])) for sample in source]  # type: ignore[union-attr]
    assert [(key, *map(np.ndarray.tolist, values)) for key, *values in found] == [
        ("car_ims/000001.jpg", [2], [111, 6, 853, 598], [0]),
        ("car_ims/000002.jpg", [0], [0, 0, 300, 200], [1]),
    ]
    (tmp_path / "test" / "test_list.mat").rename(tmp_path / "train" / "test_list.mat")
    dogs = list(find_source(tmp_path / "train"))
    assert [(sample.key, *sample.values[1:]) for sample in dogs] == [  # type: ignore[union-attr]
        ("Images/n02085620-Chihuahua/n02085620_5927.jpg", 0, 0),
        ("Images/n02085782-Japanese_spaniel/n02085782_50.jpg", 1, 0),
        ("Images/n02085620-Chihuahua/n02085620_4441.jpg", 0, 1),
    ]


def test_a_missing_split_is_said(tmp_path: Path, pictures: list[Picture]) -> None:
    write_devkit(tmp_path, pictures)
    (tmp_path / "cars_test_annos_withlabels.mat").unlink()
    source = find_source(tmp_path)
    assert source.num_samples == 3
    assert any("no cars_test_annos_withlabels.mat" in note for note in source.notes)


def test_names_that_lead_out_are_rejects(tmp_path: Path, pictures: list[Picture]) -> None:
    names = ("../0.jpg", "/etc/passwd", "car_ims/1.jpg")
    rows = [
        {"relative_im_path": text(name), **annotation(pictures[0]), "test": number(0)}
        for name in names
    ]
    classes = cells("class_names", [text(name) for name in CLASSES])
    mat5(tmp_path / "cars_annos.mat", structs("annotations", rows), classes)
    found = list(find_source(tmp_path))
    assert ["leads outside" in getattr(sample, "reason", "") for sample in found] == [1, 1, 0]


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"class": number(4)}, "none of 1 to 3"),
        ({"class": number(0)}, "none of 1 to 3"),
        ({"class": text("ant")}, "'class': expected a whole number"),
        ({"class": matrix("", np.array([[np.nan]]))}, "expected a whole number"),
        ({"bbox_x2": number(0)}, "cannot be"),
        ({"test": number(2)}, "cannot be"),
    ],
)
def test_annotations_that_cannot_be_are_refused(
    changed: dict[str, bytes], match: str, tmp_path: Path, pictures: list[Picture]
) -> None:
    row = {"relative_im_path": text("car_ims/1.jpg"), **annotation(pictures[0]), "test": number(0)}
    classes = cells("class_names", [text(name) for name in CLASSES])
    mat5(tmp_path / "cars_annos.mat", structs("annotations", [{**row, **changed}]), classes)
    with pytest.raises(SourceError, match=match):
        find_source(tmp_path)


def test_dogs_whose_labels_and_folders_differ_are_refused(tmp_path: Path) -> None:
    def write(files: list[str], labels: list[float]) -> None:
        for name in ("train_list.mat", "test_list.mat"):
            listed = cells("file_list", [text(file) for file in files])
            mat5(tmp_path / name, listed, matrix("labels", np.array([labels], np.float64)))

    write(["a/0.jpg", "b/0.jpg"], [1, 1])
    with pytest.raises(SourceError, match="label 1 is a and b"):
        find_source(tmp_path)
    for files in (["a/0.jpg"], ["a/0.jpg", "b/0.jpg", "c/0.jpg"]):
        write(files, [1, 2])
        with pytest.raises(SourceError, match="not of one length"):
            find_source(tmp_path)
    write(["a/0.jpg", "b/0.jpg"], [1, 3])
    with pytest.raises(SourceError, match="do not count from 1"):
        find_source(tmp_path)
