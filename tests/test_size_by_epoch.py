"""Progressive resizing: sizes of crops that grow by the epoch, in batches of any loader."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from boxed import boxed_shard, check_seen
from memory_data import MemoryData, digest
from worker_helpers import unchanged

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.errors import OptionError

SIZES = {0: (16, 16), 2: (24, 20), 3: (40, 40)}
SIDES = [(16, 16), (16, 16), (24, 20), (40, 40), (40, 40)]
FLIP = T.RandomHorizontalFlip()

TRANSFORMS: dict[str, Any] = {
    "RandomResizedCrop": lambda size: [T.RandomResizedCrop(size), FLIP],
    "CenterCrop": lambda size: [T.Resize(60), T.CenterCrop(size)],
    "RandomCrop": lambda size: [T.RandomCrop(size), FLIP],
    "Resize": lambda size: [FLIP, T.Resize(size)],
}
WAYS: dict[str, dict[str, Any]] = {
    "caller": {"num_workers": 0},
    "threads": {"num_workers": 2, "prefetch_factor": 4},
    "processes": {"num_workers": 2, "worker_method": "process"},
    "device": {"cache": "device", "device": "cpu"},
    "callables": {"num_workers": 0},
    "whole batches": {"num_workers": 0},
    "views": {"num_workers": 0, "fields": ["image", "number"]},
}


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return boxed_shard(tmp_path_factory.mktemp("sizes") / "boxed.lmdb")


def epochs_of(data: Any, transform: Any, way: str, number: int = 5) -> list[list[Any]]:
    if way == "callables":
        transform = [*transform, T.PerSample(unchanged)]
    elif way == "whole batches":
        transform = [T.CenterCrop(64), T.RandomGrayscale(0.5), *transform]
    elif way == "views":
        transform = [T.Views(2, transform)]
    options = {"batch_size": 16, "shuffle": True, "drop_last": True, **WAYS[way]}
    with fastdata.loader(data, transform=transform, **options) as loader:
        return [list(loader) for _ in range(number)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_each_epoch_has_the_batches_of_its_own_size(boxed: Path, name: str, way: str) -> None:
    """Epochs join: batches of two epochs are in work at the same time."""
    make = TRANSFORMS[name]
    found = epochs_of(boxed, make(SIZES), way)
    expected = {side: epochs_of(boxed, make(side), way) for side in dict.fromkeys(SIDES)}
    for epoch, side in enumerate(SIDES):
        for batch in found[epoch]:
            images = batch.image if way == "views" else [batch.image]
            assert {tuple(image.shape[2:]) for image in images} == {side}
        assert digest(found[epoch]) == digest(expected[side][epoch])


def test_boxes_follow_images_of_all_sizes(boxed: Path) -> None:
    epochs = epochs_of(boxed, [T.RandomResizedCrop({0: 30, 1: 50}, scale=(0.5, 1))], "caller", 2)
    assert all(check_seen(one.image, one.boxes, atol=3) for epoch in epochs for one in epoch)


def test_set_epoch_decides_the_size_and_so_does_a_state(boxed: Path) -> None:
    options: dict[str, Any] = {"batch_size": 8, "transform": T.RandomResizedCrop(SIZES)}
    with fastdata.loader(boxed, num_workers=2, **options) as loader:
        loader.set_epoch(3)
        epoch = iter(loader)
        assert next(epoch).image.shape[2:] == (40, 40)
        state = loader.state_dict()
        epoch.close()
        loader.set_epoch(2)
        assert next(iter(loader)).image.shape[2:] == (24, 20)
    with fastdata.loader(boxed, num_workers=0, **options) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).image.shape[2:] == (40, 40)


def test_a_short_side_by_epoch() -> None:
    data = MemoryData(8, size=(30, 45))
    with fastdata.loader(data, batch_size=8, transform=T.Resize({0: 10, 1: 20})) as loader:
        assert [tuple(batch.image.shape[2:]) for _ in range(2) for batch in loader] == [
            (10, 15),
            (20, 30),
        ]


def test_a_schedule_is_shown(boxed: Path) -> None:
    crop = T.RandomResizedCrop({2: 32, 0: 16})
    assert repr(crop).startswith("RandomResizedCrop(size={0: (16, 16), 2: (32, 32)}, ")
    assert repr(T.Resize({0: 16, 4: 20})).startswith("Resize(size={0: 16, 4: 20}")
    assert crop == pickle.loads(pickle.dumps(crop)) == T.RandomResizedCrop({0: [16], 2: (32, 32)})
    assert crop.output_size is None
    with fastdata.loader(boxed, batch_size=4, transform=crop, num_workers=0) as loader:
        assert "uint8 [4, 3, 16, 16], contiguous, 32 x 32 from epoch 2\n" in repr(loader)
        loader.set_epoch(2)
        assert "uint8 [4, 3, 32, 32], contiguous\n" in repr(loader)


@pytest.mark.parametrize("size", [{}, {1: 16}, {0: 16, -1: 8}, {0: 16, "6": 24}, {0.0: 16}])
def test_a_schedule_begins_with_epoch_0(size: Any) -> None:
    with pytest.raises(OptionError, match=r"size by epoch is \{first epoch: size\} with epochs"):
        T.RandomResizedCrop(size)


def test_each_size_of_a_schedule_is_checked() -> None:
    with pytest.raises(OptionError, match="size=0 is not an integer from 1"):
        T.CenterCrop({0: 16, 2: 0})
    with pytest.raises(OptionError, match="max_size 20 must be greater than size 24"):
        T.Resize({0: 16, 3: 24}, max_size=20)
    with pytest.raises(OptionError, match=r"max_size goes with a short side"):
        T.Resize({0: 16, 3: (24, 24)}, max_size=20)


def test_a_crop_that_is_too_large_in_a_later_epoch_is_refused_at_once() -> None:
    with pytest.raises(OptionError, match="RandomCrop takes 30 x 30 pixels, but sample 0 has 20"):
        fastdata.loader(MemoryData(20), batch_size=4, transform=T.RandomCrop({0: 16, 9: 30}))
    with pytest.raises(OptionError, match="a batch needs images of one size"):
        fastdata.loader(MemoryData(20), batch_size=4, transform=T.Resize({0: (9, 9), 9: 30}))


def test_a_dataset_has_no_epoch(boxed: Path) -> None:
    """Its samples would have the first size for ever, in silence."""
    data = fastdata.open(boxed)
    data.transform = [T.RandomResizedCrop({0: 16, 2: 24})]
    with pytest.raises(OptionError, match=r"size \{0: .*depends on the epoch, which a dataset"):
        data[0]
    with fastdata.loader(data, batch_size=4, num_workers=0) as loader:
        loader.set_epoch(2)
        assert next(iter(loader)).image.shape == (4, 3, 24, 24)
