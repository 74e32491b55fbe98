"""Torch's parts and sums of packed datasets are packed datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import LABELLED, make_records, write_shard, write_shards
from torch.utils.data import ConcatDataset, Subset, TensorDataset, random_split

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.engine.contracts import is_packed
from fastdata.errors import FormatError, OptionError
from fastdata.packed_views import packed_view
from fastdata.schema import ImageField, ScalarField, Schema


@pytest.fixture
def one(tmp_path: Path) -> fastdata.Dataset:
    return fastdata.open(write_shard(tmp_path / "one.lmdb", make_records()))


@pytest.fixture
def two(tmp_path: Path) -> fastdata.Dataset:
    """Five samples in two shards, called otherwise than those of `one`."""
    records = [record._replace(key=f"two {n}") for n, record in enumerate(make_records(count=5))]
    return fastdata.open(write_shards(tmp_path / "two", [records[:2], records[2:]]))


def packed(data: Any) -> fastdata.Dataset:
    view = packed_view(data)
    assert view is not None
    assert is_packed(view)
    return view


def check(data: Any, keys: list[str]) -> None:
    """Compare a view with what torch makes of the same, sample by sample."""
    view = packed(data)
    assert list(view.keys) == keys
    assert len(view) == len(data)
    for index in range(len(data)):
        assert view[index].label == data[index].label
        assert torch.equal(view[index].image, data[index].image)
    if keys:
        everything = np.arange(len(view))
        assert view._gather("label", everything).tolist() == [sample.label for sample in data]


def test_a_dataset_is_its_own_view(one: fastdata.Dataset) -> None:
    assert packed_view(one) is one


@pytest.mark.parametrize(
    "indices",
    [
        [4, 0, 0, 2],
        (5, 1),
        range(1, 5, 2),
        [],
        np.array([3, 3]),
        torch.tensor([2, 5]),
        [torch.tensor(1), torch.tensor(4)],
        [-1, 0],
    ],
    ids=repr,
)
def test_a_subset_shows_its_samples(one: fastdata.Dataset, indices: Any) -> None:
    check(Subset(one, indices), [one.keys[int(i)] for i in indices])


def test_parts_of_random_split_are_packed(one: fastdata.Dataset) -> None:
    parts = random_split(one, [4, 2], generator=torch.Generator().manual_seed(1))
    for part in parts:
        check(part, [one.keys[i] for i in part.indices])
    digests = {packed(part).digest for part in parts}
    assert len(digests | {one.digest}) == 3


def test_a_sum_is_one_dataset_over_all_shards(one: fastdata.Dataset, two: fastdata.Dataset) -> None:
    check(one + two, [*one.keys, *two.keys])
    check(two + one + two, [*two.keys, *one.keys, *two.keys])
    view, opened = packed(one + two), fastdata.open([one.paths[0], *two.paths])
    assert view.paths == opened.paths
    assert view.digest == opened.digest
    assert not view.is_subset
    assert packed(one + one).paths == one.paths


def test_nests_are_one_dataset(one: fastdata.Dataset, two: fastdata.Dataset) -> None:
    nested = Subset(ConcatDataset([Subset(one, [5, 2]), two[::-1], one + two]), [6, 1, 0, 12, 17])
    check(nested, ["two 0", one.keys[2], one.keys[5], one.keys[5], "two 4"])
    check(ConcatDataset([one[:3], one[3:]]), list(one.keys))
    assert packed(ConcatDataset([one[:3], one[3:]])).digest == one.digest


class OwnSubset(Subset[Any]):
    def __getitems__(self, indices: Any) -> Any:
        return [sample.label for sample in super().__getitems__(indices)]


class OwnConcat(ConcatDataset[Any]):
    pass


def test_anything_else_is_not_packed(one: fastdata.Dataset) -> None:
    tensors: Any = TensorDataset(torch.zeros(3))
    others = [
        None,
        "train.lmdb",
        [one],
        tensors,
        Subset(tensors, [0]),
        OwnSubset(one, [0]),
        Subset(OwnSubset(one, [0, 1]), [0]),
        OwnConcat([one, one]),
        ConcatDataset([one, tensors]),
    ]
    assert [packed_view(other) for other in others] == [None] * len(others)


def test_views_have_the_transform_and_the_format(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "one.h5", make_records())
    names = {"image": "pixel_values"}
    crop = T.CenterCrop(8)
    dataset = fastdata.open(path, transform=crop, batch_format="dict", names=names)
    for data in (Subset(dataset, [3, 1]), dataset + dataset, random_split(dataset, [3, 3])[1]):
        view = packed(data)
        assert view.transform is crop
        assert view.record_format == dataset.record_format
        assert list(view[1]) == ["pixel_values", "label"]
        assert view[1]["pixel_values"].shape == (3, 8, 8)


def test_parts_that_differ_are_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "one.h5", make_records())
    other = Schema({"image": ImageField(), "label": ScalarField(classes=("dog", "cat", "newt"))})
    assert other != LABELLED
    strange = fastdata.open(write_shard(tmp_path / "strange.h5", make_records(other), other))
    plain = fastdata.open(path)
    with pytest.raises(
        FormatError, match=r"strange\.h5 and .*one\.h5 have different fields: 'label'"
    ):
        packed_view(plain + strange)
    cropped = fastdata.open(path, transform=T.CenterCrop(8))
    with pytest.raises(OptionError, match=r"one transform, but that of .*one\.h5 is None and tha"):
        packed_view(plain + cropped)
    same = fastdata.open(path, transform=T.CenterCrop(8))
    assert packed(cropped + same).transform == T.CenterCrop(8)
    with pytest.raises(OptionError, match=r"one record_format, but that of .*RecordFormat\(batch"):
        packed_view(plain + fastdata.open(path, batch_format="dict"))


def test_what_torch_would_not_do_is_refused(one: fastdata.Dataset) -> None:
    part: Any = Subset(one, [0])
    part.transform = T.CenterCrop(8)
    with pytest.raises(OptionError, match="'transform' has been set on a torch Subset, which do"):
        packed_view(part)
    both: Any = one + one
    both.transform = T.CenterCrop(8)
    with pytest.raises(OptionError, match="'transform' has been set on a torch ConcatDataset"):
        packed_view(both)
    with pytest.raises(TypeError, match="a torch Subset has a mask for its indices"):
        packed_view(Subset(one, [True, False, True, True, True, True]))
    with pytest.raises(IndexError, match="index 6 for a dataset of 6 samples"):
        packed_view(Subset(one, [0, 6]))


def test_a_part_is_packed_again_as_it_is_stored(one: fastdata.Dataset, tmp_path: Path) -> None:
    part = random_split(one, [4, 2])[0]
    fastdata.pack(part, tmp_path / "part.lmdb", codec="keep", num_workers=0, progress=False)
    copy = fastdata.open(tmp_path / "part.lmdb")
    assert list(copy.keys) == [one.keys[i] for i in part.indices]
    assert copy.classes == one.classes


def test_a_loader_takes_parts_and_sums_as_packed_data(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "one.h5", make_records(size=(20, 30)))
    dataset = fastdata.open(path, transform=T.CenterCrop(8))
    part = random_split(dataset, [4, 2], generator=torch.Generator().manual_seed(0))[0]
    for data in (part, dataset + dataset):
        loader = fastdata.loader(data, batch_size=16, num_workers=0)
        assert isinstance(loader, fastdata.Loader)
        (batch,) = loader
        assert torch.equal(batch.image, torch.stack([sample.image for sample in data]))
        assert batch.label.tolist() == [sample.label for sample in data]
