"""Folders of images: taken as they are, unless something beside them says what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from case_flat import deep, flat
from case_manifest import write_images, write_rows
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source, format_of
from fastdata.errors import SourceError
from fastdata.schema import ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(10, 8, 8)


def test_images_come_by_name_and_what_is_left_out_is_said(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    flat(tmp_path, pictures)
    (tmp_path / "logs").mkdir()
    source = find_source(tmp_path)
    assert source.name == "flat"
    assert [sample.key for sample in source] == [f"{p.name}.jpg" for p in pictures]
    assert dict(source.schema) == {"image": ImageField()}
    assert any("1 .md" in note for note in source.notes)
    assert any("folders logs are left out" in note for note in source.notes)
    assert any("no labels" in note for note in source.notes)


def test_images_at_any_depth_by_option(tmp_path: Path, pictures: list[Picture]) -> None:
    deep(tmp_path, pictures)
    source = find_source(tmp_path, format="flat", options={"recursive": "true"})
    wanted = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.jpg"))
    assert sorted(sample.key for sample in source) == wanted
    assert find_source(tmp_path, format="flat").num_samples == 5
    (tmp_path / "c").mkdir()
    with pytest.raises(SourceError, match=r"no images directly in this folder.*recursive=true"):
        find_source(tmp_path / "c", format="flat")


@pytest.mark.parametrize("name", ["labels.csv", "list.txt", "a.jsonl"])
def test_the_one_list_beside_them_is_read(
    tmp_path: Path, pictures: list[Picture], name: str
) -> None:
    flat(tmp_path, pictures)
    if name.endswith("jsonl"):
        rows = [{"file_name": f"{p.name}.jpg", "label": p.label} for p in pictures]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        separator = "," if name.endswith("csv") else " "
        rows_ = [(f"{p.name}.jpg", p.label) for p in pictures]
        write_rows(tmp_path / name, rows_, separator)
    (tmp_path / "notes.txt").write_text("taken in May\nby hand\n")
    source = find_source(tmp_path)
    assert source.name == "manifest"
    assert [sample.values[1] for sample in source] == [p.label for p in pictures]  # type: ignore[index]
    assert any(f"of the list {name}" in note for note in source.notes), source.notes
    (tmp_path / "extra.jpg").write_bytes(pictures[0].data)
    assert any("1 image files" in note for note in find_source(tmp_path).notes)
    with pytest.raises(SourceError, match=rf"(?s){name} next to the images .*alone=true"):
        find_source(tmp_path, format="flat")
    alone = find_source(tmp_path, format="flat", options={"alone": True})
    assert alone.num_samples == 11


def test_several_lists_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    flat(tmp_path, pictures)
    for name in ("labels.csv", "fold1.csv"):
        write_rows(tmp_path / name, [(f"{p.name}.jpg", p.label) for p in pictures])
    with pytest.raises(
        SourceError, match=r"(?s)fold1.csv, labels.csv next to .*fastdata pack .*fold1"
    ):
        find_source(tmp_path)


@pytest.mark.parametrize("suffix", [".txt", ".json", ".xml"])
def test_annotations_of_the_images_names_are_not_passed_over(
    tmp_path: Path, pictures: list[Picture], suffix: str
) -> None:
    flat(tmp_path, pictures)
    (tmp_path / f"000003{suffix}").write_text("0 0.5 0.5 0.1 0.1")
    with pytest.raises(SourceError, match=rf"000003{suffix} next to the images may describe them"):
        find_source(tmp_path, format="flat")


def test_class_folders_with_images_beside_them_are_not_flat(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    deep(tmp_path, pictures)
    assert format_of(tmp_path).name == "folder"


@pytest.mark.parametrize("name", ["labels.txt", "labels.csv", "labels.json", "y.npy", "info.mat"])
def test_labels_without_names_are_not_passed_over(
    tmp_path: Path, pictures: list[Picture], name: str
) -> None:
    flat(tmp_path, pictures)
    (tmp_path / name).write_bytes(b"cat\ndog\n" * 5)
    with pytest.raises(SourceError, match=rf"{name} next to the images may describe them"):
        find_source(tmp_path)
    alone = find_source(tmp_path, format="flat", options={"alone": True})
    assert alone.num_samples == 10


def test_split_folders_of_plain_images_have_a_split(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    """As pix2pix has them: pairs in one picture."""
    for name, part in (("val", pictures[6:]), ("train", pictures[:6])):
        write_images(tmp_path / "in" / name, part)
    (tmp_path / "in/README.md").write_text("maps")
    pack_options = {"codec": "keep", "resize": "none", "num_workers": 0, "progress": False}
    fastdata.pack(tmp_path / "in", tmp_path / "x.lmdb", **pack_options)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "val"))
    assert [sample.split for sample in data] == [0] * 6 + [1] * 4
    assert list(data.keys)[:2] == ["train/000000.jpg", "train/000001.jpg"]
    one = find_source(tmp_path / "in", options={"split": "val"})
    assert (one.num_samples, list(one.schema)) == (4, ["image"])
    (tmp_path / "in/labels.txt").write_text("0\n1\n" * 5)
    with pytest.raises(SourceError, match=r"labels.txt next to the images may describe them"):
        find_source(tmp_path / "in")
