"""Oxford Flowers 102: labels and splits from its files of MATLAB's, also those SciPy writes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from case_flowers import write_flowers
from case_mat import mat5, matrix
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.base import Reject
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ScalarField

FIXTURES = Path(__file__).parent / "fixtures" / "mat"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(6)


def test_labels_and_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_flowers(tmp_path / "flowers", pictures)
    fastdata.pack(root, tmp_path / "a.lmdb", num_workers=0, progress=False)
    data = fastdata.open(tmp_path / "a.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "val", "test"))
    assert [(sample.label, sample.split) for sample in data] == [
        (p.label, (2, 0, 1)[k % 3]) for k, p in enumerate(pictures)
    ]
    assert list(data.keys)[:2] == ["jpg/image_00001.jpg", "jpg/image_00002.jpg"]


def test_one_split_is_taken_and_classes_are_named(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_flowers(tmp_path / "flowers", pictures)
    (tmp_path / "names.txt").write_text("rose\ntulip\nlily\n")
    source = find_source(root, options={"split": "val", "classes": str(tmp_path / "names.txt")})
    assert source.schema["label"] == ScalarField(classes=("rose", "tulip", "lily"))
    assert [sample.key for sample in source] == ["jpg/image_00003.jpg", "jpg/image_00006.jpg"]  # type: ignore[union-attr]
    (tmp_path / "names.txt").write_text("rose\n")
    with pytest.raises(OptionError, match="1 names for 3"):
        find_source(root, options={"classes": str(tmp_path / "names.txt")})


def test_files_that_scipy_wrote(tmp_path: Path, pictures: list[Picture]) -> None:
    root = write_flowers(tmp_path / "flowers", pictures)
    for name in ("imagelabels.mat", "setid.mat"):
        shutil.copy(FIXTURES / name, root / name)
    samples = list(find_source(root))
    assert [sample.values[1:] for sample in samples[:5]] == [  # type: ignore[union-attr]
        (0, 0), (1, 1), (2, 0), (3, 2), (4, 2)
    ]  # fmt: skip
    assert samples[5] == Reject("jpg/image_00006.jpg", "setid.mat has it in no split")
    assert samples[6] == Reject("jpg/image_00007.jpg", "there is no such image")
    assert len(samples) == 102


@pytest.mark.parametrize(
    ("labels", "train", "match"),
    [
        ([1, 0, 1], [1, 2, 3], "labels count from 1, and 0"),
        ([1, 1, 1], [1, 2, 4], "numbers beyond the labels"),
        ([1, 1, 1], [1, 2, 2], "in a split already"),
        ([1, 1.5, 1], [1, 2, 3], "not whole"),
    ],
)
def test_numbers_that_cannot_be_are_refused(
    labels: list[float], train: list[int], match: str, tmp_path: Path, pictures: list[Picture]
) -> None:
    root = write_flowers(tmp_path / "flowers", pictures[:3])
    mat5(root / "imagelabels.mat", matrix("labels", np.array([labels], np.float64)))
    none = np.zeros((1, 0), np.uint16)
    sets = {"trnid": np.array([train], np.uint16), "valid": none, "tstid": none}
    mat5(root / "setid.mat", *(matrix(name, ids) for name, ids in sets.items()))
    with pytest.raises(SourceError, match=match):
        find_source(root)
