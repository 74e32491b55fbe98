"""SVHN's whole pictures: digits and boxes, against what was written; damaged and foreign lists."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from case_svhn import digits_of, stamp, write_digits, write_list, write_splits
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, workers: int = 0, **options: Any) -> Any:
    report = fastdata.pack(
        location, path, codec="keep", resize="none", num_workers=workers, progress=False,
        source_options=options,
    )  # fmt: skip
    return report, fastdata.open(path)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", ["", "digitStruct.mat"])
def test_digits_and_boxes_are_what_was_written(
    tmp_path: Path, pictures: list[Picture], workers: int, place: str
) -> None:
    (tmp_path / "in").mkdir()
    folder = write_digits(tmp_path / "in", pictures)
    report, data = pack(folder / place, tmp_path / "x.lmdb", workers)
    assert report.num_rejected == 0
    assert dict(data.schema) == {
        "image": ImageField(),
        "boxes": ArrayField("float32", (None, 4), boxes=True),
        "labels": ArrayField("int64", (None,), classes=tuple("0123456789")),
    }
    assert list(data.keys) == [f"{k}.png" for k in range(1, 7)]
    (shard,) = data.shards
    for number, (picture, sample) in enumerate(zip(pictures, data, strict=True)):
        assert bytes(shard.blob("image", number)) == picture.data
        assert sample.labels.tolist() == [0, 1, 2][: picture.label + 1]
        expected = [
            [d["left"], d["top"], d["left"] + d["width"], d["top"] + d["height"]]
            for d in digits_of(picture)
        ]
        assert sample.boxes.tolist() == expected
        assert sample.boxes[0, 0] == -1, "a box that begins before the picture is kept so"


def test_folders_are_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "in").mkdir()
    write_splits(tmp_path / "in", pictures)
    _, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "extra"))
    assert [sample.split for sample in data] == [0, 0, 0, 1, 1, 1]
    assert [len(sample.labels) for sample in data] == [p.label + 1 for p in pictures]
    _, data = pack(tmp_path / "in", tmp_path / "y.lmdb", split="extra")
    assert "split" not in data.schema
    assert list(data.keys) == ["extra/1.png", "extra/2.png", "extra/3.png"]
    assert [len(sample.labels) for sample in data] == [p.label + 1 for p in pictures[3:]]
    with pytest.raises(OptionError, match="split=test: not there; there are train, extra"):
        find_source(tmp_path / "in", options={"split": "test"})


DIGIT = {"left": 2, "top": 3, "width": 8, "height": 9, "label": 7}


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"label": 0}, "not all of 1 to 10"),
        ({"label": 11}, "not all of 1 to 10"),
        ({"label": 1.5}, "not all of 1 to 10"),
        ({"label": np.nan}, "not all of 1 to 10"),
        ({"left": 48}, "outside of the picture"),
        ({"width": -1}, "inside out"),
        ({"top": np.inf}, "inside out"),
    ],
)
def test_digits_that_cannot_be_are_rejects(
    tmp_path: Path, pictures: list[Picture], changed: dict[str, float], match: str
) -> None:
    rows = [("1.png", [DIGIT, {**DIGIT, **changed}]), ("2.png", [DIGIT])]
    write_list(tmp_path / "in/digitStruct.mat", rows)
    for name, _ in rows:
        (tmp_path / "in" / name).write_bytes(pictures[0].data)
    report, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["1.png"]
    assert match in report.rejects[0].reason
    assert [sample.labels.tolist() for sample in data] == [[7]]


def test_names_that_lead_out_or_are_of_no_image_are_rejects(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    names = ("../1.png", "/etc/passwd", "2.png", "3.png")
    write_list(tmp_path / "in/digitStruct.mat", [(name, [DIGIT]) for name in names])
    (tmp_path / "in/3.png").write_bytes(pictures[0].data)
    (tmp_path / "in/4.png").write_bytes(pictures[0].data)
    report, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert list(data.keys) == ["3.png"]
    reasons = [reject.reason for reject in report.rejects]
    assert ["outside" in reason for reason in reasons] == [True, True, False]
    assert any(
        "1 images" in note and "left out" in note for note in find_source(tmp_path / "in").notes
    )


def test_an_image_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    write_list(tmp_path / "digitStruct.mat", [("1.png", [DIGIT]), ("1.png", [DIGIT])])
    with pytest.raises(SourceError, match=r"names '1\.png' twice"):
        find_source(tmp_path)


# -- lists that are not as they should be --------------------------------------------------


def change(path: Path, edit: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)
    stamp(path)


def fewer_boxes(file: h5py.File) -> None:
    rows = file["digitStruct/bbox"][:1]
    del file["digitStruct/bbox"]
    file.create_dataset("digitStruct/bbox", data=rows, dtype=h5py.ref_dtype)


def one_image(file: h5py.File) -> None:
    name = file[file["digitStruct/name"][0, 0]][()]
    del file["digitStruct/name"]
    file["digitStruct/name"] = name


def numbers_for_names(file: h5py.File) -> None:
    wrong = file["#refs#"].create_dataset("wrong", data=np.ones((3, 1)))
    file["digitStruct/name"][0, 0] = wrong.ref


def long_name(file: h5py.File) -> None:
    wrong = file["#refs#"].create_dataset("wrong", (1 << 40, 1), np.uint16, chunks=(1024, 1))
    file["digitStruct/name"][0, 0] = wrong.ref


def no_reference(file: h5py.File) -> None:
    file["digitStruct/name"][0, 0] = h5py.Reference()


def link_out(file: h5py.File) -> None:
    del file["digitStruct/bbox"]
    file["digitStruct/bbox"] = h5py.ExternalLink("other.h5", "/bbox")


def no_struct(file: h5py.File) -> None:
    del file["digitStruct"]


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (fewer_boxes, r"\(6, 1\) names and \(1, 1\) boxes"),
        (one_image, "digitStruct/name to refer to several images"),
        (numbers_for_names, "not of characters of 16 bits"),
        (long_name, "claims 1,099,511,627,776 elements"),
        (no_reference, "cannot be read"),
        (link_out, "bbox is a link"),
        (no_struct, "cannot be read"),
    ],
)
def test_lists_that_are_not_as_they_should_be_are_refused(
    tmp_path: Path, pictures: list[Picture], edit: Callable[[h5py.File], None], match: str
) -> None:
    write_digits(tmp_path, pictures)
    change(tmp_path / "digitStruct.mat", edit)
    with pytest.raises(SourceError, match=match):
        find_source(tmp_path)


def group_of(file: h5py.File, row: int) -> Any:
    return file[file["digitStruct/bbox"][row, 0]]


def too_few_labels(file: h5py.File) -> None:
    group = group_of(file, 2)
    rows = group["label"][:2]
    del group["label"]
    group.create_dataset("label", data=rows, dtype=h5py.ref_dtype)


def no_labels(file: h5py.File) -> None:
    del group_of(file, 2)["label"]


def a_group_for_a_number(file: h5py.File) -> None:
    group_of(file, 2)["left"][1, 0] = file["digitStruct"].ref


def several_for_a_number(file: h5py.File) -> None:
    wrong = file["#refs#"].create_dataset("wrong", data=np.ones((2, 1)))
    group_of(file, 2)["left"][1, 0] = wrong.ref


def references_for_a_number(file: h5py.File) -> None:
    group_of(file, 2)["left"][1, 0] = group_of(file, 1)["left"].ref


def text_for_numbers(file: h5py.File) -> None:
    group = group_of(file, 2)
    del group["left"]
    group["left"] = "text of variable length"


def numbers_elsewhere(file: h5py.File) -> None:
    group = group_of(file, 2)
    del group["left"]
    group.create_dataset("left", (3, 1), "f8", external=[("/dev/zero", 0, 24)])


def many_boxes(file: h5py.File) -> None:
    group = group_of(file, 2)
    for name in ("left", "top", "width", "height", "label"):
        del group[name]
        group.create_dataset(name, (1 << 30, 1), "f8", chunks=(1 << 16, 1))


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (too_few_labels, "its boxes have 3, 3, 3, 3, 2 numbers"),
        (no_labels, "there is no label"),
        (a_group_for_a_number, "expected an array"),
        (several_for_a_number, "claims 2 elements"),
        (references_for_a_number, "claims 2 elements"),
        (text_for_numbers, "neither numbers nor references"),
        (numbers_elsewhere, "lies in other files"),
        (many_boxes, "claims 1,073,741,824 elements"),
    ],
)
def test_boxes_that_are_not_as_they_should_be_are_rejects(
    tmp_path: Path, pictures: list[Picture], edit: Callable[[h5py.File], None], match: str
) -> None:
    (tmp_path / "in").mkdir()
    write_digits(tmp_path / "in", pictures)
    change(tmp_path / "in/digitStruct.mat", edit)
    report, data = pack(tmp_path / "in", tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["3.png"]
    assert "image 3: " in report.rejects[0].reason
    assert match in report.rejects[0].reason
    assert list(data.keys) == ["1.png", "2.png", "4.png", "5.png", "6.png"]


def test_a_list_that_is_replaced_is_read_anew(tmp_path: Path, pictures: list[Picture]) -> None:
    (tmp_path / "a").mkdir()
    write_digits(tmp_path / "a", pictures)
    pack(tmp_path / "a", tmp_path / "x.lmdb")
    rows = [(f"{k}.png", [DIGIT]) for k in range(1, 7)]
    write_list(tmp_path / "new/digitStruct.mat", rows)
    shutil.move(tmp_path / "new/digitStruct.mat", tmp_path / "a/digitStruct.mat")
    _, data = pack(tmp_path / "a", tmp_path / "y.lmdb")
    assert [sample.labels.tolist() for sample in data] == [[7]] * 6
