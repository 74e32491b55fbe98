"""MATLAB's files: SVHN, splits, the order of dimensions; against what SciPy reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_mat import element, mat5, mat73, matrix, svhn
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import FastdataError, OptionError, SourceError
from fastdata.schema import ScalarField

FIXTURES = Path(__file__).parent / "fixtures" / "mat"


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(5)


def pack(location: Any, path: Path, options: dict[str, Any] | None = None) -> Any:
    fastdata.pack(
        location, path, source_options=options or {}, codec="raw", resize="none", num_workers=0,
        progress=False,
    )  # fmt: skip
    return fastdata.open(path)


def pixels_of(data: Any) -> np.ndarray[Any, Any]:
    return np.stack([np.asarray(sample.image).transpose(1, 2, 0) for sample in data])


@pytest.mark.parametrize("name", ["train_32x32", "test_32x32"])
def test_svhn_is_what_scipy_reads(name: str, tmp_path: Path) -> None:
    expected = np.load(FIXTURES / "expected.npz")
    source = find_source(FIXTURES / f"{name}.mat")
    assert source.name == "mat"
    assert any("label 10" in note for note in source.notes)
    data = pack(FIXTURES / f"{name}.mat", tmp_path / "a.lmdb")
    assert data.schema["label"] == ScalarField(classes=tuple("0123456789"))
    assert (pixels_of(data) == expected[f"{name}.X"].transpose(3, 0, 1, 2)).all()
    assert [sample.label for sample in data] == (expected[f"{name}.y"][:, 0] % 10).tolist()


def test_grey_pictures_beside_a_struct(tmp_path: Path) -> None:
    expected = np.load(FIXTURES / "expected.npz")
    data = pack(FIXTURES / "grey.mat", tmp_path / "a.lmdb")
    assert (pixels_of(data)[..., 0] == expected["grey.images"].transpose(2, 0, 1)).all()
    assert [sample.label for sample in data] == expected["grey.labels"].ravel().tolist()
    with pytest.raises(OptionError, match="'info' cannot be read: a struct"):
        find_source(FIXTURES / "grey.mat", options={"arrays": ("image=images", "label=info")})


def test_splits_are_told_by_the_files(tmp_path: Path, pictures: list[Picture]) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    for count, name in ((3, "train"), (1, "test"), (2, "extra")):
        pixels, labels = svhn(pictures[:count])
        mat5(folder / f"{name}_32x32.mat", matrix("X", pixels), matrix("y", labels))
    data = pack(folder, tmp_path / "a.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "test", "extra"))
    assert [sample.split for sample in data] == [0, 0, 0, 1, 2, 2]
    assert [sample.label for sample in data] == [0, 1, 2, 0, 0, 1]
    only = find_source(folder, options={"split": "extra"})
    assert (only.num_samples, "split" in only.schema) == (2, False)
    with pytest.raises(OptionError, match=r"split=val: the files of .* have"):
        find_source(folder, options={"split": "val"})


def test_ten_is_ten_where_it_is_not_svhn(tmp_path: Path, pictures: list[Picture]) -> None:
    pixels, labels = svhn(pictures)
    data = pack(mat5(tmp_path / "a.mat", matrix("X", pixels), matrix("y", labels)), tmp_path / "b")
    assert [sample.label for sample in data] == labels.ravel().tolist()


def test_version_7_3_is_turned_upright(tmp_path: Path, pictures: list[Picture]) -> None:
    pixels, labels = svhn(pictures)
    path = mat73(tmp_path / "train_32x32.mat", {"X": pixels, "y": labels})
    assert find_source(path).name == "mat"
    data = pack(path, tmp_path / "a.lmdb")
    assert (pixels_of(data) == np.stack([p.pixels for p in pictures])).all()
    assert [sample.label for sample in data] == [p.label for p in pictures]


def test_doubles_that_are_stored_as_bytes_are_still_doubles(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    pixels, _ = svhn(pictures)
    binary = matrix("X", (pixels > 99).astype(np.float64), as_bytes=True)
    with pytest.raises(OptionError, match=r"float64 of shape .*scale=255"):
        find_source(mat5(tmp_path / "a.mat", binary))
    data = pack(tmp_path / "a.mat", tmp_path / "b.lmdb", {"scale": "255"})
    assert (pixels_of(data) == 255 * (pixels > 99).transpose(3, 0, 1, 2)).all()


def test_what_is_no_row_of_pictures_is_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    rows = np.stack([p.pixels for p in pictures])
    with pytest.raises(OptionError, match=r"permute\(X, \[2 3 4 1\]\)"):
        find_source(mat5(tmp_path / "a.mat", matrix("X", rows)))
    path = mat5(tmp_path / "b.mat", matrix("X", rows.reshape(5, -1)))
    with pytest.raises(SourceError, match="not recognised"):
        find_source(path)


def test_what_it_claims_is_not_believed(tmp_path: Path, pictures: list[Picture]) -> None:
    pixels, _ = svhn(pictures)
    honest = matrix("X", pixels)
    at = honest.index(struct.pack("<4i", *pixels.shape))
    for count in (6, 1 << 30, -1):
        lying = honest[: at + 12] + struct.pack("<i", count) + honest[at + 16 :]
        with pytest.raises(FastdataError):
            find_source(mat5(tmp_path / "a.mat", lying), format="mat")
        with pytest.raises(FastdataError):
            find_source(mat5(tmp_path / "a.mat", lying, compressed=True), format="mat")
    nested = mat5(tmp_path / "a.mat", element(15, honest[:100]))
    with pytest.raises(SourceError):
        find_source(nested, format="mat")
