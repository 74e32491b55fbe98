"""Splits: a loader takes one, and never trains on the validation data in silence."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from cli_helpers import run, run_json
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import FileCorruptError, FormatError, OptionError
from fastdata.schema import Field, ImageField, ScalarField

COUNTS = {"train": 6, "val": 3, "test": 2}
CROP = T.CenterCrop(8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders in split folders; each image has one value, which no other has."""
    value = 0
    for split, count in COUNTS.items():
        for number in range(count):
            path = tmp_path / "images" / split / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            assert cv2.imwrite(str(path), np.full((20 + value, 24, 3), value, np.uint8))
            value += 1
    return tmp_path / "images"


@pytest.fixture(params=["lmdb", "shards", "files"])
def data(folder: Path, request: Any) -> Path:
    if request.param == "files":
        return folder
    path = folder.parent / ("a.lmdb" if request.param == "lmdb" else "shards")
    options: dict[str, Any] = {"shard_size": 4} if request.param == "shards" else {}
    fastdata.pack(folder, path, num_workers=0, progress=False, **options)
    return path


def values_of(split: str, root: Path) -> list[int]:
    """Return the values of a split's images by listing its folder."""
    files = sorted((root / split).rglob("*.png"))
    return [int(cv2.imread(str(file))[0, 0, 0]) for file in files]


def packed(path: Path, fields: dict[str, Field], rows: list[dict[str, Any]]) -> Path:
    samples = ({"image": np.full((8, 8, 3), k, np.uint8), **row} for k, row in enumerate(rows))
    every: dict[str, Field] = {"image": ImageField(), **fields}
    fastdata.pack(samples, path, fields=every, num_workers=0, progress=False)
    return path


@pytest.mark.parametrize("split", COUNTS)
def test_a_loader_gives_one_split_without_the_field(folder: Path, data: Path, split: str) -> None:
    with fastdata.loader(data, batch_size=2, split=split, transform=CROP) as loader:
        batches = list(loader)
    assert batches[0]._fields == ("image", "label")
    got = [int(image[0, 0, 0]) for images, _ in batches for image in images]
    assert got == values_of(split, folder)


def test_an_open_dataset_shows_one_split(folder: Path, data: Path) -> None:
    dataset = fastdata.open(data, split="val")
    assert list(dataset.schema) == ["image", "label"]
    assert len(dataset) == len(dataset.targets) == 3
    assert "split" not in repr(dataset)
    assert [int(image[0, 0, 0]) for image, _ in dataset] == values_of("val", folder)
    again = pickle.loads(pickle.dumps(dataset))
    assert again.digest == dataset.digest != fastdata.open(data, split="test").digest
    assert again[1]._fields == ("image", "label")
    assert list(fastdata.open(data).schema) == ["image", "label", "split"]


def test_a_loader_over_several_splits_is_refused_with_their_counts(data: Path) -> None:
    with pytest.raises(OptionError) as caught:
        fastdata.loader(data, batch_size=2, transform=CROP)
    text = str(caught.value)
    assert "train (6 samples)" in text
    assert "val (3 samples)" in text
    assert "test (2 samples)" in text
    assert 'split="train"' in text
    assert 'split="all"' in text
    dataset = fastdata.open(data)
    wholes: list[Any] = [
        dataset,
        dataset[::-1],
        Subset(dataset, list(range(11))),
        ConcatDataset([dataset, dataset]),
    ]
    for whole in wholes:
        with pytest.raises(OptionError, match=r"val \("):
            fastdata.loader(whole, batch_size=2, transform=CROP)


def test_all_splits_are_had_by_name(data: Path) -> None:
    with fastdata.loader(data, batch_size=11, split="all", transform=CROP) as loader:
        (batch,) = loader
    assert batch._fields == ("image", "label", "split")
    assert torch.bincount(batch.split).tolist() == list(COUNTS.values())


def test_an_index_subset_of_one_split_is_not_refused(data: Path) -> None:
    dataset = fastdata.open(data)
    parts: list[Any] = [dataset[6:9], Subset(dataset, [8, 6]), dataset[[0, 5, 2]]]
    for part in parts:
        with fastdata.loader(part, batch_size=2, transform=CROP) as loader:
            assert sum(len(batch.image) for batch in loader) == len(part)


def test_a_split_is_taken_of_a_part_and_of_a_sum(folder: Path, data: Path) -> None:
    dataset = fastdata.open(data)
    with fastdata.loader(dataset[3:8], batch_size=9, split="val", transform=CROP) as loader:
        (batch,) = loader
    assert batch.image[:, 0, 0, 0].tolist() == values_of("val", folder)[:2]
    train, val = fastdata.open(data, split="train"), fastdata.open(data, split="val")
    with fastdata.loader(train + val, batch_size=9, transform=CROP) as loader:
        (batch,) = loader
    assert batch._fields == ("image", "label")
    assert len(batch.image) == 9
    with pytest.raises(FormatError, match="split="):
        fastdata.loader(train + dataset, batch_size=9, transform=CROP)


@pytest.mark.parametrize(
    ("split", "match"),
    [("vall", r"Did you mean 'val'\?"), ("left", r"train \(6 samples\)"), (["val"], "one split")],
)
def test_another_split_is_refused(data: Path, split: Any, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        fastdata.loader(data, batch_size=2, split=split)
    with pytest.raises(OptionError, match=match):
        fastdata.open(data, split=split)


def test_data_without_splits_have_none_to_choose(tmp_path: Path) -> None:
    rows = [{"label": k % 2} for k in range(4)]
    path = packed(tmp_path / "a.lmdb", {"label": ScalarField()}, rows)
    with pytest.raises(OptionError, match="has no splits"):
        fastdata.loader(path, batch_size=2, split="train")
    with fastdata.loader(path, batch_size=2, split="all") as loader:
        assert len(list(loader)) == 2
    with pytest.raises(OptionError, match="not for TensorDataset"):
        fastdata.loader(TensorDataset(torch.zeros(3)), split="train")


@pytest.mark.parametrize(
    "names",
    [("left", "right"), ("train", "boat"), ("0", "1"), ("extra", "other"), ("train set", "val")],
)
def test_a_users_own_column_of_that_name_is_a_field(tmp_path: Path, names: Any) -> None:
    fields: dict[str, Field] = {"split": ScalarField(classes=names)}
    path = packed(tmp_path / "a.lmdb", fields, [{"split": k % 2} for k in range(4)])
    with fastdata.loader(path, batch_size=4) as loader:
        (batch,) = loader
    assert batch.split.tolist() == [0, 1, 0, 1]
    with pytest.raises(OptionError, match="has no splits"):
        fastdata.open(path, split=names[0])


def test_a_number_of_that_name_is_a_field(tmp_path: Path) -> None:
    path = packed(tmp_path / "a.lmdb", {"split": ScalarField()}, [{"split": k} for k in range(4)])
    with fastdata.loader(path, batch_size=4) as loader:
        assert next(iter(loader)).split.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "names",
    [
        ("train2017", "val2017"),
        ("Training", "Validation"),
        ("train", "valid", "test", "extra"),
        ("test-dev", "trainval"),
        ("train", "unsupervised"),
    ],
)
def test_names_of_real_splits_are_known(tmp_path: Path, names: Any) -> None:
    fields: dict[str, Field] = {"split": ScalarField(classes=names)}
    path = packed(tmp_path / "a.lmdb", fields, [{"split": k % 2} for k in range(4)])
    with pytest.raises(OptionError, match="several splits"):
        fastdata.loader(path, batch_size=2)
    assert fastdata.open(path, split=names[1])[:].digest
    assert len(fastdata.open(path, split=names[1])) == 2


def test_one_split_of_many_names_is_not_refused(tmp_path: Path) -> None:
    fields: dict[str, Field] = {"split": ScalarField(classes=("train", "val"))}
    path = packed(tmp_path / "a.lmdb", fields, [{"split": 0} for _ in range(4)])
    with fastdata.loader(path, batch_size=2) as loader:
        assert len(list(loader)) == 2
    with pytest.raises(OptionError, match="has the splits train"):
        fastdata.open(path, split="val")


def test_a_sample_that_cannot_be_read_is_in_no_split_in_silence(tmp_path: Path) -> None:
    rows = [("0.png", "train", "1"), ("1.png", "val", "2"), ("2.png", "val", "x")]
    for name, *_ in rows:
        assert cv2.imwrite(str(tmp_path / name), np.zeros((8, 8, 3), np.uint8))
    with open(tmp_path / "list.csv", "w", newline="") as file:
        csv.writer(file).writerows([("image", "split", "age"), *rows])
    opened = fastdata.open(tmp_path / "list.csv", split="train", fields={"age": "int"})
    assert len(opened) == 2
    with pytest.raises(FileCorruptError, match=r"2\.png"):
        _ = opened[1]


def test_a_shuffled_epoch_resumes_and_divides(data: Path) -> None:
    options: dict[str, Any] = {"split": "train", "shuffle": True, "transform": CROP}
    with fastdata.loader(data, batch_size=2, **options) as loader:
        whole = [batch.image[:, 0, 0, 0].tolist() for batch in loader]
        loader.set_epoch(0)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
    with fastdata.loader(data, batch_size=2, **options) as again:
        again.load_state_dict(state)
        assert [batch.image[:, 0, 0, 0].tolist() for batch in again] == whole[1:]
    ranks = []
    for rank in range(2):
        with fastdata.loader(data, batch_size=1, rank=rank, world_size=2, **options) as part:
            ranks += [int(batch.image[0, 0, 0, 0]) for batch in part]
    assert sorted(ranks) == sorted(value for batch in whole for value in batch)


# -- commands ------------------------------------------------------------------------------


@pytest.fixture
def dataset(folder: Path) -> Path:
    fastdata.pack(folder, folder.parent / "a.lmdb", num_workers=0, progress=False)
    return folder.parent / "a.lmdb"


def test_subset_writes_a_split_without_the_field(dataset: Path, tmp_path: Path) -> None:
    run("subset", dataset, tmp_path / "val.lmdb", "--split", "val")
    val = fastdata.open(tmp_path / "val.lmdb")
    assert list(val.schema) == ["image", "label"]
    expected = fastdata.open(dataset, split="val")
    assert list(val.keys) == list(expected.keys)
    for (image, label), (same, other) in zip(val, expected, strict=True):
        assert torch.equal(image, same)
        assert label == other
    run("subset", dataset, tmp_path / "b.lmdb", "--split", "train", "--indices", "0:2", "--invert")
    assert list(fastdata.open(tmp_path / "b.lmdb").keys) == list(expected_keys(dataset))[2:]
    run("subset", dataset, tmp_path / "c.lmdb", "--where", "split=test")
    assert list(fastdata.open(tmp_path / "c.lmdb").schema) == ["image", "label", "split"]


def expected_keys(dataset: Path) -> list[str]:
    whole = fastdata.open(dataset)
    return [
        key
        for key, split in zip(whole.keys, [one.split for one in whole], strict=True)
        if not split
    ]


@pytest.mark.parametrize("format", ["folder", "webdataset", "tfrecord", "parquet"])
def test_export_writes_a_split(dataset: Path, tmp_path: Path, format: str) -> None:
    run("export", dataset, tmp_path / "out", "--format", format, "--split", "val")
    fastdata.pack(tmp_path / "out", tmp_path / "b.lmdb", num_workers=0, progress=False)
    again = fastdata.open(tmp_path / "b.lmdb")
    assert list(again.schema) == ["image", "label"]
    assert len(again) == 3


def test_view_shows_a_split(dataset: Path, tmp_path: Path) -> None:
    shown = run_json("view", dataset, "--html", tmp_path / "a.html", "--split", "val")
    assert shown["num_samples"] == 3
    assert "split=&#34;val&#34;" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize("command", ["tune-workers", "profile"])
def test_measuring_takes_one_split(dataset: Path, command: str) -> None:
    few = ["--batch-size", "2", "--seconds", "1", "--crop", "8"]
    refused = run(command, dataset, *few)
    assert refused.exit_code == 2
    assert "--split train" in refused.stderr
    assert "val (3 samples)" in refused.stderr
    done = run(command, dataset, *few, "--split", "train", "--json")
    assert json.loads(done.stdout)


def test_the_code_of_a_report_takes_a_split(dataset: Path, folder: Path, tmp_path: Path) -> None:
    report = fastdata.pack(folder, tmp_path / "b.lmdb", num_workers=0, progress=False)
    for code in (report.load_code, run_json("info", dataset)["load_code"]):
        found: dict[str, Any] = {}
        exec(code, found)
        with found["loader"] as loader:
            images, _ = next(iter(loader))
        assert len(images) == 6
