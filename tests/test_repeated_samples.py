"""A sample that comes more than once in an epoch draws anew each time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from boxed import boxed_shard, check_seen
from ranks import run_ranks
from samples import encode, photo, write_shard
from torch.utils.data import DistributedSampler

import fastdata
from fastdata import transforms as T  # noqa: N812
from fastdata.formats.writer import Record
from fastdata.schema import ImageField, ScalarField, Schema

COUNT = 7
NUMBERED = Schema({"image": ImageField(), "number": ScalarField("int64")})
CROP = T.RandomResizedCrop(16, scale=(0.1, 0.6))


def shuffle_rows(image: torch.Tensor) -> torch.Tensor:
    return image[:, torch.randperm(image.shape[1])]


TRANSFORMS: dict[str, Any] = {
    "geometry": CROP,
    "callable": [T.CenterCrop(32), shuffle_rows],
    "of batches": [T.CenterCrop(32), T.RandomErasing(1.0)],
    "views": T.Views(2, [CROP]),
}
ORDERS: dict[str, dict[str, Any]] = {
    "weights": {"weights": np.arange(1.0, COUNT + 1), "batch_size": 4},
    "sampler": {"sampler": [0, 1, 1, 2, 0, 3, 3, 3, 1], "batch_size": 4},
    "batch_sampler": {"batch_sampler": [[5, 5], [5, 2, 2], [6], [2]]},
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("packed") / "data.lmdb"
    images = [encode(photo(40, 48, seed=number), "raw") for number in range(COUNT)]
    records = [Record(f"{number}", (image, number)) for number, image in enumerate(images)]
    return str(write_shard(path, records, NUMBERED))


def pictures(batches: Any) -> list[tuple[int, bytes]]:
    """Return each sample's number, and its pixels; of views, those of the first."""
    made = []
    for images, numbers in batches:
        for image, number in zip(images, numbers.tolist(), strict=True):
            made.append((number, image.contiguous().numpy().tobytes()))
    return made


def epoch_of(path: str, order: dict[str, Any], **options: Any) -> list[tuple[int, bytes]]:
    with fastdata.loader(path, **order, **{"num_workers": 0, **options}) as loader:
        batches = list(loader)
    if isinstance(batches[0].image, list):
        views = [[(b.image[at], b.number) for b in batches] for at in range(len(batches[0].image))]
        return [one for view in views for one in pictures(view)]
    return pictures(batches)


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("order", ORDERS)
def test_each_time_is_drawn_anew(packed: str, order: str, transform: str) -> None:
    made = epoch_of(packed, ORDERS[order], transform=TRANSFORMS[transform])
    assert len(set(made)) == len(made)
    assert len({number for number, _ in made}) < len(made)


@pytest.mark.parametrize(
    ("order", "transform"),
    [
        ("weights", "geometry"),
        ("weights", "callable"),
        ("sampler", "geometry"),
        ("batch_sampler", "callable"),
    ],
)
def test_workers_change_nothing(packed: str, order: str, transform: str) -> None:
    options = {"transform": TRANSFORMS[transform]}
    made = epoch_of(packed, ORDERS[order], **options)
    assert epoch_of(packed, ORDERS[order], num_workers=2, **options) == made
    process = {"num_workers": 2, "worker_method": "process"}
    assert epoch_of(packed, ORDERS[order], **process, **options) == made


@pytest.mark.parametrize("order", ORDERS)
def test_a_resumed_epoch_goes_on_with_the_same_draws(packed: str, order: str) -> None:
    options: dict[str, Any] = {**ORDERS[order], "transform": CROP, "num_workers": 0}
    whole = epoch_of(packed, ORDERS[order], transform=CROP)
    with fastdata.loader(packed, **options) as loader, fastdata.loader(packed, **options) as other:
        begun = iter(loader)
        first = pictures([next(begun)])
        other.load_state_dict(loader.state_dict())
        assert first + pictures(other) == whole


def test_a_cache_on_the_device_draws_the_same(packed: str) -> None:
    for order in ORDERS.values():
        made = epoch_of(packed, order, transform=CROP)
        assert epoch_of(packed, order, transform=CROP, cache="device", device="cpu") == made


def test_weighted_draws_are_the_same_for_any_number_of_ranks(packed: str) -> None:
    weights = np.ones(COUNT)
    whole = epoch_of(packed, {"weights": weights, "batch_size": 6}, transform=CROP)
    shares = [
        epoch_of(
            packed,
            {"weights": weights, "batch_size": 3, "rank": rank, "world_size": 2},
            transform=CROP,
        )
        for rank in range(2)
    ]
    assert shares[0][:3] + shares[1][:3] == whole[:6]


def test_orders_without_repetition_draw_by_the_sample(packed: str) -> None:
    in_order = epoch_of(packed, {"batch_size": 3, "shuffle": False}, transform=CROP)
    shuffled = epoch_of(packed, {"batch_size": 2, "shuffle": True}, transform=CROP)
    assert shuffled != in_order
    assert sorted(shuffled) == in_order


def test_boxes_follow_each_time(tmp_path: Path) -> None:
    path = boxed_shard(tmp_path / "boxed.lmdb", count=8)
    transform = [T.RandomResizedCrop(48, scale=(0.4, 1.0)), T.RandomHorizontalFlip()]
    order = {"batch_sampler": [[3, 3, 3, 2], [3, 7, 7, 2]]}
    with fastdata.loader(path, **order, transform=transform, num_workers=0) as loader:
        for batch in loader:
            assert check_seen(batch.image, batch.boxes) > 0


class Repeated(DistributedSampler[int]):
    """Repeated augmentation (Hoffer et al. 2020), as timm's RASampler: a sample on all ranks."""

    def __iter__(self) -> Any:
        return iter(range(COUNT))

    def __len__(self) -> int:
        return COUNT


def repeated_on_ranks(path: str) -> dict[int, bytes]:
    data = fastdata.open(path)
    return dict(epoch_of(path, {"sampler": Repeated(data), "batch_size": 4}, transform=CROP))


def test_ranks_whose_samplers_give_the_same_sample_draw_apart(packed: str) -> None:
    one, other = run_ranks(repeated_on_ranks, 2, packed, group=True)
    assert list(one) == list(other) == list(range(COUNT))
    assert all(one[number] != other[number] for number in one)


def test_draws_are_spread(packed: str) -> None:
    """1,000 times one sample: mirrored about as often as not."""
    order = {"sampler": [4] * 1000, "batch_size": 100}
    made = epoch_of(packed, order, transform=T.RandomHorizontalFlip())
    kinds: defaultdict[bytes, int] = defaultdict(int)
    for _, pixels in made:
        kinds[pixels] += 1
    assert len(kinds) == 2
    assert min(kinds.values()) > 400
