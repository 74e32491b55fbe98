"""NumPy's files: which arrays are what, splits, and what is refused; against ``numpy.load``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_numpy import arrays_of, beside, keras, medmnist
from cases import Picture, make_pictures

import fastdata
from fastdata.converters.finding import find_source
from fastdata.errors import OptionError, SourceError
from fastdata.schema import ArrayField, ScalarField


@pytest.fixture(scope="module")
def pictures() -> list[Picture]:
    return make_pictures(12)


def pack(location: Any, path: Path, options: dict[str, Any] | None = None, **more: Any) -> Any:
    quiet = {"codec": "raw", "resize": "none", "num_workers": 0, "progress": False}
    fastdata.pack(location, path, source_options=options or {}, **{**quiet, **more})
    return fastdata.open(path)


def test_medmnist_has_three_splits(tmp_path: Path, pictures: list[Picture]) -> None:
    path = medmnist(tmp_path, pictures)
    data = pack(path, tmp_path / "a.lmdb")
    assert data.schema["split"] == ScalarField(classes=("train", "val", "test"))
    arrays = np.load(path)
    at = 0
    for number, split in enumerate(("train", "val", "test")):
        pixels, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        for row, (image, label) in enumerate(zip(pixels, labels[:, 0], strict=True)):
            sample = data[at]
            assert (pixels_of(sample) == image).all()
            assert (sample.label, sample.split) == (label, number)
            assert data.keys[at] == f"pathmnist.npz:{split}_images[{row}]"
            at += 1
    assert at == len(data) == 12


def test_one_split_is_taken_by_its_arrays(tmp_path: Path, pictures: list[Picture]) -> None:
    path = medmnist(tmp_path, pictures)
    data = pack(path, tmp_path / "a.lmdb", {"arrays": "image=val_images,label=val_labels"})
    assert "split" not in data.schema
    assert [sample.label for sample in data] == np.load(path)["val_labels"][:, 0].tolist()


def test_several_labels_of_a_sample_are_an_array(tmp_path: Path, pictures: list[Picture]) -> None:
    labels = np.eye(14, dtype=np.uint8)[:12]
    path = tmp_path / "chestmnist.npz"
    np.savez_compressed(path, train_images=arrays_of(pictures)[0], train_labels=labels)
    data = pack(path, tmp_path / "a.lmdb")
    assert data.schema["label"] == ArrayField("int64", (14,))
    assert (np.stack([np.asarray(sample.label) for sample in data]) == labels).all()


def test_splits_that_differ_are_refused_with_a_remedy(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    images, labels = arrays_of(pictures)
    path = tmp_path / "a.npz"
    np.savez(path, x_train=images, y_train=labels, x_test=images)
    with pytest.raises(SourceError, match=r"train has .* x_train, y_train, and test x_test. Take"):
        find_source(path)
    options = {"arrays": ("image=x_train", "label=y_train")}
    assert find_source(path, options=options).num_samples == 12


def test_a_folder_of_npy_files_is_one_dataset(tmp_path: Path, pictures: list[Picture]) -> None:
    images, labels = arrays_of(pictures)
    for name, array in (("images", images[..., 0]), ("labels", labels)):
        np.save(tmp_path / f"{name}.npy", array)
    (tmp_path / "README.md").write_text("pictures")
    data = pack(tmp_path, tmp_path.with_suffix(".lmdb"), channels=1)
    assert [sample.label for sample in data] == labels.tolist()
    assert all(
        (np.asarray(sample.image).squeeze() == image).all()
        for sample, image in zip(data, images[..., 0], strict=True)
    )


def test_planes_first_and_other_byte_orders(tmp_path: Path, pictures: list[Picture]) -> None:
    images, labels = arrays_of(pictures)
    planes = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    np.savez(tmp_path / "a.npz", data=planes, target=labels.astype(">i8"))
    data = pack(tmp_path / "a.npz", tmp_path / "a.lmdb")
    assert (np.stack([pixels_of(sample) for sample in data]) == images).all()
    assert [sample.label for sample in data] == labels.tolist()


def test_floats_are_pixels_or_need_a_scale(tmp_path: Path, pictures: list[Picture]) -> None:
    images, _ = arrays_of(pictures)
    for divisor in (255, 127):
        np.save(tmp_path / "a.npy", (images / divisor).astype(np.float32))
        if divisor == 127:
            with pytest.raises(SourceError, match=r"float32.*--option scale=FACTOR"):
                find_source(tmp_path / "a.npy")
        options = {"scale": "127"} if divisor == 127 else {}
        data = pack(tmp_path / "a.npy", tmp_path / f"{divisor}.lmdb", options)
        assert (np.stack([pixels_of(sample) for sample in data]) == images).all()


def pixels_of(sample: Any) -> np.ndarray[Any, Any]:
    return np.asarray(sample.image).transpose(1, 2, 0)


class Evil:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was unpickled",))


def test_objects_are_never_unpickled(tmp_path: Path, pictures: list[Picture]) -> None:
    objects = np.array([Evil()] * 12, dtype=object)
    np.savez(tmp_path / "a.npz", images=arrays_of(pictures)[0], labels=objects)
    with pytest.raises(OptionError, match=r"'labels' cannot be read: .*object; only numbers"):
        find_source(tmp_path / "a.npz")
    assert find_source(tmp_path / "a.npz", options={"arrays": ("image=images",)}).num_samples == 12
    np.save(tmp_path / "b.npy", objects, allow_pickle=True)
    with pytest.raises(OptionError, match="only numbers are read"):
        find_source(tmp_path / "b.npy")


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.asfortranarray(np.zeros((4, 8, 8), np.uint8)), "ascontiguousarray"),
        (np.zeros((480, 64, 3), np.uint8), "is one picture. Save several"),
        (np.zeros((4, 28, 28, 28), np.uint8), "has not 1, 3 or 4 channels"),
    ],
)
def test_what_is_no_row_of_pictures_is_refused(
    array: np.ndarray[Any, Any], match: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "images.npy", array)
    with pytest.raises((OptionError, SourceError), match=match):
        find_source(tmp_path / "images.npy")


def test_several_npz_files_are_refused(tmp_path: Path, pictures: list[Picture]) -> None:
    medmnist(tmp_path, pictures)
    keras(tmp_path, pictures)
    with pytest.raises(SourceError, match="Pack them one by one"):
        find_source(tmp_path)


def test_deflated_arrays_are_damaged_from_the_damage_on(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    images, labels = arrays_of(pictures * 10)
    np.savez_compressed(tmp_path / "a.npz", labels=labels, images=images)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "a.npz").write_bytes(data)
    found = list(find_source(tmp_path / "a.npz"))
    rejected = [k for k, sample in enumerate(found) if hasattr(sample, "reason")]
    # zlib notices now or the checksum does in the end; what came before is there.
    assert rejected == [len(found) - 1]
    assert f"{len(images) - rejected[0]:,} rows from here on are lost" in found[-1].reason  # type: ignore[union-attr]


def test_what_stands_beside_other_datasets_is_not_taken(
    tmp_path: Path, pictures: list[Picture]
) -> None:
    beside(tmp_path, pictures)
    assert find_source(tmp_path).name == "numpy"
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.jpg").write_bytes(pictures[0].data)
    with pytest.raises(SourceError, match=r"X_train.npy, y_train.npy may describe"):
        find_source(tmp_path)
    assert find_source(tmp_path, format="folder").num_samples == 2
