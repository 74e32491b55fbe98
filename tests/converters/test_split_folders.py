"""Class folders within split folders, and manifests with several columns of images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pack_helpers import pil_file, pixels

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField, StringField


def put(root: Path, names: Sequence[str]) -> Path:
    for k, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pil_file(np.full((20, 30, 3), 10 * k + 1, np.uint8), "PNG"))
    return root


SPLIT = [
    "train/cat/0.png",
    "train/cat/1.png",
    "train/dog/0.png",
    "val/cat/0.png",
    "val/newt/0.png",
    "test/dog/0.png",
]


def test_split_folders_become_a_field(tmp_path: Path) -> None:
    source = find_source(put(tmp_path / "in", SPLIT))
    assert source.name == "folder"
    assert dict(source.schema) == {
        "image": ImageField(),
        "label": ScalarField(classes=("cat", "dog", "newt")),
        "split": ScalarField(classes=("train", "val", "test")),
    }
    assert any("--option split=NAME" in note for note in source.notes)
    fastdata.pack(tmp_path / "in", tmp_path / "x.lmdb", num_workers=0, progress=False)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert list(data.keys) == SPLIT
    assert [(s.label, s.split) for s in data] == [(0, 0), (0, 0), (1, 0), (0, 1), (2, 1), (1, 2)]
    assert [int(pixels(s.image)[0, 0, 0]) for s in data] == [1, 11, 21, 31, 41, 51]
    assert data.classes == ["cat", "dog", "newt"]


def test_a_class_has_its_number_by_its_name_whichever_split_has_it_first(tmp_path: Path) -> None:
    put(tmp_path / "in", ["train/cat/0.png", "train/eel/0.png", "val/ant/0.png", "val/dog/0.png"])
    fastdata.pack(tmp_path / "in", tmp_path / "x.lmdb", num_workers=0, progress=False)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.classes == ["ant", "cat", "dog", "eel"]
    assert [sample.label for sample in data] == [1, 3, 0, 2]


def test_one_split_has_the_numbers_of_all_splits(tmp_path: Path) -> None:
    put(tmp_path, SPLIT)
    one = find_source(tmp_path, options={"split": "val"})
    assert list(one.schema) == ["image", "label"]
    assert one.schema.classes == ("cat", "dog", "newt")
    assert [s.key for s in one] == ["val/cat/0.png", "val/newt/0.png"]
    assert [s.values[1] for s in one] == [0, 2]  # type: ignore[union-attr, index]
    with pytest.raises(OptionError, match=r"split=dev: no such folder in .* has test, train, val"):
        find_source(tmp_path, options={"split": "dev"})
    with pytest.raises(OptionError, match=r"split=\.\.: no such folder"):
        find_source(tmp_path / "val", options={"split": ".."})


def test_the_folder_of_a_split_has_the_numbers_of_the_larger_split_next_to_it(
    tmp_path: Path,
) -> None:
    names = [
        "train/cat/0.png",
        "train/dog/0.png",
        "train/eel/0.png",
        "val/dog/0.png",
        "val/eel/0.png",
    ]
    put(tmp_path, names)
    for split in ("train", "val"):
        source = find_source(tmp_path / split)
        assert source.schema.classes == ("cat", "dog", "eel")
    assert [s.values[1] for s in source] == [1, 2]  # type: ignore[union-attr, index]
    assert any("numbers of classes are those of" in note for note in source.notes)
    # A split of other classes only is another dataset.
    put(tmp_path, ["test/unknown/0.png", "test/other/0.png"])
    assert find_source(tmp_path / "train").schema.classes == ("cat", "dog", "eel")


def test_the_folder_of_a_split_is_refused_if_another_has_other_classes(tmp_path: Path) -> None:
    put(tmp_path, SPLIT)
    with pytest.raises(SourceError, match=r"other classes \(dog, newt\)") as error:
        find_source(tmp_path / "val")
    assert f"fastdata pack {tmp_path} " in str(error.value)
    assert f"{tmp_path.name}.lmdb --option split=val" in str(error.value)
    assert find_source(tmp_path / "val", format="folder").schema.classes == ("cat", "newt")


def test_split_folders_can_be_taken_for_classes(tmp_path: Path) -> None:
    source = find_source(put(tmp_path, SPLIT), options={"split": "none"})
    assert list(source.schema) == ["image", "label"]
    assert source.schema.classes == ("test", "train", "val")


@pytest.mark.parametrize(
    "names",
    [
        ["train/a/0.png", "bus/a/0.png"],  # a class of trains
        ["train/a/0.png", "train/1.png"],
    ],
)
def test_folders_called_like_splits_are_classes_only_where_that_is_said(
    tmp_path: Path, names: list[str]
) -> None:
    put(tmp_path, names)
    with pytest.raises(SourceError, match=r"(?s)by name, not classes.*--format folder"):
        find_source(tmp_path)
    source = find_source(tmp_path, format="folder")
    assert list(source.schema) == ["image", "label"]
    assert source.schema.classes == tuple(sorted({name.split("/")[0] for name in names}))


def test_a_split_without_classes_is_said(tmp_path: Path) -> None:
    put(tmp_path, ["train/cat/0.png", "train/dog/0.png", "val/0.png"])
    with pytest.raises(SourceError, match=r"(?s)train, val are splits by name.*split=train"):
        find_source(tmp_path)
    assert find_source(tmp_path, options={"split": "train"}).schema.classes == ("cat", "dog")
    with pytest.raises(SourceError, match="no class folders"):
        find_source(tmp_path, options={"split": "val"})


def test_pictures_to_predict_are_left_out_with_a_note(tmp_path: Path) -> None:
    put(tmp_path, ["train/cat/0.png", "train/dog/0.png", "pred/0.png", "pred/1.png"])
    source = find_source(tmp_path)
    assert list(source.schema) == ["image", "label", "split"]
    assert source.num_samples == 2
    assert "2 images in pred have no class folders and are left out" in source.notes


def test_an_empty_class_in_a_split_is_refused(tmp_path: Path) -> None:
    put(tmp_path, SPLIT)
    (tmp_path / "val/dog").mkdir()
    with pytest.raises(SourceError, match="no image in val/dog"):
        find_source(tmp_path)


# -- manifests --------------------------------------------------------------------------


def test_several_columns_of_images_are_image_fields(tmp_path: Path) -> None:
    put(tmp_path, ["a/l0.png", "a/l1.png", "a/r0.png", "a/r1.png", "b/x.png"])
    grey = np.full((20, 30), 3, np.uint8)
    (tmp_path / "m.png").write_bytes(pil_file(grey, "PNG"))
    manifest = tmp_path / "pairs.csv"
    manifest.write_text(
        "path,right,left_mask,name,label\n"
        "a/l0.png,a/r0.png,m.png,gone.png,1\n"
        "a/l1.png,,m.png,b/x.png,0\n"
        "a/l1.png,a/nowhere.png,m.png,b/x.png,0\n"
        "a/l1.png,a/r1.png,m.png,b/x.png,0\n"
    )
    report = fastdata.pack(
        manifest, tmp_path / "x.lmdb", num_workers=0, progress=False, codec="png"
    )
    data = fastdata.open(tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "right": ImageField(),
        "left_mask": ImageField(1, mask=True),
        "name": StringField(),  # the first of which is not there
        "label": ScalarField(),
    }
    assert any("columns of image files: right, left_mask (" in note for note in report.notes)
    assert [int(pixels(s.image)[0, 0, 0]) for s in data] == [1, 11]
    assert [int(pixels(s.right)[0, 0, 0]) for s in data] == [21, 31]
    assert [int(pixels(s.left_mask)[0, 0, 0]) for s in data] == [3, 3]
    reasons = [reject.reason for reject in report.rejects]
    assert reasons[0] == "the column 'right' is empty in this row"
    assert "No such file" in reasons[1]
    named = find_source(manifest, fields={"right": "string"})
    assert named.schema["right"] == StringField()


def test_an_image_beside_a_path_keeps_its_name(tmp_path: Path) -> None:
    put(tmp_path, ["0.png", "1.png"])
    (tmp_path / "a.csv").write_text("path,image\n0.png,1.png\n")
    source = find_source(tmp_path / "a.csv")
    assert dict(source.schema) == {"path": ImageField(), "image": ImageField()}
    assert [s.key for s in source] == ["0.png"]


def test_a_manifest_without_a_header_may_have_them_too(tmp_path: Path) -> None:
    put(tmp_path, ["0.png", "1.png", "2.png"])
    (tmp_path / "a.csv").write_text("0.png,4,1.png\n1.png,5,2.png\n")
    source = find_source(tmp_path / "a.csv")
    assert dict(source.schema) == {
        "image": ImageField(),
        "label": ScalarField(),
        "column2": ImageField(),
    }


def test_files_behind_images_are_part_of_a_fingerprint(tmp_path: Path) -> None:
    put(tmp_path, ["0.png", "1.png"])
    (tmp_path / "a.csv").write_text("path,other\n0.png,1.png\n")
    source = find_source(tmp_path / "a.csv")
    before = source.fingerprints()
    (tmp_path / "1.png").write_bytes(b"other")
    assert (source.fingerprints() != before).all()
