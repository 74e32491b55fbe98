"""What is special to MVTec AD: masks that are files or zeros, defects, categories, splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_mvtec import mask_of, write_category, write_whole
from cases import Picture, make_pictures
from pack_helpers import pil_file, with_orientation
from samples import photo

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ImageField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def pack(location: Any, path: Path, **options: Any) -> Any:
    chosen = {"codec": "png", "resize": "none", "num_workers": 0, "progress": False}
    return fastdata.pack(location, path, **{**chosen, **options})


def masks_of(data: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(sample.mask).squeeze() for sample in data]


def test_a_category_has_splits_defects_and_masks(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path / "bottle", pictures)
    report = pack(tmp_path / "bottle", tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (6, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert dict(data.schema) == {
        "image": ImageField(),
        "mask": ImageField(1, mask=True),
        "defect": ScalarField(classes=("good", "scratch")),
        "category": ScalarField(classes=("bottle",)),
        "split": ScalarField(classes=("train", "test")),
    }
    assert list(data.keys) == [
        "bottle/train/good/000000.jpg",
        "bottle/train/good/000001.jpg",
        "bottle/train/good/000002.jpg",
        "bottle/test/good/000003.jpg",
        "bottle/test/scratch/000004.jpg",
        "bottle/test/scratch/000005.jpg",
    ]
    assert [(s.defect, s.category, s.split) for s in data] == [
        *[(0, 0, 0)] * 3,
        (0, 0, 1),
        *[(1, 0, 1)] * 2,
    ]
    masks = masks_of(data)
    for mask in masks[:4]:
        np.testing.assert_array_equal(mask, np.zeros((40, 48), np.uint8))
    for mask, picture in zip(masks[4:], pictures[4:], strict=True):
        np.testing.assert_array_equal(mask, mask_of(picture))


def test_masks_are_resized_with_their_images(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path / "bottle", pictures)
    pack(tmp_path / "bottle", tmp_path / "x.lmdb", resize="exact", size=(20, 24))
    for mask in masks_of(fastdata.open(tmp_path / "x.lmdb")):
        assert mask.shape == (20, 24)
        assert set(np.unique(mask)) <= {0, 255}


def test_all_categories_or_one(tmp_path: Path, pictures: list[Picture]) -> None:
    write_whole(tmp_path, pictures)
    (tmp_path / "grid/test/bent").mkdir()
    (tmp_path / "grid/test/bent/0.png").write_bytes(pil_file(photo(20, 30), "PNG"))
    (tmp_path / "grid/ground_truth/bent").mkdir()
    (tmp_path / "grid/ground_truth/bent/0_mask.png").write_bytes(
        pil_file(np.full((20, 30), 255, np.uint8), "PNG")
    )
    source = find_source(tmp_path)
    assert source.schema["category"] == ScalarField(classes=("bottle", "grid"))
    assert source.schema["defect"] == ScalarField(classes=("good", "bent", "scratch"))
    pack(tmp_path, tmp_path / "x.lmdb")
    data = fastdata.open(tmp_path / "x.lmdb")
    assert [s.category for s in data] == [0, 0, 0, 1, 1, 1, 1]
    one = find_source(tmp_path / "grid", options={"split": "test"})
    assert {s.key.rpartition("/")[0] for s in one} == {"grid/test/bent", "grid/test/scratch"}
    with pytest.raises(OptionError, match="split=val: not there; there are train, test"):
        find_source(tmp_path, options={"split": "val"})
    with pytest.raises(OptionError, match="split=validation: not there; there are train, test"):
        find_source(tmp_path, options={"split": "validation"})


def test_each_split_has_the_defects_of_all(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path / "bottle", pictures)
    for split, defects in (("train", [0, 0, 0]), ("test", [0, 1, 1])):
        pack(tmp_path / "bottle", tmp_path / f"{split}.lmdb", source_options={"split": split})
        data = fastdata.open(tmp_path / f"{split}.lmdb")
        assert data.schema["defect"] == ScalarField(classes=("good", "scratch"))
        assert "split" not in data.schema
        assert [s.defect for s in data] == defects


def test_loco_has_a_validation_split_and_several_masks(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    root = tmp_path / "box"
    write_category(root, pictures)
    (root / "validation/good").mkdir(parents=True)
    (root / "train/good/000002.jpg").rename(root / "validation/good/000002.jpg")
    expected = []
    for picture in pictures[4:]:
        truth = root / f"ground_truth/scratch/{picture.name}"
        Path(f"{truth}_mask.png").unlink()
        truth.mkdir()
        first, second = np.zeros((2, 40, 48), np.uint8)
        first[3:9, 5:17], second[20:31, 8:40] = 255, 249  # numbers of kinds of defects
        for k, mask in enumerate((first, second)):
            (truth / f"{k:03}.png").write_bytes(pil_file(mask, "PNG"))
        expected.append(np.where(first + second > 0, 255, 0))
    report = pack(root, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (6, 0)
    data = fastdata.open(tmp_path / "x.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "validation", "test"))
    assert [s.split for s in data] == [0, 0, 1, 2, 2, 2]
    for mask, wanted in zip(masks_of(data)[4:], expected, strict=True):
        np.testing.assert_array_equal(mask, wanted)
    assert not any(mask.any() for mask in masks_of(data)[:4])


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_categories_stay_grey_or_become_three_equal_channels(
    tmp_path: Path, channels: int
) -> None:
    grey = photo(30, 40, 1).reshape(30, 40)
    for part in ("train/good", "test", "ground_truth"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "train/good/0.png").write_bytes(pil_file(grey, "PNG"))
    pack(tmp_path, tmp_path / "x.lmdb", channels=channels)
    data = fastdata.open(tmp_path / "x.lmdb")
    found = np.asarray(data[0].image)
    assert data.schema["image"] == ImageField(channels)
    assert found.size == grey.size * channels
    planes = found.reshape(30, 40, -1) if found.shape[0] == 30 else np.moveaxis(found, 0, -1)
    assert (planes == grey[:, :, None]).all()


def test_a_missing_mask_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path / "bottle", pictures)
    (tmp_path / "bottle/ground_truth/scratch/000004_mask.png").unlink()
    report = pack(tmp_path / "bottle", tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["bottle/test/scratch/000004.jpg"]
    assert "scratch/000004_mask.png is missing" in report.rejects[0].reason


def test_a_mask_of_another_size_is_a_reject(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path / "bottle", pictures)
    (tmp_path / "bottle/ground_truth/scratch/000005_mask.png").write_bytes(
        pil_file(np.zeros((30, 30), np.uint8), "PNG")
    )
    report = pack(tmp_path / "bottle", tmp_path / "x.lmdb")
    assert [reject.key for reject in report.rejects] == ["bottle/test/scratch/000005.jpg"]
    assert "must have the same size" in report.rejects[0].reason


def test_a_good_image_that_is_turned_has_a_mask_of_its_shape(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    write_category(tmp_path, pictures)
    turned = with_orientation(photo(30, 50), 6, "JPEG")
    (tmp_path / "train/good/turned.jpg").write_bytes(turned)
    report = pack(tmp_path, tmp_path / "x.lmdb")
    assert (report.num_samples, report.num_rejected) == (7, 0)
    shapes = [mask.shape for mask in masks_of(fastdata.open(tmp_path / "x.lmdb"))]
    assert shapes == [(40, 48)] * 3 + [(50, 30)] + [(40, 48)] * 3


def test_a_mask_that_changes_is_noticed(tmp_path: Path, pictures: list[Picture]) -> None:
    write_category(tmp_path, pictures)
    source = find_source(tmp_path)
    before = source.fingerprints()
    path = tmp_path / "ground_truth/scratch/000005_mask.png"
    path.write_bytes(path.read_bytes() + b"x")
    assert (source.fingerprints() != before).tolist() == [False] * 5 + [True]


def test_split_folders_with_a_class_good_are_not_taken_for_it(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    for part in ("train/good", "train/bad", "test/good", "test/bad"):
        (tmp_path / part).mkdir(parents=True)
        (tmp_path / part / "0.jpg").write_bytes(pictures[0].data)
    assert find_source(tmp_path).name == "folder"
    with pytest.raises(SourceError, match="no MVTec AD"):
        find_source(tmp_path, format="mvtec")
    with pytest.raises(OptionError, match="has fields of its own"):
        find_source(tmp_path, format="mvtec", fields={"label": "int"})


def test_a_category_without_images_is_refused(tmp_path: Path) -> None:
    for part in ("train/good", "test", "ground_truth"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "train/good/readme.txt").write_text("x")
    with pytest.raises(SourceError, match="no images in its 1 folders"):
        find_source(tmp_path)
