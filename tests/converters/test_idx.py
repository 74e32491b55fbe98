"""IDX: which files belong together, names of classes, EMNIST, and what becomes of damage."""

from __future__ import annotations

import gzip
import string
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_idx import idx
from pack_helpers import pixels

import fastdata
from fastdata.converters.finding import find_source
from fastdata.converters.reading.spans import close_files
from fastdata.errors import OptionError, SourceError


def images(count: int, height: int = 5, width: int = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(count).integers(0, 256, (count, height, width), np.uint8)


def write(folder: Path, name: str, labels: Any, *, suffix: str = "") -> np.ndarray[Any, Any]:
    """Write images, different in each, and their labels."""
    folder.mkdir(parents=True, exist_ok=True)
    made = images(len(labels))
    zipped = gzip.compress if suffix == ".gz" else bytes
    marks = np.asarray(labels)
    marks = marks.astype(np.uint8) if marks.max() < 256 else marks
    (folder / f"{name}-images-idx3-ubyte{suffix}").write_bytes(zipped(idx(made)))
    (folder / f"{name}-labels-idx1-ubyte{suffix}").write_bytes(zipped(idx(marks)))
    return made


def pack(location: Any, path: Path, **options: Any) -> Any:
    keywords = {k: options.pop(k) for k in ("shuffle", "channels", "format") if k in options}
    return fastdata.pack(
        location, path, codec="raw", num_workers=0, progress=False, source_options=options,
        **{"channels": 1, **keywords},
    )  # fmt: skip


def grey(path: Path) -> list[Any]:
    dataset = fastdata.open(path)
    return [pixels(dataset[k].image)[:, :, 0] for k in range(len(dataset))]  # type: ignore[attr-defined]


def column(path: Path, name: str = "label") -> list[int]:
    dataset = fastdata.open(path)
    return [int(getattr(dataset[k], name)) for k in range(len(dataset))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_mnist_gives_its_training_set(tmp_path: Path, suffix: str) -> None:
    made = write(tmp_path / "in", "train", range(7), suffix=suffix)
    write(tmp_path / "in", "t10k", [1, 2], suffix=suffix)
    report = pack(tmp_path / "in", tmp_path / "a.lmdb")
    assert np.array_equal(grey(tmp_path / "a.lmdb"), made)
    assert column(tmp_path / "a.lmdb") == list(range(7))
    assert fastdata.open(tmp_path / "a.lmdb").keys[3] == f"train-images-idx3-ubyte{suffix}[3]"
    assert any(f"files left out: t10k-images-idx3-ubyte{suffix} " in note for note in report.notes)


def test_splits_are_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "MNIST"
    write(folder / "raw", "train", [1, 2, 3])
    test = write(folder / "raw", "t10k", [4, 5])
    pack(folder, tmp_path / "test.lmdb", split="test")
    assert column(tmp_path / "test.lmdb") == [4, 5]
    assert np.array_equal(grey(tmp_path / "test.lmdb"), test)
    for shuffle in (False, True):
        pack(folder, tmp_path / f"all{shuffle}.lmdb", split="all", shuffle=shuffle)
        path = tmp_path / f"all{shuffle}.lmdb"
        found = sorted(zip(column(path, "split"), column(path), strict=True))
        assert found == [(0, 1), (0, 2), (0, 3), (1, 4), (1, 5)]
    assert fastdata.open(path).schema["split"].classes == ("train", "test")  # type: ignore[union-attr]
    with pytest.raises(OptionError, match="split=valid: expected train, test or all"):
        find_source(folder, options={"split": "valid"})


def test_a_missing_split_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "t10k", [4, 5])
    pack(tmp_path, tmp_path / "all.lmdb", split="all")
    assert column(tmp_path / "all.lmdb", "split") == [1, 1]
    with pytest.raises(OptionError, match="has only split=test"):
        find_source(tmp_path)


def test_blocks_and_single_images_agree(tmp_path: Path) -> None:
    # 3,300 images of 20 bytes are read in two blocks.
    made = write(tmp_path / "in", "train", np.arange(4000) % 10)
    source = find_source(tmp_path / "in").indexed()
    for start in (0, 3275, 3276, 3277, 3999):
        for sample in (next(source.start_at(start)), source[start]):
            image, label = sample.values.load()  # type: ignore[union-attr]
            assert np.array_equal(image, made[start])
            assert label == start % 10
            assert source.key_at(start) == sample.key
    close_files()


def test_a_file_is_taken_with_its_labels(tmp_path: Path) -> None:
    write(tmp_path, "train", [1, 2, 3])
    pack(tmp_path / "train-images-idx3-ubyte", tmp_path / "a.lmdb")
    assert column(tmp_path / "a.lmdb") == [1, 2, 3]
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    source = find_source(tmp_path / "train-images-idx3-ubyte")
    assert list(source.schema) == ["image"]
    assert any("no file of labels" in note for note in source.notes)


def test_one_split_without_labels_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "train", [1, 2, 3])
    write(tmp_path, "t10k", [1])
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(SourceError, match="t10k-images-idx3-ubyte: has no file of labels"):
        find_source(tmp_path, options={"split": "all"})


def test_decompressed_files_are_taken_before_compressed(tmp_path: Path) -> None:
    write(tmp_path, "train", [1, 2, 3], suffix=".gz")
    write(tmp_path, "train", [4, 5, 6])
    pack(tmp_path, tmp_path / "a.lmdb", shuffle=True)
    assert sorted(column(tmp_path / "a.lmdb")) == [4, 5, 6]


@pytest.mark.parametrize("name", ["train-images.idx3-ubyte", "Train_images-idx3-ubyte"])
def test_other_spellings_of_the_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(idx(images(2)))
    (tmp_path / name.replace("images", "labels")).write_bytes(idx(np.array([3, 4], np.uint8)))
    pack(tmp_path, tmp_path / "a.lmdb")
    assert column(tmp_path / "a.lmdb") == [3, 4]


def test_labels_may_be_wider_and_have_more_columns(tmp_path: Path) -> None:
    # QMNIST: qmnist-train-labels-idx2-int, eight 32-bit numbers an image.
    marks = np.arange(24, dtype=np.int32).reshape(3, 8) % 7
    (tmp_path / "qmnist-train-images-idx3-ubyte").write_bytes(idx(images(3)))
    (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(idx(marks))
    pack(tmp_path, tmp_path / "a.lmdb")
    assert column(tmp_path / "a.lmdb") == marks[:, 0].tolist()
    assert fastdata.open(tmp_path / "a.lmdb").schema.classes == tuple(string.digits)


def test_grey_is_said_and_can_be_kept(tmp_path: Path) -> None:
    made = write(tmp_path, "train", [1, 2])
    report = pack(tmp_path, tmp_path / "a.lmdb", channels=3)
    assert any("--channels 1 stores grey" in note for note in report.notes)
    colour = pixels(fastdata.open(tmp_path / "a.lmdb")[1].image)  # type: ignore[attr-defined]
    assert np.array_equal(colour, np.repeat(made[1][:, :, None], 3, axis=2))
    assert not any("grey" in note for note in pack(tmp_path, tmp_path / "b.lmdb").notes)


# -- EMNIST and names of classes ----------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_emnist_is_turned_upright_and_named(tmp_path: Path, suffix: str) -> None:
    made = write(tmp_path, "emnist-letters-train", [1, 26], suffix=suffix)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert np.array_equal(grey(tmp_path / "a.lmdb"), made.transpose(0, 2, 1))
    names = fastdata.open(tmp_path / "a.lmdb").schema.classes
    assert names is not None
    assert [names[label] for label in column(tmp_path / "a.lmdb")] == ["Aa", "Zz"]
    assert any("rows and columns exchanged" in note for note in report.notes)


@pytest.mark.parametrize(
    ("dataset", "count", "last"),
    [("balanced", 47, "t"), ("bymerge", 47, "t"), ("byclass", 62, "z"), ("digits", 10, "9"),
     ("mnist", 10, "9"), ("letters", 27, "Zz")],
)  # fmt: skip
def test_the_classes_of_emnist_are_known(
    tmp_path: Path, dataset: str, count: int, last: str
) -> None:
    write(tmp_path, f"emnist-{dataset}-train", [1, 2])
    names = find_source(tmp_path).schema.classes
    assert names is not None
    assert (len(names), names[-1]) == (count, last)


def test_of_several_datasets_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, "emnist-letters-test", [1, 2])
    write(tmp_path, "emnist-digits-test", [3, 4])
    with pytest.raises(SourceError, match=r"emnist-digits, emnist-letters. Name the file"):
        find_source(tmp_path, options={"split": "test"})
    pack(tmp_path / "emnist-digits-test-images-idx3-ubyte", tmp_path / "a.lmdb")
    assert column(tmp_path / "a.lmdb") == [3, 4]


def test_mnist_and_fashion_are_known_by_their_folders(tmp_path: Path) -> None:
    for folder in ("FashionMNIST/raw", "MNIST/raw", "b"):
        write(tmp_path / folder, "train", [9, 0, 0, 3, 0, 2, 7, 2, 5, 5])
    fashion = find_source(tmp_path / "FashionMNIST").schema.classes
    assert fashion is not None
    assert (fashion[0], fashion[9]) == ("T-shirt/top", "Ankle boot")
    assert find_source(tmp_path / "MNIST").schema.classes == tuple(string.digits)
    unknown = find_source(tmp_path / "b")
    assert unknown.schema.classes is None
    assert any("--option classes=FILE, or call the folder" in note for note in unknown.notes)


def test_classes_are_named_by_a_file_and_others_are_rejects(tmp_path: Path) -> None:
    write(tmp_path, "train", [0, 1, 2, 1])
    (tmp_path / "names.txt").write_text("ant\nbee\n")
    report = pack(tmp_path, tmp_path / "a.lmdb", classes=str(tmp_path / "names.txt"))
    assert column(tmp_path / "a.lmdb") == [0, 1, 1]
    (reject,) = report.rejects
    assert reject.key == "train-images-idx3-ubyte[2]"
    assert "'label' is 2, and there are 2 classes: 0 to 1" in reject.reason


# -- damage -------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("victim", ["images-idx3", "labels-idx1"])
def test_a_file_cut_short_gives_what_is_whole(tmp_path: Path, victim: str, shuffle: bool) -> None:
    write(tmp_path, "train", range(9))
    path = tmp_path / f"train-{victim}-ubyte"
    data = path.read_bytes()
    path.write_bytes(data[:-50] if "images" in victim else data[:-3])
    report = pack(tmp_path, tmp_path / "a.lmdb", shuffle=shuffle)
    assert sorted(column(tmp_path / "a.lmdb")) == list(range(6))
    assert report.rejects[0].key.startswith("train-images-idx3-ubyte[")
    assert f"{path}: the file ends at byte {path.stat().st_size:,}" in report.rejects[0].reason
    assert report.num_rejected == 1


@pytest.mark.parametrize("cut", [-1, -9, -200])
def test_a_compressed_file_cut_short_says_so(tmp_path: Path, cut: int) -> None:
    write(tmp_path, "train", np.arange(100) % 10, suffix=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:cut])
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_rejected == 1
    assert "ends at byte" in report.rejects[0].reason or "too early" in report.rejects[0].reason
    assert report.num_samples > 85


def test_a_wrong_checksum_of_a_compressed_file_is_said(tmp_path: Path) -> None:
    write(tmp_path, "train", np.arange(8000) % 10, suffix=".gz")
    path = tmp_path / "train-images-idx3-ubyte.gz"
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert report.num_rejected == 1
    assert report.num_samples > 3000
    assert "incorrect data check" in report.rejects[0].reason


def with_count(data: bytes, count: int) -> bytes:
    return data[:4] + struct.pack(">I", count) + data[8:]


def test_a_count_below_what_is_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", "train", range(9))
    for kind in ("images-idx3", "labels-idx1"):
        path = tmp_path / "a" / f"train-{kind}-ubyte"
        path.write_bytes(with_count(path.read_bytes(), 5))
    with pytest.raises(SourceError, match=r"has 196 bytes, and its head says that it has 116"):
        find_source(tmp_path / "a")
    write(tmp_path / "b", "train", range(9))
    for kind in ("images-idx3", "labels-idx1"):
        plain = (tmp_path / "b" / f"train-{kind}-ubyte").read_bytes()
        path = tmp_path / "b" / f"train-{kind}-ubyte.gz"
        path.with_suffix("").unlink()
        path.write_bytes(gzip.compress(with_count(plain, 5)))
    report = pack(tmp_path / "b", tmp_path / "b.lmdb")
    assert (report.num_samples, report.num_rejected) == (5, 1)
    assert "it should end at byte 116 and goes on" in report.rejects[0].reason


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_huge_count_costs_nothing(tmp_path: Path, suffix: str) -> None:
    zipped = gzip.compress if suffix else bytes
    for kind, data in (("images-idx3", idx(images(3))), ("labels-idx1", idx(np.ones(3, np.uint8)))):
        path = tmp_path / f"train-{kind}-ubyte{suffix}"
        path.write_bytes(zipped(with_count(data, 0xFFFFFFFF)))
    report = pack(tmp_path, tmp_path / "a.lmdb")
    assert (report.num_samples, report.num_rejected) == (3, 1)


@pytest.mark.parametrize(
    ("shape", "message"),
    [((3, 5, 0), "says that it has 3 images of"), ((3, 0xFFFFFFFF, 0xFFFFFFFF), "damaged"),
     ((3, 5, 4, 2), "damaged"),
     ((3, 32_000, 32_000), "damaged")],
)  # fmt: skip
def test_absurd_shapes_are_refused(tmp_path: Path, shape: tuple[int, ...], message: str) -> None:
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(head)
    with pytest.raises(SourceError, match=message):
        find_source(tmp_path)


def test_images_and_labels_of_different_number_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "train", range(9))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(8, dtype=np.uint8)))
    with pytest.raises(SourceError, match="has 8 labels and train-images-idx3-ubyte 9 images"):
        find_source(tmp_path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\0\0\x08\x03\0\0", b"no idx file at all, text", idx(np.zeros((2, 3, 3), np.float32)),
     b"\0\0\x07\x01\0\0\0\0"],
)  # fmt: skip
def test_what_is_no_file_of_images_is_not_taken_for_one(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"not recognised|the file is empty"):
        find_source(path)
    with pytest.raises(SourceError, match=r"no IDX file|expected images, N x H x W"):
        find_source(path, format="idx")
    with pytest.raises(SourceError, match="no images in IDX there"):
        find_source(tmp_path / "nothing", format="idx")


@pytest.mark.parametrize("data", [b"", b"text, which is no labels", idx(np.zeros(3, np.float64))])
def test_labels_that_are_none_are_refused(tmp_path: Path, data: bytes) -> None:
    write(tmp_path, "train", range(3))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(data)
    with pytest.raises(SourceError, match="no labels in IDX"):
        find_source(tmp_path)
